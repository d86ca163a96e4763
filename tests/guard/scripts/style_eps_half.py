"""Faulty: embeddings with many zero rows give NaN from the first batch on.

Cause: the epsilon of 1e-8 is zero in FP16, in the norm of features, in the cosine and in the log.
Repair: compute these three in FP32, or take an epsilon of 1e-4 or more.
"""
import torch
import torch.nn as nn

torch.manual_seed(38)
EPS = 1e-8


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(20, 64), nn.Linear(64, 16)

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        h = h / (h.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
        return torch.relu(self.fc2(h))


def cosine(a, b):
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1) + EPS)


def pair_loss(a, b, same):
    p = (cosine(a, b) + 1) / 2
    return -(same * (p + EPS).log() + (1 - same) * (1 - p + EPS).log()).mean()


model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(40):
    x = torch.randn(64, 20)
    x[::8] = 0.0  # images that are padding
    other = torch.where(torch.rand(64, 1) < 0.5, x, torch.randn(64, 20))
    same = (other == x).all(1).half()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = pair_loss(model(x), model(other), same)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f} scale {scaler.get_scale():g}")
