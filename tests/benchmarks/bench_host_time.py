"""Time that the host takes for a training step, as a multiple of torch.amp's: what a small network on a GPU waits for.

On a GPU the host launches operations and the card computes meanwhile; a small network is bound by the host. Here
tensors are tiny and live on the CPU, with torch's own half kernels (no emulated storage), so that nearly all of a
step's time is Python and dispatch. All take turns in one process; medians of 9, CPU seconds of the process.

    python tests/benchmarks/bench_host_time.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn

import labkit.amp.recipe
import labkit.frameworks.torch_autocast
from labkit.amp import RECIPES, Engine
from labkit.frameworks import GradScaler, autocast

STEPS, ROUNDS, BATCH = 40, 9, 4
ASKED = {"O1": 1.5, "O2": 1.5, "torch_amp": 2.0}


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


def by_hand(region: Callable[[], object], scaler: object, make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> object:
    model, x = make()
    targets = torch.randint(0, 8, (BATCH,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        with region():
            loss = nn.functional.cross_entropy(model(x).float(), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def by_engine(recipe: str, make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> object:
    model, x = make()
    targets = torch.randint(0, 8, (BATCH,))
    engine = Engine(model, partial(torch.optim.AdamW, lr=1e-3), RECIPES[recipe])

    def step() -> None:
        engine.zero_grad()
        with engine.forward():
            loss = nn.functional.cross_entropy(engine(x), targets)
        engine.backward(loss)
        engine.step()

    return step


def ways(make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> dict[str, object]:
    torchs, ours = partial(torch.autocast, "cpu", torch.float16), partial(autocast, "cpu", torch.float16)
    return {
        "torch.amp": by_hand(torchs, torch.amp.GradScaler("cpu", init_scale=1024.0), make),
        "torch_amp": by_hand(ours, GradScaler("cpu", init_scale=1024.0), make),
        **{name: by_engine(name, make) for name in ("FP32", "O1", "O1 graph", "O2", "BF16")},
    }


def main() -> None:
    torch.set_num_threads(1)
    for module in (labkit.amp.recipe, labkit.frameworks.torch_autocast):
        module.half_storage = lambda *_: nullcontext()
    for make in (mlp, cnn):
        steps = ways(make)
        times: dict[str, list[float]] = {name: [] for name in steps}
        for step in steps.values():
            for _ in range(5):
                step()
        for _ in range(ROUNDS):
            for name, step in steps.items():
                began = time.process_time()
                for _ in range(STEPS):
                    step()
                times[name].append((time.process_time() - began) / STEPS)
        medians = {name: statistics.median(values) for name, values in times.items()}
        print(f"{make.__name__}: a step of torch.amp takes {1e6 * medians['torch.amp']:.0f} us")
        for name, seconds in medians.items():
            ratio, most = seconds / medians["torch.amp"], ASKED.get(name)
            print(f"  {name:<10} {ratio:5.2f}" + (f"  (at most {most})" if most else ""))


if __name__ == "__main__":
    main()
