"""The state of the scaler is not in the checkpoint."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = {"scaler": torch.amp.GradScaler("cpu", init_scale=2.0**24), "skips after it went on": 0}

    def step(batch):
        number, (inputs, targets) = batch
        if number == 40:  # the job ends, and goes on from its checkpoint
            saved = run["scaler"].state_dict()
            run["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0**24)
            if cured:
                run["scaler"].load_state_dict(saved)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets, reduction="sum") / 8
        scale = run["scaler"].get_scale()
        run["scaler"].scale(loss).backward()
        run["scaler"].step(optimizer)
        run["scaler"].update()
        run["skips after it went on"] += number >= 40 and run["scaler"].get_scale() < scale
        return loss

    def score():
        return 1 / (1 + run["skips after it went on"])

    return Training(step, list(enumerate(batches(60))), score, model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom="After each restart some steps are skipped, and the loss is not what it was.",
    cause=(
        "A new scaler begins at its first scale and searches again. With a growth interval of 2,000 the "
        "old one had found its scale long ago."
    ),
    reading="Skips in the first steps after a restart; a scale that jumps there.",
    repair="Save `scaler.state_dict()` beside those of model and optimizer, and load it.",
    threads=("NVIDIA/apex#180", "pytorch/torchtitan#146"),
    limit=0.3,
)
