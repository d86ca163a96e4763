"""What does a training step cost whose matrix products take 8- or 4-bit operands, next to plain torch in FP32?

Run by hand: .venv/bin/python tests/benchmarks/bench_products.py [--rounds 8] [--tasks digits gpt]

A whole step of two of the lab's tasks: batch, forward, backward, optimizer. Plain torch is the loop that everybody
knows; the recipes take turns with it, and each counts with its fastest round, so a busy machine counts little.
Aim: 6 times plain torch at most for one of the two tasks, under each recipe.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from labkit.amp import RECIPES
from labkit.train import TASKS, TrainingRun

NAMES = ("BF16 stochastic", "BF16 Kahan", "FP8 current", "FP8 delayed", "MXFP8", "NVFP4", "unit scaled")
STEPS = 3  # in a round


def plain_step(task: str) -> Callable[[], object]:
    """Return a step of the task in plain torch."""
    torch.manual_seed(0)
    row = TASKS[task]
    model, data = row.make_model(), row.make_data()
    optimizer = row.make_optimizer(model.parameters())

    def step() -> None:
        rows = torch.randint(len(data.train_inputs), (row.batch_size,))
        optimizer.zero_grad()
        row.loss(model(data.train_inputs[rows]), data.train_targets[rows]).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tasks", nargs="+", default=["digits", "gpt"])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for task in asked.tasks:
        steps: dict[str, Callable[[], object]] = {"plain torch": plain_step(task)}
        for name in NAMES:
            steps[name] = TrainingRun(TASKS[task], RECIPES[name], measure_every=0).take_step
        best = dict.fromkeys(steps, float("inf"))
        for _ in range(asked.rounds + 1):  # the first round warms up
            for name, step in steps.items():
                begin = time.process_time()
                for _ in range(STEPS):
                    step()
                best[name] = min(best[name], (time.process_time() - begin) / STEPS)
        for name, seconds in best.items():
            print(f"{task:<8} {name:<16} {1000 * seconds:7.2f} ms   {seconds / best['plain torch']:5.2f} x plain torch")


if __name__ == "__main__":
    main()
