"""Healthy: a training through a small class like Accelerate's, which holds the scaler and the accumulation.

Cause: none; the wrapper unscales once for each optimizer step, and steps the schedule with the optimizer only.
Repair: none.
"""
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Accelerator:
    def __init__(self, mixed_precision="no", gradient_accumulation_steps=1):
        self.dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(mixed_precision)
        self.scaler = torch.amp.GradScaler("cpu", enabled=mixed_precision == "fp16")
        self.every, self.calls, self.optimizers = gradient_accumulation_steps, 0, []

    def prepare(self, model, optimizer, loader):
        forward = model.forward

        def autocast_forward(*args, **kwargs):
            with torch.autocast("cpu", dtype=self.dtype, enabled=self.dtype is not None):
                return forward(*args, **kwargs).float()

        model.forward = autocast_forward
        self.optimizers.append(optimizer)
        return model, optimizer, loader

    @property
    def sync_gradients(self):
        return self.calls % self.every == 0

    @contextmanager
    def accumulate(self):
        self.calls += 1
        yield

    def backward(self, loss):
        self.scaler.scale(loss / self.every).backward()

    def clip_grad_norm_(self, parameters, max_norm):
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        return nn.utils.clip_grad_norm_(parameters, max_norm)

    def step(self, optimizer, scheduler):
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        if self.scaler.get_scale() >= before:
            scheduler.step()
        optimizer.zero_grad()


torch.manual_seed(0)
features = torch.randn(768, 24)
labels = (features[:, :4].sum(1) * features[:, 5] > 0).long()
loader = DataLoader(TensorDataset(features, labels), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(24, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=80)

accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(6):
    total = 0.0
    for x, y in loader:
        with accelerator.accumulate():
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            total += loss.item()
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                accelerator.step(optimizer, scheduler)
    print(f"epoch {epoch}: train loss {total / len(loader):.4f}")
