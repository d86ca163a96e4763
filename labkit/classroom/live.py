"""Exercises that a page of the site checks: which they are, and their files.

A page's Python has its own modules only. So an exercise is checked there if the arguments and
answers of its calls are plain values, and neither its solution nor the text of its cell needs
numpy, torch or the lab. All others stay in the lab, each with the reason.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from importlib.resources import files
from io import BytesIO, StringIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from labkit.classroom.release import stored_exercise
from labkit.course import Lesson, learners_notebook
from labkit.grading.exercise import Check, Exercise, as_it_is
from labkit.grading.exercises import exercises_of
from labkit.grading.judge import known_answers, visible_cases
from labkit.grading.live import Form, cells_of, form_of
from labkit.grading.program import CodeCell, program_of
from labkit.grading.solutions import Solutions

# The lab's modules that a page's Python imports.
PAGE_MODULES = (
    "__init__",
    "course/__init__",
    "course/lesson",
    "course/notebook",
    "course/quiz",
    "course/text",
    "grading/__init__",
    "grading/answer_log",
    "grading/difference",
    "grading/exercise",
    "grading/exercises",
    "grading/grade",
    "grading/judge",
    "grading/live",
    "grading/page",
    "grading/program",
    "grading/sandbox/__init__",
    "grading/sandbox/answer",
    "grading/sandbox/cell",
    "grading/sandbox/kinds",
    "grading/sandbox/wire",
    "grading/solutions",
    "grading/stored",
    "moved",
    "records/__init__",
    "records/files",
    "records/journal",
    "records/provenance",
)
PLAIN = (bool, int, float, str, type(None))
# tags of answers on the wire that numbers, strings and their containers have
PLAIN_TAGS = {"bool", "int", "float", "str", "none", "list", "tuple", "dict"}
FROM_OUTSIDE = re.compile(r"\b(np|numpy|torch|labkit(?!\.grading\b))\b")


@dataclass(frozen=True)
class LiveExercises:
    """The exercises of some lessons that a page checks.

    forms    by id: what the page reads of each, without its solution
    reasons  by id: why each of the others stays in the lab
    """

    forms: dict[str, Form]
    reasons: dict[str, str]


def live_exercises(
    lessons: Iterable[Lesson], progress: Callable[[str], None] = lambda id: None
) -> LiveExercises:
    """Return which exercises of these lessons a page checks, and their files.

    Args:
        lessons: The lessons; a learner's lab, which has no solutions, writes none of them.
        progress: Is called with the id of each exercise whose answers are computed.
    """
    found = LiveExercises({}, {})
    for lesson in lessons:
        hints = lesson.table("hints")
        for exercise in exercises_of(lesson):
            reason = reason_for_the_lab(lesson, exercise)
            if reason:
                found.reasons[exercise.id] = reason
                continue
            progress(exercise.id)
            with (
                warnings.catch_warnings(action="ignore"),
                redirect_stdout(StringIO()),
                redirect_stderr(StringIO()),
            ):
                found.forms[exercise.id] = form_of(
                    stored_exercise(exercise), hints.get(exercise.id, ())
                )
    return found


def page_modules() -> bytes:
    """Return the modules that judge in a page, as a zip archive; the same modules give the same."""
    content = BytesIO()
    with ZipFile(content, "w", ZIP_DEFLATED) as archive:
        for module in PAGE_MODULES:
            source = (files("labkit") / f"{module}.py").read_bytes()
            archive.writestr(ZipInfo(f"labkit/{module}.py"), source, ZIP_DEFLATED)
    return content.getvalue()


def reason_for_the_lab(lesson: Lesson, exercise: Exercise) -> str:
    """Return why an exercise stays in the lab; "" if a page can check it."""
    if not lesson.text.is_file():
        return "this lab lacks its solution, which says what it needs"
    if exercise.run_by is not None or exercise.trained is not None:
        return "its checks train a model, or run the answer in another program"
    if not all(map(_compares_answers, exercise.checks)):
        return "code of its lesson judges the answers"
    paper = visible_cases(exercise)
    arguments = (value for cases in paper.cases for case in cases for value in case)
    if other := next(_others(arguments), ""):
        return f"its function is called with a {other}"
    if needed := _needs(lesson, exercise):
        return f"its cell needs {needed}"
    if tag := _other_answers(exercise):
        return f"its answer is a {tag}"
    return ""


def _compares_answers(check: Check) -> bool:
    return check.outcome is as_it_is


def _others(values: Iterable[object]) -> Iterator[str]:
    """Yield the names of the classes of values that are not plain."""
    for value in values:
        kind = type(value)
        if kind is list or kind is tuple:
            yield from _others(value)  # type: ignore[arg-type]
        elif kind is dict:
            yield from _others(value.keys())  # type: ignore[attr-defined]
            yield from _others(value.values())  # type: ignore[attr-defined]
        elif kind not in PLAIN:
            yield kind.__name__


def _other_answers(exercise: Exercise) -> str:
    """Return what an answer of the reference is, where it is no plain value; else ""."""
    answers = known_answers(visible_cases(exercise), exercise.reference)
    tags = {tag for group in answers for answer in group for tag in _tags(answer)}
    return min(tags - PLAIN_TAGS, default="")


def _tags(answer: Sequence[Any]) -> Iterator[str]:
    """Yield the tags of an answer on the wire, and of what it holds."""
    tag, *rest = answer
    yield tag
    if tag in ("list", "tuple"):
        for item in rest[0]:
            yield from _tags(item)
    if tag == "dict":
        for key, item in rest[0]:
            yield from _tags(key)
            yield from _tags(item)


def _needs(lesson: Lesson, exercise: Exercise) -> str:
    """Return a module that an exercise or its solution needs and pages lack; else ""."""
    cells = cells_of(learners_notebook(lesson), {})
    own = "\n".join(cell.source for cell in cells if cell.belongs_to(exercise))
    if named := FROM_OUTSIDE.search(own):
        return {"np": "numpy"}.get(named[1], named[1])
    source = Solutions(lesson.text).source(exercise.id)
    solved = cells_of(learners_notebook(lesson), {exercise.id: source})
    return next(_imports(solved, exercise), "")


def _imports(cells: Sequence[CodeCell], exercise: Exercise) -> Iterator[str]:
    """Yield the modules that a program imports and that are not Python's own."""
    # what grading adds where the notebook's imports are gone, a page lacks as well
    for source in program_of(cells, replace(exercise, provides={})):
        for node in ast.walk(ast.parse(source)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                package = name.split(".")[0]
                # the judge itself is in the page: `check` and `hint`
                if package not in sys.stdlib_module_names and name != "labkit.grading":
                    yield package
