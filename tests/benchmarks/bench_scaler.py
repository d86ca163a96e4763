"""What does a step's loss scaling cost, next to torch.amp.GradScaler?

Run by hand: .venv/bin/python tests/benchmarks/bench_scaler.py [--device cuda]

Unscale, check and advance: ours (`unscale(..., in_place=True)`, `advance`) against theirs (`unscale_`, the check that
`step` makes, `update`), on the same FP32 gradients; FP16 gradients, which torch refuses, against a copy to FP32 and
theirs. Then two ways to look for inf and NaN: the sum of a gradient, and isfinite().all(). All take turns in one
process, one thread; printed are ratios of medians.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from labkit.amp import DYNAMIC, advance, initial, unscale

SCALE = 2.0**10


def medians(works: dict[str, Callable[[], object]], device: str, seconds: float = 2.0) -> dict[str, float]:
    """Median seconds of each, taking turns until the time is up.

    On the CPU those this process was given: a busy machine does not count.
    """
    clock = time.perf_counter if device == "cuda" else time.process_time
    taken: dict[str, list[float]] = {name: [] for name in works}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(taken.values()))) < 20:
        for name, work in random.sample(list(works.items()), len(works)):  # whoever comes second finds a warm cache
            start = clock()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            taken[name].append(clock() - start)
    return {name: statistics.median(runs) for name, runs in taken.items()}


class Theirs:
    """torch.amp's part of a step, on parameters of its own."""

    def __init__(self, gradients: list[Tensor]) -> None:
        self.parameters = [torch.nn.Parameter(torch.zeros_like(g, dtype=torch.float32)) for g in gradients]
        self.set_gradients(gradients)
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.0)
        device = gradients[0].device
        self.scaler = torch.amp.GradScaler(device.type, init_scale=1.0)
        self.scaler.scale(torch.zeros((), device=device))

    def set_gradients(self, gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.float()

    def step(self) -> None:
        self.scaler.unscale_(self.optimizer)
        found = self.scaler._per_optimizer_states[id(self.optimizer)]["found_inf_per_device"]
        sum(flag.item() for flag in found.values())
        self.scaler.update()

    def step_half(self, gradients: list[Tensor]) -> None:
        self.optimizer.zero_grad()
        self.set_gradients(gradients)
        self.step()


def steps(count: int, elements: int, device: str) -> dict[str, Callable[[], object]]:
    """One step's scaling of `count` gradients, by us and by torch; a scale of 1 keeps the values where they are."""
    gradients = [torch.randn(elements, device=device) for _ in range(count)]
    half, names = [g.half() for g in gradients], [str(index) for index in range(count)]
    theirs, theirs_half = Theirs([g.clone() for g in gradients]), Theirs(half)
    state = initial(DYNAMIC)

    def ours() -> None:
        _, found_inf = unscale(gradients, 1.0, in_place=True)
        advance(state, found_inf, DYNAMIC)

    def ours_named() -> None:
        _, found_inf, _ = unscale(gradients, 1.0, names, in_place=True)
        advance(state, found_inf, DYNAMIC)

    def ours_half() -> None:
        _, found_inf = unscale(half, SCALE)
        advance(state, found_inf, DYNAMIC)

    return {
        "theirs": theirs.step,
        "ours": ours,
        "names": ours_named,
        "half": ours_half,
        "theirs half": partial(theirs_half.step_half, half),
    }


def looks(count: int, elements: int, dtype: torch.dtype, device: str) -> dict[str, Callable[[], object]]:
    """Ways to learn whether any of `count` gradients holds inf or NaN."""
    gradients = [torch.randn(elements, device=device).to(dtype) for _ in range(count)]

    def by_sum() -> bool:
        return any(not torch.isfinite(g.float().sum()) for g in gradients)

    def by_sum_in_its_dtype() -> bool:
        return any(not torch.isfinite(g.sum()) for g in gradients)

    def by_either() -> bool:
        return any(bool(g.isinf().any()) or bool(g.isnan().any()) for g in gradients)

    def by_isinf() -> bool:
        return any(bool(g.isinf().any()) for g in gradients)

    def by_isfinite() -> bool:
        return not all(bool(g.isfinite().all()) for g in gradients)

    def by_kernel() -> bool:
        return unscale(gradients, 1.0, in_place=True)[1]

    return {
        "isinf().any(), which misses NaN": by_isinf,
        "isinf().any() or isnan().any()": by_either,
        "isfinite().all()": by_isfinite,
        "float().sum()": by_sum,
        "sum(), which may overflow itself": by_sum_in_its_dtype,
        "labkit's unscale, which divides as well": by_kernel,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    device = arguments.parse_args().device
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {device}, one thread; medians, as ratios to torch.amp's (below 1: less time)")
    print(f"{'tensors x elements':>22} {'torch.amp':>12} {'ours':>7} {'named':>7} {'FP16 gradients':>15}")
    for count, elements in ((1, 1000), (100, 1000), (1000, 1000), (100, 100_000)):
        took = medians(steps(count, elements, device), device)
        theirs = took["theirs"]
        row = f"{count:>10} x {elements:>9} {theirs * 1e6:>9.0f} us {took['ours'] / theirs:>7.2f}"
        print(f"{row} {took['names'] / theirs:>7.2f} {took['half'] / took['theirs half']:>15.2f}")
    for dtype in (torch.float32, torch.float16):
        print(f"\nis any of 10 gradients of 100,000 {dtype} inf or NaN? times the first:")
        took = medians(looks(10, 100_000, dtype, device), device)
        first = next(iter(took.values()))
        for name, seconds in took.items():
            print(f"    {name:40} {seconds / first:6.2f}")


if __name__ == "__main__":
    main()
