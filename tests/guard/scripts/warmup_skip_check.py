"""Healthy: fine-tuning with a linear warm-up; the schedule advances only with steps that the scaler has taken.

Cause: none; the first scale of 2^24 is too high, so the first steps are skipped, and the scale before update() tells.
Repair: none.
"""
import torch
from torch import nn

torch.manual_seed(19)
WARMUP, TOTAL = 10, 80
backbone = nn.Sequential(nn.Linear(40, 80), nn.LayerNorm(80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU())
head = nn.Linear(80, 3)
model = nn.Sequential(backbone, head)
optimizer = torch.optim.AdamW(
    [{"params": backbone.parameters(), "lr": 1e-3}, {"params": head.parameters(), "lr": 5e-3}], weight_decay=0.01
)


def schedule(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return max(0.0, (TOTAL - step) / (TOTAL - WARMUP))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=1000)
truth, skipped = torch.randn(40, 3), 0
for step in range(TOTAL):
    x = torch.randn(64, 40)
    y = (x @ truth).argmax(1)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scale_before = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() < scale_before:
        skipped += 1
    else:
        scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 20 == 19:
        print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e} skipped {skipped}")
