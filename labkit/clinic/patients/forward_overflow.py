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
        with torch.autocast("cpu", enabled=False):
            if cured:
                features = features.float()
            features = 12 * features / (features * features).sum(1, keepdim=True).sqrt()
        return head(features)

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
        "Switched off, autocast casts nothing, and the features are FP16 already: squares and sum are computed in "
        "FP16. The sum of 128 squares of 30 is above 65,504, its largest number. Inside of autocast CUDA computes the "
        "sum in FP32, and a CPU does not; the squares are FP16 on both."
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
