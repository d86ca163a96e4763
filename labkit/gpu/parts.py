"""The parts of `labkit gpu`, the most valuable first, each with its seconds.

Invariant: a part yields a line for each thing that is done, when it is done and kept; every file is whole and says on
which device, with which driver and versions, and when it was made.
"""

from __future__ import annotations

import inspect
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit.amp import RECIPES
from labkit.bench import DeviceReport, GemmRecord, from_json, sweeps
from labkit.bench.cases import GPU_SHORT, QUICK, Extent
from labkit.bench.record import bench_versions, measure
from labkit.capture.kernel import COLUMNS, INSTRUCTIONS
from labkit.capture.tiles import MmaCapture, ask
from labkit.gemm.mma import SPECS
from labkit.gpu.checks import CHECKS
from labkit.gpu.checks.measure import reason, release_memory
from labkit.records import now, write_whole
from labkit.train import GPU_TASKS, TASKS, record_path, train
from labkit.train.record import fingerprint


@dataclass(frozen=True)
class Order:
    """What a part is asked: on which device, into which folder, until when (time.monotonic), and how much.

    quick means: on a GPU, in a third of the time; on a CPU, small cases that rehearse the code.
    """

    report: DeviceReport
    folder: Path
    end: float
    quick: bool

    @property
    def rehearsal(self) -> bool:
        """Say whether cases are so small that their numbers mean nothing."""
        return self.quick and self.report.kind == "cpu"

    def over(self) -> bool:
        """Say whether the time is up."""
        return time.monotonic() > self.end

    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self.end - time.monotonic())

    def path(self, kind: str, name: str) -> Path:
        """Return where a result is kept: FOLDER/kind/device/name."""
        return self.folder / kind / self.report.slug / name


@dataclass(frozen=True)
class Part:
    """One part: a line about it, its seconds, and what it does, yielding a line for each thing that is done."""

    about: str
    seconds: float
    run: Callable[[Order], Iterator[str]]


RACES = (
    ("segmentation", ("FP32", "FP16", "FP16 dynamic", "BF16")),
    ("gpt_gpu", ("FP32", "O1", "O2", "BF16")),
    ("segmentation_gpu", ("FP32", "FP16", "O1", "BF16")),
    ("unet_gpu", ("FP32", "O1", "BF16")),
    ("gauss_conv", ("FP32", "FP16", "FP16 dynamic")),
)
SMALL: dict[str, Any] = {"width": 64, "batch": 8, "steps": 2, "rounds": 1, "names": ("digits",)}  # for a rehearsal


def _captures(order: Order) -> Iterator[str]:
    """Ask the Tensor Cores single instructions, and compare each answer with the emulator's."""
    rows = [row for row in INSTRUCTIONS if row.runs_on(order.report.capability)]
    rows.sort(key=lambda row: row.grouped)  # the simpler ones first: an instruction that fails may end the process
    if not rows:
        yield f"{order.report.name} has no instruction that the lab knows how to ask"
    for row in rows:
        if order.over():
            yield f"{row.name}: not asked, the time was up"
            continue
        tiles = 2 if order.quick else 512 // row.m  # of each family: 4096 sums
        try:
            answers = ask(row, tiles)
            path = write_whole(order.path("mma", f"{row.name}.npz"), answers.to_bytes())
        except Exception as refused:
            yield f"{row.name}: NOT CAPTURED, {reason(refused)}"
            continue
        try:
            yield f"{path}: {_compared(answers, tiles, seeds=1 if order.quick else 5)}"
        except Exception as refused:
            yield f"{path}: kept, but NOT COMPARED with the emulator, {reason(refused)}"


def _compared(answers: MmaCapture, tiles: int, seeds: int) -> str:
    """Compare answers with the emulator's, and those to further questions, which are not kept."""
    if not answers.spec:
        return "kept; no row of SPECS models this GPU"
    spec = SPECS[answers.spec].for_operands(answers.instruction.operands)
    further = [ask(answers.instruction, tiles, seed) for seed in range(1, seeds)]
    counts = Counter[str]()
    for each in (answers, *further):
        counts.update(each.mismatches(spec))
    sums = seeds * len(answers.a) * answers.instruction.m * COLUMNS
    wrong = {family: count for family, count in counts.items() if count}
    return f"{sum(wrong.values())} of {sums} sums differ from the emulator's" + (f": {wrong}" if wrong else "")


def _sweeps(*names: str) -> Callable[[Order], Iterator[str]]:
    """Return a part that times sweeps, one file each; the seconds are shared evenly among those that are left."""

    def run(order: Order) -> Iterator[str]:
        extent = _extent(order)
        known = [name for name in names if name in sweeps(order.report, extent)]
        for i, name in enumerate(known):
            path, seconds = order.path("gemm", f"{name}.json"), order.left() / (len(known) - i)
            said = [f"{path}: nothing was timed"]

            def keep(record: GemmRecord, path: Path = path, said: list[str] = said) -> None:
                said[0] = _kept(path, record, quick=order.quick)

            try:
                measure(name, order.report.kind, extent=extent, seconds=seconds, progress=keep)
            except Exception as error:
                said.append(f"ENDED by {reason(error)}")
            yield "; ".join(said)

    return run


def _extent(order: Order) -> Extent | None:
    return QUICK if order.rehearsal else GPU_SHORT if order.quick else None


def _kept(path: Path, record: GemmRecord, *, quick: bool) -> str:
    """Write a sweep and say so; a quick one does not take the place of one that has more cases."""
    before = 0
    with suppress(OSError, ValueError):  # none is on record, or none that can be read
        before = len(from_json(path.read_text(encoding="utf-8")).runs) if quick else 0
    if before > len(record.runs):
        return f"{path}: {before} cases are on record; these {len(record.runs)} do not replace them"
    write_whole(path, record.to_json().encode())
    best = max(record.runs, key=lambda timed: timed.tflops, default=None)
    fastest = f", fastest {best.tflops:.3g} TFLOP/s ({best.case.label})" if best else ""
    return f"{path}: {len(record.runs)} cases, {len(record.left_out)} left out{fastest}"


def _checks(*names: str) -> Callable[[Order], Iterator[str]]:
    """Return a part that runs rows of CHECKS, keeps their answers and tells them."""

    def run(order: Order) -> Iterator[str]:
        for name in names:
            check = CHECKS[name]
            takes = inspect.signature(check.main).parameters
            given = {"seconds": order.left(), **(SMALL if order.rehearsal else {})}
            path, said = order.path("checks", f"{name}.json"), "no item was begun"
            try:
                for answers in check.main(order.report.kind, **{key: given[key] for key in given if key in takes}):
                    found = {"versions": bench_versions(order.report), "date": now(), **answers}
                    found["device"] = order.report.name
                    write_whole(path, json.dumps(found, indent=1).encode())
                    said = check.told(found)
            except Exception as error:
                said = f"{said}\n{name} was ENDED by {reason(error)}"
            yield f"{path}:\n{said}"

    return run


def _races(order: Order) -> Iterator[str]:
    """Train the lab's own tasks on the GPU, each run on record where `labkit race` looks for it.

    Quick ones are shortened, so they are another task, and are kept in a folder of their own.
    """
    folder = order.folder / "runs" / order.report.slug
    runs = [(name, recipe) for name, recipes in RACES for recipe in recipes]
    for name, recipe in runs[:1] if order.quick else runs:
        if order.over():
            yield f"{name} under {recipe}: not begun, the time was up"
            continue
        task = (TASKS | GPU_TASKS)[name]
        task = replace(task, steps=2) if order.quick else task
        try:
            record = train(task, RECIPES[recipe], 0, device=order.report.kind, stop=order.over)
            if record.stopped:
                yield f"{name} under {recipe}: not finished, the time was up"
                continue
            kept = replace(record, fingerprint=fingerprint(task, RECIPES[recipe]))
            path = kept.save(record_path(folder / "quick" if order.quick else folder, name, recipe, 0))
        except Exception as error:
            yield f"{name} under {recipe}: FAILED, {reason(error)}"
            continue
        finally:
            release_memory()
        pace = f", {kept.steps_per_second:.3g} steps a second" if kept.steps_per_second else ""
        said = f"{record.metric_name} {record.metric:.3f}, {record.skipped} skipped, {record.seconds:.1f} s"
        yield f"{path}: {said}{pace}"


def _own_kernel(order: Order) -> Iterator[str]:
    yield from _sweeps("kernel")(replace(order, end=time.monotonic() + order.left() / 2))
    yield from _checks("triton")(order)


PARTS: dict[str, Part] = {
    "mma": Part("ask the Tensor Cores single instructions", 45, _captures),
    "ceilings": Part("measure the fastest copy and product", 25, _sweeps("ceilings")),
    "size": Part("time products of every size and format", 50, _sweeps("size")),
    "amp": Part("compare the engine with torch.amp", 80, _checks("amp", "recurrent")),
    "speed": Part("time training steps and inference", 45, _checks("speed")),
    "tasks": Part("time the lab's own tasks, FP32 against FP16", 25, _checks("tasks")),
    "cards": Part("run the patients that only a GPU shows", 20, _checks("cards")),
    "layers": Part("time layers, bandwidth and accumulation", 40, _sweeps("layers", "bandwidth", "accumulation")),
    "kernel": Part("time and check our own Triton kernel", 60, _own_kernel),
    "alignment": Part("time alignment, batch and convolution", 60, _sweeps("alignment", "batch", "convolution")),
    "many": Part("train on all GPUs together, with NCCL", 22, _checks("many")),
    "runs": Part("train the lab's tasks", 40, _races),
}
QUICK_PARTS: dict[str, float] = {"ceilings": 20, "size": 35, "layers": 35, "alignment": 40, "tasks": 35}  # on a GPU
