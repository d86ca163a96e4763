"""Judgement of the project's recipes by real trainings.

The answer to a project is a `Recipe` as plain data. It is rebuilt here, and the task is trained
under it and under FP32. Results are stored by task, recipe and seed.

Invariant: the same task, recipe and seed give the same outcome. Runs never overlap: they share
torch's generator.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import TypeAlias, cast

from labkit.amp import RECIPES, Recipe, ScalerConfig, WeightRounding, static
from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format
from labkit.grading.difference import show
from labkit.grading.draws import always
from labkit.grading.exercise import Case, Check, Key, Outcome, Trained
from labkit.grading.sandbox.wire import Failure, Instance, Json, dump, load
from labkit.train import CATEGORIES

from .cases import FAILING, PROJECT_TASKS, ProjectRun, run

Judgement: TypeAlias = Callable[[str, Recipe, tuple[int, ...]], Outcome]
# Seeds of the trainings.
VISIBLE = (0, 1)
HIDDEN = (2, 3, 4)
# A repaired training computes in a format of at most this many bits.
MOST_BITS = 16
# Formats by their text after a way through the sandbox.
_FORMATS: dict[str, Format] = {
    repr(load(dump(format))): format for format in (FP32, TF32, FP16, BF16, E4M3, E5M2)
}
# Names that a learner's answer may use.
PROVIDES = {
    "BF16": BF16,
    "FAILING": FAILING,
    "FP16": FP16,
    "FP32": FP32,
    "RECIPES": RECIPES,
    "Recipe": Recipe,
    "ScalerConfig": ScalerConfig,
    "WeightRounding": WeightRounding,
    "replace": replace,
    "static": static,
}
_lock = threading.Lock()
# Runs, or the messages of errors, by task, recipe and seed. The recipes are named "yours", since a
# name changes no training.
RESULTS: dict[Key, ProjectRun | str] = {}


def recipe_of(answer: object) -> Recipe:
    """Return the recipe in an answer.

    Raises:
        ValueError: If the answer is not a valid recipe. The message says why.
    """
    if not isinstance(answer, Instance) or answer.name != "Recipe":
        raise ValueError(f"expected a Recipe, got {show(answer)}")
    fields = dict(answer.fields)
    if fields.get("accumulator") is not None:
        raise ValueError("leave accumulator=None here: an emulated one takes minutes a run")
    if fields.get("products") is not None:
        raise ValueError("leave products=None here: the projects are about 16-bit formats")
    for part in ("model", "autocast", "optimizer", "gradient_format"):
        fields[part] = _format(part, fields.get(part))
    try:
        scaler = cast(Instance, fields["scaler"])
        rounding = cast(Instance, fields["rounding"])
        fields["scaler"] = ScalerConfig(**scaler.fields)  # type: ignore[arg-type]
        fields["rounding"] = WeightRounding[str(rounding.fields["name"])]
        fields["name"] = "yours"
        return Recipe(**fields)  # type: ignore[arg-type]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"this recipe cannot be read: {error}") from error


def _format(part: str, value: object) -> Format | None:
    if value is None and part in ("autocast", "gradient_format"):
        return None
    format = _FORMATS.get(repr(value))
    if format is None:
        names = ", ".join(known.name for known in _FORMATS.values())
        raise ValueError(f"{part}: expected a format of the lab ({names})")
    return format


def run_of(task: str, recipe: Recipe, seed: int) -> ProjectRun:
    """Return the run of a task under a recipe, which is trained if it is not stored.

    Raises:
        RuntimeError: If the training failed. The message says why.
    """
    key: Key = (task, replace(recipe, name="yours"), seed)
    with _lock:
        if key not in RESULTS:
            RESULTS[key] = run(*key)
    result = RESULTS[key]
    if isinstance(result, str):
        raise RuntimeError(result)
    return result


def trained(task: str) -> Trained:
    """Return the trainings by which answers to a task are judged, those of FP32 included.

    The trainings of known mistakes run when the first wrong answer is compared with them.
    """
    return Trained(
        run, ProjectRun, partial(_needed, task), RESULTS, replace(RECIPES["FP32"], name="yours")
    )


def _needed(task: str, cases: Sequence[Sequence[Case]], answers: list[list[Json]]) -> list[Key]:
    """Return the task, recipe and seed of each training that these answers need, once each."""
    needed: list[tuple[Recipe, tuple[int, ...]]] = [(RECIPES["FP32"], (*VISIBLE, *HIDDEN))]
    for check_cases, check_answers in zip(cases, answers, strict=False):
        for case, answer in zip(check_cases, check_answers, strict=False):
            # An answer that is not a recipe needs no training.
            with suppress(ValueError, RuntimeError):
                needed.append((recipe_of(load(answer)), cast("tuple[int, ...]", case[0])))
    keys: dict[Key, None] = {}
    for recipe, seeds in needed:
        for seed in seeds:
            keys[task, replace(recipe, name="yours"), seed] = None
    return list(keys)


def spread(task: str) -> float:
    """Return the largest metric of FP32 on all seeds, minus the smallest."""
    reached = [run_of(task, RECIPES["FP32"], seed).metric for seed in (*VISIBLE, *HIDDEN)]
    return max(reached) - min(reached)


def finite(task: str, recipe: Recipe, seeds: tuple[int, ...]) -> Outcome:
    """Return whether every loss was finite."""
    runs = [run_of(task, recipe, seed) for seed in seeds]
    broken_at = [run.not_finite for run in runs if run.not_finite is not None]
    steps = sum(len(run.stepped) for run in runs)
    skipped = steps - sum(sum(run.stepped) for run in runs)
    text = f"{skipped} of {steps} steps were skipped"
    if broken_at:
        text = f"the loss is not finite from step {broken_at[0]} on; {text}"
    is_finite = not broken_at
    return Outcome(is_finite, text, (is_finite, "all" if skipped == steps else "not all"))


def reaches(task: str, recipe: Recipe, seeds: tuple[int, ...]) -> Outcome:
    """Return whether a training in 16 bits is as good as FP32, within the spread of seeds."""
    bits = [format.bits for format in (recipe.model, recipe.autocast) if format is not None]
    if min(bits) > MOST_BITS:
        return Outcome(False, "all of it is computed in FP32: train in 16 bits", ("in FP32",))
    runs = [run_of(task, recipe, seed) for seed in seeds]
    metric = statistics.fmean(run.metric if math.isfinite(run.metric) else 0.0 for run in runs)
    fp32 = statistics.fmean(run_of(task, RECIPES["FP32"], seed).metric for seed in seeds)
    allowed = spread(task)
    if fp32 - metric <= allowed:
        how = "as good"
    elif metric > fp32 / 2:
        how = "worse"
    else:
        how = "far behind"
    name = runs[0].metric_name
    text = (
        f"{how}: {name} {metric:.3f}, FP32 {fp32:.3f} on the same seeds, and FP32's seeds "
        f"scatter by {allowed:.3f}"
    )
    return Outcome(how == "as good", text, (how,))


def keeps(task: str, recipe: Recipe, seeds: tuple[int, ...], limit: int) -> Outcome:
    """Return whether a training keeps at most `limit` bytes for each weight between two steps."""
    memory = run_of(task, recipe, seeds[0]).memory
    weights = sum(p.numel() for p in PROJECT_TASKS[task].make_model().parameters())
    per_weight = {part: memory[part] / weights for part in CATEGORIES}
    total = sum(per_weight.values())
    bill = " + ".join(f"{size:.0f} {part}" for part, size in per_weight.items() if size >= 0.5)
    facts = tuple(round(size) for size in per_weight.values())
    text = f"{total:.0f} bytes a weight: {bill}"
    return Outcome(total < limit + 0.5, text, facts, sum(memory.values()))


def project_checks(task: str, limit: int) -> tuple[Check, ...]:
    """Return the checks of the recipes for a task, 8 points in all."""
    visible = always((VISIBLE,))
    is_as_good = partial(_outcome, reaches, task)
    return (
        Check("every loss is a finite number", 1, visible, outcome=partial(_outcome, finite, task)),
        Check(
            "in 16 bits it reaches what FP32 reaches, within FP32's spread",
            3,
            visible,
            outcome=is_as_good,
        ),
        Check(
            f"it keeps at most {limit} bytes a weight",
            2,
            visible,
            outcome=partial(_outcome, partial(keeps, limit=limit), task),
        ),
        Check(
            "in 16 bits it reaches what FP32 reaches, on other seeds",
            2,
            _draw,
            hidden=True,
            outcome=is_as_good,
        ),
    )


def _draw(random: Random) -> list[Case]:
    return [(tuple(sorted(random.sample(HIDDEN, 2))),)]


def _outcome(judgement: Judgement, task: str, answer: object, case: Case) -> object:
    """Return the outcome of an answer. None and failures are returned unchanged."""
    if answer is None or isinstance(answer, Failure):
        return answer
    try:
        return judgement(task, recipe_of(answer), cast("tuple[int, ...]", case[0]))
    # The answer is not a recipe, or torch has no kernel for it.
    except (ValueError, RuntimeError) as error:
        return Outcome(False, f"no run: {str(error)[:300]}", ("no run",))
