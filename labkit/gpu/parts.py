"""The parts of `labkit gpu`, the most valuable first, each with its seconds.

Invariant: a part yields a line for each result, once it is saved. Every file is complete, and records the device, the
driver, the versions and the date.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from labkit.amp import RECIPES
from labkit.bench import DeviceReport, GemmRecord, from_json, sweeps
from labkit.bench.cases import GPU_SHORT, QUICK, Extent
from labkit.bench.record import bench_versions, measure
from labkit.faults import GPU_CARDS
from labkit.gpu import checks
from labkit.gpu.measure import AMP_WAYS, cards, cost, pace, speed, twice
from labkit.gpu.worker import Item, Line, WorkerLost, answer, ask_all, reason, release_memory
from labkit.records import now, write_atomic
from labkit.train import GPU_TASKS, TASKS, record_path, train
from labkit.train.record import fingerprint


@dataclass(frozen=True)
class Job:
    """The job of a part: its device, its folder, when to end (time.monotonic), and whether to be quick.

    quick   on a GPU: a third of the time; on a CPU: small cases, as a dry run of the code
    """

    report: DeviceReport
    folder: Path
    end: float
    quick: bool

    @property
    def rehearsal(self) -> bool:
        """Whether this is a dry run, with cases too small for meaningful numbers."""
        return self.quick and self.report.kind == "cpu"

    def over(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() > self.end

    def seconds_left(self) -> float:
        """Return the seconds until the end."""
        return max(0.0, self.end - time.monotonic())

    def path(self, kind: str, name: str) -> Path:
        """Return where a result is saved: FOLDER/kind/device/name."""
        return self.folder / kind / self.report.slug / name


@dataclass(frozen=True)
class Part:
    """One part: a summary, its seconds, and its function, which yields a line for each result."""

    about: str
    seconds: float
    run: Callable[[Job], Iterator[str]]


RACES = (
    ("segmentation", ("FP32", "FP16", "FP16 dynamic", "BF16")),
    ("gpt_gpu", ("FP32", "O1", "O2", "BF16")),
    ("segmentation_gpu", ("FP32", "FP16", "O1", "BF16")),
    ("unet_gpu", ("FP32", "O1", "BF16")),
    ("gauss_conv", ("FP32", "FP16", "FP16 dynamic")),
)
AMP_NETWORKS = ("MLP", "CNN", "transformer", "LSTM")
PACED = ("segmentation_small", "digits_cnn", "gpt", "segmentation_gpu", "gpt_gpu", "unet_gpu", "char_lstm_gpu")
NOTHING = {
    "mma": "no instruction that the lab knows how to ask",
    "kernel": "no Triton to run our kernel",
    "many": "no NCCL, which needs a GPU",
}
TIME_UP = "the time was up"


def _sweeps(*names: str) -> Callable[[Job], Iterator[str]]:
    """Return a part that times sweeps, one file each; the seconds are shared evenly among those that are left."""

    def run(job: Job) -> Iterator[str]:
        extent = _extent(job)
        known = [name for name in names if name in sweeps(job.report, extent)]
        for i, name in enumerate(known):
            path, seconds = job.path("gemm", f"{name}.json"), job.seconds_left() / (len(known) - i)
            said = [f"{path}: nothing was timed"]

            def keep(record: GemmRecord, path: Path = path, said: list[str] = said) -> None:
                said[0] = _save_sweep(path, record, quick=job.quick)

            try:
                measure(name, job.report.kind, extent=extent, seconds=seconds, progress=keep)
            except Exception as error:
                said.append(f"ENDED by {reason(error)}")
            yield "; ".join(said)

    return run


def _extent(job: Job) -> Extent | None:
    return QUICK if job.rehearsal else GPU_SHORT if job.quick else None


def _save_sweep(path: Path, record: GemmRecord, *, quick: bool) -> str:
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


def _items(part: str, measured: Callable[[Job], list[Item]] = lambda job: []) -> Callable[[Job], Iterator[str]]:
    """Return a part that runs the checks of its name, then measures, and saves each line at once."""

    def run(job: Job) -> Iterator[str]:
        path, lines, names = job.path("checks", f"{part}.json"), list[Line](), list[str]()
        has_checks = part in checks.PARTS
        if why := checks.missing() if has_checks else "":
            yield why
        checked = _checked(part, job, names) if has_checks and not why else iter(())
        for line in chain(checked, _measured(measured(job), job, names)):
            if "npz" in line:  # answers of a Tensor Core
                content = base64.b64decode(line.pop("npz"))
                yield f"{write_atomic(job.path('mma', line['file']), content)}:"
            lines.append(line)
            _keep_lines(path, job, lines)
            yield _readable(line)
        found = {line["item"] for line in lines}
        late: list[Line] = [{"item": name, "outcome": TIME_UP} for name in names if name not in found]
        if late:
            _keep_lines(path, job, [*lines, *late])
        yield from (f"{line['item']}: LEFT OUT, {TIME_UP}" for line in late)
        if names:
            yield f"{path}: {len(lines)} of {len(names)} items"
        elif not why:
            yield f"{job.report.name} has {NOTHING[part]}"

    return run


def _checked(part: str, job: Job, names: list[str]) -> Iterator[Line]:
    command, items = checks.command(job.report.kind, part, quick=job.quick), list[tuple[str, str]]()
    lines = ask_all(command, items, lambda: max(1.0, job.seconds_left()), lambda kind: not job.over())
    try:
        yield from lines
    except WorkerLost as lost:
        names.append("checks")
        yield {"item": "checks", "outcome": "process lost", "error": str(lost), "said": lost.said}
    names += [name for name, _ in items]


def _measured(items: list[Item], job: Job, names: list[str]) -> Iterator[Line]:
    names += [item.name for item in items]
    for item in items:
        if not job.over():
            yield answer(item, job.report.kind)
            release_memory()


def _keep_lines(path: Path, job: Job, lines: list[Line]) -> None:
    found = {
        "schema": "labkit.items/1",
        "device": job.report.name,
        "versions": bench_versions(job.report),
        "date": now(),
        "items": lines,
    }
    write_atomic(path, json.dumps(found, indent=1).encode())


def _readable(line: Line) -> str:
    """Return a line of an item in readable form."""
    failed = "" if line["outcome"] == "done" else f"{line['outcome'].upper()}, {line['error'].splitlines()[0]}"
    return f"{line['item']}: {'; '.join(filter(None, [failed, line.get('summary', '')])) or 'done'}"


def _trainings(job: Job) -> Iterator[str]:
    """Train the lab's own tasks on the GPU, and save each run where `labkit compare` finds it.

    Quick runs are shortened, so they are other tasks, and are saved in a folder of their own.
    """
    folder = job.folder / "runs" / job.report.slug
    runs = [(name, recipe) for name, recipes in RACES for recipe in recipes]
    for name, recipe in runs[:1] if job.quick else runs:
        if job.over():
            yield f"{name} under {recipe}: not begun, the time was up"
            continue
        task = (TASKS | GPU_TASKS)[name]
        task = replace(task, steps=2) if job.quick else task
        try:
            record = train(task, RECIPES[recipe], 0, device=job.report.kind, stop=job.over)
            if record.stopped:
                yield f"{name} under {recipe}: not finished, the time was up"
                continue
            kept = replace(record, fingerprint=fingerprint(task, RECIPES[recipe]))
            path = kept.save(record_path(folder / "quick" if job.quick else folder, name, recipe, 0))
        except Exception as error:
            yield f"{name} under {recipe}: FAILED, {reason(error)}"
            continue
        finally:
            release_memory()
        pace = f", {kept.steps_per_second:.3g} steps a second" if kept.steps_per_second else ""
        said = f"{record.metric_name} {record.metric:.3f}, {record.skipped} skipped, {record.seconds:.1f} s"
        yield f"{path}: {said}{pace}"


def _costs(job: Job) -> list[Item]:
    return [cost(network, "training", AMP_WAYS, _size(job, 1024), **_repeats(job)) for network in AMP_NETWORKS]


def _size(job: Job, width: int) -> dict[str, int]:
    return {"width": 64, "batch": 8} if job.rehearsal else {"width": width, "batch": 256}


def _repeats(job: Job) -> dict[str, int]:
    return {"steps": 2, "rounds": 1} if job.rehearsal else {}


def _paces(job: Job) -> list[Item]:
    """Measure the speed of each task in an even share of the seconds; then train the first task twice."""
    names = ("digits",) if job.rehearsal else PACED

    def share(left: int) -> float:
        return job.seconds_left() / left

    turns = _repeats(job)
    tasks = [(TASKS | GPU_TASKS)[name] for name in names]
    paces = [pace(task, partial(share, len(tasks) - i), **turns) for i, task in enumerate(tasks)]
    return [*paces, twice(tasks[0], RECIPES["O1"])]


def _own_kernel(job: Job) -> Iterator[str]:
    yield from _sweeps("kernel")(replace(job, end=time.monotonic() + job.seconds_left() / 2))
    yield from _items("kernel")(job)


PARTS: dict[str, Part] = {
    "mma": Part("ask the Tensor Cores single instructions", 45, _items("mma")),
    "ceilings": Part("measure the fastest copy and product", 25, _sweeps("ceilings")),
    "size": Part("time products of every size and format", 50, _sweeps("size")),
    "amp": Part("compare the engine with torch.amp", 80, _items("amp", _costs)),
    "speed": Part(
        "time training steps and inference",
        45,
        _items("speed", lambda job: speed(_size(job, 4096), **_repeats(job))),
    ),
    "tasks": Part("time the lab's own tasks, FP32 against FP16", 25, _items("tasks", _paces)),
    "cards": Part(
        "run the faults that only a GPU shows",
        20,
        _items("cards", lambda job: cards([*GPU_CARDS.values()], _size(job, 4096)["width"])),
    ),
    "layers": Part("time layers, bandwidth and accumulation", 40, _sweeps("layers", "bandwidth", "accumulation")),
    "kernel": Part("time and check our own Triton kernel", 60, _own_kernel),
    "alignment": Part("time alignment, batch and convolution", 60, _sweeps("alignment", "batch", "convolution")),
    "many": Part("train on all GPUs together, with NCCL", 22, _items("many")),
    "runs": Part("train the lab's tasks", 40, _trainings),
}
QUICK_PARTS: dict[str, float] = {"ceilings": 20, "size": 35, "layers": 35, "alignment": 40, "tasks": 35}  # on a GPU
