"""The scaler steps an optimizer that got no gradient in this turn."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step(batch):
        number, (inputs, targets) = batch
        frozen = number % 4 == 3  # every fourth turn belongs to another network
        optimizer.zero_grad()
        inputs = inputs.clone().requires_grad_()
        model.requires_grad_(not frozen)
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        if not (cured and frozen):
            scaler.step(optimizer)
            scaler.update()
        return loss

    return Training(step, list(enumerate(batches(80))), lambda: accuracy(model), model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom="An error in the turn of the other network, or when all parameters are frozen.",
    errors=("No inf checks were recorded for this optimizer.",),
    cause="`scaler.step` looks at the gradients of this optimizer, and there is none.",
    reading="All gradients of an optimizer are None.",
    repair=(
        "Call `scaler.step` only for an optimizer whose parameters took part; call `update` once, at the "
        "end of the turn."
    ),
    threads=("nerfstudio-project/nerfstudio#1919", "Lightning-AI/pytorch-lightning#7792"),
)
