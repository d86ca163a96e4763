"""Gradients are clipped by a norm that is inf."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        number, (inputs, targets) = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        if number == 50:
            model[1].weight.grad[0, 0] = float("inf")  # one element, as an overflow leaves it
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
        if cured and not norm.isfinite():
            return loss
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
        optimizer.step()
        return loss

    return Training(step, list(enumerate(batches(150))), lambda: accuracy(model), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.NOT_FINITE,
    symptom="All weights are NaN at once, or one step sets every gradient to 0, and nothing was said.",
    cause="Everything is multiplied by max_norm / inf = 0, and inf times 0 is NaN.",
    reading="Gradients with one inf before the clipping, with NaN and zeros after it.",
    repair=(
        "Look before clipping, or `clip_grad_norm_(..., error_if_nonfinite=True)`; with a GradScaler "
        "unscale first, and it skips the step."
    ),
    threads=("pytorch/pytorch#46849",),
    claims=("C39",),
)
