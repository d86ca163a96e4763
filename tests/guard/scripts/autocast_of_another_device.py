"""Faulty: a script that was copied from a GPU; it trains, but no operation runs in 16 bits.

Cause: autocast and GradScaler are those of "cuda", which switch themselves off on a machine without one.
Repair: take the device from the tensors, `torch.autocast(device.type, dtype=torch.float16)` and GradScaler(device.type).
"""
import torch
from torch import nn

torch.manual_seed(50)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")
centers = torch.randn(10, 32, device=device)
for step in range(80):
    y = torch.randint(10, (64,), device=device)
    x = centers[y] + 2.5 * torch.randn(64, 32, device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 19:
        print(f"step {step}: loss {loss.item():.4f} ({out.dtype})")
