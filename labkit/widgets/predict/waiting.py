"""Marks in the outputs of cells that answer a prediction which is still open.

JupyterLab sends the tags of a cell with its source, but its page has no element for a tag. So the
output of a cell with the tag answer-scaling.order begins with an empty element, whose class names
the prediction. The view of the prediction hides all outputs of this cell until the learner has
committed.

Invariant: outputs are marked only while the prediction is open. If a front end sends no tags, no
output is marked.

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
    """Stop marking outputs that answer a prediction."""
    _open.discard(prediction)


def waiting_classes(tags: Iterable[str]) -> str:
    """Return the classes that say which predictions the output of a cell with these tags waits for.

    Returns "" if it waits for none.

    >>> waiting_classes(["claim-C36", "answer-scaling.order"])
    'labkit-waits labkit-waits-scaling-order'
    """
    return _classes(answered(tags))


def _classes(predictions: Sequence[str]) -> str:
    if not predictions:
        return ""
    return " ".join([WAITS, *(f"{WAITS}-{slug(id)}" for id in predictions)])


def _mark(_: object) -> None:
    """Begin a cell's output with a mark before it runs, if it answers an open prediction."""
    open_predictions = [id for id in answered(_tags()) if id in _open]
    if open_predictions:
        element = f'<div class="{_classes(open_predictions)}"></div>'
        display({"text/html": element, "text/plain": ""}, raw=True)  # type: ignore[no-untyped-call]


def _tags() -> list[str]:
    """Return the tags of the cell that runs; [] where the front end sends none."""
    kernel: Any = getattr(get_ipython(), "kernel", None)
    request: dict[str, Any] = {} if kernel is None else kernel.get_parent("shell")
    tags = request.get("metadata", {}).get("tags", [])
    return [str(tag) for tag in tags] if isinstance(tags, list) else []
