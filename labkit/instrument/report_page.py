"""Report of a training as a page: verdict, findings, scales, lost gradients and histograms.

Idea: one language of colours, the zones of a number format: underflowed, subnormal, normal,
overflowed. Curves, bars and cells are SVG that stretches to the width of the page; names and axes
are text of a fixed size beside them.

Invariants: a page loads nothing from a network and runs no script. Each picture has a description
as text. Its colours follow the theme of JupyterLab or VS Code, else the reader's light or dark
preference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from labkit.findings import SIGNS, Finding, Status
from labkit.formats import FORMATS, Format
from labkit.instrument.fate import Fate, fate
from labkit.instrument.histogram import ExponentHistogram, merge, shift
from labkit.instrument.records import KINDS, Window, window
from labkit.instrument.results import (
    MOST_NAMES,
    TrainingResults,
    grouped,
    numbers,
    power,
    run_in_words,
    step_of,
)

ZONES = ("underflowed", "subnormal", "normal", "overflowed")
GRADIENTS = ("activation gradients", "weight gradients")
TITLES = {
    "activation gradients": "Gradients at the layers' outputs",
    "weight gradients": "Gradients of the parameters",
}
SHOWN = (-110, 60)  # exponents in a histogram, at most
MANY_ROWS = 16  # a table with more of them scrolls
LEAST = 0.001  # share that is worth a mention
MOST_SKIPS = 400  # marks in the picture of the scale
STYLE = Path(__file__).with_suffix(".css")


def page(report: TrainingResults) -> str:
    """Return a self-contained page."""
    title = escape(f"{report.model or 'Training'}: {report.summary}")
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    fit = (
        '<meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark">'
    )
    return (
        f"{head}{fit}<style>body {{ margin: 0; "
        f"}}</style></head><body>{body(report)}</body></html>\n"
    )


def body(report: TrainingResults) -> str:
    """Return the report as HTML with its own style, for a page or the output of a cell."""
    parts = [_verdict(report), _findings(report)]
    if report.watched:
        parts += [_scales(report), _map(report), _histograms(report)]
    style = STYLE.read_text(encoding="utf-8")
    return (
        f'<style>{style}</style><div class="labkit-watch">{"".join(parts)}{_details(report)}</div>'
    )


def _verdict(report: TrainingResults) -> str:
    kinds = list(
        dict.fromkeys(
            each.name for status in (Status.BAD, Status.WARN) for each in report.of(status)
        )
    )
    all_well = Status.OK if report.steps else Status.WARN
    status = next((s for s in (Status.BAD, Status.WARN) if any(report.of(s))), all_well)
    named = ""
    if kinds:
        named = f": {', '.join(kinds[:MOST_NAMES])}"
    if len(kinds) > MOST_NAMES:
        named += " and more"
    named += "."
    headline = _powers(report.summary.removesuffix(".")) + escape(named)
    where = escape(run_in_words(report))
    return (
        f'<div class="verdict {status}"><h1>{SIGNS[status]} {headline}</h1>'
        f'<p class="quiet">{where}</p></div>'
    )


def _findings(report: TrainingResults) -> str:
    groups = [g for status in reversed(Status) for g in grouped(report, status)]
    cards = "".join(_card(group) for group in groups)
    return f'<div class="cards">{cards}</div>' if cards else ""


def _card(group: list[Finding]) -> str:
    first = group[0]
    layers = list(dict.fromkeys(each.layer for each in group if each.layer))
    names = ", ".join(f"<code>{escape(name)}</code>" for name in layers[:MOST_NAMES])
    if len(layers) > MOST_NAMES:
        names += f" and {len(layers) - MOST_NAMES} more"
    places = []
    if first.line:
        places.append(f"<code>{escape(first.line)}</code>")
    if step_of(group):
        places.append(step_of(group))
    if names:
        places.append(f"in {names}")
    explain = "".join(
        f"<br><code>labkit explain {escape(fault)}</code>" for fault in first.faults[:2]
    )
    repair = ""
    if first.remedy:
        repair = f'<p class="repair"><strong>Repair.</strong> {_powers(first.remedy)}{explain}</p>'
    return (
        f'<section class="card {first.status}">'
        f"<h3><b>{SIGNS[first.status]} {first.status}</b> {escape(first.name)}</h3>"
        f'<div class="place">{"".join(f"<span>{place}</span>" for place in places)}</div>'
        f"<p>{_powers(first.what)}</p>{repair}</section>"
    )


# The scale over time


def _scales(report: TrainingResults) -> str:
    """Return the scale in use beside the window of safe scales, over the steps."""
    format = FORMATS[report.formats[0]]
    windows = {w.step: _window(report.gradients(w.step), format) for w in report.watched}
    known = {step: each for step, each in windows.items() if each is not None}
    if not known:
        return ""
    used = {w.step: math.log2(w.scale) for w in report.watched if w.scale > 0}
    used |= {skip.step: math.log2(skip.scale) for skip in report.skips if skip.scale > 0}
    inside = [
        known[w.step].low <= used[w.step] <= known[w.step].high
        for w in report.watched
        if w.step in known
    ]
    values = [v for each in known.values() for v in (each.low, each.high)] + [
        round(level) for level in used.values()
    ]
    low = min(values) - 3
    high = max(values) + 3
    last = max(report.steps, 1)
    bands = []
    for step, end in zip(known, [*list(known)[1:], last], strict=True):
        each = known[step]
        width = max(end - step, last / 200)
        bands.append(_rect("overflowed zone", step, 0, width, high - each.high))
        bands.append(_rect("underflowed zone", step, high - each.low, width, each.low - low))
        bands.append(
            _rect("normal zone", step, high - each.high, width, max(each.high - each.low, 0))
        )
    line = "".join(
        f"{'H' if n else 'M'}{step}{'V' if n else ','}{high - used[step]:g}"
        for n, step in enumerate(sorted(used))
    )
    cross = last / 160
    tall = (high - low) / 40
    marks = "".join(
        f"M{skip.step - cross:g},{high - used[skip.step] - tall:g}l{2 * cross:g},{2 * tall:g}"
        f"m0,{-2 * tall:g}l{-2 * cross:g},{2 * tall:g}"
        for skip in report.skips[:MOST_SKIPS]
        if skip.scale > 0
    )
    ticks = _round_numbers(low, high)
    grid = "".join(f"M0,{high - tick}H{last}" for tick in ticks)
    says = f"The scale was inside its window in {sum(inside)} of {len(inside)} sampled steps."
    drawing = (
        f'<svg role="img" viewBox="0 0 {last} {high - low}" preserveAspectRatio="none">'
        f"<title>{says}</title>{''.join(bands)}{_path('grid', grid)}"
        f"{_path('scale', f'{line}H{last}')}{_path('skip', marks)}</svg>"
    )
    places = [(t, 100 * (t - low) / (high - low)) for t in ticks]
    left = "".join(
        f'<span style="bottom: {place:.1f}%">2<sup>{tick}</sup></span>' for tick, place in places
    )
    zones = [
        ("normal", f"scales that keep the gradients in {format.name}"),
        ("overflowed", "above: gradients overflow"),
        ("underflowed", "below: more than one in a thousand is lost"),
    ]
    more = "<span><i class=line></i>scale in use</span>"
    if report.skips:
        more += f"<span class=skipped>× skipped step ({len(report.skips)})</span>"
    return (
        f"<h2>The loss scale, and its window</h2><p>{says}</p>{_legend(zones, more)}"
        f'<div class="plot"><div class="ticks y">{left}</div>{drawing}<div></div>'
        f"{_ticks({t: t / last for t in _round_numbers(0, last)})}"
        '<div class="unit">step</div></div>'
    )


def _window(gradients: Mapping[str, ExponentHistogram], format: Format) -> Window | None:
    windows = [window(histogram, format) for histogram in gradients.values()]
    return Window(max(w.low for w in windows), min(w.high for w in windows)) if windows else None


# The map of what is lost


def _map(report: TrainingResults) -> str:
    """Return the share of gradients that a format loses, by layer and sampled step, as a map.

    The scale is the one in use.
    """
    format = FORMATS[report.formats[0]]
    tables = [(kind, rows) for kind in GRADIENTS if (rows := list(_losses(report, kind, format)))]
    if not tables:
        return ""
    steps = [w.step for w in report.watched]
    compared = {a.step for a in report.against_fp32}
    share, step, name = max(
        (share, step, name) for _, rows in tables for name, _, (share, step) in rows
    )
    says = f"Most is lost in layer {name}, in step {step}: {share:.1%} of its gradients."
    if share < LEAST:
        says = f"{format.name} loses less than one gradient in a thousand in every layer."
    note = (
        f"{len(compared.intersection(steps))} of {len(steps)} sampled steps were compared with "
        "FP32; "
    )
    note += "in the others, gradients that had underflowed before are not seen."
    columns = (
        [round(i * (len(steps) - 1) / 6) for i in range(7)] if len(steps) > 7 else range(len(steps))
    )
    axis = _ticks({steps[i]: (i + 0.5) / len(steps) for i in columns})
    parts = []
    for kind, rows in tables:
        lines = "".join(
            f'<span title="{escape(name)}">{escape(name)}</span>{_strip(name, shares)}'
            f"<span>{_worst(*most)}</span>"
            for name, shares, most in rows
        )
        table = f"<div class=rows>{lines}<span></span>{axis}<span class=quiet>step</span></div>"
        parts.append(_fold(kind, len(rows), table, kind == tables[0][0]))
    sentence = f'<p>{escape(says)} <span class="quiet">{note}</span></p>'
    return (
        f"<h2>What {format.name} loses, layer by "
        f"layer</h2>{sentence}{_legend(_zones())}{''.join(parts)}"
    )


def _fold(kind: str, rows: int, table: str, opened: bool) -> str:
    title = TITLES.get(kind, kind.capitalize())
    open_ = " open" if opened else ""
    scroll = " class=scroll" if rows > MANY_ROWS else ""
    return f"<details{open_}><summary>{title}: {rows}</summary><div{scroll}>{table}</div></details>"


def _losses(
    report: TrainingResults, kind: str, format: Format
) -> Iterator[tuple[str, list[Fate | None], tuple[float, int]]]:
    """Yield name, its effects step by step, and its largest loss with the step."""
    exact = {a.step: a.histograms.get(kind, {}) for a in report.against_fp32}
    for name in _in_order(report, kind):
        shares: list[Fate | None] = []
        most = (0.0, report.watched[0].step)
        for w in report.watched:
            histogram = exact.get(w.step, {}).get(name) or w.histograms.get(kind, {}).get(name)
            if histogram is None or w.scale <= 0:
                shares.append(None)
                continue
            share = fate(shift(histogram, round(math.log2(w.scale))), format)
            most = max(
                most, (share.underflowed + share.overflowed, w.step), key=lambda each: each[0]
            )
            shares.append(share)
        yield name, shares, most


def _in_order(report: TrainingResults, kind: str) -> dict[str, ExponentHistogram]:
    """Return the histograms of a kind, in the order in which the model runs.

    Gradients arrive in the reverse order.
    """
    found = report.histograms(kind)
    forward = [*report.histograms("activations"), *report.histograms("weights")]
    return {
        name: found[name] for name in dict.fromkeys([*(n for n in forward if n in found), *found])
    }


def _strip(name: str, shares: list[Fate | None]) -> str:
    """Return a row of the map: a column for each step, filled from below by the lost share."""
    paths = dict.fromkeys(ZONES, "")
    for column, share in enumerate(shares):
        top = 1.0
        if share is not None:
            for zone in ("underflowed", "subnormal", "overflowed"):
                if (size := getattr(share, zone)) >= LEAST:
                    paths[zone] += f"M{column},{top - size:.3f}h1v{size:.3f}h-1z"
                    top -= size
    drawn = "".join(_path(zone, path) for zone, path in paths.items() if path)
    gaps = "".join(f"M{column},0h1v1h-1z" for column, share in enumerate(shares) if share is None)
    return (
        f'<svg role="img" viewBox="0 0 {len(shares)} 1" preserveAspectRatio="none">'
        f'<title>{escape(name)}</title>{drawn}<path d="{gaps}" fill="var(--paper)"/></svg>'
    )


def _worst(share: float, step: int) -> str:
    return f"{share:.1%} in step {step}" if share >= LEAST else "&lt; 0.1%"


# Histograms


def _histograms(report: TrainingResults) -> str:
    """Return the histograms of all kinds: a row for each layer, a column for each format."""
    parts = []
    for kind in (*GRADIENTS, *(k for k in KINDS if k not in GRADIENTS)):
        if rows := {name: h for name, h in _in_order(report, kind).items() if h.total}:
            exact: dict[str, list[ExponentHistogram]] = {}
            for beside in report.against_fp32:
                for name, histogram in beside.histograms.get(kind, {}).items():
                    exact.setdefault(name, []).append(histogram)
            table = _table(
                report, rows, {n: merge(h) for n, h in exact.items()}, "gradients" in kind
            )
            parts.append(
                _fold(kind, len(rows), table, kind == GRADIENTS[0] and len(rows) <= MANY_ROWS)
            )
    note = (
        "One bar for each power of two, from small to large; its height is the logarithm of the "
        "count. Gradients are at the last scale in use."
    )
    more = ""
    if report.against_fp32:
        more = "<span><i class=outline></i>the same gradients in FP32</span>"
    return (
        f"<h2>Histograms</h2><p class='quiet'>{note}</p>{_legend(_zones(), more)}{''.join(parts)}"
    )


def _table(
    report: TrainingResults,
    rows: Mapping[str, ExponentHistogram],
    exact: Mapping[str, ExponentHistogram],
    scaled: bool,
) -> str:
    formats = [FORMATS[name] for name in report.formats]
    scale = report.watched[-1].scale if scaled else 1.0
    by = round(math.log2(scale)) if scale > 0 else 0
    here = {name: shift(h, by) for name, h in rows.items()}
    there = {name: shift(h, by) for name, h in exact.items()}
    filled = [h for h in (*here.values(), *there.values()) if h.finite_non_zero]
    first = max(min([h.lo for h in filled] + [-26]) - 1, SHOWN[0])
    end = min(max([h.top for h in filled] + [16]) + 2, SHOWN[1])
    axis = _ticks(
        {
            f"2<sup>{t}</sup>": (t - first) / (end - first)
            for t in _round_numbers(first, end, (8, 16, 32))
        }
    )
    at = f" at scale 2<sup>{by}</sup>" if by else ""
    heads = "".join(f"<div class=head>{f.name}{at}{axis}</div>" for f in formats)
    cells = "".join(
        f"<span>{escape(name)}</span>"
        + "".join(_picture(h, there.get(name), f, first, end) for f in formats)
        for name, h in here.items()
    )
    return (
        f'<div class=hists style="--columns: {len(formats)}">'
        f'<div class="head first"></div>{heads}{cells}</div>'
    )


def _picture(
    histogram: ExponentHistogram,
    exact: ExponentHistogram | None,
    format: Format,
    first: int,
    end: int,
) -> str:
    """Draw a histogram as SVG over a format's zones, each bar in the colour of its zone."""
    edges = (first, format.emin - format.significand_bits - 1, format.emin, format.emax + 1, end)
    starts = [min(max(edge, first), end) for edge in edges]
    zones = "".join(
        _rect(f"{zone} zone", start - first, 0, stop - start, 1)
        for zone, start, stop in zip(ZONES, starts, starts[1:], strict=False)
        if stop > start
    )
    paths = dict.fromkeys(ZONES, "")
    for exponent, size in _sizes(histogram):
        zone = next(
            (z for z, stop in zip(ZONES, edges[1:4], strict=False) if exponent < stop), ZONES[-1]
        )
        x = min(max(exponent, first), end - 1) - first
        paths[zone] += f"M{x + 0.06:g},1v{-size:.3f}h0.88v{size:.3f}z"
    drawn = "".join(_path(zone, path) for zone, path in paths.items())
    heights = dict(_sizes(exact))
    steps = (f"V{1 - heights.get(exponent, 0):.3f}h1" for exponent in range(first, end))
    outline = f"M0,1{''.join(steps)}V1" if heights else ""
    shares = fate(histogram, format)
    parts = [f"{share:.1%} {zone}" for zone, share in vars(shares).items() if share >= LEAST / 2]
    if histogram.zeros == histogram.total:
        parts.append("all zero")
    if histogram.non_finite:
        parts.append(f"{histogram.non_finite:,} inf or NaN")
    says = ", ".join(parts)
    return (
        f'<div><svg role="img" viewBox="0 0 {end - first} 1" preserveAspectRatio="none">'
        f"<title>{says}</title>{zones}{drawn}{_path('outline', outline)}</svg>"
        f"<small>{format.name}: {says}</small></div>"
    )


def _sizes(histogram: ExponentHistogram | None) -> Iterator[tuple[int, float]]:
    """Yield exponent and height, 0 to 1, of each bar."""
    if histogram is not None and histogram.finite_non_zero:
        tallest = math.log1p(max(histogram.counts))
        for i in np.flatnonzero(histogram.counts):
            yield histogram.lo + int(i), 0.94 * math.log1p(histogram.counts[i]) / tallest


# Numbers, and what was not observed


def _details(report: TrainingResults) -> str:
    skips = [f"step {s.step} at scale {power(s.scale)}: {s.why}" for s in report.skips[:5]]
    if len(report.skips) > 5:
        skips += [f"{len(report.skips) - 5} more"]
    lists = (
        ("Numbers", list(numbers(report))),
        ("Skipped steps", skips),
        ("Not observed", report.unseen),
    )
    return "".join(
        f"<h2>{title}</h2><ul>{''.join(f'<li>{_powers(line)}</li>' for line in lines)}</ul>"
        for title, lines in lists
        if lines
    )


# Parts of pictures


def _rect(names: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{names}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def _path(name: str, path: str) -> str:
    return f'<path class="{name}" vector-effect="non-scaling-stroke" d="{path}"/>' if path else ""


def _zones() -> list[tuple[str, str]]:
    words = ("underflows to zero", "subnormal: fewer digits", "normal", "overflows to infinity")
    return list(zip(ZONES, words, strict=True))


def _legend(zones: Iterable[tuple[str, str]], more: str = "") -> str:
    entries = "".join(f"<span><i class={zone}></i>{word}</span>" for zone, word in zones)
    return f'<div class="legend">{entries}{more}</div>'


def _round_numbers(low: int, high: int, steps: Iterable[int] = (1, 2, 5, 10, 20, 50)) -> list[int]:
    """Return about seven multiples of a round number from `low` to `high`.

    >>> _round_numbers(-3, 11), _round_numbers(0, 300)
    ([-2, 0, 2, 4, 6, 8, 10], [0, 50, 100, 150, 200, 250, 300])
    """
    distance = next(
        (step for step in steps if high - low <= 7 * step), 10 ** len(str((high - low) // 7))
    )
    return list(range(-(-low // distance) * distance, high + 1, distance))


def _ticks(places: Mapping[Any, float]) -> str:
    """Return labels at places from 0 to 1 along an axis; a label near 1 is left of its place."""
    labels = []
    for label, place in places.items():
        last = " class=last" if place > 0.95 else ""
        labels.append(f'<span{last} style="left: {100 * place:.1f}%">{label}</span>')
    return f"<div class=ticks>{''.join(labels)}</div>"


def _powers(text: str) -> str:
    """Return text as HTML, with the exponents of 2^k raised, and `code` set as such.

    >>> _powers("`a < b` at 2^-24")
    '<code>a &lt; b</code> at 2<sup>-24</sup>'
    """
    coded = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"2\^(-?\d+)", r"2<sup>\1</sup>", coded)
