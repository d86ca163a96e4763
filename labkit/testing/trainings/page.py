"""Two trainings side by side as one page: verdict, losses, and a map of layers and steps.

Idea: the page has the look of the report of `labkit watch`. A cell of the map is one tensor in one
step: empty where both runs have the same bits, blue where rounding explains the distance, and
orange where it does not. Blue is the stronger the nearer a distance is to what rounding explains.
This module computes what the pictures show; page.html.jinja writes it as HTML.

Invariants: a page loads nothing from a network and runs no script. Each picture has a description
as text. Its colours follow the reader's light or dark preference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.findings import SIGNS, Status
from labkit.instrument.recording import Recording
from labkit.instrument.report_page import STYLE, Tick
from labkit.records.templates import markup, render
from labkit.testing.trainings.distance import Cell
from labkit.testing.trainings.losses import LossBand
from labkit.testing.trainings.matching import PHASES
from labkit.testing.trainings.result import (
    TrainingDiff,
    TrainingVerdictKind,
    notes_of,
    runs_in_words,
)

OWN_STYLE = Path(__file__).with_suffix(".css")
# Sampled steps in a map; of more, the worst of several is shown.
MOST_COLUMNS = 240
# A table with more rows scrolls.
MANY_ROWS = 16
# The upper ends of the shades, in units of what rounding explains.
LEVELS = (1e-3, 1e-2, 1e-1, 1.0)
# The width of the picture of the losses, in its own units.
WIDTH = 1000
HEIGHT = 300
STATUS = {
    TrainingVerdictKind.SAME: Status.OK,
    TrainingVerdictKind.ROUNDING: Status.OK,
    TrainingVerdictKind.OTHER_START: Status.WARN,
    TrainingVerdictKind.FAULT: Status.BAD,
}
# level of a cell -> its text in the legend, the worst last
LEGEND = {
    "same": "same bits",
    "level0": "below 0.001 of what rounding explains",
    "level1": "0.01",
    "level2": "0.1",
    "level3": "1",
    "beyond": "beyond rounding",
    "unjudged": "too far apart for a bound",
    "missing": "not compared",
}


@dataclass(frozen=True)
class LossPlot:
    """Both losses over the steps, and the band of the healthy runs if there is one.

    Attributes:
        low: the loss at the lower edge of the picture.
        high: the loss at the upper edge.
        baseline: the curve, as points of an SVG polyline, like the next two.
        run: the curve of the other run.
        band: the outline of the band; "" without a band.
        deciding_step: the horizontal place of the step that decides; None unless the verdict is a
            fault.
        steps: labels of the horizontal axis.
    """

    description: str
    low: float
    high: float
    baseline: str
    run: str
    band: str
    deciding_step: float | None
    steps: list[Tick]


@dataclass(frozen=True)
class MapRow:
    """The distances of one tensor in all steps.

    Attributes:
        paths: level -> its cells, as the data of an SVG path.
        largest: the largest distance, as text.
    """

    name: str
    paths: dict[str, str]
    largest: str


@dataclass(frozen=True)
class MapPart:
    """The rows of one kind of tensors, which the reader can fold."""

    kind: str
    rows: list[MapRow]
    opened: bool


@dataclass(frozen=True)
class DistanceMap:
    """The map: a part for each kind, a row for each tensor, a column for each step."""

    columns: int
    parts: list[MapPart]
    steps: list[Tick]


def page(diff: TrainingDiff) -> str:
    """Return a self-contained page."""
    unseen = [f"not recorded in the baseline: {what}" for what in diff.baseline.unseen]
    unseen += [f"not recorded in the other run: {what}" for what in diff.run.unseen]
    status = STATUS[diff.kind]
    html = render(
        "testing/trainings/page.html.jinja",
        title=f"{diff.baseline.model}: {diff.summary}",
        style=markup(STYLE.read_text(encoding="utf-8") + OWN_STYLE.read_text(encoding="utf-8")),
        status=status,
        sign=SIGNS[status],
        summary=diff.summary[0].upper() + diff.summary[1:],
        reason=diff.reason[0].upper() + diff.reason[1:],
        runs=runs_in_words(diff),
        diff=diff,
        losses=_loss_plot(diff),
        width=WIDTH,
        height=HEIGHT,
        map=_distance_map(diff),
        legend=list(LEGEND.items()),
        many_rows=MANY_ROWS,
        notes=[*notes_of(diff), *unseen],
    )
    return str(html)


def _loss_plot(diff: TrainingDiff) -> LossPlot | None:
    """Return the picture of the losses; None if no step of either run has a finite loss."""
    curves = [_curve(diff.baseline), _curve(diff.run)]
    points = [*curves[0], *curves[1]]
    if not points:
        return None

    levels = [loss for _, loss in points]
    if diff.band is not None:
        levels += [edge for edge in (*diff.band.low, *diff.band.high) if math.isfinite(edge)]
    # A margin above and below: 5% of the range, or of the loss if it is constant.
    margin = 0.05 * ((max(levels) - min(levels)) or abs(levels[0]) or 1.0)
    low = min(levels) - margin
    high = max(levels) + margin
    last = max(step for step, _ in points) or 1

    def place(step: float, loss: float) -> str:
        inside = min(max(loss, low), high)
        return f"{WIDTH * step / last:.1f},{HEIGHT * (high - inside) / (high - low):.1f}"

    baseline, run = (" ".join(place(*point) for point in curve) for curve in curves)
    band = ""
    if diff.band is not None:
        band = " ".join(place(*corner) for corner in _outline(diff.band))
    deciding_step = None
    if diff.step is not None and diff.kind is TrainingVerdictKind.FAULT:
        deciding_step = WIDTH * min(diff.step, last) / last

    ends = [curve[-1][1] if curve else math.nan for curve in curves]
    description = f"The last sampled losses are {ends[0]:.5g} and {ends[1]:.5g}."
    if diff.in_band is True:
        description += " They are within the band."
    elif diff.in_band is False:
        description += " They are outside of the band."
    return LossPlot(
        description=description,
        low=low,
        high=high,
        baseline=baseline,
        run=run,
        band=band,
        deciding_step=deciding_step,
        steps=_ticks([0, last // 2, last], last),
    )


def _curve(run: Recording) -> list[tuple[int, float]]:
    """Return (step, loss) of the sampled steps whose loss is finite."""
    return [
        (sampled.step, sampled.loss)
        for sampled in run.sampled
        if sampled.loss is not None and math.isfinite(sampled.loss)
    ]


def _outline(band: LossBand) -> list[tuple[float, float]]:
    """Return the corners (step, loss) of a band: its upper edge forwards, its lower edge back."""
    end = band.starts[-1] - 1
    # the last start is the end of the last window, which has no edge of its own
    starts = band.starts[:-1]
    upper = [*zip(starts, band.high, strict=True), (end, band.high[-1])]
    lower = [*zip(starts, band.low, strict=True), (end, band.low[-1])]
    return [*upper, *reversed(lower)]


def _ticks(steps: Iterable[int], last: int) -> list[Tick]:
    return [Tick(step, step / last) for step in dict.fromkeys(steps)]


# The map


def _distance_map(diff: TrainingDiff) -> DistanceMap:
    steps = sorted({cell.step for cell in diff.cells})
    if not steps:
        return DistanceMap(columns=0, parts=[], steps=[])
    per_column = math.ceil(len(steps) / MOST_COLUMNS)
    columns = {step: index // per_column for index, step in enumerate(steps)}
    width = columns[steps[-1]] + 1

    opened = "activations"
    if diff.tensor is not None:
        opened = diff.tensor[0]
    parts = []
    for kind in PHASES:
        cells: dict[str, list[Cell]] = {}
        for cell in diff.cells:
            cell_kind, name = cell.key
            if cell_kind == kind:
                cells.setdefault(name, []).append(cell)
        if cells:
            rows = [
                MapRow(name, _paths(found, columns, width), _largest(found))
                for name, found in cells.items()
            ]
            parts.append(MapPart(kind, rows, opened=kind == opened))
    return DistanceMap(width, parts, _ticks([steps[0], steps[-1]], max(steps[-1], 1)))


def _paths(cells: Iterable[Cell], columns: dict[int, int], width: int) -> dict[str, str]:
    """Return level -> the data of its SVG path; of several steps in a column, the worst counts.

    Args:
        cells: the cells of one tensor.
        columns: step -> its column.
        width: number of columns.
    """
    order = list(LEGEND)
    worst: dict[int, str] = {}
    for cell in cells:
        column = columns[cell.step]
        level = _level(cell)
        if column not in worst or order.index(level) > order.index(worst[column]):
            worst[column] = level
    paths: dict[str, str] = {}
    for column in range(width):
        level = worst.get(column, "missing")
        paths[level] = paths.get(level, "") + f"M{column},0h1v1h-1z"
    return paths


def _level(cell: Cell) -> str:
    """Return the level of a cell, one of LEGEND."""
    if math.isnan(cell.distance):
        return "missing"
    if cell.distance == 0:
        return "same"
    if math.isinf(cell.allowed):
        # weights between two steps that agree: in units of their own length
        distance = cell.distance
    elif cell.beyond:
        return "beyond"
    elif cell.allowed >= 1:
        return "unjudged"
    else:
        distance = cell.units
    for number, end in enumerate(LEVELS):
        if distance <= end:
            return f"level{number}"
    return f"level{len(LEVELS) - 1}"


def _largest(cells: Sequence[Cell]) -> str:
    """Return the largest distance of a tensor, as text."""
    known = [cell for cell in cells if not math.isnan(cell.distance)]
    if not known:
        return "not compared"
    worst = max(known, key=lambda cell: (cell.units, cell.distance))
    if worst.distance == 0:
        return "same bits"
    if math.isinf(worst.allowed):
        return f"{max(cell.distance for cell in known):.1g} of its length"
    return f"{worst.units:.2g} in step {worst.step}"
