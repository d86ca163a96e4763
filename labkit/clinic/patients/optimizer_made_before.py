"""The optimizer was made before the model was copied or converted."""

import copy

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if cured:
        model = copy.deepcopy(model).to(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    else:
        model = copy.deepcopy(model).to(torch.float32)

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return Training(lambda batch: step(*batch), batches(120), lambda: accuracy(model), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom="The loss stays where it began, without any error; gradients are there.",
    cause="The optimizer holds the parameters of the old model. Those of the new one are stepped by nobody.",
    reading="Parameters that get gradients and never move; none of them is in the optimizer.",
    repair="Convert first, make the optimizer afterwards.",
    threads=("https://docs.pytorch.org/docs/stable/optim.html",),
)
