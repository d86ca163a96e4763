"""Faulty: linear attention over a long sequence gives NaN, although its author casts the operands to FP32.

Cause: autocast casts the operands of a product back to FP16, and the sum over 1024 positions exceeds 65504.
Repair: `.float()` and `torch.autocast("cpu", enabled=False)` around the products, or divide the keys by the length first.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(29)


class LinearAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k = F.elu(self.to_q(x)) + 1, F.elu(self.to_k(x)) + 1
        v = self.to_v(x)
        q, k, v = q.float(), k.float(), v.float()
        context = k.transpose(1, 2) @ v
        z = 1 / (q @ k.sum(1).unsqueeze(-1) + 1e-6)
        return self.out((q @ context) * z)


class Model(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed, self.attention, self.head = nn.Linear(4, dim), LinearAttention(dim), nn.Linear(dim, 1)

    def forward(self, x):
        h = 6 * self.embed(x)
        return self.head(h + self.attention(h)).mean(1)


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
for step in range(30):
    x = torch.randn(4, 1024, 4) + 2
    y = x.mean((1, 2)).unsqueeze(1)
    with torch.autocast("cpu", dtype=torch.float16):
        pred = model(x)
    loss = F.mse_loss(pred.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 5 == 4:
        print(f"step {step}: loss {loss.item():.4f} scale {scaler.get_scale():g}")
