"""Pictures of recorded networks while they trained: a row for each run, a column for each step.

Invariant: a picture is the record's, pixel for pixel; its shades are those of the task, the same in
all rows.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labkit.findings import counted
from labkit.records import made_on
from labkit.train import Picture, RunRecord, as_task
from labkit.widgets.base.figures import INK, described, new_figure, on_any_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The number of pictures of a run, without the wanted one.
COLUMNS = 6


def shades_of(picture: Picture) -> NDArray[np.float64]:
    """Return the shades of a picture [height, width], 0 (black) to 1 (white)."""
    pixels = np.frombuffer(base64.b64decode(picture.pixels), np.uint8)
    return pixels.reshape(picture.height, picture.width) / 255


@on_any_page
def pictures_figure(records: Sequence[RunRecord]) -> Figure:
    """Draw what the networks of some runs did at some of their steps, beside what they should do.

    Raises:
        ValueError: `records` is empty, has several tasks, or one of them has no pictures.
    """
    tasks = sorted({record.task for record in records})
    if len(tasks) != 1:
        raise ValueError(f"pictures_figure draws runs of one task; these are of {tasks or 'none'}")
    without = [record.recipe for record in records if not record.pictures]
    if without:
        raise ValueError(
            f"expected records with pictures, got none in {', '.join(without)} of {tasks[0]}. "
            "Record the run again; a task without a drawing has none."
        )
    wanted = as_task(tasks[0]).wanted_picture()
    figure = new_figure(1.25 * (COLUMNS + 2), 1.35 * len(records) + 0.5, layout="constrained")
    rows = figure.subplots(len(records), COLUMNS + 1, squeeze=False)
    for axes, record in zip(rows, records, strict=True):
        shown = some_of(record.pictures)
        for place, picture in zip(axes, shown, strict=False):
            _draw(place, picture, f"step {picture.step:,}" if record is records[0] else "")
        for place in axes[len(shown) : -1]:
            place.set_axis_off()
        if wanted is not None:
            _draw(axes[-1], wanted, "wanted" if record is records[0] else "")
        axes[0].set_ylabel(
            record.recipe, rotation=0, ha="right", va="center", fontsize=10, color=INK
        )
    words = pictures_sentence(records)
    origins = dict.fromkeys(
        made_on(record.device, record.versions, record.date) for record in records
    )
    figure.suptitle(f"Recorded: {'; '.join(origins)}", fontsize=10)
    figure.supxlabel(words, fontsize=10)
    return described(figure, words)


def some_of(pictures: Sequence[Picture]) -> list[Picture]:
    """Return at most COLUMNS pictures, the first and the last among them."""
    if len(pictures) <= COLUMNS:
        return list(pictures)
    return [pictures[round(place)] for place in np.linspace(0, len(pictures) - 1, COLUMNS)]


def pictures_sentence(records: Sequence[RunRecord]) -> str:
    """Return a sentence with the metric of each run after its last step.

    Raises:
        ValueError: `records` is empty.

    >>> from labkit.train import recorded
    >>> pictures_sentence([recorded("painted_picture", name, 0) for name in ("FP32", "FP16")])
    'R2 after 1,000 steps: FP32 0.96; FP16 0.03.'
    """
    if not records:
        raise ValueError("expected at least one record, got none")
    name = records[0].metric_name
    counts = {len(record.steps) for record in records}
    if len(counts) == 1:
        reached = "; ".join(f"{record.recipe} {record.metric:.2f}" for record in records)
        return f"{name} after {counted(counts.pop(), 'step')}: {reached}."
    reached = "; ".join(
        f"{record.recipe} {record.metric:.2f} after {counted(len(record.steps), 'step')}"
        for record in records
    )
    return f"{name}: {reached}."


def _draw(axes: Axes, picture: Picture, title: str) -> None:
    """Draw a picture without ticks and frame."""
    axes.imshow(shades_of(picture), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(title, fontsize=9, color=INK)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
