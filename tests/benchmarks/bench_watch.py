"""Cost of watching a training, next to the same loop without it.

    .venv/bin/python -m tests.benchmarks.bench_watch [--seconds 6]

A plain FP32 loop with Adam. The times of a step that is not sampled, of one that is sampled, and of
one that is replayed in FP32 as well, are multiples of the step that nobody watches. Aims: 1.01, 3
and 5 at most.

A second line is about recording: the time of a step that is recorded and not sampled, as a multiple
of the plain one; and of one that is recorded and sampled, as a multiple of one that is only
sampled. Both are medians of paired blocks. Aim: 1.1 at most.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.instrument import watch
from labkit.train import networks
from tests.benchmarks.measuring import options, print_ratios

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP, small": (networks.mlp, (64, 1, 8, 8)),
    "MLP, large": (partial(networks.mlp, hidden=1024), (256, 1, 8, 8)),
    "GPT, small": (partial(networks.Gpt, 64, 32), (32, 32)),
}
NEVER = 10**9


def stepper(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> tuple[nn.Module, Callable[[], None]]:
    """Return a model and a step of its training."""
    model = make()
    text = len(shape) == 2
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    inputs = torch.randint(64, shape) if text else torch.rand(shape)
    targets = torch.randint(10, shape if text else shape[:1]).flatten()

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(inputs).flatten(0, -2), targets).backward()
        optimizer.step()

    return model, step


def watched_seconds(step: Callable[[], None], region: object, times: int) -> float:
    """Return the CPU seconds of a step in a region."""
    with region:
        # A watch samples its first step, and sums it up in the second.
        step()
        step()
        start = time.process_time()
        for _ in range(times):
            step()
        return (time.process_time() - start) / times


def main() -> None:
    seconds = options(__doc__, seconds=6.0).seconds
    for name, (make, shape) in CASES.items():
        model, step = stepper(make, shape)
        # so that a step of 1% more can be seen
        block = max(1, round(0.02 / watched_seconds(step, nullcontext(), 5)))
        kinds = {"plain": None, "not sampled": (NEVER, 0), "sampled": (1, 0), "with FP32": (1, 1)}
        taken = {kind: list[float]() for kind in kinds}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for kind, every in kinds.items():
                region = (
                    watch(model, every=every[0], against_fp32_every=every[1])
                    if every
                    else nullcontext()
                )
                taken[kind].append(
                    watched_seconds(step, region, 1 if every and every[0] == 1 else block)
                )
        print_ratios(name, {kind: median(runs) for kind, runs in taken.items()})
        compare_recorded(name, model, step, block, seconds)


def compare_recorded(
    name: str, model: nn.Module, step: Callable[[], None], block: int, seconds: float
) -> None:
    """Print what recording adds to a step, from blocks that take turns."""
    ratios = {"not sampled": list[float](), "sampled": list[float]()}
    end = time.perf_counter() + seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.labkit"
        while time.perf_counter() < end:
            plain = watched_seconds(step, nullcontext(), block)
            idle = watched_seconds(step, watch(model, NEVER).record(path), block)
            ratios["not sampled"].append(idle / plain)
            sampled = watched_seconds(step, watch(model, 1, against_fp32_every=0), 4)
            recording = watch(model, 1, against_fp32_every=0).record(path)
            recorded = watched_seconds(step, recording, 4)
            ratios["sampled"].append(recorded / sampled)
    found = "   ".join(f"{kind} {median(each):.2f}" for kind, each in ratios.items())
    print(f"{name + ', recorded':30} {found}", flush=True)


if __name__ == "__main__":
    main()
