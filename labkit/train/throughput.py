"""Training steps a second of each recipe on a device.

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
from labkit.records.interleaved_timing import host_seconds, time_interleaved
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
    failed: Callable[[str, Exception], object] | None = None,
) -> dict[str, float]:
    """Return recipe -> training steps a second; a recipe that had no turn before `stop`, or failed, is not there.

    Args:
        device: where, as `labkit.train.place` takes it.
        steps: in a turn.
        rounds: how many turns of each count.
        stop: asked before each turn.
        failed: called with a recipe and the exception that ended it; the others go on. None: the exception is raised.

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
    ended: set[str] = set()
    runs: dict[str, TrainingRun] = {}

    def turn(recipe: Recipe) -> float:
        try:
            if recipe.name not in runs:
                runs[recipe.name] = TrainingRun(task, recipe, device=device, measure_every=0)
            return host_seconds(runs[recipe.name].step, steps)
        except Exception as error:
            if failed is None:
                raise
            ended.add(recipe.name)
            runs.pop(recipe.name, None)
            failed(recipe.name, error)
            return float("nan")

    ways = {recipe.name: partial(turn, recipe) for recipe in recipes}
    seen = time_interleaved(ways, rounds + 1, finished=lambda name, _: name in ended or (stop is not None and stop()))
    return {
        name: 1 / statistics.median(seconds[1:]) for name, seconds in seen.items() if seconds[1:] and name not in ended
    }


def recorded_throughput(records: Iterable[RunRecord]) -> dict[str, float]:
    """Return recipe -> steps a second: the median of the runs that were timed; empty where they are of two devices."""
    found: dict[str, list[float]] = {}
    timed = [record for record in records if record.steps_per_second is not None]
    if len({record.device for record in timed}) > 1:
        return {}
    for record in timed:
        found.setdefault(record.recipe, []).append(record.steps_per_second or 0.0)
    return {recipe: statistics.median(rates) for recipe, rates in found.items()}


def throughput_sentence(rates: dict[str, float], device: str) -> str:
    """Say how fast each recipe was, and the others as multiples of the first.

    >>> throughput_sentence({"FP32": 20.0, "O1": 44.0}, "Tesla T4")
    'Steps a second on Tesla T4: FP32 20, O1 44 (2.2 times FP32).'
    """
    first = next(iter(rates))
    others = [f"{name} {rate:.3g} ({rate / rates[first]:.2g} times {first})" for name, rate in rates.items()][1:]
    return f"Steps a second on {device}: {', '.join([f'{first} {rates[first]:.3g}', *others])}."
