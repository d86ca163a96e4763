"""How many training steps a second does each recipe make, on this device?

Idea: the recipes take turns, round by round, so that a device that slows down slows all of them; the first round warms
up, and the median of the others counts. A step ends with its loss on the host, so a GPU has done its work by then.

Invariant: what is compared was measured in one call, on one device.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from functools import partial

import torch

from labkit.amp import Recipe
from labkit.records.turns import host_seconds, take_turns
from labkit.train.devices import Place
from labkit.train.record import RunRecord
from labkit.train.run import TrainingRun
from labkit.train.tasks import Task


def steps_per_second(
    task: Task,
    recipes: Iterable[Recipe],
    *,
    device: torch.device | str | Place | None = "cpu",
    steps: int = 5,
    rounds: int = 3,
    stop: Callable[[], bool] | None = None,
) -> dict[str, float]:
    """Return recipe -> training steps a second; a recipe that had no turn before `stop` is not there.

    Args:
        device: where, as `labkit.train.place` takes it.
        steps: in a turn.
        rounds: how many turns of each count.
        stop: asked before each turn.

    Raises:
        ValueError: steps or rounds is less than 1, or there is no such device here.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> rates = steps_per_second(TASKS["digits"], [RECIPES["FP32"], RECIPES["O1"]], steps=1, rounds=1)
    >>> list(rates), min(rates.values()) > 0
    (['FP32', 'O1'], True)
    """
    if min(steps, rounds) < 1:
        raise ValueError(f"a pace needs 1 step and 1 round or more; it was given {steps} and {rounds}")
    runs = {recipe.name: TrainingRun(task, recipe, device=device, measure_every=0) for recipe in recipes}
    ways = {name: partial(host_seconds, run.step, steps) for name, run in runs.items()}
    seen = take_turns(ways, rounds + 1, over=lambda *_: stop is not None and stop())
    return {name: 1 / statistics.median(seconds[1:]) for name, seconds in seen.items() if seconds[1:]}


def recorded_paces(records: Iterable[RunRecord]) -> dict[str, float]:
    """Return recipe -> steps a second: the median of the runs that were timed; empty where they are of two devices."""
    found: dict[str, list[float]] = {}
    timed = [record for record in records if record.steps_per_second is not None]
    if len({record.device for record in timed}) > 1:
        return {}
    for record in timed:
        found.setdefault(record.recipe, []).append(record.steps_per_second or 0.0)
    return {recipe: statistics.median(rates) for recipe, rates in found.items()}


def pace_sentence(rates: dict[str, float], device: str) -> str:
    """Say how fast each recipe was, and the others as multiples of the first.

    >>> pace_sentence({"FP32": 20.0, "O1": 44.0}, "Tesla T4")
    'Steps a second on Tesla T4: FP32 20, O1 44 (2.2 times FP32).'
    """
    first = next(iter(rates))
    others = [f"{name} {rate:.3g} ({rate / rates[first]:.2g} times {first})" for name, rate in rates.items()][1:]
    return f"Steps a second on {device}: {', '.join([f'{first} {rates[first]:.3g}', *others])}."
