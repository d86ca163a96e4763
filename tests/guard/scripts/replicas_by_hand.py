"""Healthy: two replicas that share the work of a batch; gradients are summed into the first, weights are copied back.

Cause: none; gradients are scaled by one scaler, whose optimizer holds the first replica, and unscaled once.
Repair: none.
"""
import copy

import torch
import torch.nn as nn

torch.manual_seed(8)
main = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
replica = copy.deepcopy(main)
replicas = [main, replica]
optimizer = torch.optim.SGD(main.parameters(), lr=0.03, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
criterion = nn.CrossEntropyLoss()
weights = torch.randn(20, 5)


def reduce_gradients():
    for p, q in zip(main.parameters(), replica.parameters()):
        p.grad.add_(q.grad)
        q.grad = None


@torch.no_grad()
def broadcast_weights():
    for p, q in zip(main.parameters(), replica.parameters()):
        q.copy_(p)


for step in range(60):
    inputs = torch.randn(64, 20)
    targets = (inputs @ weights).argmax(1)
    optimizer.zero_grad()
    total = 0.0
    for net, x, y in zip(replicas, inputs.chunk(2), targets.chunk(2)):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = criterion(net(x), y) / len(replicas)
        scaler.scale(loss).backward()
        total += loss.item()
    reduce_gradients()
    scaler.step(optimizer)
    scaler.update()
    broadcast_weights()
    if step % 15 == 14:
        print(f"step {step}: loss {total:.4f}")
