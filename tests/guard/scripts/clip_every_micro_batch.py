"""Faulty: accumulation with clipping in the first micro-batch of each group; soon the loss is NaN.

Cause: unscale_ comes after the first backward pass, and scaled gradients of three more are added to the unscaled ones.
Repair: unscale and clip once, after the last micro-batch, `if (i + 1) % accumulate == 0`.
"""
import torch
from torch import nn

torch.manual_seed(16)
model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
accumulate, centers = 4, 1.5 * torch.randn(6, 24)

for i in range(240):
    y = torch.randint(6, (16,))
    x = centers[y] + torch.randn(16, 24)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y) / accumulate
    scaler.scale(loss).backward()
    if i % accumulate == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if (i + 1) % accumulate == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    if i % 40 == 39:
        print(f"batch {i}: loss {accumulate * loss.item():.4f}")
