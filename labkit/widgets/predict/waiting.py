"""Marks in the outputs of cells that answer a prediction which is still open.

Idea: JupyterLab sends the tags of a cell with its source, but shows no tag in its page. So a cell
with the tag answer-scaling.order begins its output with an empty element, whose class says what it
waits for. The view of the prediction hides the outputs beside it, and shows them once the learner
has committed.

Invariant: nothing is marked after the answer, nor where a front end sends no tags.

Source: JupyterLab, `CodeCell.execute`, which sends the metadata of a cell; ipykernel, `get_parent`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import display

from labkit.course import answered, slug

WAITS = "labkit-waits"
_open: set[str] = set()


def wait_for(prediction: str) -> None:
    """Mark the outputs of cells that answer a prediction, beginning with the next cell."""
    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return
    _open.add(prediction)
    if _mark not in shell.events.callbacks["pre_run_cell"]:
        shell.events.register("pre_run_cell", _mark)


def answer_came(prediction: str) -> None:
    """Mark no more outputs that answer this prediction."""
    _open.discard(prediction)


def waiting_classes(tags: Iterable[str]) -> str:
    """Return the classes that say which predictions the output of a cell with these tags waits for.

    Returns "" if it waits for none.

    >>> waiting_classes(["claim-C36", "answer-scaling.order"])
    'labkit-waits labkit-waits-scaling-order'
    """
    return _classes(answered(tags))


def _classes(predictions: Sequence[str]) -> str:
    return " ".join([WAITS, *(f"{WAITS}-{slug(id)}" for id in predictions)]) if predictions else ""


def _mark(_: object) -> None:
    """Begin a cell's output with a mark before it runs, if it answers an open prediction."""
    waited_for = [id for id in answered(_tags()) if id in _open]
    if waited_for:
        element = f'<div class="{_classes(waited_for)}"></div>'
        display({"text/html": element, "text/plain": ""}, raw=True)  # type: ignore[no-untyped-call]


def _tags() -> list[str]:
    """Return the tags of the cell that runs; [] where the front end sends none."""
    kernel: Any = getattr(get_ipython(), "kernel", None)
    request: dict[str, Any] = {} if kernel is None else kernel.get_parent("shell")
    tags = request.get("metadata", {}).get("tags", [])
    return [str(tag) for tag in tags] if isinstance(tags, list) else []
