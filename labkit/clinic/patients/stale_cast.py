"""One autocast region is around the whole training loop."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whole = None if cured else torch.autocast("cpu", torch.bfloat16)

    def step(batch):
        number, (inputs, targets) = batch
        if whole and number == 0:
            whole.__enter__()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if whole and number == 199:
            whole.__exit__(None, None, None)
        return loss

    return Training(step, list(enumerate(batches(200))), lambda: accuracy(model), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom="The loss does not fall, without any error; parameters do change.",
    cause=(
        "Autocast casts each weight once and keeps the copy until the outermost region ends. Here it "
        "never ends: all steps use the weights of the first."
    ),
    reading="Casts of weights: one in the whole run, where there should be one a step.",
    repair="A region for each forward pass (and nothing else inside), or `cache_enabled=False`.",
    threads=("pytorch/pytorch#158232", "Lightning-AI/pytorch-lightning#21611"),
    prevented="labkit's autocast casts a weight again when it was edited in place.",
)
