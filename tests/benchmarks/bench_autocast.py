"""What does autocast cost for each operation, ours and torch's?

Run by hand: .venv/bin/python tests/benchmarks/bench_autocast.py

Tensors of 4 x 4, so that nearly all the time is overhead; BF16, which both regions cast to on a CPU; one thread, the
best of several rounds taken in turns. Ours sits above autograd and is written in Python, torch's below it in C++: the
table says what that costs, beside the operation alone. Where torch's CPU lists have nothing to cast (softmax, cat of
one dtype) its region costs nothing, and ours what it takes to look: no mode in Python takes much less than
"half_storage" does there. A real network's tensors take the same microseconds, so the last rows are real layers.
"""

import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn import functional as F

from labkit.amp import CastEvent, autocast
from labkit.formats import BF16, E4M3
from labkit.gemm import half_storage

ROUNDS = 15

REGIONS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "alone": nullcontext,
    "torch": lambda: torch.autocast("cpu", torch.bfloat16),
    "ours": lambda: autocast(BF16),
    "ours, no cache": lambda: autocast(BF16, cache=False),
    "listening": lambda: autocast(BF16, listen=ignore),
    "half_storage": lambda: half_storage("cpu"),
}


def ignore(event: CastEvent) -> None:
    """Listen to an event, and do nothing."""


def works() -> dict[str, tuple[Callable[[], object], int]]:
    """What is measured -> (call, how often in a round)."""
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    low = x.bfloat16()
    w, b = torch.randn(4, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    big, wide = torch.randn(64, 1024), torch.randn(1024, 1024, requires_grad=True)
    some, middle = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    return {
        "x + y            (keep)": (lambda: x + y, 1000),
        "x.shape          (keep)": (lambda: x.shape, 1000),
        "F.relu(x)        (keep, Python)": (lambda: F.relu(x), 1000),
        "x @ y            (allow, casts)": (lambda: x @ y, 1000),
        "low @ low        (allow, no cast)": (lambda: low @ low, 1000),
        "F.linear(x, w, b)  (weights)": (lambda: F.linear(x, w, b), 1000),
        "low.softmax(-1)  (set dtype)": (lambda: low.softmax(-1), 1000),
        "torch.cat([x, y])  (promote)": (lambda: torch.cat([x, y]), 1000),
        "F.mse_loss(low, low)  (deny)": (lambda: F.mse_loss(low, low), 1000),
        "F.linear, 64 x 64": (lambda: F.linear(some, middle), 200),
        "F.linear, 1024 x 1024": (lambda: F.linear(big, wide), 5),
    }


def race(call: Callable[[], object], times: int) -> dict[str, float]:
    """Microseconds for each call in each region: the fastest round, the regions taking turns."""
    best = dict.fromkeys(REGIONS, float("inf"))
    for _ in range(ROUNDS):
        for name, region in REGIONS.items():
            with region():
                call()
                start = time.process_time()
                for _ in range(times):
                    call()
                best[name] = min(best[name], (time.process_time() - start) / times * 1e6)
    return best


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}; {platform.processor() or platform.machine()}, one thread; microseconds a call")
    print(f"{'':34}" + "".join(f"{name:>16}" for name in REGIONS) + f"{'ours / torch':>16}")
    for name, (call, times) in works().items():
        taken = race(call, times)
        print(f"{name:34}" + "".join(f"{t:16.2f}" for t in taken.values()) + f"{taken['ours'] / taken['torch']:16.2f}")
    for format in (E4M3,):
        x = torch.randn(4, 4)
        with autocast(format):
            start = time.process_time()
            for _ in range(200):
                x @ x
            print(f"x @ x in an emulated {format.name}: {(time.process_time() - start) / 200 * 1e6:.0f} microseconds")


if __name__ == "__main__":
    main()
