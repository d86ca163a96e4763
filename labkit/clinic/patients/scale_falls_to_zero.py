"""One term of the loss is NaN at every step, and the scale falls to nothing."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = model(inputs)
            chance = (20 * outputs).float().softmax(1) if cured else (20 * outputs).softmax(1).half()
            sharpness = (chance * (chance + 1e-30).log()).sum(1).mean()
            loss = F.cross_entropy(outputs, targets) - 0.01 * sharpness
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(lambda batch: step(*batch), batches(300), lambda: accuracy(model), model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom=(
        "Skipped steps follow each other without end, the scale halves each time, and nothing is learned any more."
    ),
    cause=(
        "A loss scaler takes every inf and NaN for an overflow that a smaller scale would cure. Here 0 * "
        "log(0) is NaN in the forward pass: no scale helps."
    ),
    reading=(
        "Skips in a row, more than twenty; the scale is below 1; the first tensor that is not finite is "
        "in the forward pass."
    ),
    repair=(
        "Find the first tensor that is not finite and compute that place in FP32. Give the scale a floor "
        "and stop with an error there."
    ),
    threads=("pytorch/pytorch#99640", "NVIDIA/apex#318", "NVIDIA/apex#654"),
    limit=0.8,
    claims=("C57",),
)
