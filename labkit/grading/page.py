"""The Python of a page: its reply to a run, and its words for what it lacks.

Invariant: nothing here is imported in the lab. `prepare` changes the process that it is called in:
it hides the lessons, and input() and the import of a missing package raise errors that say why.
"""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from importlib.machinery import ModuleSpec
from types import ModuleType

from labkit.course import hide
from labkit.grading.exercise import Exercise
from labkit.grading.live import answer_in_page, cells_of, exercise_of


class _Missing:
    """The last finder of modules, which finds none and says what is missing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = name.split(".")[0]
        if package in sys.stdlib_module_names:
            return None
        if package == "labkit" or package.startswith("labkit_"):
            reason = f"{name} is in the lab alone"
        else:
            reason = f"this page has no {package}, only Python's own modules; the lab may have it"
        raise ModuleNotFoundError(reason, name=name)


def prepare() -> None:
    """Make this process the Python of a page, before it runs code of learners."""
    hide()
    builtins.input = _refuse_input
    sys.meta_path.append(_Missing())


def _refuse_input(prompt: object = "") -> str:
    raise RuntimeError(
        "expected a function that uses its arguments alone, got a call of input(); "
        "this page has no keyboard to read"
    )


def reply(request: str) -> str:
    """Run the answer of a request and judge it.

    Args:
        request: As JSON: `form`, what `labkit.grading.live.form_of` wrote, as text; `notebook`, the
            learner's notebook of its lesson; `answers`, the sources of its exercises' cells by id.

    Returns:
        The fields of a `LiveAnswer` as JSON.
    """
    parts = json.loads(request)
    cells = cells_of(parts["notebook"], parts["answers"])
    return json.dumps(asdict(answer_in_page(_exercise(parts["form"]), cells)))


@lru_cache(maxsize=8)
def _exercise(form: str) -> Exercise:
    return exercise_of(json.loads(form))
