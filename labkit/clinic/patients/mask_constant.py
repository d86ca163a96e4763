"""A mask uses a constant that FP16 does not have."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    allowed = torch.arange(10) < 10

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            scores = model(inputs)
            lowest = torch.finfo(scores.dtype).min if cured else -1e9
            loss = F.cross_entropy(scores.masked_fill(~allowed, lowest), targets)
        loss.backward()
        optimizer.step()
        return loss

    return Training(lambda batch: step(*batch), batches(60), lambda: accuracy(model), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom="An error at the line of the mask; the same code runs in FP32 and in BF16.",
    errors=(
        "value cannot be converted to type c10::Half without overflow",
        "value cannot be converted to type at::Half without overflow",
    ),
    cause="-1e9 (or 1e10, or 2**30) lies outside FP16, which ends at 65,504.",
    reading="The source: a constant above 65,504 beside a tensor that is half.",
    repair=("Use `torch.finfo(scores.dtype).min` or -inf, or F.scaled_dot_product_attention with a boolean mask."),
    threads=("NVIDIA/apex#1052", "QwenLM/Qwen#32", "InternLM/lmdeploy#3152"),
    claims=("C55",),
)
