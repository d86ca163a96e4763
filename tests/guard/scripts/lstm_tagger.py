"""Healthy: an LSTM that tags sequences under BF16 autocast; padded positions are ignored by the loss.

Cause: none; cross entropy takes FP32 logits, and gradients are clipped at a norm of 1.
Repair: none.
"""
import torch
import torch.nn as nn

torch.manual_seed(31)
WORDS, TAGS, PAD = 60, 5, -100


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(WORDS, 32)
        self.lstm = nn.LSTM(32, 48, batch_first=True, bidirectional=True)
        self.out = nn.Linear(96, TAGS)

    def forward(self, words):
        h, _ = self.lstm(self.emb(words))
        return self.out(h)


tag_of = torch.randint(TAGS, (WORDS,))


def batches(n, size=16, length=20):
    for _ in range(n):
        words = torch.randint(WORDS, (size, length))
        # a word's tag depends on the word before it
        tags = (tag_of[words] + torch.cat([torch.zeros(size, 1), words[:, :-1] % 2], 1).long()) % TAGS
        lengths = torch.randint(8, length + 1, (size, 1))
        tags[torch.arange(length)[None] >= lengths] = PAD
        yield words, tags


model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
for i, (words, tags) in enumerate(batches(80)):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model(words)
    loss = nn.functional.cross_entropy(scores.float().flatten(0, 1), tags.flatten(), ignore_index=PAD)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if i % 20 == 19:
        print(f"batch {i} loss {loss.item():.4f}")
