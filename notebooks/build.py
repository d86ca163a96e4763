"""How do learners' notebooks come from their sources?

Idea: a lesson is written once, as a text (jupytext's py:percent) that holds the solutions. The learner's notebook is
the same without them: what stands between `### BEGIN SOLUTION` and `### END SOLUTION` becomes one line to replace.

Invariant: the same source gives the same bytes. Ids of cells come from their content, outputs are empty, and metadata
is ours.

    python notebooks/build.py            write notebooks/*.ipynb
    python notebooks/build.py --check    say which differ from their sources, and fail if any does
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jupytext

NOTEBOOKS = Path(__file__).parent
SOURCES = NOTEBOOKS / "source"
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STARTER = 'raise NotImplementedError("your code goes here; then run this cell again")'
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

Notebook = dict[str, Any]


def learners(source: Path) -> Notebook:
    """Return the learner's notebook: a starter where the solution stands."""
    return _notebook(source, starter_of)


def solved(source: Path) -> Notebook:
    """Return the same notebook with the solutions filled in."""
    return _notebook(source, solution_of)


def starter_of(cell: str) -> str:
    """Return a cell's source with each solution replaced by a line that asks for it, in the solution's place.

    >>> print(starter_of("def f(x):\\n    ### BEGIN SOLUTION\\n    return x\\n    ### END SOLUTION\\n\\nf(1)"))
    def f(x):
        raise NotImplementedError("your code goes here; then run this cell again")
    <BLANKLINE>
    f(1)
    """
    return re.sub(rf"^([ ]*){BEGIN}$.*?^[ ]*{END}$", rf"\1{STARTER}", cell, flags=re.MULTILINE | re.DOTALL)


def solution_of(cell: str) -> str:
    """Return a cell's source without the two marks.

    >>> solution_of("### BEGIN SOLUTION\\nx = 1\\n### END SOLUTION\\ny = 2")
    'x = 1\\ny = 2'
    """
    return "\n".join(line for line in cell.split("\n") if line.strip() not in (BEGIN, END))


def text_of(notebook: Notebook) -> str:
    """Return a notebook as the text of its file: sorted keys, one space of indentation, a newline at the end."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def sources() -> list[Path]:
    """Return the sources of all lessons, in their order."""
    return sorted(SOURCES.glob("*.py"))


def target_of(source: Path) -> Path:
    """Return where the learner's notebook of a source belongs."""
    return NOTEBOOKS / f"{source.stem}.ipynb"


def stale() -> list[Path]:
    """Return the notebooks that differ from what their sources give, are missing, or have no source."""
    wanted = {target_of(source): text_of(learners(source)) for source in sources()}
    written = {path: path.read_text(encoding="utf-8") for path in NOTEBOOKS.glob("*.ipynb")}
    return sorted(path for path in wanted.keys() | written.keys() if wanted.get(path) != written.get(path))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the notebooks, or check them; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the learners' notebooks from notebooks/source.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a notebook is not up to date")
    check = parser.parse_args(arguments).check
    changed = stale()
    if check:
        for path in changed:
            print(f"{path.name} differs from its source; `make notebooks` writes it anew", file=sys.stderr)
        return 1 if changed else 0
    wanted = {target_of(source): source for source in sources()}
    for path in changed:
        if path in wanted:
            path.write_text(text_of(learners(wanted[path])), encoding="utf-8", newline="\n")
            print(f"wrote {path.name}")
        else:
            print(f"{path.name} has no source in {SOURCES}: delete it, or write one", file=sys.stderr)
    return 1 if set(changed) - wanted.keys() else 0


def _notebook(source: Path, edit: Callable[[str], str]) -> Notebook:
    """Return a source as a notebook, each code cell edited.

    Raises:
        ValueError: a solution is opened and not closed, or the other way round, or an id stands twice.
    """
    read = jupytext.read(source, fmt="py:percent")
    cells = [cell for cell in read.cells if cell.source.strip()]
    names = _ids(source, cells)
    return {
        "cells": [_cell(cell, name, edit) for cell, name in zip(cells, names, strict=True)],
        "metadata": METADATA,
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(cell: Any, name: str, edit: Callable[[str], str]) -> dict[str, Any]:
    tags = {"tags": list(cell.metadata["tags"])} if cell.metadata.get("tags") else {}
    common = {"cell_type": cell.cell_type, "id": name, "metadata": tags}
    if cell.cell_type != "code":
        return {**common, "source": _lines(cell.source)}
    return {**common, "execution_count": None, "outputs": [], "source": _lines(edit(cell.source))}


def _ids(source: Path, cells: Sequence[Any]) -> list[str]:
    """Return the cells' ids: their own, or one made from their content, so that it moves with them."""
    seen: Counter[str] = Counter()
    names: list[str] = []
    for cell in cells:
        _require_closed(source, cell.source)
        seen[cell.source] += 1
        content = f"{source.stem} {seen[cell.source]} {cell.source}"
        names.append(cell.metadata.get("id") or hashlib.sha256(content.encode()).hexdigest()[:12])
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        raise ValueError(f"{source.name}: more than one cell has the id {doubled[0]!r}; an id is for one cell")
    return names


def _require_closed(source: Path, cell: str) -> None:
    marks = [line.strip() for line in cell.split("\n") if line.strip() in (BEGIN, END)]
    if marks != [BEGIN, END] * (len(marks) // 2):
        raise ValueError(f"{source.name}: a solution begins with {BEGIN} and ends with {END}; in one cell are: {marks}")


def _lines(source: str) -> list[str]:
    return source.splitlines(keepends=True)


if __name__ == "__main__":
    sys.exit(main())
