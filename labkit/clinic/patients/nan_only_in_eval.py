"""One overflow has spoilt the statistics of batch norm."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches


def training(cured: bool) -> Training:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")

    def step(batch):
        number, (inputs, targets) = batch
        inputs = inputs * (3e6 if number == 30 else 1)  # one broken picture is enough
        if cured:
            inputs = inputs.clamp(-10, 10)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    def score():
        with torch.autocast("cpu", torch.float16):
            return accuracy(model.eval())

    return Training(step, list(enumerate(batches(100))), score, model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.NOT_FINITE,
    symptom="Training looks healthy, with one skipped step; in eval() every output is NaN.",
    cause=(
        "The scaler keeps the weights from a step with inf. It does not keep the running statistics, "
        "which the forward pass changed."
    ),
    reading="Buffers that are not finite: running_mean and running_var.",
    repair=(
        "Clamp or refuse such inputs; put the buffers back after a skipped step; or estimate them again "
        "from some batches."
    ),
    threads=("pytorch/pytorch#58392", "pytorch/pytorch#115500"),
)
