"""Report of a training as a page: verdict, findings, scales, lost gradients and histograms.

Idea: one language of colours, the zones of a number format: underflowed, subnormal, normal,
overflowed. Curves, bars and cells are SVG that stretches to the width of the page; names and axes
are text of a fixed size beside them. This module computes what the pictures show;
report_body.html.jinja and drawing.html.jinja write it as HTML.

Invariants: a page loads nothing from a network and runs no script. Each picture has a description
as text. Its colours follow the theme of JupyterLab or VS Code, else the reader's light or dark
preference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labkit.findings import SIGNS, Finding, Status
from labkit.formats import FORMATS, Format
from labkit.instrument.fate import Fate, fate
from labkit.instrument.histogram import ExponentHistogram, merge, shift
from labkit.instrument.records import KINDS, Window, log2_of_scale, window
from labkit.instrument.results import (
    MOST_NAMES,
    TrainingResults,
    grouped,
    numbers,
    power,
    run_in_words,
    step_of,
)
from labkit.records.templates import markup, render

if TYPE_CHECKING:
    from markupsafe import Markup

# zone of a format -> what happens to its numbers
ZONES = {
    "underflowed": "underflows to zero",
    "subnormal": "subnormal: fewer digits",
    "normal": "normal",
    "overflowed": "overflows to infinity",
}
GRADIENTS = ("activation gradients", "weight gradients")
TITLES = {
    "activation gradients": "Gradients at the layers' outputs",
    "weight gradients": "Gradients of the parameters",
}
# limits of the exponents that a histogram shows
SHOWN = (-110, 60)
# exponents that each histogram shows: those of FP16, subnormals included, and some beside them
ALWAYS_SHOWN = (-26, 16)
# a table with more rows scrolls
MANY_ROWS = 16
# share of gradients that is worth a mention
LEAST = 0.001
# marks of skipped steps in the picture of the scale
MOST_SKIPS = 400
# skipped steps that the page lists as text
LISTED_SKIPS = 5
STYLE = Path(__file__).with_suffix(".css")


@dataclass(frozen=True)
class Card:
    """Findings of one kind and line, as the page shows them.

    Attributes:
        step: the step of the findings, or how many there are; "" if unknown.
        faults: known faults that `labkit explain` has a page for.
    """

    status: Status
    name: str
    line: str
    step: str
    layers: list[str]
    text: Markup
    remedy: Markup | None
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Rectangle:
    """A rectangle of a picture in the colour of a zone."""

    zone: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Tick:
    """A label at a place from 0 to 1 along an axis."""

    label: str | int
    place: float


@dataclass(frozen=True)
class ScalePlot:
    """The scale in use beside the window of safe scales, over the steps.

    Attributes:
        format: the name of the format that the window belongs to.
        skips: number of skipped steps.
        width: steps.
        height: powers of two.
        bands: the window, and what is above and below it.
        grid: lines at the levels, as the data of an SVG path, like the next two.
        line: the scale in use.
        crosses: marks of skipped steps.
        levels: labels of the vertical axis.
        steps: labels of the horizontal axis.
    """

    description: str
    format: str
    skips: int
    width: int
    height: int
    bands: list[Rectangle]
    grid: str
    line: str
    crosses: str
    levels: list[Tick]
    steps: list[Tick]


@dataclass(frozen=True)
class LossRow:
    """What a format loses of one layer, a column for each sampled step.

    Attributes:
        paths: zone -> its cells, as the data of an SVG path.
        gaps: the steps without a histogram, in the same form.
        largest_loss: the largest share with its step, as text.
    """

    name: str
    paths: dict[str, str]
    gaps: str
    largest_loss: str


@dataclass(frozen=True)
class LossPart:
    """The rows of one kind of gradients, which the reader can fold."""

    title: str
    rows: list[LossRow]
    opened: bool


@dataclass(frozen=True)
class LossMap:
    """What a format loses at the scale in use, by layer and sampled step."""

    description: str
    note: str
    format: str
    columns: int
    steps: list[Tick]
    parts: list[LossPart]


@dataclass(frozen=True)
class Picture:
    """A histogram over the zones of a format.

    Attributes:
        width: binades.
        bars: zone -> its bars, as the data of an SVG path.
        outline: the same numbers in FP32, in the same form; "" if unknown.
    """

    description: str
    format: str
    width: int
    zones: list[Rectangle]
    bars: dict[str, str]
    outline: str


@dataclass(frozen=True)
class HistogramRow:
    """The histogram of one layer, once for each format."""

    name: str
    pictures: list[Picture]


@dataclass(frozen=True)
class HistogramPart:
    """The rows of one kind of numbers, which the reader can fold.

    Attributes:
        log2_scale: the scale that the numbers are shown at.
        exponents: labels of the horizontal axis.
    """

    title: str
    rows: list[HistogramRow]
    opened: bool
    log2_scale: int
    exponents: list[Tick]


def page(report: TrainingResults) -> str:
    """Return a self-contained page."""
    html = render(
        "instrument/report_page.html.jinja",
        title=f"{report.model or 'Training'}: {report.summary}",
        body=markup(body(report)),
    )
    return str(html)


def body(report: TrainingResults) -> str:
    """Return the report as HTML with its own style, for a page or the output of a cell."""
    cards = []
    for status in reversed(Status):
        cards += [_card(group) for group in grouped(report, status)]
    scales = losses = histograms = None
    if report.watched:
        scales = _scale_plot(report)
        losses = _loss_map(report)
        histograms = _histograms(report)
    html = render(
        "instrument/report_body.html.jinja",
        style=markup(STYLE.read_text(encoding="utf-8")),
        signs=SIGNS,
        zones=list(ZONES.items()),
        many_rows=MANY_ROWS,
        most_names=MOST_NAMES,
        verdict=_verdict(report),
        cards=cards,
        scales=scales,
        losses=losses,
        histograms=histograms,
        compared_with_fp32=bool(report.against_fp32),
        formats=[FORMATS[name].name for name in report.formats],
        lists=_lists(report),
    )
    return str(html)


def _verdict(report: TrainingResults) -> dict[str, object]:
    """Return the status, the headline and the line below it."""
    bad = [finding.name for finding in report.of(Status.BAD)]
    warned = [finding.name for finding in report.of(Status.WARN)]
    if bad:
        status = Status.BAD
    elif warned or not report.steps:
        status = Status.WARN
    else:
        status = Status.OK
    headline = report.summary.removesuffix(".")
    names = list(dict.fromkeys([*bad, *warned]))
    if names:
        headline += f": {', '.join(names[:MOST_NAMES])}"
    if len(names) > MOST_NAMES:
        headline += " and more"
    return {"status": status, "headline": _powers(f"{headline}."), "run": run_in_words(report)}


def _card(group: list[Finding]) -> Card:
    first = group[0]
    return Card(
        status=first.status,
        name=first.name,
        line=first.line,
        step=step_of(group),
        layers=list(dict.fromkeys(each.layer for each in group if each.layer)),
        text=_powers(first.what),
        remedy=_powers(first.remedy) if first.remedy else None,
        faults=first.faults[:2],
    )


# The scale over time


def _scale_plot(report: TrainingResults) -> ScalePlot | None:
    """Return the picture of the scale; None if no sampled step has a window."""
    format = FORMATS[report.formats[0]]
    windows: dict[int, Window] = {}
    for watched in report.watched:
        safe = _window(report.gradients(watched.step), format)
        if safe is not None:
            windows[watched.step] = safe
    if not windows:
        return None

    used: dict[int, float] = {}
    scales = [(each.step, each.scale) for each in report.watched]
    scales += [(skip.step, skip.scale) for skip in report.skips]
    for number, scale in scales:
        exponent = log2_of_scale(scale)
        if exponent is not None:
            used[number] = exponent
    inside = 0
    for step, safe in windows.items():
        # a step at an invalid scale, such as inf, is outside of every window
        if step in used and safe.low <= used[step] <= safe.high:
            inside += 1
    description = f"The scale was inside its window in {inside} of {len(windows)} sampled steps."

    # The picture holds both edges of each window and each scale, with a margin of three binades.
    levels = [round(level) for level in used.values()]
    for safe in windows.values():
        levels += [safe.low, safe.high]
    low = min(levels) - 3
    high = max(levels) + 3
    last = max(report.steps, 1)

    skipped = {
        skip.step: used[skip.step] for skip in report.skips[:MOST_SKIPS] if skip.step in used
    }
    marks = _round_numbers(low, high)
    return ScalePlot(
        description=description,
        format=format.name,
        skips=len(report.skips),
        width=last,
        height=high - low,
        bands=_bands(windows, low, high, last),
        grid="".join(f"M0,{high - mark}H{last}" for mark in marks),
        line=_staircase(used, high, last),
        crosses=_crosses(skipped, low, high, last),
        levels=[Tick(_power_of_two(mark), (mark - low) / (high - low)) for mark in marks],
        steps=[Tick(step, step / last) for step in _round_numbers(0, last)],
    )


def _bands(windows: Mapping[int, Window], low: int, high: int, last: int) -> list[Rectangle]:
    """Return the zones above, below and inside of each window; y grows downwards from `high`."""
    bands = []
    sampled = list(windows)
    # a window reaches to the next sampled step
    for step, end in zip(sampled, [*sampled[1:], last], strict=True):
        top = windows[step].high
        bottom = windows[step].low
        # the last one is wide enough to be seen
        width = max(end - step, last / 200)
        bands.append(Rectangle("overflowed", step, 0, width, high - top))
        bands.append(Rectangle("underflowed", step, high - bottom, width, bottom - low))
        bands.append(Rectangle("normal", step, high - top, width, max(top - bottom, 0)))
    return bands


def _staircase(levels: Mapping[int, float], high: int, last: int) -> str:
    """Return the path of the scale, which keeps its level until the next step with another one.

    Args:
        levels: log2 of the scale, by step.
        high: the level of the upper edge.
        last: the last step.
    """
    path = ""
    for step in sorted(levels):
        y = high - levels[step]
        if path:
            path += f"H{step}V{y:g}"
        else:
            path = f"M{step},{y:g}"
    return f"{path}H{last}"


def _crosses(levels: Mapping[int, float], low: int, high: int, last: int) -> str:
    """Return the path of a cross at each skipped step, of one size in all pictures."""
    width = last / 80
    height = (high - low) / 20
    path = ""
    for step, level in levels.items():
        left = step - width / 2
        top = high - level - height / 2
        path += f"M{left:g},{top:g}l{width:g},{height:g}m0,{-height:g}l{-width:g},{height:g}"
    return path


def _window(gradients: Mapping[str, ExponentHistogram], format: Format) -> Window | None:
    """Return the scales that are safe for all gradients; None if there are no gradients."""
    windows = [window(histogram, format) for histogram in gradients.values()]
    if not windows:
        return None
    return Window(max(each.low for each in windows), min(each.high for each in windows))


# The map of what is lost


def _loss_map(report: TrainingResults) -> LossMap | None:
    """Return the map of the first format's losses; None without histograms of gradients."""
    format = FORMATS[report.formats[0]]
    parts: list[LossPart] = []
    largest = []
    for kind in GRADIENTS:
        rows = []
        for name in _in_order(report, kind):
            fates = _fates(report, kind, name, format)
            share, step = _largest_loss(report, fates)
            largest.append((share, step, name))
            rows.append(_loss_row(name, fates, share, step))
        if rows:
            parts.append(LossPart(TITLES[kind], rows, opened=not parts))
    if not parts:
        return None

    share, step, name = max(largest)
    if share < LEAST:
        description = f"{format.name} loses less than one gradient in a thousand in every layer."
    else:
        description = f"Most is lost in layer {name}, in step {step}: {share:.1%} of its gradients."
    steps = [watched.step for watched in report.watched]
    compared = {beside.step for beside in report.against_fp32}
    note = (
        f"{len(compared.intersection(steps))} of {len(steps)} sampled steps were compared with "
        "FP32; in the others, gradients that had underflowed before are not seen."
    )
    if any(beside.begins_at != "the loss" for beside in report.against_fp32):
        note += (
            " The comparison begins at the model's outputs: what underflowed between the loss and "
            "them is not seen. watch(model, loss=...) includes it."
        )
    labelled: Iterable[int] = range(len(steps))
    if len(steps) > 7:
        labelled = [round(i * (len(steps) - 1) / 6) for i in range(7)]
    return LossMap(
        description=description,
        note=note,
        format=format.name,
        columns=len(steps),
        steps=[Tick(steps[i], (i + 0.5) / len(steps)) for i in labelled],
        parts=parts,
    )


def _fates(report: TrainingResults, kind: str, name: str, format: Format) -> list[Fate | None]:
    """Return what a format does to one layer's gradients at the scale in use, by sampled step.

    It is None for a step without a histogram.
    """
    exact = {beside.step: beside.histograms.get(kind, {}) for beside in report.against_fp32}
    fates: list[Fate | None] = []
    for watched in report.watched:
        # FP32's gradients come first: those of the run have lost what underflowed before.
        histogram = exact.get(watched.step, {}).get(name)
        if histogram is None:
            histogram = watched.histograms.get(kind, {}).get(name)
        exponent = log2_of_scale(watched.scale)
        if histogram is None or exponent is None:
            fates.append(None)
        else:
            fates.append(fate(shift(histogram, round(exponent)), format))
    return fates


def _largest_loss(report: TrainingResults, fates: Iterable[Fate | None]) -> tuple[float, int]:
    """Return the largest lost share with its step; of equal shares, the first."""
    largest = (0.0, report.watched[0].step)
    for watched, of_step in zip(report.watched, fates, strict=True):
        if of_step is None:
            continue
        lost = of_step.underflowed + of_step.overflowed
        if lost > largest[0]:
            largest = (lost, watched.step)
    return largest


def _in_order(report: TrainingResults, kind: str) -> dict[str, ExponentHistogram]:
    """Return the histograms of a kind, in the order in which the model runs.

    Gradients arrive in the reverse order.
    """
    histograms = report.histograms(kind)
    forward = [*report.histograms("activations"), *report.histograms("weights")]
    names = [name for name in forward if name in histograms]
    return {name: histograms[name] for name in dict.fromkeys([*names, *histograms])}


def _loss_row(name: str, fates: Iterable[Fate | None], share: float, step: int) -> LossRow:
    """Return a row of the map: a column for each step, filled from below by the lost share."""
    paths = dict.fromkeys(ZONES, "")
    gaps = ""
    for column, of_step in enumerate(fates):
        if of_step is None:
            gaps += f"M{column},0h1v1h-1z"
            continue
        top = 1.0
        for zone in ("underflowed", "subnormal", "overflowed"):
            size = getattr(of_step, zone)
            if size >= LEAST:
                paths[zone] += f"M{column},{top - size:.3f}h1v{size:.3f}h-1z"
                top -= size
    largest_loss = "< 0.1%"
    if share >= LEAST:
        largest_loss = f"{share:.1%} in step {step}"
    return LossRow(name, paths, gaps, largest_loss)


# Histograms


def _histograms(report: TrainingResults) -> list[HistogramPart]:
    """Return the histograms of all kinds: a row for each layer, a column for each format."""
    others = [kind for kind in KINDS if kind not in GRADIENTS]
    parts: list[HistogramPart] = []
    for kind in (*GRADIENTS, *others):
        rows = {name: h for name, h in _in_order(report, kind).items() if h.total}
        if rows:
            parts.append(_histogram_part(report, kind, rows))
    return parts


def _histogram_part(
    report: TrainingResults, kind: str, rows: Mapping[str, ExponentHistogram]
) -> HistogramPart:
    log2_scale = 0
    if "gradients" in kind and report.watched:
        log2_scale = round(log2_of_scale(report.watched[-1].scale) or 0)
    shown = {name: shift(histogram, log2_scale) for name, histogram in rows.items()}

    exact: dict[str, list[ExponentHistogram]] = {}
    for beside in report.against_fp32:
        for name, histogram in beside.histograms.get(kind, {}).items():
            exact.setdefault(name, []).append(histogram)
    in_fp32 = {name: shift(merge(parts), log2_scale) for name, parts in exact.items()}

    # One axis for all rows: from the smallest exponent to the largest, inside the limits.
    filled = [h for h in (*shown.values(), *in_fp32.values()) if h.finite_non_zero]
    first = max(min([h.lo for h in filled] + [ALWAYS_SHOWN[0]]) - 1, SHOWN[0])
    end = min(max([h.top for h in filled] + [ALWAYS_SHOWN[1]]) + 2, SHOWN[1])
    marks = _round_numbers(first, end, (8, 16, 32))

    formats = [FORMATS[name] for name in report.formats]
    return HistogramPart(
        title=TITLES.get(kind, kind.capitalize()),
        rows=[
            HistogramRow(
                name, [_picture(h, in_fp32.get(name), format, first, end) for format in formats]
            )
            for name, h in shown.items()
        ],
        opened=kind == GRADIENTS[0] and len(rows) <= MANY_ROWS,
        log2_scale=log2_scale,
        exponents=[Tick(_power_of_two(mark), (mark - first) / (end - first)) for mark in marks],
    )


def _picture(
    histogram: ExponentHistogram,
    exact: ExponentHistogram | None,
    format: Format,
    first: int,
    end: int,
) -> Picture:
    """Return a histogram over a format's zones, each bar in the colour of its zone.

    Args:
        histogram: the numbers of the run.
        exact: the same numbers in FP32, if they are known.
        format: the format whose zones are drawn.
        first: the smallest exponent of the axis.
        end: one more than the largest exponent of the axis.
    """
    # Zone i has the exponents from edges[i] up to edges[i + 1].
    edges = (first, format.emin - format.significand_bits - 1, format.emin, format.emax + 1, end)
    inside = [min(max(edge, first), end) for edge in edges]
    zones = [
        Rectangle(zone, start - first, 0, stop - start, 1)
        for zone, start, stop in zip(ZONES, inside[:-1], inside[1:], strict=True)
        if stop > start
    ]

    bars = dict.fromkeys(ZONES, "")
    for exponent, height in _heights(histogram):
        zone = "overflowed"
        for name, stop in zip(ZONES, edges[1:4], strict=False):
            if exponent < stop:
                zone = name
                break
        # An exponent beyond the axis is drawn at its end.
        x = min(max(exponent, first), end - 1) - first
        bars[zone] += f"M{x + 0.06:g},1v{-height:.3f}h0.88v{height:.3f}z"

    outline = ""
    heights = dict(_heights(exact))
    if heights:
        outline = "M0,1"
        for exponent in range(first, end):
            outline += f"V{1 - heights.get(exponent, 0):.3f}h1"
        outline += "V1"
    return Picture(
        description=_describe_shares(histogram, format),
        format=format.name,
        width=end - first,
        zones=zones,
        bars=bars,
        outline=outline,
    )


def _describe_shares(histogram: ExponentHistogram, format: Format) -> str:
    """Return the shares of the zones as text, and what is in none of them."""
    shares = vars(fate(histogram, format))
    # half of what is worth a mention rounds to it
    parts = [f"{share:.1%} {zone}" for zone, share in shares.items() if share >= LEAST / 2]
    if histogram.zeros == histogram.total:
        parts.append("all zero")
    if histogram.non_finite:
        parts.append(f"{histogram.non_finite:,} inf or NaN")
    return ", ".join(parts)


def _heights(histogram: ExponentHistogram | None) -> Iterator[tuple[int, float]]:
    """Yield exponent and height, 0 to 1, of each bar: the logarithm of its count."""
    if histogram is None or not histogram.finite_non_zero:
        return
    tallest = math.log1p(max(histogram.counts))
    for i in np.flatnonzero(histogram.counts):
        yield histogram.lo + int(i), 0.94 * math.log1p(histogram.counts[i]) / tallest


# Numbers, and what was not observed


def _lists(report: TrainingResults) -> list[dict[str, object]]:
    """Return the lists at the end of the page, each with a title and lines."""
    skips = [
        f"step {skip.step} at scale {power(skip.scale)}: {skip.why}"
        for skip in report.skips[:LISTED_SKIPS]
    ]
    if len(report.skips) > LISTED_SKIPS:
        skips.append(f"{len(report.skips) - LISTED_SKIPS} more")
    lines = {"Numbers": numbers(report), "Skipped steps": skips, "Not observed": report.unseen}
    return [
        {"title": title, "lines": [_powers(line) for line in of_title]}
        for title, of_title in lines.items()
    ]


# Axes and text


def _round_numbers(low: int, high: int, steps: Iterable[int] = (1, 2, 5, 10, 20, 50)) -> list[int]:
    """Return at most eight multiples of a round number from `low` to `high`.

    >>> _round_numbers(-3, 11), _round_numbers(0, 720)
    ([-2, 0, 2, 4, 6, 8, 10], [0, 200, 400, 600])
    """
    longer = (digit * 10**power for power in count(2) for digit in (1, 2, 5))
    distance = next(step for step in chain(steps, longer) if high - low <= 7 * step)
    first = math.ceil(low / distance) * distance
    return list(range(first, high + 1, distance))


def _power_of_two(exponent: int) -> Markup:
    return markup(f"2<sup>{exponent}</sup>")


def _powers(text: str) -> Markup:
    """Return text as HTML, with the exponents of 2^k raised, and `code` set as such.

    >>> print(_powers("`a < b` at 2^-24"))
    <code>a &lt; b</code> at 2<sup>-24</sup>
    """
    coded = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return markup(re.sub(r"2\^(-?\d+)", r"2<sup>\1</sup>", coded))
