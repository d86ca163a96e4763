"""What does watching cost, next to the same loop without it?

Run by hand: .venv/bin/python tests/benchmarks/bench_watch.py [--rounds 60]

A plain FP32 loop with Adam on an MLP and a small GPT. Printed are ratios to the step of a loop that nobody watches, of
steps that take turns: one that is not sampled, one that is, and one that is replayed in FP32 as well. One thread, CPU
seconds, medians. Aims: within 1%, at most 3 times, at most 5 times.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.instrument import watch
from labkit.train import networks

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP, small": (networks.mlp, (64, 1, 8, 8)),
    "MLP, large": (partial(networks.mlp, hidden=1024), (256, 1, 8, 8)),
    "GPT, small": (partial(networks.Gpt, 64, 32), (32, 32)),
}
NEVER = 10**9


def stepper(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> tuple[nn.Module, Callable[[], None]]:
    """Return a model and a step of its training."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    text = len(shape) == 2
    inputs = torch.randint(64, shape) if text else torch.rand(shape)
    targets = torch.randint(10, shape if text else shape[:1]).flatten()

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(inputs).flatten(0, -2), targets).backward()
        optimizer.step()

    return model, step


def cpu_seconds(step: Callable[[], None], times: int = 1) -> float:
    """CPU seconds of a step."""
    start = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - start) / times


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=60)
    rounds = arguments.parse_args().rounds
    torch.set_num_threads(1)
    for name, (make, shape) in CASES.items():
        model, step = stepper(make, shape)
        for _ in range(5):
            step()
        block = max(1, round(0.02 / cpu_seconds(step)))
        kinds = {
            "plain": (contextlib.nullcontext, block),
            "not sampled": (lambda model=model: watch(model, every=NEVER, against_fp32_every=0), block),
            "sampled": (lambda model=model: watch(model, every=1, against_fp32_every=0), 1),
            "with FP32": (lambda model=model: watch(model, every=1, against_fp32_every=1), 1),
        }
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, (opened, times) in kinds.items():
                with opened():
                    step()  # a watch begins with a step that is sampled, and sums it up in the next
                    step()
                    taken[kind].append(cpu_seconds(step, times))
        median = {kind: statistics.median(seconds) for kind, seconds in taken.items()}
        told = ", ".join(f"{kind} {median[kind] / median['plain']:.3f}" for kind in kinds if kind != "plain")
        print(f"{name} ({median['plain'] * 1e3:.2f} ms a step): {told}")


if __name__ == "__main__":
    main()
