"""A checkpoint is made small with model.half(), which changes the model itself."""

import io

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step(batch):
        number, (inputs, targets) = batch
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if number == 30 and cured:
            torch.save({name: value.half() for name, value in model.state_dict().items()}, io.BytesIO())
        if number == 30 and not cured:
            torch.save(model.half().state_dict(), io.BytesIO())
        return loss

    return Training(step, list(enumerate(batches(80))), lambda: accuracy(model), model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom=(
        "The training goes wrong at the step after the first checkpoint, or the validation no longer "
        "agrees with what is loaded later."
    ),
    errors=("Attempting to unscale FP16 gradients.",),
    cause="`model.half()` returns the model, and it is the same one: its weights are FP16 from now on.",
    reading="The dtype of the parameters changes between two steps.",
    repair=(
        "Cast what is saved, not the model: `{name: value.half() for name, value in "
        "model.state_dict().items()}`; validate what you saved."
    ),
    threads=("ultralytics/ultralytics#14929",),
)
