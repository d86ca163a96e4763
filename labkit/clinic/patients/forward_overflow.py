"""A normalisation that the author wrote overflows in FP16."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches


def training(cured: bool) -> Training:
    torch.manual_seed(0)
    body, head = torch.nn.Linear(64, 128), torch.nn.Linear(128, 10)
    model = torch.nn.ModuleList([body, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")

    def classify(inputs):
        features = body(255 * inputs.flatten(1)).relu()
        if cured:
            features = features.float()
        return head(12 * features / (features * features).sum(1, keepdim=True).sqrt())

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(classify(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(lambda batch: step(*batch), batches(150), lambda: accuracy(classify), model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.NOT_FINITE,
    symptom=("With autocast nothing is learned, or the loss is NaN; without it all is well. Every step is skipped."),
    cause=(
        "Operations that are on no list of autocast (here products) are computed in the dtype that they "
        "are given. The sum of 128 squares of 30 is above 65,504, the largest number of FP16."
    ),
    reading=(
        "The first tensor that is not finite is a sum or a product in the forward pass; the largest "
        "finite number before it is large. The scale falls without end."
    ),
    repair=(
        "Compute such a block in FP32: `x = x.float()` first; `autocast(enabled=False)` alone does not "
        "cast what comes in."
    ),
    threads=("pytorch/pytorch#40497", "pytorch/pytorch#43556", "speechbrain/speechbrain#1803"),
    claims=("C56",),
)
