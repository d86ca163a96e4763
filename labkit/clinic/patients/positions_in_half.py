"""Positions are counted in FP16."""

import torch

from labkit.clinic.patient import Kind, Patient, Training


def training(cured: bool) -> Training:
    torch.manual_seed(0)
    turns = 1000 ** (-torch.arange(0, 32, 2) / 32)
    query = torch.randn(16)
    dtype = torch.float32 if cured else torch.float16
    right_ones = []

    def rotated(vector, positions):
        angle = positions.to(dtype).float()[:, None] * turns
        return torch.cat([vector * angle.cos(), vector * angle.sin()], 1)

    def step(start):
        positions = torch.arange(start, start + 32)
        scores = rotated(query, positions) @ rotated(query, positions + 1).t()  # each looks for the one before it
        found = scores.tril(-1)[1:].argmax(1)
        right_ones.append((found == torch.arange(31)).float().mean().item())

    return Training(step, range(0, 8192, 512), lambda: min(right_ones))


PATIENT = Patient(
    training,
    kind=Kind.WRONG_NUMBERS,
    symptom=("Attention is right in short texts, and leaks or repeats itself beyond 2,048 tokens (256 in BF16)."),
    cause="FP16 has no odd numbers above 2,048, and BF16 none above 256: neighbours get the same position.",
    reading="A tensor of whole numbers in half whose largest is above 2,048.",
    repair="Count positions as integers, or in FP32; rotate in FP32 or cast after the angle.",
    threads=("pytorch/pytorch#81926", "lucidrains/local-attention#12", "openvinotoolkit/openvino#33214"),
    limit=0.9,
)
