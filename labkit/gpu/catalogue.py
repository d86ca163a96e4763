"""Catalogue of `labkit gpu`: its parts, the most valuable first, and the passport.

Each has a time limit and a list of items.

A process serves the items of one of them: `python -m labkit.gpu`, or `python -m tests.gpu.checks`
if the part has checks and the lab runs from a checkout.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from labkit.gpu.items import facts, passport_items
from labkit.gpu.job import Job
from labkit.gpu.measure import speed
from labkit.gpu.passport.make import SECONDS
from labkit.gpu.recordings import card_items, costs, paces, sweep_items, trainings
from labkit.gpu.worker import Item, why_no_checks


def no_items(job: Job) -> list[Item]:
    """Return an empty list, for a part that consists of checks."""
    return []


@dataclass(frozen=True)
class Part:
    """A part of `labkit gpu`, or its passport.

    Attributes:
        about: what it does.
        seconds: time limit.
        items: what it measures or records, besides its checks.
        checks: whether it has checks: tests that are marked with its name.
        lacking: what a device lacks if the part has no item for it, for the message.
    """

    about: str
    seconds: float
    items: Callable[[Job], list[Item]] = no_items
    checks: bool = False
    lacking: str = "no item of this part"


PARTS: dict[str, Part] = {
    "mma": Part(
        "ask the Tensor Cores single instructions",
        45,
        checks=True,
        lacking="no instruction that the lab knows how to ask",
    ),
    "ceilings": Part("measure the fastest copy and product", 25, sweep_items("ceilings")),
    "size": Part("time products of every size and format", 50, sweep_items("size")),
    "amp": Part("compare the engine with torch.amp", 80, costs, checks=True),
    "speed": Part(
        "time training steps and inference",
        45,
        lambda job: speed(job.size(4096), **job.repetitions()),
    ),
    "tasks": Part("time the lab's own tasks, FP32 against FP16", 30, paces),
    "cards": Part("run the faults that only a GPU shows", 25, card_items),
    "layers": Part(
        "time layers, bandwidth and accumulation",
        40,
        sweep_items("layers", "bandwidth", "accumulation"),
    ),
    "kernel": Part(
        "time and check our own Triton kernel",
        55,
        sweep_items("kernel", shares=2),
        checks=True,
        lacking="no Triton to run our kernel",
    ),
    "alignment": Part(
        "time alignment, batch and convolution",
        55,
        sweep_items("alignment", "batch", "convolution"),
    ),
    "many": Part(
        "train on all GPUs together, with NCCL",
        22,
        checks=True,
        lacking="no NCCL, which needs a GPU",
    ),
    "runs": Part("train the lab's tasks", 40, trainings),
}
# The results of one GPU in one file, which is sent to the maintainers.
PASSPORT = Part("record what this GPU does", SECONDS, passport_items, checks=True)
# Parts of a quick run on a GPU, in this order, with their time limits in seconds.
QUICK_PARTS: dict[str, float] = {
    "ceilings": 20,
    "size": 35,
    "layers": 35,
    "alignment": 40,
    "tasks": 40,
}


def part_of(job: Job) -> Part:
    return PARTS[job.part] if job.part else PASSPORT


def catalogue(job: Job) -> list[Item]:
    """Return all items of a job, besides its checks."""
    return [*facts(), *part_of(job).items(job)]


def worker_command(job: Job) -> list[str]:
    """Return the command of a process that serves the items of a job, with a checkout's checks."""
    module = "labkit.gpu"
    if part_of(job).checks and not why_no_checks():
        module = "tests.gpu.checks"
    return [sys.executable, "-m", module, *job.words]
