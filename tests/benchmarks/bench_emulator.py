"""How much faster is the emulator of Tensor Cores with numba, and than it was?

Run by hand: .venv/bin/python tests/benchmarks/bench_emulator.py [--against COMMIT]

Products as `digits_cnn` makes them and a square one, then a training step of digits_cnn whose sums are an H100's or a
V100's. Ratios to numpy's way, of the fastest of several runs that take turns, in CPU time of one thread: others on the
machine matter less. `--against` times emulate.py of another commit as well, as git has it, if it stood by itself then
(37f7afe did).
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import torch

import labkit.gemm.accumulators as accumulators
from labkit.amp import RECIPES
from labkit.gemm import SPECS, emulate, emulator
from labkit.gemm.blocks import VARIABLE
from labkit.train import TASKS, TrainingRun

SHAPES = {"convolution, forward": (32, 144, 1024), "its weights": (32, 1024, 144), "square": (256, 256, 256)}


def earlier(commit: str) -> ModuleType:
    """The module `labkit.gemm.emulate` of a commit."""
    source = subprocess.run(
        ["git", "show", f"{commit}:labkit/gemm/emulate.py"], cwd=Path(__file__).parent, capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "emulate.py"
        path.write_bytes(source)
        spec = importlib.util.spec_from_file_location("earlier_emulate", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return module


def ratios(title: str, ways: dict[str, Callable[[], object]], rounds: int) -> None:
    """Print the seconds of each way, and how many times faster it is than the first."""
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, work in ways.items():
            start = time.process_time()
            work()
            seconds[name] = min(seconds[name], time.process_time() - start)
    slowest = next(iter(seconds.values()))
    row = "   ".join(f"{name} {s * 1e3:7.1f} ms {slowest / s:5.2f}x" for name, s in seconds.items())
    print(f"  {title:28} {row}", flush=True)


def by(name: str, work: Callable[..., object], *given: object) -> object:
    """Work with numba or with numpy."""
    os.environ[VARIABLE] = name
    return work(*given)


def step_with(emulating: Callable[..., object], name: str, run: TrainingRun) -> None:
    """Take a training step whose products go through an emulator."""
    now, accumulators.emulate = accumulators.emulate, emulating
    try:
        by(name, run.step)
    finally:
        accumulators.emulate = now


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--against", metavar="COMMIT")
    commit = arguments.parse_args().against
    torch.set_num_threads(1)
    ways = {commit: ("numpy", earlier(commit).emulate)} if commit else {}
    ways["numpy"] = ("numpy", emulate)
    if emulator() != "numpy":
        ways["numba"] = ("numba", emulate)
    for gpu in ("V100", "H100"):
        print(f"{gpu}, {emulator()}")
        for title, (m, k, n) in SHAPES.items():
            a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
            works = {name: partial(by, how, work, a, b, None, SPECS[gpu]) for name, (how, work) in ways.items()}
            ratios(title, works, 9)
        recipe = replace(RECIPES["FP16 dynamic"], name="bench", accumulator=SPECS[gpu])
        run = TrainingRun(TASKS["digits_cnn"], recipe, seed=0)
        ratios("a step of digits_cnn", {name: partial(step_with, w, how, run) for name, (how, w) in ways.items()}, 9)


if __name__ == "__main__":
    main()
