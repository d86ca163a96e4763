"""A division has a denominator that underflows."""

import torch

from labkit.clinic.patient import Kind, Patient, Training, digits


def training(cured: bool) -> Training:
    torch.manual_seed(0)
    dtype = torch.float32 if cured else torch.float16
    data = digits()

    def unit(pictures):
        return pictures / ((pictures * pictures).sum(1, keepdim=True) + 1e-12)

    shares = []

    def step(pictures):
        normal = unit((1e-5 * pictures).flatten(1).to(dtype))
        shares.append(normal.isfinite().all(1).float().mean().item())

    return Training(step, [data.train_inputs[:64], data.train_inputs[64:128]], lambda: min(shares))


PATIENT = Patient(
    training,
    kind=Kind.NOT_FINITE,
    symptom="inf or NaN where a vector is divided by its own size, although the vector is not 0.",
    cause="The squares of small numbers are 0 in FP16, and so is the epsilon that should help.",
    reading="The first tensor that is not finite is a division; its denominator is 0.",
    repair="Compute sizes and divisions in FP32; or divide by the largest element first.",
    threads=("https://arxiv.org/abs/1710.03740",),
    claims=("C57",),
)
