"""Every recipe on every task, on the simulated card and on the CPU: the same losses, bit for bit where it can be.

The card's kernels are the CPU's, so that a difference is one of ours. Three things do differ, as on a real card:

- random numbers are the device's own. Recipes that round stochastically draw their first ones after the first loss.
- attention has several kernels. The CPU takes its flash attention, the card the plain path, whose sums have another
  order; here, both take the plain path.
- an LSTM has fused cells on the card, which store the two products of a step in the input's format, as CUDA's do. On
  the CPU the lab computes the cells of a half LSTM itself, and stores h and c alone (`labkit.gemm.recurrent`). The
  losses agree within one rounding of the format.
"""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel

from labkit.amp import RECIPES
from labkit.formats import BF16, FP16
from labkit.train import TASKS, train
from tests.slowness import slowness

STEPS = 4
DRAWING = {"FP16 stochastic", "BF16 stochastic", "NVFP4"}  # random numbers of the device's own


def on_both(pairs: list[list[str]]) -> list[list[Any]]:
    """Train each task under its recipe on the card and on the CPU; return names and both losses and metrics."""
    rows = []
    for task, recipe in pairs:
        found = []
        for device in ("cuda", "cpu"):
            with sdpa_kernel(SDPBackend.MATH):
                record = train(replace(TASKS[task], steps=STEPS), RECIPES[recipe], 0, device=device, measure_every=2)
            assert ("simulated" in record.device) == (device == "cuda")
            found.append([*(step.loss for step in record.steps), record.metric])
        rows.append([task, recipe, *found])
    return rows


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def near(a: float, b: float, unit: float) -> bool:
    return same(a, b) or abs(a - b) <= unit * abs(b)


def problem(task: str, recipe: str, card: list[float], cpu: list[float]) -> str:
    """Return what is wrong with a row, or nothing."""
    pairs = list(zip(card, cpu, strict=True))
    if len(pairs) != STEPS + 1:
        return f"{len(pairs) - 1} steps"
    if recipe in DRAWING:
        if not all(math.isfinite(loss) for loss in card[:STEPS]):
            return "not finite"
        pairs = pairs[:1]
    if task == "char_lstm":
        unit = (BF16 if recipe.startswith("BF16") else FP16).epsilon / 2
        return "" if all(near(a, b, unit) for a, b in pairs[:STEPS]) else "not near"
    return "" if all(same(a, b) for a, b in pairs) else "not equal"


def problems(rows: list[list[Any]]) -> dict[str, str]:
    assert rows
    return {
        f"{task}, {recipe}": f"{words}: {card} on the card, {cpu} on the CPU"
        for task, recipe, card, cpu in rows
        if (words := problem(task, recipe, card, cpu))
    }


def test_recipes_and_tasks_train_on_the_card_as_on_the_cpu(simulated_gpu: Any) -> None:
    pairs = [("digits", recipe) for recipe in RECIPES]
    tasks = [task for task in TASKS if task not in ("digits", "segmentation")]
    pairs += zip(tasks, itertools.cycle(("O1", "O2")), strict=False)
    assert problems(simulated_gpu("T4", on_both, pairs, timeout=200 * slowness())) == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("task", TASKS)
def test_the_whole_matrix(simulated_gpu: Any, task: str) -> None:
    pairs = [(task, recipe) for recipe in RECIPES]
    assert problems(simulated_gpu("T4", on_both, pairs, timeout=600 * slowness())) == {}
