"""Adam's second moment is kept in BF16 and cannot fall again."""

import torch

from labkit.clinic.patient import Kind, Patient, Training


def training(cured: bool) -> Training:
    torch.manual_seed(0)
    dtype = torch.float32 if cured else torch.bfloat16
    weight = torch.nn.Parameter(torch.randn(256).to(dtype))
    model = torch.nn.ParameterList([weight])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    highest = []

    def step(number):
        weight.grad = torch.randn(256).to(dtype) * (1000 if number == 10 else 1)  # one bad batch
        optimizer.step()
        if number == 10:
            highest.append(optimizer.state[weight]["exp_avg_sq"].float().median().item())

    def score():
        now = optimizer.state[weight]["exp_avg_sq"].float().median().item()
        return 1 - now / highest[0]

    return Training(step, range(3000), score, model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom=(
        "After one bad batch a model in BF16 learns slowly for the rest of its life, or its loss has "
        "spikes that it does not recover from."
    ),
    cause=(
        "Each step multiplies the second moment by 0.999. A BF16 number that loses 0.1% rounds back to "
        "itself: it can rise, and never fall."
    ),
    reading=(
        "The optimizer's state is bfloat16 and beta2 is above 0.996; the median of the second moment "
        "stays where the largest batch put it."
    ),
    repair="Keep the moments in FP32, round them stochastically, or choose beta2 of 0.95 or 0.99.",
    threads=("NVIDIA-NeMo/Automodel#2248", "https://blog-64c.pages.dev"),
    limit=0.9,
)
