"""Adam works on FP16 weights."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network().half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4 if cured else 1e-8)

    def step(inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs.half()).float(), targets)
        loss.backward()
        optimizer.step()
        return loss

    return Training(
        lambda batch: step(*batch), batches(120), lambda: accuracy(model, torch.Tensor.half), model, optimizer
    )


PATIENT = Patient(
    training,
    kind=Kind.NOT_FINITE,
    symptom="NaN after one or two steps, in a model that was made half.",
    cause="eps = 1e-8 is 0 in FP16, and the squares of small gradients are 0 too: 0 / 0.",
    reading="The optimizer's state: most second moments are exactly 0, in float16.",
    repair=(
        "FP32 master weights (then Adam works in FP32); where that is impossible, eps of 1e-4 or more, "
        "which makes small steps smaller."
    ),
    threads=("https://discuss.pytorch.org/t/1765", "https://discuss.pytorch.org/t/137434"),
    limit=0.7,
    claims=("C55",),
)
