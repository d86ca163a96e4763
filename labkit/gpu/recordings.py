"""Items that record: sweeps, trainings, costs and paces, each in the size and the time of a job.

Invariant: an item saves its results as soon as it has them. Every file is complete, and names the
device, the driver, the versions and the date.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from labkit.amp import RECIPES
from labkit.bench import GemmRecord, from_json, sweeps
from labkit.bench.record import measure
from labkit.faults import GPU_CARDS
from labkit.gpu.job import Job
from labkit.gpu.measure import AMP_WAYS, cards, cost, pace, twice
from labkit.gpu.worker import Item, Kind, Line, release_memory
from labkit.records import write_atomic
from labkit.train import GPU_TASKS, TASKS, record_path, train
from labkit.train.record import fingerprint

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


def sweep_items(*names: str, shares: int = 0) -> Callable[[Job], list[Item]]:
    """Return a function from a job to the items of these sweeps, one file each.

    An item takes an even share of the seconds that are left when it begins.

    Args:
        names: names of sweeps; those that the device cannot run are left out.
        shares: number of shares; 0 for as many as there are items.
    """

    def items(job: Job) -> list[Item]:
        known = [name for name in names if name in sweeps(job.report, job.extent)]
        count = shares or len(known)
        return [
            Item(f"sweep {name}", Kind.TIMING, partial(_sweep, job, name, count - i))
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
    if quick:
        # a file that is missing or cannot be read may be replaced
        with suppress(OSError, ValueError):
            before = len(from_json(path.read_text(encoding="utf-8")).runs)
    if before > len(record.runs):
        return f"{path}: {before} cases are saved; these {len(record.runs)} do not replace them"
    write_atomic(path, record.to_json().encode())
    summary = f"{path}: {len(record.runs)} cases, {len(record.left_out)} left out"
    if record.runs:
        best = max(record.runs, key=lambda timed: timed.tflops)
        summary += f", fastest {best.tflops:.3g} TFLOP/s ({best.case.label})"
    return summary


def costs(job: Job) -> list[Item]:
    return [
        cost(network, "training", AMP_WAYS, job.size(1024), **job.repetitions())
        for network in AMP_NETWORKS
    ]


def card_items(job: Job) -> list[Item]:
    return cards([*GPU_CARDS.values()], job.size(4096)["width"])


def paces(job: Job) -> list[Item]:
    """Return items that time each task in an even share of the time, then train the first twice."""
    names = ("digits",) if job.rehearsal else PACED
    tasks = [(TASKS | GPU_TASKS)[name] for name in names]

    def share(tasks_left: int) -> float:
        return job.seconds_left() / tasks_left

    items = []
    for i, task in enumerate(tasks):
        seconds = partial(share, len(tasks) - i)
        items.append(pace(task, seconds, **job.repetitions()))
    items.append(twice(tasks[0], RECIPES["O1"]))
    return items


def trainings(job: Job) -> list[Item]:
    """Return items that train the lab's own tasks and save each run where `labkit compare` looks.

    A quick job trains the first run alone. It is shortened, which makes it another task, so it is
    saved in a folder of its own.
    """
    runs = [(name, recipe) for name, recipes in RACES for recipe in recipes]
    if job.quick:
        runs = runs[:1]
    return [
        Item(f"{name} under {recipe}", Kind.TIMING, partial(_training, job, name, recipe))
        for name, recipe in runs
    ]


def _training(job: Job, name: str, recipe: str, device: str, found: Line) -> None:
    # the training before may have left memory in reference cycles
    release_memory()
    task = (TASKS | GPU_TASKS)[name]
    if job.quick:
        task = replace(task, steps=2)
    record = train(
        task, RECIPES[recipe], seed=0, device=device, stop=lambda: not job.seconds_left()
    )
    if record.stopped:
        found["summary"] = "not finished, the time was up"
        return
    record = replace(record, fingerprint=fingerprint(task, RECIPES[recipe]))
    folder = job.path("runs", "quick" if job.quick else "")
    path = record.save(record_path(folder, name, recipe, seed=0))
    summary = (
        f"{path}: {record.metric_name} {record.metric:.3f}, {record.skipped} skipped, "
        f"{record.seconds:.1f} s"
    )
    if record.steps_per_second:
        summary += f", {record.steps_per_second:.3g} steps a second"
    found["summary"] = summary
