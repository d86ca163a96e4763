"""Faulty: a Lightning-like module regresses heat maps in FP16; the loss does not move, and no error is raised.

Cause: there is no loss scaling; the mean over 147,456 small elements leaves FP16 gradients of exactly 0.
Repair: scale the loss with a GradScaler.
"""
import torch
from torch import nn


class LitHeatmaps(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        self.maps = nn.Conv2d(4, 1, 3, padding=1)

    def training_step(self, batch):
        image, heat = batch
        return nn.functional.mse_loss(self.maps(self.features(image)).float(), heat)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-4)


def data(steps, size=96, n=16):
    r = torch.linspace(-1, 1, size)
    for _ in range(steps):
        cx, cy = (torch.rand(n, 1, 1) - 0.5 for _ in range(2))
        heat = 1e-3 * torch.exp(-((r - cx) ** 2 + (r[:, None] - cy) ** 2) / 0.02).unsqueeze(1)
        yield 20 * heat, heat


def fit(module, steps, precision):
    optimizer = module.configure_optimizers()
    for i, batch in enumerate(data(steps)):
        with torch.autocast("cpu", dtype=torch.float16, enabled=precision == 16):
            loss = module.training_step(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 6 == 5:
            print(f"batch {i}: train_loss={loss.item():.3e}")


torch.manual_seed(3)
module = LitHeatmaps()
with torch.no_grad():
    module.maps.weight.mul_(0.01)
    module.maps.bias.zero_()
fit(module, steps=24, precision=16)
