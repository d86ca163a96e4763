"""Autocast is switched off around a loss whose inputs are still FP16."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")

    def step(inputs, targets):
        wanted = F.one_hot(targets, 10).float()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = model(inputs)
            with torch.autocast("cpu", enabled=False):
                if cured:
                    outputs = outputs.float()
                chance = outputs.softmax(1)
                wanted = wanted.to(chance.dtype)
                loss = (wanted * ((wanted + 1e-8).log() - (chance + 1e-8).log())).sum(1).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(lambda batch: step(*batch), batches(300), lambda: accuracy(model), model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.NOT_FINITE,
    symptom="The loss is NaN or far from what FP32 gives, though the author took care to switch autocast off.",
    cause=(
        "`autocast(enabled=False)` casts nothing back. The tensors that come in are FP16 already, and "
        "everything inside is computed in FP16."
    ),
    reading="A region without autocast that is given half; a loss whose dtype is float16.",
    repair="`.float()` on every tensor that enters the region.",
    threads=("Peterande/D-FINE#361", "pytorch/pytorch#115500"),
    limit=0.88,
    claims=("C55",),
)
