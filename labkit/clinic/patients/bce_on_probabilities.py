"""A binary cross-entropy is given probabilities under autocast."""

import torch
import torch.nn.functional as F

from labkit.amp import autocast
from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network
from labkit.formats import FP16


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(inputs, targets):
        wanted = F.one_hot(targets, 10).float()
        optimizer.zero_grad()
        with autocast(FP16):  # this lab's, which follows the CUDA rules of torch's on a CPU too
            outputs = model(inputs)
            if cured:
                loss = F.binary_cross_entropy_with_logits(outputs, wanted)
            else:
                loss = F.binary_cross_entropy(outputs.sigmoid(), wanted)
        loss.backward()
        optimizer.step()
        return loss

    return Training(lambda batch: step(*batch), batches(150), lambda: accuracy(model), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom="An error on a GPU that this loss is unsafe to autocast.",
    errors=(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.",
        "binary_cross_entropy is not safe under autocast",
    ),
    cause=("A probability in FP16 is 0 or 1 too early, and its gradient can pass 65,504. torch refuses it on a GPU."),
    reading="The error names the function.",
    repair="Leave the sigmoid out and use binary_cross_entropy_with_logits.",
    threads=("https://docs.pytorch.org/docs/stable/amp.html",),
    limit=0.8,
)
