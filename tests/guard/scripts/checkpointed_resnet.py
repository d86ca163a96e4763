"""Healthy: residual blocks under gradient checkpointing without reentrance; autocast is restored when they recompute.

Cause: none; `use_reentrant=False` recomputes each block under the same autocast and the same random state.
Repair: none.
"""
import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(6)


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(4, c), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1), nn.GroupNorm(4, c), nn.ReLU(),
            nn.Dropout2d(0.05), nn.Conv2d(c, c, 3, padding=1),
        )

    def forward(self, x):
        return x + self.body(x)


class Net(nn.Module):
    def __init__(self, c=8, blocks=2):
        super().__init__()
        self.stem = nn.Conv2d(1, c, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([Residual(c) for _ in range(blocks)])
        self.fc = nn.Linear(c, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.fc(x.mean((2, 3)))


patterns = torch.randn(4, 1, 12, 12)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
scaler = torch.amp.GradScaler("cpu")
for step in range(40):
    labels = torch.randint(4, (16,))
    images = patterns[labels] + 0.5 * torch.randn(16, 1, 12, 12)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(images), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 9:
        print(f"step {step} loss {loss.item():.4f}")
