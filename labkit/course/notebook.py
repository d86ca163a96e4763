"""Conversion of lesson texts to notebooks.

Idea: a text that answers a prediction becomes a closed `details` element, which every host of
notebooks can open, by keyboard too. The prediction opens it once it has been answered. A text that
says what to press may have another text in its metadata, `site`, for pages without a kernel.

Invariant: the same text gives the same bytes. Cell ids are derived from their content, outputs are
empty, and metadata is fixed.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from labkit.course.lesson import CourseError, Lesson, lessons_folder
from labkit.course.text import Cell, cells_of, lines_to_repair, require_marks, starter_of
from labkit.records import notebooks_folder

METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
Notebook = dict[str, Any]
SITE = "site"


def notebook_of(
    lesson: Lesson,
    code: Callable[[str], str] | None = None,
    prose: Callable[[str], str] = lambda text: text,
) -> Notebook:
    """Return a lesson's notebook: each code cell edited by `code`, each cell of text by `prose`.

    Without `code`, it is the learner's: a starter replaces each solution.

    Raises:
        CourseError: a solution is opened and not closed, or the other way round, or two cells have
            the same id.
    """
    cells = [
        cell for cell in cells_of(lesson.text.read_text(encoding="utf-8")) if cell.source.strip()
    ]
    for cell in cells:
        require_marks(cell.source, str(lesson.text))

    def written_source(cell: Cell) -> str:
        if cell.cell_type != "code":
            text = prose(cell.source)
            return folded(text, cell.answers) if cell.answers else text
        return (
            code(cell.source)
            if code is not None
            else starter_of(cell.source, lines_to_repair(cell, cells))
        )

    written = [
        {
            "cell_type": cell.cell_type,
            "id": id,
            "metadata": _metadata(cell),
            "source": lines(written_source(cell)),
            **({"execution_count": None, "outputs": []} if cell.cell_type == "code" else {}),
        }
        for cell, id in zip(cells, _ids(lesson, cells), strict=True)
    ]
    return {"cells": written, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def _metadata(cell: Cell) -> dict[str, object]:
    """Return a cell's metadata: its tags, and the text that a page of the site shows instead."""
    tags: dict[str, object] = {"tags": list(cell.tags)} if cell.tags else {}
    return tags | ({SITE: cell.metadata[SITE]} if SITE in cell.metadata else {})


def folded(text: str, predictions: Sequence[str]) -> str:
    r"""Return a text as a closed element, whose classes name the predictions that it answers.

    Classes survive the sanitizer of JupyterLab, which removes attributes of data from a text.

    >>> print(folded("It becomes **0**.", ["scaling.order"]))
    <details class="labkit-answer labkit-answer-scaling-order">
    <summary>The answer. Commit to your prediction first.</summary>
    <BLANKLINE>
    It becomes **0**.
    <BLANKLINE>
    </details>
    """
    classes = " ".join(["labkit-answer", *(f"labkit-answer-{slug(id)}" for id in predictions)])
    summary = "<summary>The answer. Commit to your prediction first.</summary>"
    return f'<details class="{classes}">\n{summary}\n\n{text}\n\n</details>'


def slug(prediction: str) -> str:
    """Return the id of a prediction as part of a class.

    >>> slug("scaling.too_high")
    'scaling-too_high'
    """
    return prediction.replace(".", "-")


def learners_notebook(lesson: Lesson) -> Notebook:
    """Return a lesson's notebook for learners.

    It is the file beside the lab's own lessons, else made from the lesson's text.
    """
    written = notebooks_folder() / f"{lesson.name}.ipynb"
    if lesson.folder.parent == lessons_folder() and written.is_file():
        notebook: Notebook = json.loads(written.read_text(encoding="utf-8"))
        return notebook
    return notebook_of(lesson)


def text_of(notebook: Notebook) -> str:
    """Return a notebook as file text: sorted keys, one space of indentation, a final newline."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def lines(source: str) -> list[str]:
    """Return a source as a notebook stores it: a list of lines with their ends."""
    return source.splitlines(keepends=True)


def _ids(lesson: Lesson, cells: Sequence[Cell]) -> list[str]:
    """Return the cells' ids.

    A cell without an id gets one made from its content, so that the id moves with the cell.
    """
    seen: Counter[str] = Counter()
    names: list[str] = []
    for cell in cells:
        seen[cell.source] += 1
        content = " ".join((lesson.name, str(seen[cell.source]), cell.source))
        names.append(
            str(cell.metadata.get("id") or hashlib.sha256(content.encode()).hexdigest()[:12])
        )
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        raise CourseError(
            f"{lesson.text}: more than one cell has the id {doubled[0]!r}; an id is for one cell"
        )
    return names
