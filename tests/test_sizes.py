"""Can a function be read from top to bottom? Above fifty lines, docstring aside, it needs a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

LABKIT = Path(__file__).parents[1] / "labkit"
LONGEST = 50
REASONS = {
    "grading/walls.py _probe": "its source runs by itself where a learner's code does, so it is one function",
}


def test_a_docstring_does_not_count() -> None:
    """A worked example: two lines of docstring, two of code."""
    source = 'def f(x):\n    """Return x.\n    """\n    return x\n'
    assert list(sizes(source)) == [("f", 2)]


def sizes(source: str) -> Iterator[tuple[str, int]]:
    """Name and number of lines of each function, without its docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            told = ast.get_docstring(node) is not None
            docstring = (first.end_lineno or 0) - first.lineno + 1 if told else 0
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - docstring


def test_no_function_is_long_without_a_reason() -> None:
    long = [
        f"{path.relative_to(LABKIT).as_posix()} {name}"
        for path in sorted(LABKIT.rglob("*.py"))
        for name, lines in sizes(path.read_text(encoding="utf-8"))
        if lines > LONGEST
    ]
    assert long == list(REASONS)
