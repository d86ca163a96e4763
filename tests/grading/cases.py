"""The calls that exercises draw, their references, and the cells of their lessons."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from labkit.grading import EXERCISES
from labkit.grading.judge import draw_cases
from labkit.grading.program import CodeCell
from notebooks import build

# The seeds of cases; 0 is the notebook's.
SEEDS = (0, 1, 2)


def reference(id: str) -> Any:
    """Return the right answer to an exercise."""
    return EXERCISES[id].reference


def cases(id: str, seeds: Iterable[int] = SEEDS) -> list[tuple[Any, ...]]:
    """Return the calls of all checks of an exercise, for all of these seeds."""
    exercise = EXERCISES[id]
    return [
        case
        for seed in seeds
        for check in exercise.checks
        for case in draw_cases(exercise, check, seed)
    ]


def lesson_module(lesson: str, stem: str) -> Any:
    """Return a module of a lesson's folder."""
    return build.lesson(lesson).module(stem)


@cache
def cells_of(lesson: str) -> list[CodeCell]:
    """Return the code cells of a solved lesson."""
    cells = build.solved(build.lesson(lesson))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    return [
        CodeCell(cell["id"], tuple(cell["metadata"].get("tags", ())), "".join(cell["source"]))
        for cell in code
    ]
