"""The text of a lesson: cells in jupytext's py:percent form, and the exercises in them.

An exercise has two cells. A text cell has the heading
"### Exercise 3: clip at the right place  ●●○  12 min". The code cell below it has the tag
exercise-scaling.clip, with the solution between two marks. Title, difficulty, minutes and solution
are read from these cells only. A cell whose head has `starter="faulty"` begins, for a learner, with
the body of the lesson's function `faulty`, to be repaired. A cell with the tag answer-scaling.order
answers that prediction.

Invariant: the cells are those that jupytext reads (tests/course).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from labkit.course.lesson import CourseError

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STARTER = 'raise NotImplementedError("your code goes here; then run this cell again")'
REPAIR = (
    'raise NotImplementedError("repair the lines below; '
    'then delete this line, and run this cell again")'
)
TAG = "exercise-"
ANSWER = "answer-"
_ASSIGNMENT = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\[[^\]]*\])')
_MARK = re.compile(r"^# %%(?P<head>.*)$", re.MULTILINE)
_HEADING = re.compile(
    r"^### (?:\d+ · )?(?:Exercise|Project)[^:]*: (?P<title>.+?)"
    r"\s+(?P<dots>[●○]{3})\s+(?P<minutes>\d+) min$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Cell:
    """A cell of a lesson: its type ("code" or "markdown"), source and metadata."""

    cell_type: str
    source: str
    metadata: dict[str, object] = field(default_factory=dict, hash=False)

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags."""
        tags = self.metadata.get("tags", ())
        return tuple(map(str, tags)) if isinstance(tags, list | tuple) else ()

    @property
    def answers(self) -> tuple[str, ...]:
        """Ids of the predictions that it answers."""
        return answered(self.tags)


def answered(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of the predictions that a cell with these tags answers.

    >>> answered(["claim-C36", "answer-scaling.order"])
    ('scaling.order',)
    """
    return tuple(tag.removeprefix(ANSWER) for tag in tags if tag.startswith(ANSWER))


@dataclass(frozen=True)
class Question:
    """What the text says of an exercise.

    Attributes:
        id: "scaling.clip".
        title: title of its heading, with a capital letter.
        entry: name of the function that the learner writes: the last one that the cell defines.
        place: number of its cell among the cells of the lesson.
    """

    id: str
    title: str
    difficulty: int
    minutes: int
    entry: str
    place: int


@lru_cache(maxsize=64)
def cells_of(text: str) -> tuple[Cell, ...]:
    r"""Return the cells of a text in py:percent form.

    >>> cells_of('# %% [markdown] id="a"\n# # Title\n\n# %% tags=["x"]\n1 + 1\n')[1]
    Cell(cell_type='code', source='1 + 1', metadata={'tags': ['x']})
    """
    marks = list(_MARK.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return tuple(
        _cell(mark["head"].strip(), text[mark.end() : end].strip("\n"))
        for mark, end in zip(marks, ends, strict=True)
    )


def questions(path: Path) -> dict[str, Question]:
    """Return the exercises of a lesson's text, by id, in their order.

    Raises:
        CourseError: an exercise has no heading above its cell, no function, or two cells.
    """
    cells = cells_of(path.read_text(encoding="utf-8"))
    found = dict[str, Question]()
    heading = None
    for place, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            headings = list(_HEADING.finditer(cell.source))
            if headings:
                heading = headings[-1]
        for id in (tag.removeprefix(TAG) for tag in cell.tags if tag.startswith(TAG)):
            if id in found:
                raise CourseError(f"{path}: two cells have the tag {TAG}{id}")
            if heading is None:
                raise CourseError(
                    f'{path}: exercise {id}: expected a heading such as "### Exercise 1: its '
                    'title  ●●○  8 min" above'
                )
            require_marks(cell.source, f"{path}: exercise {id}")
            title, dots = heading["title"], heading["dots"]
            found[id] = Question(
                id,
                title[:1].upper() + title[1:],
                dots.count("●"),
                int(heading["minutes"]),
                _entry(cell.source, f"{path}: exercise {id}"),
                place,
            )
            heading = None
    return found


def starter_of(source: str, to_repair: str = "") -> str:
    r"""Replace each solution in a cell's source by a line that raises and the lines `to_repair`.

    >>> cell = "def f(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION\n\nf(1)"
    >>> print(starter_of(cell))
    def f(x):
        raise NotImplementedError("your code goes here; then run this cell again")
    <BLANKLINE>
    f(1)
    """
    solution = re.compile(rf"^([ ]*){BEGIN}$.*?^[ ]*{END}$", re.MULTILINE | re.DOTALL)
    return solution.sub(
        lambda found: found[1] + (f"{REPAIR}\n{to_repair}" if to_repair else STARTER), source
    )


def lines_to_repair(cell: Cell, cells: Sequence[Cell]) -> str:
    """Return the body of the function that a cell's `starter` names, or "" without a starter.

    Raises:
        CourseError: no cell of the lesson defines it.
    """
    name = cell.metadata.get("starter")
    if name is None:
        return ""
    for other in (
        each for each in cells if each.cell_type == "code" and f"def {name}(" in each.source
    ):
        for node in ast.parse(solution_of(other.source)).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return "\n".join(
                    solution_of(other.source).split("\n")[node.body[0].lineno - 1 : node.end_lineno]
                )
    raise CourseError(
        f"an exercise begins with the function {name!r}, which no cell of the lesson defines"
    )


def solution_of(source: str) -> str:
    r"""Return a cell's source without the two marks.

    >>> solution_of("### BEGIN SOLUTION\nx = 1\n### END SOLUTION\ny = 2")
    'x = 1\ny = 2'
    """
    return "\n".join(line for line in source.split("\n") if line.strip() not in (BEGIN, END))


def require_marks(source: str, where: str) -> None:
    """Require that each solution is opened and closed.

    Raises:
        CourseError: one is not.
    """
    marks = [line.strip() for line in source.split("\n") if line.strip() in (BEGIN, END)]
    if marks != [BEGIN, END] * (len(marks) // 2):
        raise CourseError(
            f"{where}: a solution begins with {BEGIN} and ends with {END}; in one cell are: {marks}"
        )


def _cell(head: str, body: str) -> Cell:
    """Return a cell of the text after its mark: `[markdown] id="x" tags=["y"]`."""
    markdown = head.startswith("[markdown]")
    metadata = {key: json.loads(value) for key, value in _ASSIGNMENT.findall(head)}
    if markdown:
        body = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.split("\n"))
    return Cell("markdown" if markdown else "code", body, metadata)


def _entry(source: str, where: str) -> str:
    """Return the name of the last function that a cell defines at its top."""
    names = [
        node.name
        for node in ast.parse(solution_of(source)).body
        if isinstance(node, ast.FunctionDef)
    ]
    if not names:
        raise CourseError(f"{where}: expected a function in its cell, got none")
    return names[-1]
