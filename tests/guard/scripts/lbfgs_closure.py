"""Healthy: a small network fitted by L-BFGS, whose closure runs forward and backward under BF16 autocast.

Cause: none; BF16 has the range of FP32, so no scaler is needed, and the loss is computed in FP32.
Repair: none.
"""
import torch
import torch.nn as nn

torch.manual_seed(2)
x = torch.linspace(-2, 2, 200).unsqueeze(1)
y = torch.sin(3 * x) + 0.5 * x + 0.2 * torch.randn_like(x)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=6, history_size=10)


def closure():
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prediction = model(x)
    loss = nn.functional.mse_loss(prediction.float(), y)
    loss.backward()
    return loss


for epoch in range(12):
    loss = optimizer.step(closure)
    if epoch % 3 == 2:
        print(f"epoch {epoch} loss {loss.item():.5f}")
