"""A logarithm is made safe by an epsilon that FP16 does not have."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            chance = model(8 * inputs).sigmoid()
            if cured:
                chance = chance.float()
            wanted = F.one_hot(targets, 10).to(chance.dtype)
            loss = -(wanted * (chance + 1e-8).log() + (1 - wanted) * (1 - chance + 1e-8).log()).sum(1).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(lambda batch: step(*batch), batches(300), lambda: accuracy(model), model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.NOT_FINITE,
    symptom=("NaN after some dozens of steps, when the network becomes sure of itself; then every step is skipped."),
    cause="1e-8 is 0 in FP16: the smallest number is 6e-8. log(0) is -inf, and 0 * -inf is NaN.",
    reading="The first tensor that is not finite is a logarithm of 0; from then on all steps are skipped.",
    repair=(
        "Compute the loss in FP32, or use the function that is made for it: "
        "binary_cross_entropy_with_logits, log_softmax."
    ),
    threads=("rwightman/efficientdet-pytorch#291", "yitu-opensource/T2T-ViT#65"),
    limit=0.88,
    claims=("C55",),
)
