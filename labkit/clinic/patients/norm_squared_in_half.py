"""The norm of the gradients is added up in FP16."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scale = 2.0**12

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        (loss * scale).backward()
        gradients = [parameter.grad.half() for parameter in model.parameters()]
        squares = [(g.float() if cured else g).pow(2).sum() for g in gradients]
        norm = sum(squares).sqrt().float() / scale
        for parameter in model.parameters():
            parameter.grad.mul_(min(1.0, 1 / (norm.item() + 1e-6)) / scale)
        optimizer.step()
        return loss

    return Training(lambda batch: step(*batch), batches(200), lambda: accuracy(model), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.NOT_FINITE,
    symptom=("The norm of the gradients is inf although each of them is finite; clipping sets all of them to 0."),
    cause="256 squared is already 65,536, which is inf in FP16.",
    reading="A norm of inf over tensors that are finite; updates that are all 0.",
    repair="Square and add in FP32, or use `torch.nn.utils.get_total_norm`.",
    threads=("facebookresearch/fairscale#263",),
    claims=("C56",),
)
