"""Faults around a loss scaler: uses of scaled gradients, and the time of a change of scale."""

from functools import partial

import torch
import torch.nn.functional as F

from labkit.faults.fault import Fault, Kind, Training
from labkit.faults.loops import accuracy, batches, network, scaled


@partial(Fault, kind=Kind.WRONG_NUMBERS, limit=0.9)
def logged_while_scaled(fixed):
    """The norm of the gradients is logged while they are scaled.

    Symptom: Logged gradients are in the tens of thousands, and double or halve at single steps
        while the loss moves smoothly.
    Cause: Hooks and loggers that look right after backward see loss times scale. When the scale
        changes, so does what they see.
    Reading: The norm divided by the scale is smooth; it jumps by exactly 2 where the scale does.
    Repair: Log after `scaler.unscale_(optimizer)`, or divide by `scaler.get_scale()`.
    Reported: wandb/wandb#4369, wandb/wandb#9092, Lightning-AI/pytorch-lightning#11407,
        NVIDIA/apex#774
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", growth_interval=20)
    logged = []
    real = []

    def norm():
        return torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()

    def loss_of(inputs, targets):
        return F.cross_entropy(model(inputs), targets)

    def before_step():
        if not fixed:
            logged.append(norm())
        scaler.unscale_(optimizer)
        if fixed:
            logged.append(norm())
        real.append(norm())

    def score():
        return min(real[-1] / logged[-1], logged[-1] / real[-1])

    return scaled(loss_of, model, optimizer, scaler, batches(40), score, before_step)


@partial(Fault, kind=Kind.ERROR)
def no_gradients_this_turn(fixed):
    """The scaler steps an optimizer that got no gradient in this turn.

    Symptom: An error in the turn of the other network, or when all parameters are frozen.
    Cause: `scaler.step` looks at the gradients of this optimizer, and there is none.
    Reading: All gradients of an optimizer are None.
    Repair: Call `scaler.step` only for an optimizer whose parameters took part; call `update` once,
        at the end of the turn.
    Error: No inf checks were recorded for this optimizer.
    Reported: nerfstudio-project/nerfstudio#1919, Lightning-AI/pytorch-lightning#7792
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step(batch):
        number, (inputs, targets) = batch
        # every fourth turn belongs to another network
        frozen = number % 4 == 3
        optimizer.zero_grad()
        inputs = inputs.clone().requires_grad_()
        model.requires_grad_(not frozen)
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        if not (fixed and frozen):
            scaler.step(optimizer)
            scaler.update()
        return loss

    return Training(
        step, list(enumerate(batches(80))), lambda: accuracy(model), model, optimizer, scaler
    )


@partial(Fault, claims=("C38",))
def penalty_from_scaled(fixed):
    """A gradient penalty is made from scaled gradients.

    Symptom: With a gradient penalty (WGAN-GP, double backward) nothing is learned, or the scale
        falls.
    Cause: The penalty squares gradients that are 65,536 times too large. It outweighs the loss by
        far.
    Reading: The penalty is scale squared times what it should be; the scale falls until both are
        alike.
    Repair: Divide the gradients by `scaler.get_scale()` before the penalty is computed.
    Reported: NVIDIA/apex#654, NVIDIA/apex#215, tensorflow/tensorflow#48662
    """
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")

    def step(inputs, targets):
        inputs = inputs.clone().requires_grad_()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        (gradient,) = torch.autograd.grad(scaler.scale(loss), inputs, create_graph=True)
        if fixed:
            gradient = gradient / scaler.get_scale()
        penalty = gradient.flatten(1).norm(dim=1).pow(2).mean()
        scaler.scale(loss + penalty).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(
        lambda batch: step(*batch), batches(200), lambda: accuracy(model), model, optimizer, scaler
    )


@partial(Fault, limit=0.6)
def scale_changes_between(fixed):
    """The scale changes while gradients are accumulated.

    Symptom: With accumulation the loss has spikes, or the training diverges; without it all is
        well.
    Cause: Parts of one sum were scaled by different factors, and the sum is divided by the last
        one.
    Reading: The scale changes between two backward passes of one step.
    Repair: Change the scale only after a step: call `scaler.update()` once, when the last part has
        been added.
    Reported: https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = {"scale": 2.0**8, "parts": 0}

    def step(inputs, targets):
        optimizer.zero_grad()
        scale = run["scale"]
        for part in range(4):
            rows = slice(16 * part, 16 * part + 16)
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(inputs[rows]), targets[rows]) / 4
            (loss * (scale if fixed else run["scale"])).backward()
            run["parts"] += 1
            # the scale changes after every third part, between 2^8 and 2^14
            if run["parts"] % 3 == 0:
                if run["scale"] > 2.0**8:
                    run["scale"] /= 64
                else:
                    run["scale"] *= 64
        for parameter in model.parameters():
            parameter.grad.div_(scale if fixed else run["scale"])
        optimizer.step()
        return loss

    return Training(
        lambda batch: step(*batch), batches(150), lambda: accuracy(model), model, optimizer
    )


@partial(Fault, kind=Kind.ERROR, limit=0.55)
def schedule_counts_skips(fixed):
    """The learning-rate schedule counts steps that were skipped.

    Symptom: A warning that lr_scheduler.step() came before optimizer.step(), or a schedule that
        ends before the training has learned enough.
    Cause: While the scaler looks for its scale, it skips steps. A schedule that is called anyway
        counts them: here about 20 of 60.
    Reading: The count of skipped steps, beside the count of the schedule.
    Repair: Step the schedule only after a step that was done: compare `scaler.get_scale()` before
        and after `update()`.
    Error: Detected call of `lr_scheduler.step()` before `optimizer.step()`
    Reported: pytorch/pytorch#55585, pytorch/pytorch#44511, Lightning-AI/pytorch-lightning#21339
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=60)

    def step(inputs, targets):
        if schedule.last_epoch >= 60:
            return None
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped = scaler.get_scale() < before
        if not fixed:
            schedule.step()
        if fixed and not skipped:
            schedule.step()
        return loss

    return Training(
        lambda batch: step(*batch), batches(90), lambda: accuracy(model), model, optimizer, scaler
    )


@partial(Fault, kind=Kind.ERROR)
def unscaled_twice(fixed):
    """Gradients are unscaled once for each part of an accumulation.

    Symptom: An error at the second call of unscale_.
    Cause: Dividing twice by the scale would make gradients that are far too small. The scaler
        counts, and refuses.
    Reading: Two calls of unscale_ between two calls of update.
    Repair: Unscale once, when the last part has been added; clip, step and update follow. In a turn
        that leaves out scaler.step(), call scaler.update() all the same.
    Error: unscale_() has already been called on this optimizer since the last update().
    Reported: huggingface/transformers#24840, huggingface/accelerate#641,
        microsoft/Swin-Transformer#311
    """
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
            if not fixed:
                scaler.unscale_(optimizer)
        if fixed:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(
        lambda batch: step(*batch), batches(120), lambda: accuracy(model), model, optimizer, scaler
    )
