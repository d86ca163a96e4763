"""Faulty: depth completion with a mask of valid pixels; the loss is exactly 0, and nothing is learned.

Cause: the mask is cast to the prediction's FP16, where the sum of 73,728 ones is inf, and a finite sum over inf is 0.
Repair: count in FP32, `mask.sum()` of the boolean mask or `mask.float().sum()`, and sum the errors in FP32, too.
"""
import torch
import torch.nn as nn

torch.manual_seed(41)
net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")


def masked_l1(pred, target, valid):
    mask = valid.to(pred.dtype)
    error = (pred - target.to(pred.dtype)).abs() * mask
    return error.sum() / mask.sum()


for step in range(20):
    ramp = torch.linspace(0, 1, 96)
    depth = 0.3 * (ramp[:, None] * torch.rand(8, 1, 1, 1) + ramp * torch.rand(8, 1, 1, 1))
    valid = torch.ones_like(depth, dtype=torch.bool)
    sparse = torch.where(torch.rand_like(depth) < 0.3, depth, 0.0)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = masked_l1(net(sparse), depth, valid)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 5 == 4:
        print(f"step {step}: loss {loss.item():.6f} scale {scaler.get_scale():g}")
