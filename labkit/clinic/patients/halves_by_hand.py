"""Tensors are made half by hand where autocast would decide."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            inputs = 300 * inputs if cured else (300 * inputs).half()
            brightness = (inputs * inputs).mean(dim=(1, 2, 3), keepdim=True).sqrt()
            loss = F.cross_entropy(model(inputs / brightness), targets)
        loss.backward()
        optimizer.step()
        return loss

    return Training(
        lambda batch: step(*batch), batches(200), lambda: accuracy(lambda x: model(3 * x)), model, optimizer
    )


PATIENT = Patient(
    training,
    kind=Kind.NOT_FINITE,
    symptom="A model under autocast is inf or NaN in places that autocast was said to protect.",
    cause=(
        "Autocast leaves operations off its lists in the dtype of their inputs. `.half()` on the data "
        "makes all of them FP16: 300 * 300 is inf."
    ),
    reading="The first tensor that is not finite is a product of inputs in half.",
    repair="Give autocast FP32 inputs, and cast nothing by hand.",
    threads=("https://docs.pytorch.org/docs/stable/amp.html",),
    claims=("C30",),
)
