"""Faulty: momentum contrast ends with an error when keys are written into the queue.

Cause: the keys come out of autocast in FP16, the queue is FP32, and index_copy_ does not convert.
Repair: cast the keys to the dtype of the queue before they are written, `keys.to(self.queue.dtype)`.
"""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)


class MoCo(nn.Module):
    def __init__(self, dim=16, size=256, m=0.99, T=0.2):
        super().__init__()
        self.m, self.T, self.size = m, T, size
        self.encoder_q = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, dim))
        self.encoder_k = copy.deepcopy(self.encoder_q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def momentum_update(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.mul_(self.m).add_(q, alpha=1 - self.m)

    @torch.no_grad()
    def enqueue(self, keys):
        rows = (self.ptr + torch.arange(len(keys))) % self.size
        self.queue.index_copy_(0, rows, keys)
        self.ptr[0] = (self.ptr[0] + len(keys)) % self.size

    def forward(self, im_q, im_k):
        q = self.encoder_q(im_q)
        q = q / q.norm(dim=1, keepdim=True)
        with torch.no_grad():
            self.momentum_update()
            k = self.encoder_k(im_k)
            k = k / k.norm(dim=1, keepdim=True)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.clone().t()
        logits = torch.cat([pos, neg], 1) / self.T
        self.enqueue(k)
        return logits.float(), torch.zeros(len(logits), dtype=torch.long)


model = MoCo()
optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
for step in range(60):
    x = torch.randn(32, 32)
    with torch.autocast("cpu", dtype=torch.float16):
        logits, labels = model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
        loss = F.cross_entropy(logits, labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(f"loss {loss.item():.4f}")
