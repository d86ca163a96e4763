"""How fast are `exponent_histogram` and `round_tensor`, next to torch's copy_ and to numpy, and on a busy machine?

Run by hand: .venv/bin/python tests/benchmarks/bench_histogram.py [--elements 10000000] [--busy 2]

Printed are ratios of the best wall times of one process, all taking turns: to `copy_` of the FP32 tensor into another
(what reading it costs), for one thread and for two, alone and beside `--busy` other processes that only compute; and
the memory that a histogram takes on top, as a share of the tensor's. Aims: FP16 and BF16 no slower than FP32; two
threads, busy or not, no slower than one by more than what the others take.
"""

import argparse
import contextlib
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from labkit.formats import E4M3
from labkit.instrument import exponent_histogram
from labkit.interop import round_tensor


def spin() -> None:
    """Compute until ended."""
    while True:
        sum(range(10_000))


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Have other processes compute meanwhile."""
    others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.terminate()
            other.join()


def best(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Wall seconds of the fastest run of each, taking turns."""
    taken = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            taken[name] = min(taken[name], time.perf_counter() - start)
    return taken


def works_on(values: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What is timed, the yardstick first."""
    there, edges = torch.empty_like(values), 2.0 ** np.arange(-40, 10)
    inputs = {
        "FP32": values,
        "FP16": values.half(),
        "BF16": values.bfloat16(),
        "FP32 half zeros": values.relu(),
        "FP32 subnormal": torch.randint(1, 2**23, values.shape, dtype=torch.int32).view(torch.float32),
    }
    counted = {name: lambda given=given: exponent_histogram(given) for name, given in inputs.items()}
    return {
        "copy_": lambda: there.copy_(values),
        **counted,
        "numpy.histogram": lambda: np.histogram(values[:1_000_000].abs().numpy(), edges),
        "round_tensor E4M3": lambda: round_tensor(values, E4M3),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--elements", type=int, default=10_000_000)
    arguments.add_argument("--busy", type=int, default=2, help="processes that compute meanwhile")
    arguments.add_argument("--rounds", type=int, default=8)
    asked = arguments.parse_args()
    values = torch.randn(asked.elements, generator=torch.Generator().manual_seed(0)) * 1e-3
    works = works_on(values)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("FP32", "FP16", "FP32 subnormal"):
        works[name]()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(f"{asked.elements:.0e} elements; memory on top: {grown / values.nbytes:.2f} of the FP32 tensor's")
    for others in (0, asked.busy):
        with busy(others):
            for threads in (1, 2):
                torch.set_num_threads(threads)
                seconds = best(works, asked.rounds)
                ratios = {name: taken / seconds["copy_"] for name, taken in seconds.items()}
                ratios["numpy.histogram"] *= asked.elements / 1_000_000  # it is so slow that it is given a part
                told = ", ".join(f"{name} {ratio:.1f}" for name, ratio in ratios.items() if name != "copy_")
                print(f"{threads} threads, {others} others busy, times copy_ ({seconds['copy_'] * 1e3:.1f} ms): {told}")


if __name__ == "__main__":
    main()
