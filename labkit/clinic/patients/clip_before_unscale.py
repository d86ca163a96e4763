"""Gradients are clipped while they are still scaled."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        if cured:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(lambda batch: step(*batch), batches(300), lambda: accuracy(model), model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom=(
        "No error, and next to nothing is learned. With Adam, which divides by the size of the gradients, "
        "nobody would notice."
    ),
    cause=(
        "Under a scale of 65,536 a gradient of norm 1 has norm 65,536. It is cut to 1, and then divided "
        "by the scale again: 65,536 times too short."
    ),
    reading=(
        "The gradients are at most max_norm / scale long after unscaling; they were changed between "
        "backward and unscale."
    ),
    repair="Call `scaler.unscale_(optimizer)` before `clip_grad_norm_`.",
    threads=("pytorch/examples#1196", "harubaru/waifu-diffusion#64", "Lightning-AI/pytorch-lightning#9799"),
    claims=("C38",),
)
