"""A mean-squared error of small residuals is 0 in FP16."""

import torch

from labkit.clinic.patient import Kind, Patient, Training


def training(cured: bool) -> Training:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e7)  # for gradients as small as these
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, enabled=cured)
    truth = torch.randn(8, 1)

    def step(inputs):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            error = model(inputs) - inputs @ truth
            error = 1e-4 * (error.float() if cured else error)  # metres, where millimetres are meant
            loss = (error * error).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    def score():
        return 1 - ((model.weight.t() - truth).norm() / truth.norm()).item()

    return Training(step, [torch.randn(64, 8) for _ in range(100)], score, model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom="The loss is exactly 0 from the first step, and nothing is learned.",
    cause=(
        "A residual of 0.0001 has the square 1e-8, which is 0 in FP16; so is its gradient, divided by the "
        "number of elements."
    ),
    reading="A loss of exactly 0; gradients that underflowed in all layers.",
    repair="Compute the loss in FP32 and scale it; or choose units in which residuals are near 1.",
    threads=("https://arxiv.org/abs/1710.03740",),
    claims=("C57",),
)
