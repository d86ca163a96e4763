"""Time that the host takes for a training step, as a multiple of torch.amp's: what a small network on a GPU waits for.

Run by hand: .venv/bin/python tests/benchmarks/bench_host_time.py

On a GPU the host launches operations and the card computes meanwhile; a small network is bound by the host. Here
tensors are tiny and live on the CPU, with torch's own half kernels (no emulated storage), so that nearly all of a
step's time is Python and dispatch. Aims: O1 and O2 1.5 at most, the drop-in for torch.amp 2.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from measuring import Call, medians, options, print_ratios
from torch import nn

import labkit.amp.recipe
import labkit.frameworks.torch_autocast
from labkit.amp import RECIPES, Engine
from labkit.frameworks import GradScaler, autocast

BATCH = 4
Network = Callable[[], tuple[nn.Module, torch.Tensor]]


def mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)]
    return nn.Sequential(*layers), torch.randn(BATCH, 8)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    layers = [
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10),
    ]  # fmt: skip
    return nn.Sequential(*layers), torch.randn(BATCH, 3, 4, 4)


def by_hand(region: Callable[[], Any], scaler: Any, make: Network) -> Call:
    (model, x), targets = make(), torch.randint(0, 8, (BATCH,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        with region():
            loss = nn.functional.cross_entropy(model(x).float(), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def by_engine(recipe: str, make: Network) -> Call:
    (model, x), targets = make(), torch.randint(0, 8, (BATCH,))
    engine = Engine(model, partial(torch.optim.AdamW, lr=1e-3), RECIPES[recipe])

    def step() -> None:
        engine.zero_grad()
        with engine.forward():
            loss = nn.functional.cross_entropy(engine(x), targets)
        engine.backward(loss)
        engine.step()

    return step


def main() -> None:
    options(__doc__)
    for module in (labkit.amp.recipe, labkit.frameworks.torch_autocast):
        module.half_storage = lambda *_: nullcontext()
    torchs, ours = (partial(region, "cpu", torch.float16) for region in (torch.autocast, autocast))
    for make in (mlp, cnn):
        steps = {
            "torch.amp": by_hand(torchs, torch.amp.GradScaler("cpu", init_scale=1024.0), make),
            "drop-in": by_hand(ours, GradScaler("cpu", init_scale=1024.0), make),
            **{name: by_engine(name, make) for name in ("FP32", "O1", "O1 graph", "O2", "BF16")},
        }
        print_ratios(f"a step of {make.__name__}", medians(steps, seconds=4.0))


if __name__ == "__main__":
    main()
