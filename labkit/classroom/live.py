"""Exercises that a page of the site checks: which they are, and their files.

The Python of a page has only its standard library and the lab's judge. So a page checks an exercise
if the arguments and answers of its calls are plain values, and neither its solution nor the text of
its cell needs numpy, torch or the lab. All others stay in the lab, each with the reason.
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
from labkit.grading.exercise import Exercise, as_it_is
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
# Names of packages that a page's Python lacks. labkit.grading is in the page.
FROM_OUTSIDE = re.compile(r"\b(np|numpy|torch|labkit(?!\.grading\b))\b")


@dataclass(frozen=True)
class LiveExercises:
    """The exercises of some lessons that a page checks.

    Attributes:
        forms: id -> what the page reads of the exercise, without its solution.
        reasons: id -> why another exercise stays in the lab.
    """

    forms: dict[str, Form]
    reasons: dict[str, str]


def live_exercises(
    lessons: Iterable[Lesson], progress: Callable[[str], None] = lambda id: None
) -> LiveExercises:
    """Return which exercises of these lessons a page checks, and their files.

    Args:
        lessons: The lessons. In a learner's lab, which has no solutions, all exercises stay in the
            lab.
        progress: Called with the id of each exercise whose answers are computed.
    """
    exercises = LiveExercises({}, {})
    for lesson in lessons:
        hints = lesson.table("hints")
        for exercise in exercises_of(lesson):
            reason = reason_for_the_lab(lesson, exercise)
            if reason:
                exercises.reasons[exercise.id] = reason
                continue
            progress(exercise.id)
            with (
                warnings.catch_warnings(action="ignore"),
                redirect_stdout(StringIO()),
                redirect_stderr(StringIO()),
            ):
                exercises.forms[exercise.id] = form_of(
                    stored_exercise(exercise), hints.get(exercise.id, ())
                )
    return exercises


def page_modules() -> bytes:
    """Return the modules that judge in a page, as a zip archive.

    The same modules give the same bytes.
    """
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
    if any(check.outcome is not as_it_is for check in exercise.checks):
        return "code of its lesson judges the answers"
    arguments = [
        value for cases in visible_cases(exercise).cases for case in cases for value in case
    ]
    others = list(_others(arguments))
    if others:
        return f"its function is called with a {others[0]}"
    needed = _needs(lesson, exercise)
    if needed:
        return f"its cell needs {needed}"
    tag = _other_answers(exercise)
    if tag:
        return f"its answer is a {tag}"
    return ""


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
    """Return the tag of an answer that is not a plain value; "" if all answers are plain."""
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
    named = FROM_OUTSIDE.search(own)
    if named is not None:
        return "numpy" if named[1] == "np" else named[1]
    source = Solutions(lesson.text).source(exercise.id)
    solved = cells_of(learners_notebook(lesson), {exercise.id: source})
    return next(_imports(solved, exercise), "")


def _imports(cells: Sequence[CodeCell], exercise: Exercise) -> Iterator[str]:
    """Yield the modules that a program imports and that are not Python's own."""
    # Without `provides`: what grading adds when a notebook lacks an import, a page lacks as well.
    for source in program_of(cells, replace(exercise, provides={})):
        for node in ast.walk(ast.parse(source)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            # a relative import is of the lesson's own package
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                package = name.split(".")[0]
                # labkit.grading is in the page, for `check` and `hint`
                if package not in sys.stdlib_module_names and name != "labkit.grading":
                    yield package
