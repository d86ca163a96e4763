"""A gradient is checked numerically in FP32."""

import warnings

import torch

from labkit.clinic.patient import Kind, Patient, Training


def training(cured: bool) -> Training:
    def cube(x):
        return x * x * x

    def step(_):
        x = torch.linspace(1.0, 2.0, 5, dtype=torch.float64 if cured else torch.float32, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.autograd.gradcheck(cube, (x,))

    return Training(step)


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom="gradcheck says that a gradient is wrong which is right.",
    errors=("Jacobian mismatch for output 0 with respect to input 0",),
    cause=(
        "gradcheck compares with (f(x + 1e-6) - f(x)) / 1e-6. In FP32 the difference of two numbers near "
        "8 has one or two digits left; in FP16 x + 1e-6 is x."
    ),
    reading="The dtype of the inputs: anything but float64.",
    repair="Check in FP64: `x.double()`, and the module in double as well.",
    threads=("https://docs.pytorch.org/docs/stable/generated/torch.autograd.gradcheck.gradcheck.html",),
    claims=("C59",),
)
