"""The norm of the gradients is logged while they are scaled."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", growth_interval=20)
    logged, real = [], []

    def norm():
        return torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        if not cured:
            logged.append(norm())
        scaler.unscale_(optimizer)
        if cured:
            logged.append(norm())
        real.append(norm())
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(
        lambda batch: step(*batch),
        batches(40),
        lambda: min(real[-1] / logged[-1], logged[-1] / real[-1]),
        model,
        optimizer,
        scaler,
    )


PATIENT = Patient(
    training,
    kind=Kind.WRONG_NUMBERS,
    symptom=(
        "Logged gradients are in the tens of thousands, and double or halve at single steps while the "
        "loss moves smoothly."
    ),
    cause=(
        "Hooks and loggers that look right after backward see loss times scale. When the scale changes, "
        "so does what they see."
    ),
    reading="The norm divided by the scale is smooth; it jumps by exactly 2 where the scale does.",
    repair="Log after `scaler.unscale_(optimizer)`, or divide by `scaler.get_scale()`.",
    threads=("wandb/wandb#4369", "wandb/wandb#9092", "Lightning-AI/pytorch-lightning#11407", "NVIDIA/apex#774"),
    limit=0.9,
)
