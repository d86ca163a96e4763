"""The norm of the parameters is added up in BF16."""

import torch

from labkit.clinic.patient import Kind, Patient, Training, network


def training(cured: bool) -> Training:
    model = network(depth=4)
    vectors = [parameter.detach().bfloat16() for parameter in model.parameters()]
    logged = []

    def step(_):
        total = torch.zeros((), dtype=torch.float32 if cured else torch.bfloat16)
        for vector in vectors:
            for row in vector.reshape(-1, vector.shape[-1]):
                total += row.to(total.dtype).pow(2).sum()
        logged.append(total.sqrt().item())

    def score():
        exact = torch.cat([vector.double().flatten() for vector in vectors]).norm().item()
        return 1 - 20 * abs(logged[-1] / exact - 1)

    return Training(step, range(2), score, model)


PATIENT = Patient(
    training,
    kind=Kind.WRONG_NUMBERS,
    symptom="A logged norm is some per cent too small, or inf, and does not agree with that of another tool.",
    cause="A sum of many in BF16 stops growing when the next part is below half an ulp of the sum.",
    reading="A norm computed in the dtype of the parameters.",
    repair="`torch.nn.utils.get_total_norm`, or `dtype=torch.float32` in the norm.",
    threads=("NVIDIA-NeMo/Automodel#3625", "pytorch/pytorch#92164"),
    limit=0.9,
    claims=("C56",),
)
