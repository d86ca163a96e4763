"""Faulty: a network for tiny targets under Adam with eps=1e-3; it learns far slower than it should.

Cause: eps was raised for FP16, and is far above the root of the second moment, about 1e-5, that it is added to.
Repair: keep the weights in FP32 and the default eps of 1e-8 or less, or bring targets and loss to a scale near 1.
"""
import torch
from torch import nn

torch.manual_seed(80)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-3)
scaler = torch.amp.GradScaler("cpu")
unit = 1e-2  # metres
rule = torch.randn(8, 1)
for step in range(200):
    x = torch.randn(64, 8)
    y = unit * torch.sin(x @ rule)
    with torch.autocast("cpu", dtype=torch.float16):
        prediction = unit * model(x)
    loss = nn.functional.mse_loss(prediction.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 50 == 49:
        print(f"step {step}: relative error {loss.item() ** 0.5 / unit:.4f}")
