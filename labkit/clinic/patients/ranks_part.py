"""Two processes do not agree on which step is skipped."""

import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.clinic.patient import Kind, Patient, Training
from labkit.train.race import processes


def rank(number: int, cured: bool, meeting: str) -> list[float]:
    """What each of the two runs: it keeps and steps one of two rows of the weights."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    dist.init_process_group("gloo", store=dist.FileStore(meeting, 2), rank=number, world_size=2)
    torch.manual_seed(0)
    teacher, own = torch.randn(2, 16), torch.zeros(1, 16, requires_grad=True)
    optimizer, losses = torch.optim.SGD([own], lr=0.5), []
    scaler = (ShardedGradScaler if cured else torch.amp.GradScaler)("cpu", init_scale=2.0**12)
    for step in range(24):
        parts = [torch.empty(1, 16) for _ in range(2)]
        dist.all_gather(parts, own.detach())
        weights = torch.cat(parts).half().requires_grad_()
        inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(2 * step + number))
        targets = inputs @ teacher.T
        if step in (3, 4, 5):
            targets[0, 1] = 1e5  # the gradient of the second row overflows
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


def training(cured: bool) -> Training:
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2, mp_context=processes()) as pool:
        mine, _ = pool.map(partial(rank, cured=cured, meeting=str(Path(folder) / "meeting")), range(2))
    return Training(lambda step: mine[step], range(len(mine)), lambda: 1 / (1 + mine[-1]))


PATIENT = Patient(
    training,
    shown=rank,
    kind=Kind.LEARNS_BADLY,
    symptom="On several GPUs the loss grows after a skipped step, or all wait for ever. No error is raised.",
    cause=(
        "Each rank holds a part of the weights and looks at its own gradients. Where one finds inf it skips and halves "
        "its scale; the others step and keep theirs. From then on the sum holds gradients at two scales, and each rank "
        "divides it by its own."
    ),
    reading="The scale of each rank, side by side; `watch` on all ranks says at which step they parted.",
    repair="Agree on found_inf: torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, or FSDP2's DTensors.",
    threads=("facebookresearch/fairscale#180", "facebookresearch/fairscale#179", "pytorch/pytorch#136009"),
)
