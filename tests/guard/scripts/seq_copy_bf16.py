"""Healthy: a transformer under BF16 autocast learns to repeat a sequence; a causal mask of -inf is added to the scores.

Cause: none; every row of the mask has an entry of 0, and the logits are cast to FP32 before the loss.
Repair: none.
"""
import torch
import torch.nn as nn

torch.manual_seed(17)
VOCAB, HALF, DIM = 12, 6, 48
LENGTH = 2 * HALF


class CopyTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Parameter(0.02 * torch.randn(LENGTH, DIM))
        layer = nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, VOCAB)
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, tokens):
        n = tokens.size(1)
        x = self.tok(tokens) + self.pos[:n]
        return self.head(self.encoder(x, mask=self.mask[:n, :n], is_causal=True))


model = CopyTransformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=10)
for step in range(80):
    first = torch.randint(VOCAB, (32, HALF))
    tokens = torch.cat([first, first], 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    # the second half can be predicted
    loss = nn.functional.cross_entropy(logits[:, HALF - 1 :].float().flatten(0, 1), tokens[:, HALF:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 20 == 19:
        print(f"step {step} loss {loss.item():.4f}")
