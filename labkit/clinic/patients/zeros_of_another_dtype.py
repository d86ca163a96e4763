"""A state is made with torch.zeros and no dtype."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches


def training(cured: bool) -> Training:
    torch.manual_seed(0)
    model = torch.nn.GRUCell(8, 32).bfloat16()
    head = torch.nn.Linear(32, 10).bfloat16()
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-2)

    def classify(inputs):
        rows = inputs.view(-1, 8, 8).bfloat16()
        state = (
            torch.zeros(len(rows), 32, dtype=rows.dtype, device=rows.device) if cured else torch.zeros(len(rows), 32)
        )
        for number in range(8):
            state = model(rows[:, number], state)
        return head(state)

    def step(inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(classify(inputs).float(), targets)
        loss.backward()
        optimizer.step()
        return loss

    return Training(lambda batch: step(*batch), batches(60), lambda: accuracy(classify), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom="An error about two dtypes, in a model that was made half or BF16.",
    errors=(
        "mat1 and mat2 must have the same dtype",
        "expected m1 and m2 to have the same dtype",
        "expected scalar type BFloat16 but found Float",
    ),
    cause=(
        "torch.zeros makes FP32 on the CPU, whatever the model is. `.to(x.device)` mends the device only, and copies."
    ),
    reading="The error is raised where an FP32 tensor meets the weights.",
    repair="`x.new_zeros(shape)`, or `torch.zeros(shape, dtype=x.dtype, device=x.device)`.",
    threads=("https://docs.pytorch.org/docs/stable/generated/torch.Tensor.new_zeros.html",),
    limit=0.3,
    claims=("C60",),
)
