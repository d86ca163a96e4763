"""Linear algebra is asked for in FP16."""

import torch

from labkit.clinic.patient import Kind, Patient, Training, batches, network


def training(cured: bool) -> Training:
    model = network()

    def step(inputs, targets):
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            outputs = model(inputs)
        spread = outputs.t() @ outputs + 10 * torch.eye(10, dtype=outputs.dtype)
        factor = torch.linalg.cholesky(spread.float() if cured else spread)
        return factor.diagonal().sum()

    return Training(lambda batch: step(*batch), batches(3), model=model)


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom="An error that an operation is not implemented for Half, inside an autocast region.",
    errors=(
        "\"linalg_cholesky_cpu\" not implemented for 'Half'",
        "\"cholesky_cpu\" not implemented for 'Half'",
        "\"svd_cuda\" not implemented for 'Half'",
        "\"linalg_inv_ex\" not implemented for 'Half'",
        "Low precision dtypes not supported. Got Half",
    ),
    cause="LAPACK and its relatives have no FP16, and autocast does not list these functions.",
    reading="The error names the function.",
    repair="`.float()` before it, and back after it where that is wanted.",
    threads=("NVIDIA/apex#887", "kornia/kornia#649", "pytorch/pytorch#98308"),
)
