"""A checkpointed block is computed again under another autocast state."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mixed = {"on": True}

    def block(inputs):
        with torch.autocast("cpu", torch.float16, enabled=mixed["on"]):
            return model(inputs)

    def step(inputs, targets):
        optimizer.zero_grad()
        mixed["on"] = True
        loss = F.cross_entropy(checkpoint(block, inputs, use_reentrant=False).float(), targets)
        mixed["on"] = cured  # evaluation, a profiler, a second thread: whoever switches it off too early
        loss.backward()
        optimizer.step()
        return loss

    return Training(lambda batch: step(*batch), batches(80), lambda: accuracy(model), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom="An error in the backward pass about tensors with different metadata.",
    errors=("Recomputed values for the following tensors have different metadata than during the forward pass.",),
    cause=(
        "Checkpointing throws activations away and computes them again. If autocast was on the first time "
        "and off the second, they come back in another dtype."
    ),
    reading="The dtypes of one block in its two forward passes.",
    repair=(
        "Let nothing that decides the dtype change between forward and backward; put autocast around the "
        "block, where checkpoint restores it."
    ),
    threads=(
        "pytorch/pytorch#141896",
        "pytorch/pytorch#148831",
        "NVIDIA/TransformerEngine#787",
        "facebookresearch/fairscale#1199",
    ),
)
