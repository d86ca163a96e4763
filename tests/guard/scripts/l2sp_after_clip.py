"""Faulty: fine-tuning with a pull towards the pretrained weights; the loss jumps into the thousands.

Cause: the pull's scaled backward pass comes after unscale_, so its gradients are 4096 times too large in the step.
Repair: add the penalty to the loss, or run its backward pass before scaler.unscale_(optimizer).
"""
import torch
from torch import nn

torch.manual_seed(15)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 3))
start = {name: p.detach().clone() for name, p in model.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
alpha, max_norm = 1e-2, 1.0
rule = torch.randn(16, 3)


def l2_sp():
    return sum((p - start[name]).pow(2).sum() for name, p in model.named_parameters())


for step in range(80):
    x = torch.randn(64, 16)
    y = (x @ rule).argmax(1)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    # the penalty shall not be clipped
    penalty = alpha * l2_sp()
    scaler.scale(penalty).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 19:
        print(f"step {step}: loss {loss.item():.4f} penalty {penalty.item():.3e}")
