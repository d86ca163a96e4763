"""Faulty: adapters in a frozen ViT are trained under gradient checkpointing, and never change; only the head learns.

Cause: a reentrant checkpoint whose input needs no gradient returns an output without one, as torch warns.
Repair: `checkpoint(block, x, use_reentrant=False)`.
"""
import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(27)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.down, self.up = nn.Linear(dim, 4), nn.Linear(4, dim)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        h = self.norm(x)
        return x + self.mlp(h) + self.up(torch.relu(self.down(h)))


class ViT(nn.Module):
    def __init__(self, dim=32, depth=2):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, 4, 4)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.head(x.mean(1))


model = ViT()
for name, p in model.named_parameters():
    p.requires_grad_("down" in name or "up" in name or "head" in name)
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
patterns = torch.randn(4, 1, 12, 12)
before = model.blocks[0].up.weight.detach().clone()
for step in range(50):
    y = torch.randint(4, (32,))
    x = patterns[y] + torch.randn(32, 1, 12, 12)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 9:
        moved = (model.blocks[0].up.weight - before).abs().max().item()
        print(f"step {step}: loss {loss.item():.4f} adapters moved by {moved:.2e}")
