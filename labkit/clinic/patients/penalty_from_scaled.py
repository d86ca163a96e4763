"""A gradient penalty is made from scaled gradients."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")

    def step(inputs, targets):
        inputs = inputs.clone().requires_grad_()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        (gradient,) = torch.autograd.grad(scaler.scale(loss), inputs, create_graph=True)
        if cured:
            gradient = gradient / scaler.get_scale()
        penalty = gradient.flatten(1).norm(dim=1).pow(2).mean()
        scaler.scale(loss + penalty).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(lambda batch: step(*batch), batches(200), lambda: accuracy(model), model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom="With a gradient penalty (WGAN-GP, double backward) nothing is learned, or the scale falls.",
    cause="The penalty squares gradients that are 65,536 times too large. It outweighs the loss by far.",
    reading="The penalty is scale squared times what it should be; the scale falls until both are alike.",
    repair="Divide the gradients by `scaler.get_scale()` before the penalty is made of them.",
    threads=("NVIDIA/apex#654", "NVIDIA/apex#215", "tensorflow/tensorflow#48662"),
    claims=("C38",),
)
