"""Weight decay has no effect on BF16 weights."""

import torch

from labkit.clinic.patient import Kind, Patient, Training


def training(cured: bool) -> Training:
    torch.manual_seed(0)
    dtype = torch.float32 if cured else torch.bfloat16
    weight = torch.nn.Parameter(torch.randn(1000).to(dtype))
    model = torch.nn.ParameterList([weight])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1.0)
    start = weight.detach().float().norm()

    def step(number):
        weight.grad = torch.zeros_like(weight)  # nothing pulls at these weights but the decay
        optimizer.step()

    return Training(step, range(1000), lambda: 1 - (weight.detach().float().norm() / start).item(), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.WRONG_NUMBERS,
    symptom="Training with and without weight decay gives the same numbers to the last digit.",
    cause=(
        "lr times decay is 0.001: the weight should become 0.1% smaller. Half an ulp of a BF16 number is "
        "0.2% to 0.4% of it, so it rounds back to itself."
    ),
    reading="Updates without effect: all those of weights whose gradient is 0.",
    repair="Decay an FP32 master, or round stochastically.",
    threads=("Nerogar/OneTrainer#996",),
)
