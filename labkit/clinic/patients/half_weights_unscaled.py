"""Weights that are trained are stored in FP16."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    if not cured:
        model = model.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(lambda batch: step(*batch), batches(60), lambda: accuracy(model), model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom=(
        "The first step ends with an error, often after `from_pretrained(..., torch_dtype=float16)` or with LoRA."
    ),
    errors=("Attempting to unscale FP16 gradients.",),
    cause=(
        "A GradScaler refuses gradients in FP16: the weights themselves are FP16, so their updates would "
        "be swallowed. Autocast wants FP32 weights and makes the FP16 copies itself."
    ),
    reading="The dtype of the parameters that are trained: float16.",
    repair=(
        "Load or cast what is trained in FP32 (`parameter.data = parameter.data.float()`), and leave the "
        "FP16 to autocast; frozen weights may stay FP16."
    ),
    threads=("pytorch/pytorch#74739", "huggingface/diffusers#6442", "huggingface/peft#341"),
)
