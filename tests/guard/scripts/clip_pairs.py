"""Healthy: contrastive training of two encoders after CLIP, with a learned logit scale that is clamped.

Cause: none; embeddings are normalised and multiplied in FP32, and the logit scale stays below ln 100.
Repair: none.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)


class CLIP(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, dim))
        self.textual = nn.Sequential(nn.Embedding(40, 32), nn.Flatten(), nn.Linear(32 * 6, 96), nn.GELU(), nn.Linear(96, dim))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image, text):
        with torch.autocast("cpu", dtype=torch.float16):
            i, t = self.visual(image), self.textual(text)
        i, t = F.normalize(i.float(), dim=-1), F.normalize(t.float(), dim=-1)
        return self.logit_scale.exp() * i @ t.t()


def pairs(n=48):
    words = torch.randint(40, (n, 6))
    image = rendering[words].sum(1) + 0.3 * torch.randn(n, 48)
    return image, words


rendering = torch.randn(40, 48)
model = CLIP()
gain = [p for p in model.parameters() if p.ndim < 2]
rest = [p for p in model.parameters() if p.ndim >= 2]
optimizer = torch.optim.AdamW(
    [{"params": gain, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.1}], lr=2e-3, betas=(0.9, 0.98), eps=1e-6
)
scaler = torch.amp.GradScaler("cpu")
for step in range(80):
    logits = model(*pairs())
    labels = torch.arange(len(logits))
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        model.logit_scale.clamp_(0, math.log(100))
    if step % 20 == 19:
        print(f"step {step} loss {loss.item():.4f} scale {model.logit_scale.exp().item():.2f}")
