"""Faulty: a model that was loaded in BF16 is fine-tuned by AdamW with a learning rate of 1e-4; most weights stay.

Cause: there are no FP32 weights, and an update of 1e-4 is below half the spacing of BF16 for weights above 0.06.
Repair: load the model in FP32 and train under torch.autocast with dtype=torch.bfloat16.
"""
import torch
from torch import nn

torch.manual_seed(60)


def pretrained(dtype):
    net = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 5))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for _ in range(60):
        x = torch.randn(64, 32)
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), (x @ old_task).argmax(1)).backward()
        opt.step()
    return net.to(dtype)


old_task = torch.randn(32, 5)
new_task = old_task + 0.7 * torch.randn(32, 5)
model = pretrained(torch.bfloat16)
before = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
for step in range(120):
    x = torch.randn(64, 32)
    y = (x @ new_task).argmax(1)
    logits = model(x.to(torch.bfloat16))
    loss = nn.functional.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 29:
        same = sum((p == q).sum().item() for p, q in zip(model.parameters(), before))
        print(f"step {step}: loss {loss.item():.4f}, {same / sum(p.numel() for p in before):.0%} of the weights unchanged")
