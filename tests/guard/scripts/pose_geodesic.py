"""Faulty: a pose network learns angles between unit vectors; soon most steps are skipped.

Cause: the clamp's bound 1 - 1e-6 rounds to 1 in FP16, and the derivative of acos at 1 is infinite.
Repair: compute the cosine in FP32 before the clamp, `(F.normalize(pred.float()) * target).sum(-1)`.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)
EPS = 1e-6


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3))

    def forward(self, x):
        return F.normalize(self.layers(x), dim=-1)


def geodesic(pred, target):
    cos = (pred * target.to(pred.dtype)).sum(-1)
    return torch.acos(cos.clamp(-1 + EPS, 1 - EPS)).mean()


model = PoseNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
for step in range(120):
    target = F.normalize(torch.randn(128, 3), dim=-1)
    features = torch.cat([target, -target], 1) + 0.01 * torch.randn(128, 6)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = geodesic(model(features), target)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 19:
        print(f"step {step}: angle {loss.item():.4f} rad, scale {scaler.get_scale():g}")
