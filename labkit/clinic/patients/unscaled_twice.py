"""Gradients are unscaled once for each part of an accumulation."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step(inputs, targets):
        optimizer.zero_grad()
        for part in range(2):
            rows = slice(32 * part, 32 * part + 32)
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(inputs[rows]), targets[rows]) / 2
            scaler.scale(loss).backward()
            if not cured:
                scaler.unscale_(optimizer)
        if cured:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(lambda batch: step(*batch), batches(120), lambda: accuracy(model), model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom="An error at the second call of unscale_.",
    errors=("unscale_() has already been called on this optimizer since the last update().",),
    cause=("Dividing twice by the scale would make gradients that are far too small. The scaler counts, and refuses."),
    reading="Two calls of unscale_ between two calls of update.",
    repair="Unscale once, when the last part has been added; clip, step and update follow.",
    threads=("huggingface/transformers#24840", "huggingface/accelerate#641", "microsoft/Swin-Transformer#311"),
)
