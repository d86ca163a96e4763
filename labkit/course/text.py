"""The text of a lesson: cells in jupytext's py:percent form, and the exercises in them.

An exercise has two cells. A text cell has the heading
"### Exercise 3: clip at the right place  ●●○  12 min". The code cell below it has the tag
exercise-scaling.clip, and its solution is between two marks. Title, difficulty, minutes and
solution are read from these cells only.

If the code cell's head has `starter="faulty"`, learners start from the body of the lesson's
function `faulty`, which they repair. A text cell with the tag answer-scaling.order answers the
prediction scaling.order.

Invariant: the cells are the same as jupytext reads them (tests/course).
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
        """The tags of the cell."""
        tags = self.metadata.get("tags", ())
        return tuple(map(str, tags)) if isinstance(tags, list | tuple) else ()

    @property
    def answers(self) -> tuple[str, ...]:
        """The ids of the predictions that the cell answers."""
        return answered(self.tags)


def answered(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of the predictions that a cell with these tags answers.

    >>> answered(["claim-C36", "answer-scaling.order"])
    ('scaling.order',)
    """
    return tuple(tag.removeprefix(ANSWER) for tag in tags if tag.startswith(ANSWER))


@dataclass(frozen=True)
class Question:
    """An exercise, as its two cells describe it.

    Attributes:
        id: The id in the code cell's tag, such as "scaling.clip".
        title: The title of the heading, with a capital letter.
        difficulty: The number of filled circles, from 1 to 3.
        minutes: The estimated time.
        entry: The name of the learner's function, the last one that the code cell defines.
        place: The index of the code cell among the cells of the lesson.
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

    Raises:
        CourseError: If the metadata in the head of a cell is not JSON.
    """
    marks = list(_MARK.finditer(text))
    # A cell ends where the next one begins.
    places = [mark.start() for mark in marks] + [len(text)]
    return tuple(
        _cell(mark["head"].strip(), text[mark.end() : end].strip("\n"))
        for mark, end in zip(marks, places[1:], strict=True)
    )


def questions(path: Path) -> dict[str, Question]:
    """Return the exercises of a lesson's text, by id, in their order.

    Raises:
        CourseError: If an exercise has no heading, no function, or two code cells, or its cell is
            not Python.
    """
    cells = cells_of(path.read_text(encoding="utf-8"))
    by_id = dict[str, Question]()
    # The last heading that no exercise has taken.
    heading = None
    for place, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            headings = list(_HEADING.finditer(cell.source))
            if headings:
                heading = headings[-1]
        ids = [tag.removeprefix(TAG) for tag in cell.tags if tag.startswith(TAG)]
        for id in ids:
            if id in by_id:
                raise CourseError(f"{path}: two cells have the tag {TAG}{id}")
            if heading is None:
                raise CourseError(
                    f'{path}: exercise {id}: expected a heading such as "### Exercise 1: its '
                    'title  ●●○  8 min" above'
                )
            require_marks(cell.source, f"{path}: exercise {id}")
            title = heading["title"]
            by_id[id] = Question(
                id=id,
                title=title[:1].upper() + title[1:],
                difficulty=heading["dots"].count("●"),
                minutes=int(heading["minutes"]),
                entry=_entry(cell.source, f"{path}: exercise {id}"),
                place=place,
            )
            heading = None
    return by_id


def starter_of(source: str, to_repair: str = "") -> str:
    r"""Replace each solution in a cell's source by a line that raises NotImplementedError.

    Args:
        source: The source of a code cell, with marks.
        to_repair: Lines that follow the line that raises, for the learner to repair.

    >>> cell = "def f(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION\n\nf(1)"
    >>> print(starter_of(cell))
    def f(x):
        raise NotImplementedError("your code goes here; then run this cell again")
    <BLANKLINE>
    f(1)
    """
    starter = f"{REPAIR}\n{to_repair}" if to_repair else STARTER
    # As in `require_marks`, blanks around a mark do not count.
    solution = re.compile(
        rf"^([ \t]*){BEGIN}[ \t]*$.*?^[ \t]*{END}[ \t]*$", re.MULTILINE | re.DOTALL
    )
    # A function, since backslashes in a replacement text would be escapes.
    return solution.sub(lambda match: match[1] + starter, source)


def lines_to_repair(cell: Cell, cells: Sequence[Cell]) -> str:
    """Return the body of the function that a cell's `starter` names, or "" without a starter.

    Raises:
        CourseError: If no cell of the lesson defines the function, or its cell is not Python.
    """
    name = cell.metadata.get("starter")
    if name is None:
        return ""
    for other in cells:
        # Only cells that mention the function are parsed: a cell with a magic is not plain Python.
        if other.cell_type != "code" or f"def {name}(" not in other.source:
            continue
        source = solution_of(other.source)
        for node in _parsed(source, f"the cell of the function {name!r}").body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                first = node.body[0].lineno - 1
                return "\n".join(source.split("\n")[first : node.end_lineno])
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
    """Check that each mark that begins a solution is followed by one that ends it.

    Args:
        source: The source of a cell.
        where: The place of the cell, for the message.

    Raises:
        CourseError: If the marks do not match.
    """
    marks = [line.strip() for line in source.split("\n") if line.strip() in (BEGIN, END)]
    if marks != [BEGIN, END] * (len(marks) // 2):
        raise CourseError(
            f"{where}: a solution begins with {BEGIN} and ends with {END}; in one cell are: {marks}"
        )


def _cell(head: str, body: str) -> Cell:
    """Return the cell with a head such as `[markdown] id="x" tags=["y"]` and these lines."""
    is_markdown = head.startswith("[markdown]")
    metadata: dict[str, object] = {}
    for key, value in _ASSIGNMENT.findall(head):
        try:
            metadata[key] = json.loads(value)
        except ValueError as error:
            raise CourseError(
                f"the head of a cell, `# %% {head}`: expected JSON for {key!r}, got {value}: "
                f"{error}"
            ) from error
    if is_markdown:
        body = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.split("\n"))
    return Cell("markdown" if is_markdown else "code", body, metadata)


def _parsed(source: str, where: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise CourseError(f"{where}: expected Python without magics, got: {error}") from error


def _entry(source: str, where: str) -> str:
    """Return the name of the last function that a cell defines at its top level."""
    names = [
        node.name
        for node in _parsed(solution_of(source), where).body
        if isinstance(node, ast.FunctionDef)
    ]
    if not names:
        raise CourseError(f"{where}: expected a function in its cell, got none")
    return names[-1]
