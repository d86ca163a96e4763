"""The first overflows, which a scaler expects, are taken for an error."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=not cured)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(lambda batch: step(*batch), batches(120), lambda: accuracy(model), model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom=("inf or NaN in the norm of the gradients in the first steps, or an error about it: is that normal?"),
    errors=("The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped.",),
    cause=(
        "It is. A dynamic scale begins high and is halved at each overflow; such a step is skipped by the "
        "scaler, after the clipping."
    ),
    reading="A few skips at the start, then none; the loss is finite at every step.",
    repair="Let the scaler look: clip without error_if_nonfinite, and log how many steps were skipped.",
    threads=("pytorch/pytorch#111739", "espnet/espnet#3237", "Lightning-AI/pytorch-lightning#9799"),
    limit=0.6,
)
