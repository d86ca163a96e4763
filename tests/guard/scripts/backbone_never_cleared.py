"""Faulty: two optimizers for backbone and head; the loss falls at first and then grows.

Cause: only the head's gradients are cleared, so each step of the backbone uses the sum of all gradients so far.
Repair: clear both, `backbone_opt.zero_grad()` beside `head_opt.zero_grad()`.
"""
import torch
from torch import nn

torch.manual_seed(10)
backbone = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
head = nn.Linear(64, 4)
model = nn.Sequential(backbone, head)
backbone_opt = torch.optim.SGD(backbone.parameters(), lr=0.3)
head_opt = torch.optim.SGD(head.parameters(), lr=0.1)
centers = torch.randn(4, 20)
for step in range(120):
    y = torch.randint(4, (64,))
    x = centers[y] + 2.0 * torch.randn(64, 20)
    head_opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    backbone_opt.step()
    head_opt.step()
    if step % 20 == 19:
        print(f"step {step}: loss {loss.item():.4f}")
