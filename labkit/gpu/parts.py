"""The parts of `labkit gpu`, the most valuable first, each with its seconds.

Invariant: a part yields a line for each result, once it is saved. Every file is complete, and records the device, the
driver, the versions and the date.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from labkit.amp import RECIPES
from labkit.bench import DeviceReport, GemmRecord, from_json, sweeps
from labkit.bench.cases import GPU_SHORT, QUICK, Extent
from labkit.bench.record import measure
from labkit.gpu import checks, passport
from labkit.gpu.passport import items
from labkit.gpu.worker import Line, reason, release_memory
from labkit.records import write_atomic
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
NOTHING = {
    "mma": "no instruction that the lab knows how to ask",
    "kernel": "no Triton to run our kernel",
    "many": "no NCCL, which needs a GPU",
}


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


def _items(part: str) -> Callable[[Job], Iterator[str]]:
    """Return a part that saves its items as a passport does: the checks of its name, and what it measures."""

    def run(job: Job) -> Iterator[str]:
        if part in checks.PARTS and (why := checks.missing()):
            yield why
            if part not in items.PARTS:
                return
        path, seconds, answers, done = job.path("checks", f"{part}.jsonl"), job.end - time.monotonic(), list[str](), 0
        path.parent.mkdir(parents=True, exist_ok=True)

        def keep(line: Line) -> Line:
            if "npz" in line:  # answers of a Tensor Core
                content = base64.b64decode(line.pop("npz"))
                answers.append(f"{write_atomic(job.path('mma', line['file']), content)}:")
            return line

        command = passport.worker_command(job.report.kind, part, quick=job.quick, seconds=max(0.0, seconds))
        with path.open("w", encoding="utf-8") as file:
            for line in passport.lines(file, command, seconds, seconds, keep=keep):
                if line["item"] not in ("start", "end"):
                    yield from answers
                    yield _readable(line)
                    answers.clear()
                    done += line["kind"] != "facts" or line["outcome"] != "done"
        yield from (f"{item}: LEFT OUT, {line['outcome']}" for item in line["missing"])
        if done or line["missing"]:
            yield f"{path}: {done} of {done + len(line['missing'])} items"
        else:
            path.unlink()
            yield f"{job.report.name} has {NOTHING[part]}"

    return run


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


def _own_kernel(job: Job) -> Iterator[str]:
    yield from _sweeps("kernel")(replace(job, end=time.monotonic() + job.seconds_left() / 2))
    yield from _items("kernel")(job)


PARTS: dict[str, Part] = {
    "mma": Part("ask the Tensor Cores single instructions", 45, _items("mma")),
    "ceilings": Part("measure the fastest copy and product", 25, _sweeps("ceilings")),
    "size": Part("time products of every size and format", 50, _sweeps("size")),
    "amp": Part("compare the engine with torch.amp", 80, _items("amp")),
    "speed": Part("time training steps and inference", 45, _items("speed")),
    "tasks": Part("time the lab's own tasks, FP32 against FP16", 30, _items("tasks")),
    "cards": Part("run the faults that only a GPU shows", 25, _items("cards")),
    "layers": Part("time layers, bandwidth and accumulation", 40, _sweeps("layers", "bandwidth", "accumulation")),
    "kernel": Part("time and check our own Triton kernel", 55, _own_kernel),
    "alignment": Part("time alignment, batch and convolution", 55, _sweeps("alignment", "batch", "convolution")),
    "many": Part("train on all GPUs together, with NCCL", 22, _items("many")),
    "runs": Part("train the lab's tasks", 40, _trainings),
}
QUICK_PARTS: dict[str, float] = {"ceilings": 20, "size": 35, "layers": 35, "alignment": 40, "tasks": 40}  # on a GPU
