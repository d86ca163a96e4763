"""What does it cost to emulate a Tensor Core, and to train on one?

Run by hand: .venv/bin/python tests/benchmarks/bench_mma.py [--threads 2] [--large] [--quick]

The rows of `SPECS` at 256 x 256 x 256 (aim: under 50 ms each on 2 cores), then sizes from 32 to 1024: the cost of one
product should not grow with them. `--large` adds 2048 x 2048 x 2048 and the memory it takes (minutes). Then the plain
accumulators, and one training step (forward, backward, SGD) on 64 digits of 8 x 8 of an MLP and of a small CNN, next to
the usual FP32 accumulation. The best of several runs that take turns. With one thread it is CPU time that counts, so
others on the machine matter less; with more, time on the clock: on a busy machine look at the ratios. `--quick` stops
at 256.
"""

import argparse
import platform
import resource
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import torch
from torch import nn
from torch.nn import functional as F

from labkit.gemm import ACCUMULATORS, SPECS, accumulate, emulate, half_storage


def best(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of the fastest run of each, taking turns."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = clock()
            work()
            seconds[name] = min(seconds[name], clock() - start)
    return seconds


def operands(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(n)
    return torch.randn(n, n, generator=g).half(), torch.randn(n, n, generator=g).half()


def training_step(net: nn.Module, accumulator: object, x: torch.Tensor, y: torch.Tensor) -> None:
    with half_storage("cpu", accumulator):
        loss = F.cross_entropy(net(x).float(), y)
    net.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.01 * parameter.grad


def networks() -> dict[str, nn.Module]:
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    cnn = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    return {"MLP 64-128-128-10": mlp.half(), "CNN 16-32 channels": cnn.half()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--large", action="store_true", help="2048 x 2048 x 2048 as well")
    arguments.add_argument("--quick", action="store_true", help="no size above 256")
    chosen = arguments.parse_args()
    torch.set_num_threads(chosen.threads)
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "numpy"))
    print(f"{versions}; {platform.processor() or platform.machine()}, {chosen.threads} threads")

    a, b = operands(256)
    works = {name: partial(emulate, a, b, None, spec) for name, spec in SPECS.items()}
    print("256 x 256 x 256, FP16 operands, FP32 result:")
    for name, taken in best(works, 9).items():
        print(f"    {name:6} {taken * 1e3:7.1f} ms")

    print("cost against size, V100 and H100:")
    for n in (32, 64, 128, 256) if chosen.quick else (32, 64, 128, 256, 512, 1024):
        a, b = operands(n)
        works = {name: partial(emulate, a, b, None, SPECS[name]) for name in ("V100", "H100")}
        taken = best(works, 5 if n < 512 else 2)
        row = "   ".join(
            f"{name} {seconds * 1e3:8.1f} ms {seconds / n**3 * 1e9:6.2f} ns/product" for name, seconds in taken.items()
        )
        print(f"    {n:5}   {row}")
    if chosen.large:
        a, b = operands(2048)
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        emulate(a, b, None, SPECS["H100"])
        seconds = time.perf_counter() - start
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"     2048   H100 {seconds:.1f} s {seconds / 2048**3 * 1e9:.2f} ns/product, {more:.0f} MiB more at most")

    a, b = operands(256)
    print("other accumulators, 256 x 256 x 256:")
    for name, taken in best(
        {name: partial(accumulate, a, b, None, by) for name, by in ACCUMULATORS.items()}, 5
    ).items():
        print(f"    {name:16} {taken * 1e3:7.1f} ms")

    x, y = torch.rand(64, 1, 8, 8).half(), torch.randint(10, (64,))
    chosen_ones = {"None (FP32)": None, "V100": SPECS["V100"], "H100": SPECS["H100"], **ACCUMULATORS}
    for title, net in networks().items():
        print(f"one training step, batch 64, {title}:")
        works = {name: partial(training_step, net, by, x, y) for name, by in chosen_ones.items()}
        for name, taken in best(works, 7).items():
            print(f"    {name:16} {taken * 1e3:7.1f} ms")


if __name__ == "__main__":
    main()
