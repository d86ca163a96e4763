"""Faulty: speaker embeddings with statistics pooling; each batch with a silent clip is skipped, and the scale falls.

Cause: features of silence are constant in time, with a variance of 0, and the derivative of the root at 0 is infinite.
Repair: add a small number inside of the root, `(h.var(2) + 1e-5).sqrt()`; FP32 does not help, it is FP32 already.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)
SPEAKERS, MELS, FRAMES = 6, 12, 40


class XVector(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.tdnn = nn.Sequential(nn.Conv1d(MELS, width, 1), nn.ReLU(), nn.Conv1d(width, width, 1))
        self.embedding, self.classifier = nn.Linear(2 * width, 32), nn.Linear(32, SPEAKERS)

    def statistics(self, h):
        h = h.float()
        return torch.cat([h.mean(2), h.var(2).sqrt()], 1)

    def forward(self, mel):
        return self.classifier(F.relu(self.embedding(self.statistics(self.tdnn(mel)))))


voices = torch.randn(SPEAKERS, MELS, 1)


def batch(size=24):
    speaker = torch.randint(SPEAKERS, (size,))
    mel = voices[speaker] * torch.randn(size, 1, FRAMES) + 0.3 * torch.randn(size, MELS, FRAMES)
    silent = torch.rand(size) < 0.02
    mel[silent] = -4.0  # the floor of the logarithm
    return mel, speaker


model = XVector()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
for step in range(80):
    mel, speaker = batch()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(mel), speaker)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 19:
        print(f"step {step}: loss {loss.item():.4f} scale {scaler.get_scale():g}")
