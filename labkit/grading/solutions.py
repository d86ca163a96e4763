"""The solutions in a lesson's text as functions: references of exercises, and known mistakes.

A solution runs as a learner's answer does (labkit.grading.program): its cell, with the imports and
definitions of other cells that it uses. Calls at the top level of its cell, such as `check(...)`,
are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from labkit.course import Cell, CourseError, Question, cells_of, questions, solution_of
from labkit.course.text import BEGIN, END
from labkit.grading.exercise import Edit, Exercise
from labkit.grading.program import CodeCell, program_of


class Solutions:
    """The solutions of a lesson, by the names that learners write: `solutions.my_clip_step`.

    Args:
        path: The lesson's lesson.py, or a file beside it: `Solutions(__file__)` in its
            exercises.py.
    """

    def __init__(self, path: str | Path) -> None:
        self._text = Path(path).with_name("lesson.py")

    def __getattr__(self, entry: str) -> Callable[..., Any]:
        # copy and pickle look for such names before the object has its text
        if entry.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {entry!r}")
        for question in _read(self._text)[1].values():
            if question.entry == entry:
                return self.function(question.id)
        raise AttributeError(f"{self._text}: no exercise has a function {entry!r}")

    def function(self, id: str) -> Callable[..., Any]:
        """Return the solution of an exercise."""
        return _function(self._text, id, ())

    def source(self, id: str) -> str:
        """Return the cell of an exercise, with its solution."""
        cells, known = _read(self._text)
        return solution_of(cells[known[id].place].source)

    def edited(self, id: str, name: str, edits: Sequence[Edit]) -> Callable[..., Any]:
        """Return the solution of an exercise with some of its text replaced.

        It is compiled when it is first called.

        Raises:
            CourseError: a text is not found in the solution, or more than once, or the edits change
                nothing.
        """
        cells, question = _read(self._text)
        try:
            _edited(cells[question[id].place], edits)
        except CourseError as error:
            raise CourseError(
                f"{self._text.with_name('exercises.py')}: exercise {id}, {name!r}: {error}"
            ) from error

        def answer(*arguments: Any) -> Any:
            return _function(self._text, id, tuple(edits))(*arguments)

        return answer


@lru_cache(maxsize=64)
def _read(text: Path) -> tuple[tuple[Cell, ...], dict[str, Question]]:
    return cells_of(text.read_text(encoding="utf-8")), questions(text)


@lru_cache(maxsize=2048)
def _function(text: Path, id: str, edits: tuple[Edit, ...]) -> Callable[..., Any]:
    cells, known = _read(text)
    question = known[id]
    sources = [cell.source for cell in cells]
    sources[question.place] = _edited(cells[question.place], edits)
    code = [
        CodeCell(str(cell.metadata.get("id", "")), cell.tags, solution_of(source))
        for cell, source in zip(cells, sources, strict=True)
        if cell.cell_type == "code"
    ]
    names: dict[str, Any] = {"__name__": f"solution of {id}"}
    for source in program_of(code, Exercise(id, (), (), entry=question.entry)):
        tree = ast.parse(source)
        tree.body = [node for node in tree.body if not isinstance(node, ast.Expr)]
        name = f"<{text.parent.name}/{text.name}, {id}>"
        # like a learner's cell, without this module's `from __future__ import annotations`
        exec(compile(tree, name, "exec", dont_inherit=True), names)
    function: Callable[..., Any] = names[question.entry]
    return function


def _edited(cell: Cell, edits: Sequence[Edit]) -> str:
    """Return the source of an exercise's cell, with texts of its solution replaced."""
    source = cell.source
    for old, new in edits:
        parts = re.split(rf"(^ *{BEGIN}$.*?^ *{END}$)", source, flags=re.MULTILINE | re.DOTALL)
        found = sum(part.count(old) for part in parts[1::2])
        if found != 1:
            raise CourseError(
                f"expected the text {old!r} once in the solution, found it {found} times"
            )
        source = "".join(
            [part.replace(old, new) if i % 2 else part for i, part in enumerate(parts)]
        )
    if edits and _dumped(source) == _dumped(cell.source):
        raise CourseError(
            f"the edits {list(edits)} change nothing: the mistake equals the reference"
        )
    return source


@lru_cache(maxsize=64)
def _dumped(source: str) -> str:
    try:
        return ast.dump(ast.parse(source))
    except SyntaxError as error:
        raise CourseError(f"after the edits the solution is not Python: {error}") from error
