"""Healthy: MAML on sine waves; inner gradients are taken with autograd.grad of a scaled loss, and unscaled by hand.

Cause: none; this is the order of torch's example for double backward with GradScaler.
Repair: none.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

torch.manual_seed(5)
net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
meta_opt = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
inner_lr, tasks = 0.05, 4


def sine_task():
    amplitude, phase = 0.5 + 2 * torch.rand(1), math.pi * torch.rand(1)

    def draw(n=20):
        x = 10 * torch.rand(n, 1) - 5
        return x, amplitude * torch.sin(x + phase)

    return draw


def loss_of(params, x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        out = functional_call(net, params, (x,))
    return F.mse_loss(out.float(), y)


for iteration in range(40):
    meta_loss = 0.0
    for _ in range(tasks):
        draw = sine_task()
        params = dict(net.named_parameters())
        inner = loss_of(params, *draw())
        grads = torch.autograd.grad(scaler.scale(inner), params.values(), create_graph=True)
        inv_scale = 1.0 / scaler.get_scale()
        adapted = {n: p - inner_lr * g * inv_scale for (n, p), g in zip(params.items(), grads)}
        meta_loss = meta_loss + loss_of(adapted, *draw()) / tasks
    meta_opt.zero_grad()
    scaler.scale(meta_loss).backward()
    scaler.unscale_(meta_opt)
    nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    scaler.step(meta_opt)
    scaler.update()
    if iteration % 10 == 9:
        print(f"iteration {iteration} meta loss {meta_loss.item():.4f}")
