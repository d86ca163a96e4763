"""Cost of autocast for each operation, ours and torch's.

    .venv/bin/python -m tests.benchmarks.bench_autocast

Tensors of 4 x 4, so that nearly all the time is overhead; BF16, which both regions cast to on a
CPU. The ratios to the operation alone say what it costs to be written in Python, above autograd.
The rows after those are real layers, and the last ones 12 steps of a model that torch.compile has
compiled, whose first step is not measured.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import autocast
from labkit.formats import BF16
from labkit.frameworks import torch_amp
from tests.benchmarks.measuring import Call, medians, options, print_ratios

Region = Callable[[], AbstractContextManager[object]]
REGIONS: dict[str, Region] = {
    "alone": nullcontext,
    "torch": lambda: torch.autocast("cpu", torch.bfloat16),
    "ours": lambda: autocast(BF16),
    "no cache": lambda: autocast(BF16, cache=False),
}


def operations() -> dict[str, tuple[Call, int]]:
    """What is measured -> (call, how often in a round)."""
    x = torch.randn(4, 4)
    y = torch.randn(4, 4)
    low = x.bfloat16()
    w = torch.randn(4, 4, requires_grad=True)
    b = torch.randn(4, requires_grad=True)
    big = torch.randn(64, 1024)
    wide = torch.randn(1024, 1024, requires_grad=True)
    some = torch.randn(64, 64)
    middle = torch.randn(64, 64, requires_grad=True)
    return {
        "x + y, keep": (lambda: x + y, 1000),
        "x.shape, keep": (lambda: x.shape, 1000),
        "F.relu(x), keep, Python": (lambda: F.relu(x), 1000),
        "x @ y, allow, casts": (lambda: x @ y, 1000),
        "low @ low, allow, no cast": (lambda: low @ low, 1000),
        "F.linear(x, w, b), weights": (lambda: F.linear(x, w, b), 1000),
        "low.softmax(-1), set dtype": (lambda: low.softmax(-1), 1000),
        "torch.cat([x, y]), promote": (lambda: torch.cat([x, y]), 1000),
        "F.mse_loss(low, low), deny": (lambda: F.mse_loss(low, low), 1000),
        "F.linear, 64 x 64": (lambda: F.linear(some, middle), 200),
        "F.linear, 1024 x 1024": (lambda: F.linear(big, wide), 5),
    }


def inside(region: Region, call: Call, times: int) -> None:
    with region():
        for _ in range(times):
            call()


def steps(region: Region, backend: str) -> Call:
    """Return 12 steps of a compiled model of five layers."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(256, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 10)
    )
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(128, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(12):
            optimizer.zero_grad()
            with region():
                loss = compiled(x).float().square().mean()
            loss.backward()
            optimizer.step()

    return run


def main() -> None:
    options(__doc__)
    for name, (call, times) in operations().items():
        took = medians(
            {where: partial(inside, region, call, times) for where, region in REGIONS.items()},
            fewest=3,
        )
        print_ratios(name, took, times)
    compiled: dict[str, Region] = {
        "torch": REGIONS["torch"],
        "ours": REGIONS["ours"],
        "torch_amp": lambda: torch_amp.autocast("cpu", torch.bfloat16),
    }
    for backend in ("aot_eager", "inductor"):
        calls = {where: steps(region, backend) for where, region in compiled.items()}
        print_ratios(f"12 compiled steps, {backend}", medians(calls))


if __name__ == "__main__":
    main()
