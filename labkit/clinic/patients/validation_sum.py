"""The validation loss is added up in FP16."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    total = torch.zeros((), dtype=torch.float32 if cured else torch.float16)

    def step(inputs, targets):
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets, reduction="sum")
        total.add_(loss)
        return loss

    return Training(lambda batch: step(*batch), batches(500), lambda: total.item() < float("inf"), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.NOT_FINITE,
    symptom="The loss of the evaluation, or its perplexity, is inf or NaN, while the training is well.",
    cause="After 28,000 examples with a loss of 2.3 the sum passes 65,504.",
    reading="A sum in half that grows with the size of the set.",
    repair="Add up in FP32: `.float()` on what is added, or a Python number.",
    threads=("huggingface/transformers#10815", "EuroEval/EuroEval#106"),
    claims=("C56",),
)
