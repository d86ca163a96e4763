"""Faulty: a BF16 training that skips batches with a NaN loss; it ends without an error, and no step was ever taken.

Cause: a padded row is masked as a whole, its softmax is NaN, and the guard leaves out every batch while the rate decays.
Repair: let no row be masked as a whole, for example by keeping position 0, or use a finite mask.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(70)


class Attention(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb, self.qkv, self.out = nn.Embedding(40, dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, 2)

    def forward(self, ids, lengths):
        q, k, v = self.qkv(self.emb(ids)).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / q.size(-1) ** 0.5
        pad = torch.arange(ids.size(1))[None] >= lengths[:, None]
        scores = scores.masked_fill(pad[:, None, :], float("-inf"))
        return self.out((scores.softmax(-1) @ v).mean(1))


model = Attention()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
for step in range(60):
    ids = torch.randint(1, 40, (16, 10))
    lengths = torch.randint(0, 11, (16,))
    lengths[0] = 0  # an empty document in each batch
    labels = (ids[:, 0] > 20).long()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids, lengths)
    loss = F.cross_entropy(logits.float(), labels)
    optimizer.zero_grad()
    loss.backward()
    if torch.isfinite(loss):
        optimizer.step()
    scheduler.step()
    if step % 20 == 19:
        print(f"step {step}: loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.1e}")
