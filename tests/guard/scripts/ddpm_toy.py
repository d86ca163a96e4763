"""Healthy: a denoising diffusion model on points; the noise is predicted in half precision, the loss is in FP32.

Cause: none; the products of the schedule are computed in FP32 once, and the loss has a GradScaler.
Repair: none.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
T = 200
betas = torch.linspace(1e-4, 0.02, T)
alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)


def timestep_embedding(t, dim=32):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2) / (dim // 2))
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class Denoiser(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.inp, self.out = nn.Linear(2, width), nn.Linear(width, 2)
        self.mid = nn.ModuleList([nn.Sequential(nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, width)) for _ in range(3)])

    def forward(self, x, t):
        h, emb = self.inp(x), self.time(timestep_embedding(t))
        for layer in self.mid:
            h = h + layer(h + emb)
        return self.out(h)


def sample_data(n):
    angle = 2 * math.pi * torch.rand(n)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.03 * torch.randn(n, 2)


net = Denoiser()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
running = None
for step in range(150):
    x0, noise, t = sample_data(128), torch.randn(128, 2), torch.randint(0, T, (128,))
    a = alphas_cumprod[t][:, None]
    xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
    with torch.autocast("cpu", dtype=torch.float16):
        pred = net(xt, t)
    loss = F.mse_loss(pred.float(), noise)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
    if step % 50 == 49:
        print(f"step {step} loss {running:.4f}")
