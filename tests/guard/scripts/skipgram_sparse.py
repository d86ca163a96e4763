"""Healthy: skip-gram with negative sampling; sparse gradients under SparseAdam, a dense projection under Adam.

Cause: none; the scaler coalesces sparse gradients before it unscales them, and both optimizers step before update.
Repair: none.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(13)
VOCAB, DIM, NEG = 400, 32, 5


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.center = nn.Embedding(VOCAB, DIM, sparse=True)
        self.context = nn.Embedding(VOCAB, DIM, sparse=True)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, center, positive, negative):
        c = self.proj(self.center(center))
        pos = (c * self.context(positive)).sum(-1)
        neg = torch.bmm(self.context(negative), c.unsqueeze(2)).squeeze(2)
        return -(F.logsigmoid(pos.float()) + F.logsigmoid(-neg.float()).sum(-1)).mean()


# words of one topic stand beside each other
topics = torch.randint(20, (VOCAB,))
members = [torch.nonzero(topics == t).flatten() for t in range(20)]


def batch(size=64):
    topic = torch.randint(20, (size,)).tolist()
    pairs = torch.stack([members[t][torch.randint(len(members[t]), (2,))] for t in topic])
    return pairs[:, 0], pairs[:, 1], torch.randint(VOCAB, (size, NEG))


model = SkipGram()
sparse = torch.optim.SparseAdam([model.center.weight, model.context.weight], lr=0.02)
dense = torch.optim.Adam(model.proj.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
for step in range(100):
    sparse.zero_grad()
    dense.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(*batch())
    scaler.scale(loss).backward()
    scaler.step(sparse)
    scaler.step(dense)
    scaler.update()
    if step % 25 == 24:
        print(f"step {step} loss {loss.item():.4f}")
