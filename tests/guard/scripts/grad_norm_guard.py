"""Faulty: batches with an unusual gradient norm are left out, and the script ends with an error at the next unscale_.

Cause: `continue` leaves out scaler.update() with the step, so the scaler still counts the optimizer as unscaled.
Repair: call scaler.update() before `continue`.
"""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
true_weights = torch.randn(30, 1)
max_norm, skipped = 25.0, 0

for step in range(200):
    x = torch.randn(32, 30)
    if step % 23 == 22:
        x[0] *= 20  # an outlier that the sensor reports now and then
    y = x @ true_weights
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    loss = nn.functional.mse_loss(out.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    if norm > max_norm:
        skipped += 1
        print(f"step {step}: gradient norm {norm:.1f}, batch skipped")
        continue
    scaler.step(optimizer)
    scaler.update()
    if step % 50 == 49:
        print(f"step {step}: loss {loss.item():.4f}, {skipped} skipped")
