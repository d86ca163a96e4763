"""The learning-rate schedule counts steps that were skipped."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
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
        if cured:
            if not skipped:
                schedule.step()
        else:
            schedule.step()
        return loss

    return Training(lambda batch: step(*batch), batches(90), lambda: accuracy(model), model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom=(
        "A warning that lr_scheduler.step() came before optimizer.step(), or a schedule that ends before "
        "the training has learned enough."
    ),
    errors=("Detected call of `lr_scheduler.step()` before `optimizer.step()`",),
    cause=(
        "While the scaler looks for its scale, it skips steps. A schedule that is called anyway counts "
        "them: here 20 of 60."
    ),
    reading="The count of skipped steps, beside the count of the schedule.",
    repair=(
        "Step the schedule only after a step that was done: compare `scaler.get_scale()` before and after `update()`."
    ),
    threads=("pytorch/pytorch#55585", "pytorch/pytorch#44511", "Lightning-AI/pytorch-lightning#21339"),
    limit=0.55,
)
