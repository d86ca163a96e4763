"""Healthy: federated averaging; each client trains a copy with an optimizer and a scaler of its own.

Cause: none; the average of the clients' FP32 weights is loaded into the global model.
Repair: none.
"""
import copy

import torch
from torch import nn

torch.manual_seed(21)
CLIENTS, ROUNDS, LOCAL_STEPS = 3, 5, 6
centers = torch.randn(4, 16)


def make_client_data(skew):
    labels = torch.multinomial(torch.softmax(2 * torch.randn(4) * skew, 0), 256, replacement=True)
    return centers[labels] + 0.6 * torch.randn(256, 16), labels


def local_update(global_model, data, lr=0.1):
    model = copy.deepcopy(global_model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = data
    for _ in range(LOCAL_STEPS):
        idx = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model.state_dict(), loss.item()


def average(states):
    return {k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]}


global_model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
clients = [make_client_data(skew=0.5) for _ in range(CLIENTS)]
for rnd in range(ROUNDS):
    results = [local_update(global_model, data) for data in clients]
    global_model.load_state_dict(average([state for state, _ in results]))
    print(f"round {rnd}: mean client loss {sum(loss for _, loss in results) / CLIENTS:.4f}")
