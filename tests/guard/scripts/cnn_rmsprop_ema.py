"""Healthy: image classification in timm's style, with RMSprop, weight decay, label smoothing and an EMA of the weights.

Cause: none; the average is kept in FP32, from FP32 weights, after each step.
Repair: none.
"""
import copy

import torch
import torch.nn as nn

torch.manual_seed(42)


class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cpu")

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None):
        self._scaler.scale(loss).backward()
        if clip_grad is not None:
            self._scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
        self._scaler.step(optimizer)
        self._scaler.update()


class ModelEma(nn.Module):
    def __init__(self, model, decay=0.95):
        super().__init__()
        self.module, self.decay = copy.deepcopy(model).eval(), decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, m in zip(self.module.state_dict().values(), model.state_dict().values()):
            if e.dtype.is_floating_point:
                e.lerp_(m, 1 - self.decay)
            else:
                e.copy_(m)


def conv_bn_act(i, o, s=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.SiLU())


model = nn.Sequential(
    conv_bn_act(3, 8, 2), conv_bn_act(8, 16), conv_bn_act(16, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Dropout(0.1), nn.Linear(16, 6),
)
decay = [p for p in model.parameters() if p.ndim > 1]
no_decay = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.RMSprop(
    [{"params": decay, "weight_decay": 1e-5}, {"params": no_decay, "weight_decay": 0.0}],
    lr=4e-3, alpha=0.9, momentum=0.9, eps=1e-3,
)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.9)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
loss_scaler, ema = NativeScaler(), ModelEma(model)
prototypes = torch.randn(6, 3, 12, 12)


def loader(batches, size=16):
    for _ in range(batches):
        target = torch.randint(6, (size,))
        yield prototypes[target] + 1.0 * torch.randn(size, 3, 12, 12), target


model.train()
for step, (images, target) in enumerate(loader(60)):
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(images)
        loss = criterion(output, target)
    optimizer.zero_grad()
    loss_scaler(loss, optimizer, clip_grad=5.0, parameters=model.parameters())
    scheduler.step()
    ema.update(model)
    if step % 20 == 19:
        print(f"step {step} loss {loss.item():.4f}")

with torch.no_grad():
    images, target = next(loader(1, 256))
    acc = (ema.module(images).argmax(1) == target).float().mean()
print(f"ema top1 {acc.item():.4f}")
