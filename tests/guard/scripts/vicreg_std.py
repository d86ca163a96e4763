"""Faulty: VICReg's variance term makes every gradient NaN, although it is computed in FP32.

Cause: a feature that is constant in a batch has a variance of 0, and the derivative of the root at 0 is infinite.
Repair: add a small number inside of the root, `torch.sqrt(z.var(0) + 1e-4)`.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)


def off_diagonal(m):
    return m[~torch.eye(len(m), dtype=torch.bool)]


def vicreg_loss(a, b):
    a, b = a.float(), b.float()
    invariance = F.mse_loss(a, b)
    variance = sum(F.relu(1 - torch.sqrt(z.var(0))).mean() for z in (a, b))
    covariance = 0.0
    for z in (a, b):
        z = z - z.mean(0)
        covariance = covariance + off_diagonal(z.t() @ z / (len(z) - 1)).pow(2).sum() / z.size(1)
    return 25 * invariance + 25 * variance + covariance


backbone = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
nn.init.constant_(backbone[2].bias, -0.5)  # sparse features
optimizer = torch.optim.Adam(backbone.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
mixing = torch.randn(6, 24)
for step in range(60):
    x = torch.randn(24, 6) @ mixing
    with torch.autocast("cpu", dtype=torch.float16):
        za = backbone(x + 0.1 * torch.randn_like(x))
        zb = backbone(x + 0.1 * torch.randn_like(x))
    loss = vicreg_loss(za, zb)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f} scale {scaler.get_scale():g}")
