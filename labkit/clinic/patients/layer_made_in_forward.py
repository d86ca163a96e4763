"""A layer is made in forward."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()
            if cured:
                self.head = torch.nn.Linear(10, 10)

        def forward(self, inputs):
            head = self.head if cured else torch.nn.Linear(10, 10)
            return head(self.body(inputs).relu())

    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return Training(lambda batch: step(*batch), batches(300), lambda: accuracy(model), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom="The loss hardly falls, or a model that was made half meets weights in FP32.",
    cause=(
        "The layer is new in every step, and no list knows it: `.parameters()`, `.half()`, the optimizer, "
        "the checkpoint."
    ),
    reading="Operations on weights that belong to no module.",
    repair="Make layers in `__init__`, use them in `forward`.",
    threads=("https://docs.pytorch.org/docs/stable/notes/modules.html",),
    limit=0.6,
    claims=("C58",),
)
