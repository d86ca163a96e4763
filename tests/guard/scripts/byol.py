"""Healthy: BYOL, whose target network is a moving average of the online one and gets no gradient.

Cause: none; the optimizer holds the online network alone, and the average is taken in FP32 under no_grad.
Repair: none.
"""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(inplace=True), nn.Linear(h, o))


class BYOL(nn.Module):
    def __init__(self, tau=0.97):
        super().__init__()
        self.online = nn.Sequential(mlp(32, 64, 48), mlp(48, 64, 24))
        self.predictor = mlp(24, 48, 24)
        self.target = copy.deepcopy(self.online)
        self.target.requires_grad_(False)
        self.tau = tau

    @torch.no_grad()
    def update_target(self):
        for p, q in zip(self.online.parameters(), self.target.parameters()):
            q.mul_(self.tau).add_(p, alpha=1 - self.tau)

    def loss(self, a, b):
        p = F.normalize(self.predictor(self.online(a)).float(), dim=-1)
        with torch.no_grad():
            z = F.normalize(self.target(b).float(), dim=-1)
        return 2 - 2 * (p * z).sum(-1)

    def forward(self, view1, view2):
        return (self.loss(view1, view2) + self.loss(view2, view1)).mean()


learner = BYOL()
trained = [*learner.online.parameters(), *learner.predictor.parameters()]
opt = torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cpu")
centers = 2 * torch.randn(8, 32)
for step in range(80):
    x = centers[torch.randint(8, (64,))]
    v1, v2 = x + 0.4 * torch.randn_like(x), x + 0.4 * torch.randn_like(x)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = learner(v1, v2)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    learner.update_target()
    if step % 20 == 19:
        print(f"step {step} loss {loss.item():.4f}")
