"""Features that were computed in inference_mode are trained on."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    body, head = network(), torch.nn.Linear(10, 10)
    model = torch.nn.ModuleList([body, head])
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)

    def step(inputs, targets):
        with torch.no_grad() if cured else torch.inference_mode():
            features = body(inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(head(features), targets)
        loss.backward()
        optimizer.step()
        return loss

    return Training(
        lambda batch: step(*batch), batches(200), lambda: accuracy(lambda x: head(body(x))), model, optimizer
    )


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom="An error about inference tensors, in code where no_grad would have worked.",
    errors=("Inference tensors cannot be saved for backward.",),
    cause=(
        "inference_mode also drops the counters by which autograd notices changes; what comes out of it "
        "can never take part in a backward pass."
    ),
    reading="The error names inference tensors.",
    repair="`torch.no_grad()` where something is trained afterwards, or clone the tensor outside the region.",
    threads=("https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.inference_mode.html",),
    limit=0.25,
    claims=("C61",),
)
