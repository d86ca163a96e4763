"""Distributed training of one layer by four processes, with an overflow in one gradient part.

Idea: `torchrun --nproc-per-node 4 -m labkit.train.workers` starts the processes once. Rank 0 reads
a line of JSON for each training (`WorkerPlan`), broadcasts it, and prints a line for each step with
the state of every rank.

Invariant: the processes exit at the end of the standard input, so none of them outlives its parent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.amp import RECIPES, Engine, ScalerConfig
from labkit.amp.distributed.engine import DistributedEngine
from labkit.amp.distributed.group import RankLost, largest, start_group
from labkit.formats import BF16, FP16, FP32
from labkit.machine.resources import bytes_written
from labkit.processes import die_with_parent
from labkit.train.plan import OUTPUTS, STEPS, WorkerPlan

# The timeout between two lines of input, in seconds: a day.
DAY_S = 86_400.0
# The inputs of the layer; its outputs are OUTPUTS.
INPUTS = 256
# The rows of each rank's batch.
ROWS = 64
# In these steps, one target of the last rank is huge, so that one row of gradients overflows. Of
# four ranks, the third holds this row of weights.
OVERFLOW_STEPS = (3, 4, 5)
OVERFLOW_OUTPUT = 40
FORMATS = {"FP32": FP32, "FP16": FP16, "BF16": BF16}


class AloneEngine(DistributedEngine):
    """Engine whose ranks do not agree on found_inf: each decides by its own gradients."""

    def _agreed(self, found: dict[int, bool]) -> dict[int, bool]:
        return found

    def _culprits(self, gradients: Any, known: tuple[str, ...] | None = None) -> tuple[str, ...]:
        return Engine._culprits(self, gradients, known)


def training(
    plan: WorkerPlan, steps: int = STEPS, device: str | torch.device = "cpu"
) -> Iterator[dict[str, Any]]:
    """Train on every rank of the group, and yield the same report on each rank after every step.

    Args:
        plan: options of the training.
        steps: number of steps.
        device: device of this rank.

    A report has these keys:

    - step: its number
    - loss: the mean over the ranks, before the step
    - ranks: for each, its scale, whether it stepped, whether its gradients contained inf or NaN,
      and its loss
    - sent: bytes that a rank sent in this step, or None if unknown
    - held: bytes of one rank: model weights, gradients, master weights, momentum
    """
    engine_class = DistributedEngine if plan.agree else AloneEngine
    recipe = replace(RECIPES["O2"], scaler=ScalerConfig(init_scale=2.0**14, growth_interval=100))
    torch.manual_seed(0)
    layer = nn.Linear(INPUTS, OUTPUTS, bias=False)
    teacher = torch.randn(INPUTS, OUTPUTS)
    nn.init.zeros_(layer.weight)
    engine = engine_class(
        layer,
        _sgd,
        recipe,
        device=device,
        sharded=plan.sharded,
        reduce=FORMATS[plan.reduce],
        predivide=plan.predivide,
    )
    for step in range(1, steps + 1):
        inputs, targets = (each.to(device) for each in _batch(teacher, step))
        written_before = bytes_written()
        engine.zero_grad()
        with engine.forward():
            loss = 0.1 * (engine(inputs) - targets).square().sum(1).mean()
        engine.backward(loss)
        found = not all(bool(g.isfinite().all()) for g in engine.gradients().values())
        scale = engine.scaler.scale
        report = engine.step()
        sent = None
        written_after = bytes_written()
        if written_before is not None and written_after is not None:
            sent = written_after - written_before
        held = _bytes_by_category(engine)
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, (scale, report.stepped, found, loss.item()))
        losses = [rank[3] for rank in ranks]
        yield {
            "step": step,
            "loss": sum(losses) / len(losses),
            "ranks": ranks,
            "sent": sent,
            "held": held,
        }


def _sgd(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.75, momentum=0.5)


def _batch(teacher: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Return this rank's inputs and targets; in OVERFLOW_STEPS the last rank has one overflow."""
    rank = dist.get_rank()
    last = dist.get_world_size() - 1
    inputs = torch.randn(ROWS, INPUTS, generator=torch.Generator().manual_seed(1000 * step + rank))
    targets = inputs @ teacher
    if step in OVERFLOW_STEPS and rank == last:
        targets[0, OVERFLOW_OUTPUT] = 1e5
    return inputs, targets


def _bytes_by_category(engine: DistributedEngine) -> dict[str, int]:
    """Return the bytes that this rank holds between two steps, by category."""
    model_bytes = sum(p.nbytes for p in engine.weights.model_weights)
    momentum_bytes = 0
    for state in engine.optimizer.state.values():
        for value in state.values():
            # A scalar is the optimizer's count of steps.
            if isinstance(value, Tensor) and value.dim():
                momentum_bytes += value.nbytes
    return {
        "model weights": model_bytes,
        # They have the dtype of the model weights.
        "gradients": model_bytes,
        "master weights": sum(p.nbytes for p in engine.weights.master_weights),
        "momentum": momentum_bytes,
    }


def main() -> None:
    """Run one of the processes until the standard input or torchrun ends."""
    die_with_parent()
    # torchrun may have ended before this call.
    if os.getppid() == 1:
        return
    # CPUs, so that any machine can run four processes
    device = start_group("cpu", timeout_s=DAY_S)
    first = dist.get_rank() == 0
    # This collective returns when every rank has started.
    largest([0.0], device)
    if first:
        _print({"ready": dist.get_world_size()})
    while True:
        lines: list[str] = [sys.stdin.readline() if first else ""]
        dist.broadcast_object_list(lines)
        if not lines[0]:
            break
        plan = WorkerPlan(**json.loads(lines[0]))
        for step in training(plan, device=device):
            if first:
                _print(step)
        if first:
            _print({"done": asdict(plan)})
    dist.destroy_process_group()


def _print(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except (RankLost, RuntimeError):
        # When rank 0 is stopped, the others fail, too; only rank 0 reports.
        if not dist.is_initialized() or dist.get_rank() == 0:
            raise
