"""Conversion of lesson texts to notebooks.

A text that answers a prediction becomes a closed `details` element, which every notebook front end
can open, also by keyboard. The prediction opens it after the learner has answered. A text that says
which button to press can have a replacement in its metadata, `site`, for pages without a kernel.

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
    """Return a lesson as a notebook.

    Args:
        lesson: The lesson, with its text.
        code: Edits the source of each code cell. By default, a starter replaces each solution, as
            learners receive it.
        prose: Edits each text cell.

    Raises:
        CourseError: If the marks of a solution do not match, or two cells have the same id.
    """
    cells = [
        cell for cell in cells_of(lesson.text.read_text(encoding="utf-8")) if cell.source.strip()
    ]
    for cell in cells:
        require_marks(cell.source, str(lesson.text))

    def written_cell(cell: Cell, id: str) -> dict[str, Any]:
        if cell.cell_type == "code":
            if code is None:
                source = starter_of(cell.source, lines_to_repair(cell, cells))
            else:
                source = code(cell.source)
        else:
            source = prose(cell.source)
            if cell.answers:
                source = folded(source, cell.answers)
        written: dict[str, Any] = {
            "cell_type": cell.cell_type,
            "id": id,
            "metadata": _metadata(cell),
            "source": lines(source),
        }
        if cell.cell_type == "code":
            written |= {"execution_count": None, "outputs": []}
        return written

    written = [written_cell(*pair) for pair in zip(cells, _ids(lesson, cells), strict=True)]
    return {"cells": written, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def _metadata(cell: Cell) -> dict[str, object]:
    """Return the metadata that the notebook keeps: tags, and the replacement on the site."""
    metadata: dict[str, object] = {}
    if cell.tags:
        metadata["tags"] = list(cell.tags)
    if SITE in cell.metadata:
        metadata[SITE] = cell.metadata[SITE]
    return metadata


def folded(text: str, predictions: Sequence[str]) -> str:
    r"""Return a text as a closed `details` element.

    Its classes name the predictions that the text answers. JupyterLab's sanitizer removes data
    attributes from a text cell but keeps classes.

    >>> print(folded("It becomes **0**.", ["scaling.order"]))
    <details class="labkit-answer labkit-answer-scaling-order">
    <summary>The answer. Commit to your prediction first.</summary>
    <BLANKLINE>
    It becomes **0**.
    <BLANKLINE>
    </details>
    """
    names = ["labkit-answer"] + [f"labkit-answer-{slug(id)}" for id in predictions]
    classes = " ".join(names)
    summary = "<summary>The answer. Commit to your prediction first.</summary>"
    return f'<details class="{classes}">\n{summary}\n\n{text}\n\n</details>'


def slug(prediction: str) -> str:
    """Return the id of a prediction as part of a CSS class.

    >>> slug("scaling.too_high")
    'scaling-too_high'
    """
    return prediction.replace(".", "-")


def learners_notebook(lesson: Lesson) -> Notebook:
    """Return a lesson's notebook for learners.

    The lab's own lessons have a generated file. Any other notebook is made from its text.
    """
    path = notebooks_folder() / f"{lesson.name}.ipynb"
    if lesson.folder.parent == lessons_folder() and path.is_file():
        notebook: Notebook = json.loads(path.read_text(encoding="utf-8"))
        return notebook
    return notebook_of(lesson)


def text_of(notebook: Notebook) -> str:
    """Return a notebook as nbformat writes it: sorted keys, one space of indentation."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def lines(source: str) -> list[str]:
    """Return a source as a notebook stores it: a list of lines, each with its line break."""
    return source.splitlines(keepends=True)


def _ids(lesson: Lesson, cells: Sequence[Cell]) -> list[str]:
    """Return the cells' ids.

    A cell without an id gets a hash of its content, so that the id moves with the cell. Cells with
    the same content are numbered.

    Raises:
        CourseError: If two cells have the same id.
    """
    occurrences: Counter[str] = Counter()
    ids: list[str] = []
    for cell in cells:
        occurrences[cell.source] += 1
        if "id" in cell.metadata:
            ids.append(str(cell.metadata["id"]))
        else:
            content = f"{lesson.name} {occurrences[cell.source]} {cell.source}"
            ids.append(hashlib.sha256(content.encode()).hexdigest()[:12])
    repeated = [id for id, count in Counter(ids).items() if count > 1]
    if repeated:
        raise CourseError(
            f"{lesson.text}: more than one cell has the id {repeated[0]!r}; an id is for one cell"
        )
    return ids
