"""The parts of `labkit gpu`, the most valuable first, each with its seconds and the items that it measures or records.

Invariant: an item that records saves what it has as soon as it has it. Every file is complete, and records the device,
the driver, the versions and the date.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from labkit.amp import RECIPES
from labkit.bench import DeviceReport, GemmRecord, device_report, from_json, sweeps
from labkit.bench.cases import GPU_SHORT, QUICK, Extent
from labkit.bench.record import measure
from labkit.faults import GPU_CARDS
from labkit.gpu.measure import AMP_WAYS, TIMING, cards, cost, pace, speed, twice
from labkit.gpu.worker import Item, Line, release_memory
from labkit.records import write_atomic
from labkit.train import GPU_TASKS, TASKS, record_path, train
from labkit.train.record import fingerprint


@dataclass(frozen=True)
class Job:
    """Order for a process of items.

    device  "cuda", or "cpu" for a rehearsal
    part    of `labkit gpu`; "" for a passport
    quick   on a GPU: a third of the time, and of a passport two tasks alone; on a CPU: small cases, as a dry run
    until   when to end, as Unix time, which processes share
    folder  where results are saved
    """

    device: str
    part: str = ""
    quick: bool = False
    until: float = math.inf
    folder: Path = Path()

    @property
    def report(self) -> DeviceReport:
        """The device."""
        return device_report(self.device)

    @property
    def rehearsal(self) -> bool:
        """Whether this is a dry run, with cases too small for meaningful numbers."""
        return self.quick and self.device == "cpu"

    @property
    def extent(self) -> Extent | None:
        """The sizes of sweeps; None for those of the device."""
        return QUICK if self.rehearsal else GPU_SHORT if self.quick else None

    def seconds_left(self) -> float:
        """Return the seconds until the end."""
        return max(0.0, self.until - time.time())

    def path(self, kind: str, name: str) -> Path:
        """Return where a result is saved: FOLDER/kind/device/name."""
        return self.folder / kind / self.report.slug / name

    def size(self, width: int) -> dict[str, int]:
        """Return the width and the batch of networks."""
        return {"width": 64, "batch": 8} if self.rehearsal else {"width": width, "batch": 256}

    def repetitions(self) -> dict[str, int]:
        """Return how often to time steps in a rehearsal; nothing for the usual."""
        return {"steps": 2, "rounds": 1} if self.rehearsal else {}


@dataclass(frozen=True)
class Part:
    """One part: a summary, its seconds, and what it measures, besides the checks that are marked with its name."""

    about: str
    seconds: float
    items: Callable[[Job], list[Item]]


def no_items(job: Job) -> list[Item]:
    """Return none: there are checks alone."""
    return []


RACES = (
    ("segmentation", ("FP32", "FP16", "FP16 dynamic", "BF16")),
    ("gpt_gpu", ("FP32", "O1", "O2", "BF16")),
    ("segmentation_gpu", ("FP32", "FP16", "O1", "BF16")),
    ("unet_gpu", ("FP32", "O1", "BF16")),
    ("gauss_conv", ("FP32", "FP16", "FP16 dynamic")),
)
AMP_NETWORKS = ("MLP", "CNN", "transformer", "LSTM")
PACED = (
    "segmentation_small",
    "digits_cnn",
    "gpt",
    "segmentation_gpu",
    "gpt_gpu",
    "unet_gpu",
    "char_lstm_gpu",
)


def _sweeps(*names: str, shares: int = 0) -> Callable[[Job], list[Item]]:
    """Return the items of sweeps, one file each; each has an even share of the seconds that are then left."""

    def items(job: Job) -> list[Item]:
        known = [name for name in names if name in sweeps(job.report, job.extent)]
        count = shares or len(known)
        return [
            Item(f"sweep {name}", TIMING, partial(_sweep, job, name, count - i))
            for i, name in enumerate(known)
        ]

    return items


def _sweep(job: Job, name: str, shares: int, device: str, found: Line) -> None:
    path = job.path("gemm", f"{name}.json")
    found["summary"] = f"{path}: nothing was timed"

    def keep(record: GemmRecord) -> None:
        found["summary"] = save_sweep(path, record, quick=job.quick)

    measure(name, device, extent=job.extent, seconds=job.seconds_left() / shares, progress=keep)


def save_sweep(path: Path, record: GemmRecord, *, quick: bool) -> str:
    """Save a sweep, and return a line on it; a quick one does not replace one with more cases."""
    before = 0
    with suppress(OSError, ValueError):  # none is saved, or it cannot be read
        before = len(from_json(path.read_text(encoding="utf-8")).runs) if quick else 0
    if before > len(record.runs):
        return f"{path}: {before} cases are saved; these {len(record.runs)} do not replace them"
    write_atomic(path, record.to_json().encode())
    best = max(record.runs, key=lambda timed: timed.tflops, default=None)
    fastest = f", fastest {best.tflops:.3g} TFLOP/s ({best.case.label})" if best else ""
    return f"{path}: {len(record.runs)} cases, {len(record.left_out)} left out{fastest}"


def _costs(job: Job) -> list[Item]:
    return [
        cost(network, "training", AMP_WAYS, job.size(1024), **job.repetitions())
        for network in AMP_NETWORKS
    ]


def _cards(job: Job) -> list[Item]:
    return cards([*GPU_CARDS.values()], job.size(4096)["width"])


def _paces(job: Job) -> list[Item]:
    """Measure the speed of each task in an even share of the time; then train the first task twice."""
    tasks = [(TASKS | GPU_TASKS)[name] for name in (("digits",) if job.rehearsal else PACED)]

    def share(left: int) -> float:
        return job.seconds_left() / left

    paces = [
        pace(task, partial(share, len(tasks) - i), **job.repetitions())
        for i, task in enumerate(tasks)
    ]
    return [*paces, twice(tasks[0], RECIPES["O1"])]


def _trainings(job: Job) -> list[Item]:
    """Train the lab's own tasks on the GPU, and save each run where `labkit compare` finds it.

    Quick runs are shortened, so they are other tasks, and are saved in a folder of their own.
    """
    runs = [(name, recipe) for name, recipes in RACES for recipe in recipes]
    return [
        Item(f"{name} under {recipe}", TIMING, partial(_training, job, name, recipe))
        for name, recipe in (runs[:1] if job.quick else runs)
    ]


def _training(job: Job, name: str, recipe: str, device: str, found: Line) -> None:
    release_memory()  # of the training before
    task = (TASKS | GPU_TASKS)[name]
    task = replace(task, steps=2) if job.quick else task
    record = train(task, RECIPES[recipe], 0, device=device, stop=lambda: not job.seconds_left())
    if record.stopped:
        found["summary"] = "not finished, the time was up"
        return
    kept = replace(record, fingerprint=fingerprint(task, RECIPES[recipe]))
    path = kept.save(record_path(job.path("runs", "quick" if job.quick else ""), name, recipe, 0))
    pace = f", {kept.steps_per_second:.3g} steps a second" if kept.steps_per_second else ""
    said = f"{record.metric_name} {record.metric:.3f}, {record.skipped} skipped, {record.seconds:.1f} s"
    found["summary"] = f"{path}: {said}{pace}"


PARTS: dict[str, Part] = {
    "mma": Part("ask the Tensor Cores single instructions", 45, no_items),
    "ceilings": Part("measure the fastest copy and product", 25, _sweeps("ceilings")),
    "size": Part("time products of every size and format", 50, _sweeps("size")),
    "amp": Part("compare the engine with torch.amp", 80, _costs),
    "speed": Part(
        "time training steps and inference",
        45,
        lambda job: speed(job.size(4096), **job.repetitions()),
    ),
    "tasks": Part("time the lab's own tasks, FP32 against FP16", 30, _paces),
    "cards": Part("run the faults that only a GPU shows", 25, _cards),
    "layers": Part(
        "time layers, bandwidth and accumulation",
        40,
        _sweeps("layers", "bandwidth", "accumulation"),
    ),
    "kernel": Part("time and check our own Triton kernel", 55, _sweeps("kernel", shares=2)),
    "alignment": Part(
        "time alignment, batch and convolution", 55, _sweeps("alignment", "batch", "convolution")
    ),
    "many": Part("train on all GPUs together, with NCCL", 22, no_items),
    "runs": Part("train the lab's tasks", 40, _trainings),
}
CHECKED = {  # the parts that have checks -> "" or what the device has where such a part has no item
    "mma": "no instruction that the lab knows how to ask",
    "amp": "",
    "kernel": "no Triton to run our kernel",
    "many": "no NCCL, which needs a GPU",
}
# on a GPU
QUICK_PARTS: dict[str, float] = {
    "ceilings": 20,
    "size": 35,
    "layers": 35,
    "alignment": 40,
    "tasks": 40,
}
