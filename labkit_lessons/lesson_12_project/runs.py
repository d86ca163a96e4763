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
VISIBLE, HIDDEN = (0, 1), (2, 3, 4)
MOST_BITS = 16  # of the format that a repaired training computes in
_FORMATS: dict[str, Format] = {repr(load(dump(f))): f for f in (FP32, TF32, FP16, BF16, E4M3, E5M2)}
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
RESULTS: dict[Key, ProjectRun | str] = {}  # of recipes named "yours"


def recipe_of(answer: object) -> Recipe:
    """Return the recipe that an answer describes.

    Raises:
        ValueError: it is no recipe, or an invalid one; the message says why.
    """
    if not isinstance(answer, Instance) or answer.name != "Recipe":
        raise ValueError(f"expected a Recipe, got {show(answer)}")
    fields = dict(answer.fields)
    if fields.get("accumulator") is not None:
        raise ValueError("leave accumulator=None here: an emulated one takes minutes a run")
    fields |= {
        part: _format(part, fields.get(part))
        for part in ("model", "autocast", "optimizer", "gradient_format")
    }
    try:
        scaler, rounding = cast(Instance, fields["scaler"]), cast(Instance, fields["rounding"])
        parts = {
            "scaler": ScalerConfig(**scaler.fields),  # type: ignore[arg-type]
            "rounding": WeightRounding[str(rounding.fields["name"])],
        }
        return Recipe(**{**fields, **parts, "name": "yours"})  # type: ignore[arg-type]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"this recipe cannot be read: {error}") from error


def _format(part: str, value: object) -> Format | None:
    if value is None and part in ("autocast", "gradient_format"):
        return None
    found = _FORMATS.get(repr(value))
    if found is None:
        raise ValueError(
            f"{part}: expected a format of the lab ({', '.join(f.name for f in _FORMATS.values())})"
        )
    return found


def run_of(task: str, recipe: Recipe, seed: int) -> ProjectRun:
    """Return the run of a project's task under a recipe: stored, or trained now.

    Raises:
        RuntimeError: its training failed; the message says why.
    """
    key: Key = (task, replace(recipe, name="yours"), seed)
    with _lock:
        if key not in RESULTS:
            RESULTS[key] = run(*key)
    found = RESULTS[key]
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def trained(task: str) -> Trained:
    """Return the trainings that decide the answers to a task, a check's judgement and FP32's spread
    included.

    Those of known mistakes run when the first wrong answer is compared with them.
    """
    return Trained(
        run, ProjectRun, partial(_needed, task), RESULTS, replace(RECIPES["FP32"], name="yours")
    )


def _needed(task: str, cases: Sequence[Sequence[Case]], answers: list[list[Json]]) -> list[Key]:
    needed: list[tuple[Recipe, tuple[int, ...]]] = [(RECIPES["FP32"], (*VISIBLE, *HIDDEN))]
    for group, group_answers in zip(cases, answers, strict=False):
        for case, answer in zip(group, group_answers, strict=False):
            with suppress(ValueError, RuntimeError):
                needed.append((recipe_of(load(answer)), cast("tuple[int, ...]", case[0])))
    return list(
        dict.fromkeys(
            (task, replace(each, name="yours"), seed) for each, seeds in needed for seed in seeds
        )
    )


def spread(task: str) -> float:
    """Return the largest minus the smallest metric that FP32 reaches on the project's seeds."""
    reached = [run_of(task, RECIPES["FP32"], seed).metric for seed in (*VISIBLE, *HIDDEN)]
    return max(reached) - min(reached)


def finite(task: str, recipe: Recipe, seeds: tuple[int, ...]) -> Outcome:
    """Return whether every loss was finite."""
    runs = [run_of(task, recipe, seed) for seed in seeds]
    broken = next((run.not_finite for run in runs if run.not_finite is not None), None)
    steps = sum(len(run.stepped) for run in runs)
    skipped = steps - sum(sum(run.stepped) for run in runs)
    says = f"{skipped} of {steps} steps were skipped"
    if broken is not None:
        says = f"the loss is not finite from step {broken} on; {says}"
    return Outcome(broken is None, says, (broken is None, "all" if skipped == steps else "not all"))


def reaches(task: str, recipe: Recipe, seeds: tuple[int, ...]) -> Outcome:
    """Return whether a training in 16 bits falls short of FP32's metric by at most the spread of
    FP32's seeds.
    """
    if min(format.bits for format in (recipe.model, recipe.autocast) if format) > MOST_BITS:
        return Outcome(False, "all of it is computed in FP32: train in 16 bits", ("in FP32",))
    runs = [run_of(task, recipe, seed) for seed in seeds]
    own = statistics.fmean(run.metric if math.isfinite(run.metric) else 0.0 for run in runs)
    fp32 = statistics.fmean(run_of(task, RECIPES["FP32"], seed).metric for seed in seeds)
    allowed = spread(task)
    how = "as good" if fp32 - own <= allowed else "worse" if own > fp32 / 2 else "far behind"
    name = runs[0].metric_name
    says = (
        f"{how}: {name} {own:.3f}, FP32 {fp32:.3f} on the same seeds, and FP32's seeds "
        f"scatter by {allowed:.3f}"
    )
    return Outcome(how == "as good", says, (how,))


def keeps(task: str, recipe: Recipe, seeds: tuple[int, ...], limit: int) -> Outcome:
    """Return whether at most `limit` bytes for each weight are kept between two steps."""
    memory = run_of(task, recipe, seeds[0]).memory
    weights = sum(p.numel() for p in PROJECT_TASKS[task].make_model().parameters())
    per_weight = {part: memory[part] / weights for part in CATEGORIES}
    total = sum(per_weight.values())
    bill = " + ".join(f"{size:.0f} {part}" for part, size in per_weight.items() if size >= 0.5)
    facts = tuple(round(size) for size in per_weight.values())
    return Outcome(
        total < limit + 0.5, f"{total:.0f} bytes a weight: {bill}", facts, sum(memory.values())
    )


def project_checks(task: str, limit: int) -> tuple[Check, ...]:
    """Return the checks of a task's recipe: 8 points."""
    visible, good, within = (
        always((VISIBLE,)),
        partial(_outcome, reaches, task),
        partial(keeps, limit=limit),
    )
    return (
        Check("every loss is a finite number", 1, visible, outcome=partial(_outcome, finite, task)),
        Check(
            "in 16 bits it reaches what FP32 reaches, within FP32's spread",
            3,
            visible,
            outcome=good,
        ),
        Check(
            f"it keeps at most {limit} bytes a weight",
            2,
            visible,
            outcome=partial(_outcome, within, task),
        ),
        Check(
            "in 16 bits it reaches what FP32 reaches, on other seeds",
            2,
            _draw,
            hidden=True,
            outcome=good,
        ),
    )


def _draw(random: Random) -> list[Case]:
    return [(tuple(sorted(random.sample(HIDDEN, 2))),)]


def _outcome(
    judged: Callable[[str, Recipe, tuple[int, ...]], Outcome], task: str, answer: object, case: Case
) -> object:
    """Return the outcome of an answer; None and failures are returned unchanged."""
    if answer is None or isinstance(answer, Failure):
        return answer
    try:
        return judged(task, recipe_of(answer), cast("tuple[int, ...]", case[0]))
    except (ValueError, RuntimeError) as error:  # not a recipe, or one that torch has no kernel for
        return Outcome(False, f"no run: {str(error)[:300]}", ("no run",))
