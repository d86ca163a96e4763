"""What does a recipe do to a task? A real training says it.

Idea: the answer to a project is a `Recipe`, which travels as plain data. It is built anew here, and the task is trained
under it, and under FP32, for real. A run is kept by recipe, task and seed, so that asking again costs nothing.

Invariant: the same recipe, task and seed give the same outcome, whoever asks, and no two runs are made at once: they
share torch's generator.
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
from labkit.grading.exercise import Case, Check, Exercise
from labkit.grading.given.project_tasks import FAILING, PROJECT_TASKS, Run, run
from labkit.grading.given.wire import Failure, Instance, Json, dump, load
from labkit.grading.outcome import Outcome
from labkit.train import CATEGORIES

Asked: TypeAlias = tuple[str, Recipe, int]  # a task, a recipe by the name "yours", a seed
VISIBLE, HIDDEN = (0, 1), (2, 3, 4)
_FORMATS: dict[str, Format] = {repr(load(dump(f))): f for f in (FP32, TF32, FP16, BF16, E4M3, E5M2)}
PROVIDES = {
    "BF16": BF16, "FAILING": FAILING, "FP16": FP16, "FP32": FP32, "RECIPES": RECIPES, "Recipe": Recipe,
    "ScalerConfig": ScalerConfig, "WeightRounding": WeightRounding, "replace": replace, "static": static,
}  # fmt: skip
_one_at_a_time = threading.Lock()
_KEPT: dict[Asked, Run | str] = {}


def recipe_of(answer: object) -> Recipe:
    """Return the recipe that came off the wire.

    Raises:
        ValueError: it is none, or one that the lab would refuse; the message says why.
    """
    if not isinstance(answer, Instance) or answer.name != "Recipe":
        raise ValueError(f"a Recipe is asked for, and this is {show(answer)}")
    given = dict(answer.fields)
    if given.get("accumulator") is not None:
        raise ValueError("leave accumulator=None here: an emulated one takes minutes a run")
    given |= {part: _format(part, given.get(part)) for part in ("model", "autocast", "optimizer", "gradient_format")}
    try:
        scaler, rounding = cast(Instance, given["scaler"]), cast(Instance, given["rounding"])
        parts = {"scaler": ScalerConfig(**scaler.fields), "rounding": WeightRounding[str(rounding.fields["name"])]}  # type: ignore[arg-type]
        return Recipe(**{**given, **parts, "name": "yours"})  # type: ignore[arg-type]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"this recipe cannot be read: {error}") from error


def _format(part: str, given: object) -> Format | None:
    if given is None and part in ("autocast", "gradient_format"):
        return None
    found = _FORMATS.get(repr(given))
    if found is None:
        raise ValueError(f"{part} is a format of the lab ({', '.join(f.name for f in _FORMATS.values())})")
    return found


def run_of(task: str, recipe: Recipe, seed: int) -> Run:
    """Return the run of a project's task under a recipe: trained now, or remembered.

    Raises:
        RuntimeError: its training ended without one; the message says why.
    """
    asked = (task, replace(recipe, name="yours"), seed)
    with _one_at_a_time:
        if asked not in _KEPT:
            _KEPT[asked] = run(*asked)
    found = _KEPT[asked]
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def keep(asked: Asked, run: Run | str) -> None:
    """Remember a run that was made elsewhere, or why there is none."""
    _KEPT[asked] = run


def kept(asked: Asked) -> bool:
    """Return whether this run is remembered."""
    return asked in _KEPT


def runs_asked(exercise: Exercise, cases: Sequence[Sequence[Case]], answers: list[list[Json]]) -> list[Asked]:
    """Return the runs that judging these answers to cases[check][case] takes; none where no training decides.

    Those of the known mistakes are made when the first wrong answer is compared with them.
    """
    task = exercise.id.removeprefix("project.")
    if task not in PROJECT_TASKS or not exercise.id.startswith("project."):
        return []
    asked: list[tuple[Recipe, tuple[int, ...]]] = [(RECIPES["FP32"], (*VISIBLE, *HIDDEN))]
    for group, given in zip(cases, answers, strict=False):
        for case, answer in zip(group, given, strict=False):
            seeds = cast("tuple[int, ...]", case[0])
            with suppress(ValueError, RuntimeError):
                asked.append((recipe_of(load(answer)), seeds))
            asked.append((cast(Recipe, exercise.reference(seeds)), seeds))
    return list(dict.fromkeys((task, replace(recipe, name="yours"), seed) for recipe, seeds in asked for seed in seeds))


def spread(task: str) -> float:
    """Return the largest minus the smallest metric that FP32 reaches on the project's seeds."""
    reached = [run_of(task, RECIPES["FP32"], seed).metric for seed in (*VISIBLE, *HIDDEN)]
    return max(reached) - min(reached)


def finite(task: str, recipe: Recipe, seeds: tuple[int, ...]) -> Outcome:
    """Say whether every loss was a finite number."""
    runs = [run_of(task, recipe, seed) for seed in seeds]
    broken = next((run.not_finite for run in runs if run.not_finite is not None), None)
    steps = sum(len(run.stepped) for run in runs)
    skipped = steps - sum(sum(run.stepped) for run in runs)
    says = f"{skipped} of {steps} steps were skipped"
    if broken is not None:
        says = f"the loss is no finite number from step {broken} on; {says}"
    return Outcome(broken is None, says, (broken is None, "all" if skipped == steps else "not all"))


def reaches(task: str, recipe: Recipe, seeds: tuple[int, ...]) -> Outcome:
    """Say whether the metric falls short of FP32's by no more than FP32's seeds scatter."""
    runs = [run_of(task, recipe, seed) for seed in seeds]
    own = statistics.fmean(run.metric if math.isfinite(run.metric) else 0.0 for run in runs)
    fp32 = statistics.fmean(run_of(task, RECIPES["FP32"], seed).metric for seed in seeds)
    allowed = spread(task)
    how = "as good" if fp32 - own <= allowed else "worse" if own > fp32 / 2 else "far behind"
    name = runs[0].metric_name
    says = f"{how}: {name} {own:.3f}, FP32 {fp32:.3f} on the same seeds, and FP32's seeds scatter by {allowed:.3f}"
    return Outcome(how == "as good", says, (how,))


def keeps(task: str, recipe: Recipe, seeds: tuple[int, ...], limit: int) -> Outcome:
    """Say whether no more than `limit` bytes a weight are kept between two steps."""
    memory = run_of(task, recipe, seeds[0]).memory
    weights = sum(p.numel() for p in PROJECT_TASKS[task].make_model().parameters())
    per_weight = {part: memory[part] / weights for part in CATEGORIES}
    total = sum(per_weight.values())
    bill = " + ".join(f"{size:.0f} {part}" for part, size in per_weight.items() if size >= 0.5)
    facts = tuple(round(size) for size in per_weight.values())
    return Outcome(total < limit + 0.5, f"{total:.0f} bytes a weight: {bill}", facts, sum(memory.values()))


def project_checks(task: str, limit: int) -> tuple[Check, ...]:
    """Return what is asked of the recipe for a task: 8 points."""
    visible, good, within = always((VISIBLE,)), partial(_after, reaches, task), partial(keeps, limit=limit)
    return (
        Check("every loss is a finite number", 1, visible, outcome=partial(_after, finite, task)),
        Check("it reaches what FP32 reaches, within FP32's spread", 3, visible, outcome=good),
        Check(f"it keeps at most {limit} bytes a weight", 2, visible, outcome=partial(_after, within, task)),
        Check("it reaches what FP32 reaches, on other seeds", 2, _drawn, hidden=True, outcome=good),
    )


def _drawn(random: Random) -> list[Case]:
    return [(tuple(sorted(random.sample(HIDDEN, 2))),)]


def _after(judged: Callable[[str, Recipe, tuple[int, ...]], Outcome], task: str, answer: object, case: Case) -> object:
    """Return what comes of an answer; none at all, or a failure, stays what it is."""
    if answer is None or isinstance(answer, Failure):
        return answer
    try:
        return judged(task, recipe_of(answer), cast("tuple[int, ...]", case[0]))
    except (ValueError, RuntimeError) as error:  # a recipe that is none, or one that torch has no kernel for
        return Outcome(False, f"no run: {str(error)[:300]}", ("no run",))
