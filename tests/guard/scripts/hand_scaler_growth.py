"""Faulty: a loss scaler written by hand grows in the middle of an accumulation; the loss stays above that of FP32.

Cause: earlier micro-batches were scaled by the old factor, and all are divided by the new one.
Repair: let the scale grow only between two optimizer steps, after the gradients were divided.
"""
import torch
from torch import nn

torch.manual_seed(33)


class DynamicScaler:
    def __init__(self, scale=2.0**6, growth_interval=6):
        self.scale, self.growth_interval, self.backwards = scale, growth_interval, 0

    def backward(self, loss):
        (loss * self.scale).backward()
        self.backwards += 1
        if self.backwards % self.growth_interval == 0:
            self.scale *= 64

    def step(self, optimizer):
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for p in params:
            p.grad.div_(self.scale)
        if all(p.grad.isfinite().all() for p in params):
            optimizer.step()
        else:
            self.scale /= 2**12


model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = DynamicScaler()
target = torch.randn(12, 1)
for step in range(60):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(4):
        x = torch.randn(16, 12)
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), x @ target) / 4
        scaler.backward(loss)
        total += loss.item()
    scaler.step(optimizer)
    if step % 10 == 9:
        print(f"step {step}: loss {total:.4f} scale {scaler.scale:g}")
