"""What does a machine with a GPU do for the lab? One command: every check that needs one, and every recording.

Idea: a list of parts, the most valuable first, each with a budget of seconds. Every part runs in a process of its own,
so one that crashes or hangs takes nothing else with it, and writes what it has as soon as it has it. Run twice, it
records twice: the newer record takes the place of the older.

Invariant: every file is whole and says on which device, with which driver and versions, and when it was made; all of it
ends within LIMIT. Needs torch and numpy, and Triton only for the part that is about Triton.

What it does not do: settle on a CPU what only a GPU can tell. `--device cpu --quick` rehearses the same code on small
cases; give that a folder of its own.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from labkit.amp import RECIPES, write_whole
from labkit.bench import DeviceReport, device_report, measure, sweeps
from labkit.bench.record import bench_versions
from labkit.bench.sweeps import QUICK
from labkit.capture.instructions import COLUMNS, INSTRUCTIONS
from labkit.capture.tiles import MmaCapture, ask
from labkit.gemm.mma import SPECS
from labkit.train import GPU_TASKS, TASKS, data_folder, record_path, train
from labkit.train.race import fingerprint

CHECKOUT = Path(__file__).parents[1]
CHECKS = CHECKOUT / "tests" / "gpu"
LIMIT = 520.0  # seconds for everything: less than nine minutes, with something to spare
GRACE = 8.0  # seconds that a part may take beyond its budget, to begin and to end
RACES = (
    ("segmentation", ("FP32", "FP16", "FP16 dynamic", "BF16")),
    ("gpt_gpu", ("FP32", "O1", "O2", "BF16")),
    ("segmentation_gpu", ("FP32", "FP16", "O1", "BF16")),
    ("unet_gpu", ("FP32", "O1", "BF16")),
    ("gauss_conv", ("FP32", "FP16", "FP16 dynamic")),
)
SMALL = {"width": 64, "batch": 8, "steps": 2, "rounds": 1, "tiles": 2}  # what a check is given in a rehearsal


@dataclass(frozen=True)
class Order:
    """What a part is asked: on which device, into which folder, until when (time.monotonic), and how much."""

    report: DeviceReport
    folder: Path
    end: float
    quick: bool

    def over(self) -> bool:
        """Say whether the time is up."""
        return time.monotonic() > self.end

    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self.end - time.monotonic())

    def place(self, kind: str, name: str) -> Path:
        """Return where a result is kept: FOLDER/kind/device/name."""
        return self.folder / kind / self.report.slug / name


@dataclass(frozen=True)
class Part:
    """One part: a line about it, its seconds, and what it does, yielding a line for each thing that is done."""

    about: str
    seconds: float
    run: Callable[[Order], Iterator[str]]


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
        tiles = SMALL["tiles"] if order.quick else 512 // row.m  # of each family: 4096 sums
        try:
            answers = ask(row, tiles)
        except RuntimeError as refused:
            yield f"{row.name}: NOT CAPTURED, {refused}"
            continue
        path = write_whole(order.place("mma", f"{row.name}.npz"), answers.to_bytes())
        yield f"{path}: {_compared(answers, tiles, seeds=1 if order.quick else 5)}"


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
        extent = QUICK if order.quick else None
        known = [name for name in names if name in sweeps(order.report, extent)]
        for i, name in enumerate(known):
            seconds = order.left() / (len(known) - i)
            record = measure(name, order.report.kind, extent=extent, seconds=seconds)
            path = write_whole(order.place("gemm", f"{name}.json"), record.to_json().encode())
            best = max(record.runs, key=lambda timed: timed.tflops, default=None)
            fastest = f", fastest {best.tflops:.3g} TFLOP/s ({best.case.label})" if best else ""
            yield f"{path}: {len(record.runs)} cases, {len(record.left_out)} left out{fastest}"

    return run


def _checks(*names: str) -> Callable[[Order], Iterator[str]]:
    """Return a part that runs tests/gpu/check_NAME.py: main(device) returns what it found, `told` says it."""

    def run(order: Order) -> Iterator[str]:
        for name in names:
            path = CHECKS / f"check_{name}.py"
            if not path.is_file():
                yield f"{path} is not in this checkout"
                continue
            module = _load(path)
            takes = inspect.signature(module.main).parameters
            small = {key: value for key, value in SMALL.items() if key in takes} if order.quick else {}
            found = {**module.main(order.report.kind, **small), **_provenance(order.report)}
            kept = write_whole(order.place("checks", f"{name}.json"), json.dumps(found, indent=1).encode())
            yield f"{kept}:\n{module.told(found)}"

    return run


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _provenance(report: DeviceReport) -> dict[str, Any]:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"device": report.name, "versions": bench_versions(report), "date": date}


def _races(order: Order) -> Iterator[str]:
    """Train the lab's own tasks on the GPU, each run on record as those of a CPU are."""
    for task, recipes in RACES[:1] if order.quick else RACES:
        for recipe in recipes[:1] if order.quick else recipes:
            asked = (TASKS | GPU_TASKS)[task], RECIPES[recipe]
            steps = 2 if order.quick else None
            record = train(*asked, 0, steps=steps, device=order.report.kind, stop=order.over)
            if record.stopped:
                yield f"{task} under {recipe}: not finished, the time was up"
                return
            kept = replace(record, fingerprint=fingerprint(*asked))
            path = kept.save(record_path(order.folder / "runs" / order.report.slug, task, recipe, 0))
            yield f"{path}: {record.metric_name} {record.metric:.3f}, {record.skipped} skipped, {record.seconds:.1f} s"


PARTS: dict[str, Part] = {
    "mma": Part("ask the Tensor Cores single instructions", 45, _captures),
    "ceilings": Part("measure the fastest copy and product", 25, _sweeps("ceilings")),
    "size": Part("time products of every size and format", 50, _sweeps("size")),
    "amp": Part("compare the engine with torch.amp", 80, _checks("amp")),
    "speed": Part("time training steps and inference", 45, _checks("speed")),
    "layers": Part("time layers, bandwidth and accumulation", 45, _sweeps("layers", "bandwidth", "accumulation")),
    "kernel": Part("time and check our own Triton kernel", 70, lambda order: _own_kernel(order)),
    "alignment": Part("time alignment, batch and convolution", 60, _sweeps("alignment", "batch", "convolution")),
    "runs": Part("train the lab's tasks", 60, _races),
}


def _own_kernel(order: Order) -> Iterator[str]:
    yield from _sweeps("kernel")(replace(order, end=time.monotonic() + order.left() / 2))
    yield from _checks("triton")(order)


def add_arguments(parser: ArgumentParser) -> None:
    """Say what `labkit gpu` takes."""
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu rehearses (default: cuda)")
    parser.add_argument("--quick", action="store_true", help="small cases only, to see whether everything runs")
    parser.add_argument("--folder", type=Path, default=None, help="where results are kept (default: data)")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART",
                        help="one or more of: " + ", ".join(PARTS))  # fmt: skip
    parser.add_argument("--seconds", type=float, default=LIMIT, help=f"for everything (default: {LIMIT:.0f})")
    parser.add_argument(
        "--since", type=float, default=None, metavar="TIME", help="when those seconds began (Unix time)"
    )
    parser.add_argument("--here", action="store_true", help="run the parts in this process, not in one each")


def run(arguments: Namespace) -> int:
    """Run the parts; return 0 if all were done, 1 if one did not, 2 where there is no GPU."""
    try:
        report = device_report(arguments.device)
    except ValueError:
        sys.stderr.write(
            "labkit gpu: torch reaches no GPU here, so nothing was recorded. `labkit device` says what there is; "
            "to rehearse: labkit gpu --device cpu --quick --folder /tmp/rehearsal\n"
        )
        return 2
    folder = (arguments.folder or data_folder()).resolve()
    if arguments.here:
        spent = time.time() - (arguments.since or time.time())  # importing torch takes seconds, too
        end = time.monotonic() + arguments.seconds - spent
        return max(_here(name, Order(report, folder, end, arguments.quick)) for name in arguments.only)
    _say(f"{report}\n")
    began, outcomes = time.monotonic(), {}
    for name in arguments.only:
        left = arguments.seconds - (time.monotonic() - began)
        outcomes[name] = _apart(name, min(PARTS[name].seconds, left - GRACE), folder, arguments)
    _say("\n".join(f"{name:<10} {outcome}" for name, outcome in outcomes.items()))
    _say(f"{time.monotonic() - began:.0f} s in all; results are in {folder}")
    return int(any(outcome != "done" for outcome in outcomes.values()))


def _here(name: str, order: Order) -> int:
    if order.report.kind == "cpu":
        torch.set_num_threads(1)  # what is rehearsed is small: handing it to a second thread takes longer than doing it
    for line in PARTS[name].run(order):
        _say(line)
    return 0


def _apart(name: str, seconds: float, folder: Path, arguments: Namespace) -> str:
    """Run a part in a process of its own and say how it ended."""
    if seconds <= 0:
        return "not begun, the time was up"
    _say(f"--- {name}: {PARTS[name].about}, {seconds:.0f} s")
    words = ["--device", arguments.device, "--folder", str(folder), "--only", name, *["--quick"] * arguments.quick]
    limits = ["--seconds", f"{seconds:.0f}", "--since", str(time.time())]
    command = [sys.executable, "-m", "labkit", "gpu", *words, *limits, "--here"]
    paths = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, timeout=seconds + GRACE, check=False)
    except subprocess.TimeoutExpired:
        return f"stopped after {seconds + GRACE:.0f} s; what it had by then is kept"
    return "done" if done.returncode == 0 else f"failed with status {done.returncode}; its last lines say why"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
