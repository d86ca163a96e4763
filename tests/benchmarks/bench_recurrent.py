"""What does a recurrent layer cost in FP16 on a CPU, as a multiple of plain torch's in FP32?

Run by hand: .venv/bin/python tests/benchmarks/bench_recurrent.py [--only LSTM]

Forward and backward of one layer, as many features in as out. Plain torch has one fused kernel of oneDNN's for an LSTM
in FP32; ours goes from step to step in Python, to store h and c in FP16 in between, so small layers pay for the number
of operations in a step. One thread, CPU seconds, medians of runs that take turns. Aim: an LSTM within 2.5.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from labkit.amp import autocast
from labkit.gemm import half_storage

ROUNDS = 9
SIZES = [
    (steps, batch, features) for features in (64, 128, 256) for steps, batch in ((16, 16), (16, 64), (64, 16), (64, 64))
]


def fp32(layer: nn.Module, x: Tensor) -> Tensor:
    """Run the layer as it is."""
    out: Tensor = layer(x)[0]
    return out


def o1(layer: nn.Module, x: Tensor) -> Tensor:
    """Run an FP32 layer under autocast."""
    with half_storage("cpu"), autocast():
        return fp32(layer, x).float()


def o2(layer: nn.Module, x: Tensor) -> Tensor:
    """Run a layer that was converted to FP16."""
    with half_storage("cpu"):
        return fp32(layer, x.half()).float()


def runs(kind: Callable[..., nn.Module], steps: int, batch: int, features: int) -> dict[str, Callable[[], None]]:
    """Return a forward and backward pass of each contestant."""
    x = torch.randn(steps, batch, features)

    def passes(forward: Callable[[nn.Module, Tensor], Tensor], layer: nn.Module) -> Callable[[], None]:
        return lambda: forward(layer, x.clone().requires_grad_()).sum().backward()

    layers = {fp32: kind(features, features), o1: kind(features, features), o2: kind(features, features).half()}
    return {forward.__name__: passes(forward, layer) for forward, layer in layers.items()}


def medians(contestants: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median CPU seconds of each, taking turns; the first round fills caches and does not count."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS + 1):
        for name, run in contestants.items():
            start = time.process_time()
            run()
            taken[name].append(time.process_time() - start)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--only", default="", help="layers whose name has this word")
    only = arguments.parse_args().only
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, one thread; as multiples of FP32")
    print(f"{'':6}{'steps':>7}{'batch':>7}{'features':>10}{'FP32':>12}{'O1':>8}{'O2':>8}")
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for size in SIZES if only in kind.__name__ else ():
            took = medians(runs(kind, *size))
            plain = took["fp32"]
            cells = f"{plain * 1e3:9.1f} ms{took['o1'] / plain:8.2f}{took['o2'] / plain:8.2f}"
            print(f"{kind.__name__:6}{size[0]:7}{size[1]:7}{size[2]:10}{cells}", flush=True)


if __name__ == "__main__":
    main()
