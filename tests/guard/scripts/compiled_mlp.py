"""Healthy: a compiled model under autocast and GradScaler, clipped after unscale_.

Cause: none; the region of autocast encloses the call of the compiled model.
Repair: none.
"""
import torch
from torch import nn

torch.manual_seed(4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(32, 128), nn.Linear(128, 128), nn.Linear(128, 8)
        self.norm = nn.LayerNorm(128)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = x + torch.relu(self.fc2(self.norm(x)))
        return self.fc3(x)


model = Net()
compiled_model = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu")
teacher = torch.randn(32, 8)
for step in range(60):
    x = torch.randn(64, 32)
    y = (x @ teacher).argmax(1)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(compiled_model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 15 == 14:
        print(f"step {step} loss {loss.item():.4f}")
