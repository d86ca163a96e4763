"""Faults of norms and clipping."""

from functools import partial

import torch
import torch.nn.functional as F

from labkit.faults.fault import Fault, Kind, Training
from labkit.faults.loops import accuracy, batches, network, scaled


@partial(Fault, claims=("C38",))
def clip_before_unscale(fixed):
    """Gradients are clipped while they are still scaled.

    Symptom: No error, and next to nothing is learned. With Adam, which divides by the size of the
        gradients, it goes unnoticed.
    Cause: Under a scale of 65,536 a gradient of norm 1 has norm 65,536. It is cut to 1, and then
        divided by the scale again: 65,536 times too short.
    Reading: The gradients are at most max_norm / scale long after unscaling; they were changed
        between backward and unscale.
    Repair: Call `scaler.unscale_(optimizer)` before `clip_grad_norm_`.
    Reported: pytorch/examples#1196, harubaru/waifu-diffusion#64,
        Lightning-AI/pytorch-lightning#9799
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def loss_of(inputs, targets):
        return F.cross_entropy(model(inputs), targets)

    def before_step():
        if fixed:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return scaled(
        loss_of, model, optimizer, scaler, batches(300), lambda: accuracy(model), before_step
    )


@partial(Fault, kind=Kind.NOT_FINITE, claims=("C39",))
def clip_with_inf(fixed):
    """Gradients are clipped by a norm that is inf.

    Symptom: All weights are NaN at once, or one step sets every gradient to 0, without a message.
    Cause: Everything is multiplied by max_norm / inf = 0, and inf times 0 is NaN.
    Reading: Gradients with one inf before the clipping, with NaN and zeros after it.
    Repair: Look before clipping, or `clip_grad_norm_(..., error_if_nonfinite=True)`; with a
        GradScaler unscale first, and it skips the step.
    Reported: pytorch/pytorch#46849
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        number, (inputs, targets) = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        if number == 50:
            # one element, as an overflow leaves it
            model[1].weight.grad[0, 0] = float("inf")
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
        if fixed and not norm.isfinite():
            return loss
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
        optimizer.step()
        return loss

    return Training(step, list(enumerate(batches(150))), lambda: accuracy(model), model, optimizer)


@partial(Fault, kind=Kind.ERROR, limit=0.6)
def first_steps_refused(fixed):
    """The first overflows, which a scaler expects, are taken for an error.

    Symptom: inf or NaN in the norm of the gradients in the first steps, or an error about it: is
        that normal?
    Cause: It is. A dynamic scale begins high and is halved at each overflow; such a step is skipped
        by the scaler, after the clipping.
    Reading: A few skips at the start, then none; the loss is finite at every step.
    Repair: Let the scaler look: clip without error_if_nonfinite, and log how many steps were
        skipped.
    Error: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot
        be clipped.
    Reported: pytorch/pytorch#111739, espnet/espnet#3237, Lightning-AI/pytorch-lightning#9799
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)

    def loss_of(inputs, targets):
        return F.cross_entropy(model(inputs), targets)

    def before_step():
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=not fixed)

    return scaled(
        loss_of, model, optimizer, scaler, batches(120), lambda: accuracy(model), before_step
    )


@partial(Fault, kind=Kind.WRONG_NUMBERS, limit=0.9, claims=("C56",))
def logged_norm_in_bf16(fixed):
    """The norm of the parameters is added up in BF16.

    Symptom: A logged norm is some per cent too small, or inf, and does not agree with that of
        another tool.
    Cause: A sum of many in BF16 stops growing when the next part is below half an ulp of the sum.
    Reading: A norm computed in the dtype of the parameters.
    Repair: `torch.nn.utils.get_total_norm`, or `dtype=torch.float32` in the norm.
    Reported: NVIDIA-NeMo/Automodel#3625, pytorch/pytorch#92164
    """
    model = network(depth=4)
    vectors = [parameter.detach().bfloat16() for parameter in model.parameters()]
    logged = []

    def step(_):
        total = torch.zeros((), dtype=torch.float32 if fixed else torch.bfloat16)
        for vector in vectors:
            for row in vector.reshape(-1, vector.shape[-1]):
                total += row.to(total.dtype).pow(2).sum()
        logged.append(total.sqrt().item())

    def score():
        exact = torch.cat([vector.double().flatten() for vector in vectors]).norm().item()
        return 1 - 20 * abs(logged[-1] / exact - 1)

    return Training(step, range(2), score, model)


@partial(Fault, kind=Kind.NOT_FINITE, claims=("C56",))
def norm_squared_in_half(fixed):
    """The norm of the gradients is added up in FP16.

    Symptom: The norm of the gradients is inf although each of them is finite; clipping sets all of
        them to 0.
    Cause: 256 squared is already 65,536, which is inf in FP16.
    Reading: A norm of inf over tensors that are finite; updates that are all 0.
    Repair: Square and add in FP32, or use `torch.nn.utils.get_total_norm`.
    Reported: facebookresearch/fairscale#263
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scale = 2.0**12

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        (loss * scale).backward()
        gradients = [parameter.grad.half() for parameter in model.parameters()]
        squares = [(g.float() if fixed else g).pow(2).sum() for g in gradients]
        norm = sum(squares).sqrt().float() / scale
        for parameter in model.parameters():
            parameter.grad.mul_(min(1.0, 1 / (norm.item() + 1e-6)) / scale)
        optimizer.step()
        return loss

    return Training(
        lambda batch: step(*batch), batches(200), lambda: accuracy(model), model, optimizer
    )
