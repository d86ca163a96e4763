"""Faults of long and large jobs: checkpoints, and processes that train together."""

import io
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from labkit.faults.fault import Fault, Training
from labkit.faults.loops import accuracy, batches, network, scaled
from labkit.train.grid import process_context


def rank(number: int, fixed: bool, meeting: str) -> list[float]:
    """Run one of two processes, which keeps and steps one of two rows of the weights.

    Args:
        number: the rank, 0 or 1.
        fixed: whether the ranks agree on found_inf.
        meeting: a file by which the two processes find each other.

    Returns:
        The loss of each step.
    """
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    dist.init_process_group("gloo", store=dist.FileStore(meeting, 2), rank=number, world_size=2)
    torch.manual_seed(0)
    teacher = torch.randn(2, 16)
    own = torch.zeros(1, 16, requires_grad=True)
    optimizer = torch.optim.SGD([own], lr=0.5)
    losses = []
    if fixed:
        scaler = ShardedGradScaler("cpu", init_scale=2.0**12)
    else:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for step in range(24):
        parts = [torch.empty(1, 16) for _ in range(2)]
        dist.all_gather(parts, own.detach())
        weights = torch.cat(parts).half().requires_grad_()
        inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(2 * step + number))
        targets = inputs @ teacher.T
        if step in (3, 4, 5):
            # the gradient of the second row overflows
            targets[0, 1] = 1e5
        loss = (inputs.half() @ weights.T - targets).square().sum(1).mean() / 2
        scaler.scale(loss).backward()
        gradient = weights.grad.float()
        dist.all_reduce(gradient)
        own.grad = gradient[[number]] / 2
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    dist.destroy_process_group()
    return losses


@partial(Fault, shown=rank)
def ranks_part(fixed):
    """Two processes do not agree on which step is skipped.

    Symptom: On several GPUs the loss grows after a skipped step, or all ranks wait without end. No
        error is raised.
    Cause: Each rank holds a part of the weights and looks at its own gradients. Where one finds inf
        it skips and halves its scale; the others step and keep theirs. From then on the sum holds
        gradients at two scales, and each rank divides it by its own.
    Reading: The scale of each rank, side by side; `watch` on all ranks says at which step they
        parted.
    Repair: Agree on found_inf: torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, or
        FSDP2's DTensors.
    Reported: facebookresearch/fairscale#180, facebookresearch/fairscale#179, pytorch/pytorch#136009
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(2, mp_context=process_context()) as pool,
    ):
        run_rank = partial(rank, fixed=fixed, meeting=str(Path(folder) / "meeting"))
        losses, _ = pool.map(run_rank, range(2))
    return Training(lambda step: losses[step], range(len(losses)), lambda: 1 / (1 + losses[-1]))


@partial(Fault)
def saved_half(fixed):
    """A checkpoint is made small with model.half(), which changes the model itself.

    Symptom: The training goes wrong at the step after the first checkpoint, or the validation no
        longer agrees with what is loaded later.
    Cause: `model.half()` returns the model, and it is the same one: its weights are FP16 from now
        on.
    Reading: The dtype of the parameters changes between two steps.
    Repair: Cast what is saved, not the model: `{name: value.half() for name, value in
        model.state_dict().items()}`; validate what you saved.
    Error: Attempting to unscale FP16 gradients.
    Reported: ultralytics/ultralytics#14929
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def loss_of(number, batch):
        inputs, targets = batch
        if number == 31:
            if fixed:
                state = {name: value.half() for name, value in model.state_dict().items()}
            else:
                state = model.half().state_dict()
            torch.save(state, io.BytesIO())
        return F.cross_entropy(model(inputs), targets)

    def before_step():
        scaler.unscale_(optimizer)

    return scaled(
        loss_of,
        model,
        optimizer,
        scaler,
        list(enumerate(batches(80))),
        lambda: accuracy(model),
        before_step,
    )


@partial(Fault, limit=0.3)
def scaler_not_saved(fixed):
    """The state of the scaler is not in the checkpoint.

    Symptom: After each restart some steps are skipped, and the loss is not what it was.
    Cause: A new scaler begins at its first scale and searches again. With a growth interval of
        2,000 the old one had found its scale long ago.
    Reading: Skips in the first steps after a restart; a scale that jumps there.
    Repair: Save `scaler.state_dict()` beside those of model and optimizer, and load it.
    Reported: NVIDIA/apex#180, pytorch/torchtitan#146
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = {"scaler": torch.amp.GradScaler("cpu", init_scale=2.0**24), "skips after restart": 0}

    def step(batch):
        number, (inputs, targets) = batch
        # the job ends, and continues from its checkpoint
        if number == 40:
            saved = run["scaler"].state_dict()
            run["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0**24)
            if fixed:
                run["scaler"].load_state_dict(saved)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets, reduction="sum") / 8
        scale = run["scaler"].get_scale()
        run["scaler"].scale(loss).backward()
        run["scaler"].step(optimizer)
        run["scaler"].update()
        if number >= 40 and run["scaler"].get_scale() < scale:
            run["skips after restart"] += 1
        return loss

    def score():
        return 1 / (1 + run["skips after restart"])

    return Training(step, list(enumerate(batches(60))), score, model, optimizer)
