"""Healthy: a module in Lightning's style, whose training_step calls its parts and never its own forward.

Cause: none; the trainer opens the autocast region around training_step, and unscales before it clips.
Repair: none.
"""
import torch
from torch import nn


class LitAutoEncoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 48), nn.ReLU(), nn.Linear(48, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, width))

    def forward(self, x):
        return self.encoder(x)

    def training_step(self, batch, batch_idx):
        z = self.encoder(batch)
        return nn.functional.mse_loss(self.decoder(z).float(), batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


class Trainer:
    def __init__(self, max_epochs, precision="16-mixed", gradient_clip_val=None):
        self.max_epochs, self.clip = max_epochs, gradient_clip_val
        self.amp = precision == "16-mixed"
        self.scaler = torch.amp.GradScaler("cpu", enabled=self.amp)

    def fit(self, module, batches):
        optimizer = module.configure_optimizers()
        for epoch in range(self.max_epochs):
            losses = []
            for batch_idx, batch in enumerate(batches):
                with torch.autocast("cpu", dtype=torch.float16, enabled=self.amp):
                    loss = module.training_step(batch, batch_idx)
                optimizer.zero_grad()
                self.scaler.scale(loss).backward()
                if self.clip:
                    self.scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(module.parameters(), self.clip)
                self.scaler.step(optimizer)
                self.scaler.update()
                losses.append(loss.item())
            print(f"Epoch {epoch}: train_loss={sum(losses) / len(losses):.4f}")


torch.manual_seed(7)
basis = torch.randn(6, 64)
batches = [torch.randn(32, 6) @ basis / 2 + 0.05 * torch.randn(32, 64) for _ in range(30)]
Trainer(max_epochs=5, gradient_clip_val=1.0).fit(LitAutoEncoder(), batches)
