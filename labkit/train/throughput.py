"""Training steps a second of each recipe on a device.

Idea: timings of the recipes are interleaved, so that a slowdown of the device affects all of them.
The first round is a warm-up, and the median of the others counts. A step ends with its loss on the
host, which waits for a GPU's work.

Invariant: rates that are compared were measured in one call, on one device.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from functools import partial

import torch

from labkit.amp import Recipe, as_recipes
from labkit.bench.interleaved_timing import host_seconds, time_interleaved
from labkit.findings import ratio_text
from labkit.formats.arguments import require_kind
from labkit.train.devices import Place
from labkit.train.record import RunRecord
from labkit.train.run import TrainingRun
from labkit.train.tasks import Task, as_task


def steps_per_second(
    task: Task | str,
    recipes: Iterable[Recipe | str],
    *,
    device: torch.device | str | Place | None = "cpu",
    steps: int = 5,
    rounds: int = 3,
    stop: Callable[[], bool] | None = None,
    failed: Callable[[str, Exception], object] | None = None,
) -> dict[str, float]:
    """Return recipe -> training steps a second.

    Recipes that failed or were not timed before `stop` are left out.

    Args:
        task: what is trained.
        recipes: the recipes to time; duplicates are ignored.
        device: an argument of `labkit.train.place`.
        steps: number of steps in one timing.
        rounds: number of timings of each recipe.
        stop: called before each timing; after it has returned True, nothing is timed.
        failed: called with the name of a recipe and the exception that ended it; the others
            continue. None raises the exception.

    Raises:
        ValueError: steps or rounds is less than 1, two different recipes have one name, or this
            machine has no such device.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> recipes = [RECIPES["FP32"], RECIPES["O1"]]
    >>> rates = steps_per_second(TASKS["digits"], recipes, steps=1, rounds=1)
    >>> list(rates), min(rates.values()) > 0
    (['FP32', 'O1'], True)
    """
    require_kind(steps, int, "steps")
    require_kind(rounds, int, "rounds")
    task = as_task(task)
    chosen = as_recipes(recipes)
    if min(steps, rounds) < 1:
        raise ValueError(f"expected steps and rounds of at least 1, got {steps} and {rounds}")
    by_name: dict[str, Recipe] = {}
    for recipe in chosen:
        if by_name.setdefault(recipe.name, recipe) != recipe:
            raise ValueError(
                f"expected different names for different recipes, got {recipe.name!r} twice"
            )
    # names of the recipes that failed
    ended: set[str] = set()
    is_stopped = False
    runs: dict[str, TrainingRun] = {}

    def seconds_of(recipe: Recipe) -> float:
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

    def finished(name: str, _seconds: object) -> bool:
        nonlocal is_stopped
        if stop is not None and not is_stopped:
            is_stopped = stop()
        return is_stopped or name in ended

    timers = {name: partial(seconds_of, recipe) for name, recipe in by_name.items()}
    timings = time_interleaved(timers, rounds + 1, finished=finished)
    rates = {}
    for name, seconds in timings.items():
        # the first round was the warm-up
        counted = seconds[1:]
        if counted and name not in ended:
            rates[name] = 1 / statistics.median(counted)
    return rates


def recorded_throughput(records: Iterable[RunRecord]) -> dict[str, float]:
    """Return recipe -> median steps a second of its timed runs.

    It is empty if the timed runs are of more than one device, since their rates do not compare.
    """
    require_kind(records, Iterable, "records", "Pass a list of records")
    rates_by_recipe: dict[str, list[float]] = {}
    devices: set[str] = set()
    for record in records:
        rate = record.steps_per_second
        if rate is not None:
            devices.add(record.device)
            rates_by_recipe.setdefault(record.recipe, []).append(rate)
    if len(devices) > 1:
        return {}
    return {recipe: statistics.median(rates) for recipe, rates in rates_by_recipe.items()}


def throughput_sentence(rates: dict[str, float], device: str) -> str:
    """Describe the rate of each recipe, all but the first also as multiples of the first.

    Raises:
        ValueError: there are no rates, as `recorded_throughput` returns of runs on two devices.

    >>> throughput_sentence({"FP32": 20.0, "O1": 44.0}, "Tesla T4")
    'Steps a second on Tesla T4: FP32 20, O1 44 (2.2 times FP32).'
    >>> throughput_sentence({"emulated": 0.5, "FP32": 60.0}, "CPU")
    'Steps a second on CPU: emulated 0.5, FP32 60 (120 times emulated).'
    """
    require_kind(rates, dict, "rates")
    if not rates:
        raise ValueError("expected the rate of one recipe or more, got none")
    first = next(iter(rates))
    parts = []
    for name, rate in rates.items():
        part = f"{name} {rate:,.0f}" if rate >= 100 else f"{name} {rate:.3g}"
        if name != first:
            part += f" ({ratio_text(rate / rates[first])} times {first})"
        parts.append(part)
    return f"Steps a second on {device}: {', '.join(parts)}."
