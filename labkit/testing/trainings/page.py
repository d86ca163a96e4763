"""Two trainings side by side as one page: verdict, losses, and a map of layers and steps.

Idea: the page has the look of the report of `labkit watch`. A cell of the map is one tensor in one
step: empty where both runs have the same bits, blue where rounding explains the distance, and
orange where it does not. Blue is the stronger the nearer a distance is to what rounding explains.

Invariants: a page loads nothing from a network and runs no script. Each picture has a description
in words. Its colours follow the reader's light or dark preference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from labkit.findings import SIGNS, Status
from labkit.instrument.report_page import STYLE
from labkit.testing.trainings.distance import Cell
from labkit.testing.trainings.matching import PHASES
from labkit.testing.trainings.result import (
    TrainingDiff,
    TrainingVerdictKind,
    notes_of,
    runs_in_words,
)

OWN_STYLE = Path(__file__).with_suffix(".css")
MOST_COLUMNS = 240  # sampled steps in a map; of more, the worst of several is shown
MANY_ROWS = 16
LEVELS = (1e-3, 1e-2, 1e-1, 1.0)  # upper ends of the shades, in units of what rounding explains
STATUS = {
    TrainingVerdictKind.SAME: Status.OK,
    TrainingVerdictKind.ROUNDING: Status.OK,
    TrainingVerdictKind.OTHER_START: Status.WARN,
    TrainingVerdictKind.FAULT: Status.BAD,
}
LEGEND = (
    ("same", "same bits"),
    ("level0", "below 0.001 of what rounding explains"),
    ("level1", "0.01"),
    ("level2", "0.1"),
    ("level3", "1"),
    ("beyond", "beyond rounding"),
    ("unjudged", "too far apart for a bound"),
    ("missing", "not compared"),
)


def page(diff: TrainingDiff) -> str:
    """Return a self-contained page."""
    title = escape(f"{diff.baseline.model}: {diff.summary}")
    style = STYLE.read_text(encoding="utf-8") + OWN_STYLE.read_text(encoding="utf-8")
    parts = [_verdict(diff), _losses(diff), _map(diff), _settings(diff), _notes(diff)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title>"
        '<meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark">'
        f"<style>body {{ margin: 0; }}{style}</style></head>"
        f'<body><main class="labkit-watch labkit-diff">{"".join(parts)}</main></body></html>\n'
    )


def _verdict(diff: TrainingDiff) -> str:
    status = STATUS[diff.kind]
    summary = diff.summary[0].upper() + diff.summary[1:]
    places = []
    if diff.step is not None:
        places.append(f"step {diff.step}")
    if diff.tensor is not None:
        places.append(f"{escape(diff.tensor[0])} of <code>{escape(diff.tensor[1])}</code>")
    if diff.line:
        places.append(f"<code>{escape(diff.line)}</code>")
    shown = "".join(f"<span>{place}</span>" for place in places)
    reason = escape(diff.reason[0].upper() + diff.reason[1:])
    return (
        f'<div class="verdict {status}"><h1>{SIGNS[status]} {escape(summary)}</h1>'
        f'<p>{reason}.</p><div class="place">{shown}</div>'
        f'<p class="quiet">{escape(runs_in_words(diff))}</p></div>'
    )


def _losses(diff: TrainingDiff) -> str:
    """Return both losses over the steps, and the band of the healthy runs if there is one."""
    curves = [
        [(s.step, s.loss) for s in run.sampled if s.loss is not None and math.isfinite(s.loss)]
        for run in (diff.baseline, diff.run)
    ]
    known = [loss for curve in curves for _, loss in curve]
    if not known:
        return ""
    band = diff.band
    if band is not None:
        known += [edge for edge in (*band.low, *band.high) if math.isfinite(edge)]
    low, high = min(known), max(known)
    tall = (high - low) or 1.0
    low, high = low - 0.05 * tall, high + 0.05 * tall
    last = max(max((step for step, _ in curve), default=0) for curve in curves) or 1

    def place(step: float, loss: float) -> str:
        return f"{1000 * step / last:.1f},{300 * (high - loss) / (high - low):.1f}"

    lines = "".join(
        f'<polyline class="{name}" points="{" ".join(place(*each) for each in curve)}"/>'
        for name, curve in zip(("ours", "theirs"), curves, strict=True)
    )
    area = ""
    if band is not None:
        upper = [*zip(band.starts, band.high, strict=False), (band.starts[-1] - 1, band.high[-1])]
        lower = [*zip(band.starts, band.low, strict=False), (band.starts[-1] - 1, band.low[-1])]
        edge = [place(step, min(max(loss, low), high)) for step, loss in [*upper, *lower[::-1]]]
        area = f'<polygon class="band" points="{" ".join(edge)}"/>'
    marker = ""
    if diff.step is not None and diff.kind is TrainingVerdictKind.FAULT:
        at = 1000 * min(diff.step, last) / last
        marker = f'<path class="decides" d="M{at:.1f},0V300"/>'
    ends = [curve[-1][1] if curve else math.nan for curve in curves]
    says = f"The last sampled losses are {ends[0]:.5g} and {ends[1]:.5g}."
    if diff.in_band is not None:
        says += " They are " + ("within" if diff.in_band else "outside of") + " the band."
    legend = '<span><i class="ours"></i>baseline</span><span><i class="theirs"></i>other run</span>'
    if band is not None:
        legend += (
            '<span><i class="band"></i>band of the healthy runs, for means of several steps</span>'
        )
    if marker:
        legend += '<span><i class="decides"></i>the step that decides</span>'
    edges = f'<span style="bottom: 97%">{high:.3g}</span><span style="bottom: 3%">{low:.3g}</span>'
    return (
        f'<h2>Losses</h2><p>{says}</p><div class="legend">{legend}</div><div class="plot">'
        f'<div class="ticks y">{edges}</div><svg role="img" viewBox="0 0 1000 300" '
        f'preserveAspectRatio="none"><title>{says}</title>{area}{lines}{marker}</svg><div></div>'
        f'{_axis([0, last // 2, last], last)}<div class="unit">step</div></div>'
    )


def _axis(ticks: Iterable[int], last: int) -> str:
    found = []
    for tick in dict.fromkeys(ticks):
        kind = ' class="last"' if tick == last and tick else ""
        found.append(f'<span{kind} style="left: {100 * tick / last:.1f}%">{tick}</span>')
    return f'<div class="ticks">{"".join(found)}</div>'


def _map(diff: TrainingDiff) -> str:
    """Return the map: a part for each kind, a row for each tensor, a column for each step."""
    steps = sorted({cell.step for cell in diff.cells})
    per_column = -(-len(steps) // MOST_COLUMNS) if steps else 1
    columns = {step: index // per_column for index, step in enumerate(steps)}
    width = max(columns.values(), default=0) + 1
    parts = []
    for kind in PHASES:
        rows: dict[str, list[Cell]] = {}
        for cell in diff.cells:
            if cell.key[0] == kind:
                rows.setdefault(cell.key[1], []).append(cell)
        if rows:
            opened = _opens(diff, kind)
            parts.append(_part(kind, rows, columns, width, opened))
    if not parts:
        return ""
    legend = "".join(f'<span><i class="{name}"></i>{text}</span>' for name, text in LEGEND)
    note = (
        "Distance of each tensor in both runs, in units of what rounding explains after the "
        "tensors before it. Rows are in the order of a step; weights are judged between two steps."
    )
    return (
        f'<h2>Where they are apart</h2><p class="quiet">{note}</p>'
        f'<div class="legend">{legend}</div>'
        f"{''.join(parts)}"
    )


def _opens(diff: TrainingDiff, kind: str) -> bool:
    if diff.tensor is not None:
        return kind == diff.tensor[0]
    return kind == "activations"


def _part(
    kind: str,
    rows: dict[str, list[Cell]],
    columns: dict[int, int],
    width: int,
    opened: bool,
) -> str:
    lines = "".join(
        f'<span title="{escape(name)}">{escape(name)}</span>{_strip(name, cells, columns, width)}'
        f"<span>{_worst(cells)}</span>"
        for name, cells in rows.items()
    )
    steps = list(columns)
    last = max(steps[-1], 1)
    axis = _axis([steps[0], steps[-1]], last)
    table = f'<div class="rows">{lines}<span></span>{axis}<span class="quiet">step</span></div>'
    scroll = ' class="scroll" tabindex="0"' if len(rows) > MANY_ROWS else ""
    state = " open" if opened else ""
    title = f"{kind.capitalize()}: {len(rows)}"
    return f"<details{state}><summary>{title}</summary><div{scroll}>{table}</div></details>"


def _strip(name: str, cells: Sequence[Cell], columns: dict[int, int], width: int) -> str:
    """Return a row of the map; of several steps in a column, the worst is shown."""
    order = [each for each, _ in LEGEND]
    worst: dict[int, str] = {}
    for cell in cells:
        column, level = columns[cell.step], _level(cell)
        before = worst.get(column)
        if before is None or order.index(level) > order.index(before):
            worst[column] = level
    paths: dict[str, str] = {}
    for column in range(width):
        level = worst.get(column, "missing")
        paths[level] = paths.get(level, "") + f"M{column},0h1v1h-1z"
    drawn = "".join(f'<path class="{level}" d="{path}"/>' for level, path in paths.items())
    says = escape(f"{name}: {_worst(cells)}")
    return (
        f'<svg role="img" viewBox="0 0 {width} 1" preserveAspectRatio="none">'
        f"<title>{says}</title>{drawn}</svg>"
    )


def _level(cell: Cell) -> str:
    if math.isnan(cell.distance):
        return "missing"
    if cell.distance == 0:
        return "same"
    if math.isinf(cell.allowed):
        # weights between two steps that agree: in units of their own length
        return next((f"level{i}" for i, end in enumerate(LEVELS) if cell.distance <= end), "level3")
    if cell.beyond:
        return "beyond"
    if cell.allowed >= 1:
        return "unjudged"
    return next(f"level{i}" for i, end in enumerate(LEVELS) if cell.units <= end)


def _worst(cells: Sequence[Cell]) -> str:
    known = [cell for cell in cells if not math.isnan(cell.distance)]
    if not known:
        return "not compared"
    worst = max(known, key=lambda cell: (cell.units, cell.distance))
    if worst.distance == 0:
        return "same bits"
    if math.isinf(worst.allowed):
        return f"{max(cell.distance for cell in known):.1g} of its length"
    return f"{worst.units:.2g} in step {worst.step}"


def _settings(diff: TrainingDiff) -> str:
    if not diff.settings:
        return "<h2>Settings</h2><p>All recorded settings are the same in both runs.</p>"
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(one)}</td><td>{escape(other)}</td></tr>"
        for name, (one, other) in diff.settings.items()
    )
    return (
        "<h2>Settings that differ</h2><table><thead><tr><th scope=col>setting</th>"
        "<th scope=col>baseline</th><th scope=col>other run</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _notes(diff: TrainingDiff) -> str:
    unseen = [
        f"not recorded in the {name}: {what}"
        for name, run in (("baseline", diff.baseline), ("other run", diff.run))
        for what in run.unseen
    ]
    items = "".join(f"<li>{escape(note)}</li>" for note in [*notes_of(diff), *unseen])
    return f"<h2>Notes</h2><ul>{items}</ul>"
