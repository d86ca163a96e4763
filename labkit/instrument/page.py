"""How is a report read by people? As a text for an issue, and as a page without a network.

Idea: one bar for each binade, coloured by what the format does to it at the scale of the run; the same four colours as
everywhere in the lab. The picture is text, too (SVG), and takes its ink from the reader's light or dark theme.

Invariant: a page fetches nothing, and each picture says in words what it shows.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from html import escape

import numpy as np
import torch

import labkit
from labkit.formats import FORMATS, FP16, Format
from labkit.instrument.fate import fate
from labkit.instrument.histogram import ExponentHistogram, shift
from labkit.instrument.records import KINDS, Seen

SHOWN = (-80, 40)  # exponents in a picture
MOST_NAMES = 4  # in a line of text
STYLE = """<style>
.labkit-watch { --ink: #1a1a1a; --paper: #fff; --line: #bbb; color: var(--ink); background: var(--paper);
  font: 14px/1.5 system-ui, sans-serif; padding: 1em; }
@media (prefers-color-scheme: dark) { .labkit-watch { --ink: #e6e6e6; --paper: #16181c; --line: #555; } }
.labkit-watch table { border-collapse: collapse; }
.labkit-watch td, .labkit-watch th { padding: 2px 10px; text-align: left;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; vertical-align: bottom; }
.labkit-watch .underflowed { fill: #d55e00; } .labkit-watch .subnormal { fill: #e0c800; }
.labkit-watch .normal { fill: #56b4e9; } .labkit-watch .overflowed { fill: #cc79a7; }
.labkit-watch svg line { stroke: var(--line); } .labkit-watch pre { white-space: pre-wrap; }
</style>"""


def text(report: Seen) -> str:
    """Return what was seen as plain text, for an issue."""
    first = f"{report.model}: {report.steps} steps, {len(report.watched)} sampled, {len(report.skips)} skipped"
    lines = [f"{first} (labkit {labkit.__version__}, torch {torch.__version__}, {platform.system()})"]
    well = "nothing wrong was found" if report.steps else "no optimizer of this model stepped, so nothing can be said"
    lines += ["found:", *(f"- {line}" for line in findings(report))] if report.findings else [well]
    repairs = dict.fromkeys((finding.what, finding.repair) for finding in report.findings)
    lines += [f"  -> {what}: {repair}" for what, repair in repairs]
    lines += [f"- {line}" for line in _numbers(report)]
    lines += [f"- step {skip.step} skipped at scale {power(skip.scale)}: {skip.why}" for skip in report.skips[:5]]
    lines += [f"- {len(report.skips) - 5} more were skipped"] if len(report.skips) > 5 else []
    return "\n".join(lines + [f"- not seen: {what}" for what in report.unseen])


def findings(report: Seen) -> list[str]:
    """Return a line for each kind of fault and step; the names that share it stand in one."""
    grouped: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for finding in report.findings:
        grouped.setdefault((finding.what, finding.step), []).append((finding.layer, finding.says))
    return [
        f"step {step}: {what}" + f" in {listed([n for n, _ in found])}" * bool(found[0][0]) + f": {found[0][1]}"
        for (what, step), found in grouped.items()
    ]


def listed(names: list[str]) -> str:
    """Return names as a list of a few, and how many more."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _numbers(report: Seen) -> Iterator[str]:
    gradients = report.gradients()
    if gradients:
        low = max(window.low for window in report.safe_scales().values())
        one, together, apart = report.one_scale()
        safe = f"from 2^{low} to 2^{one}" if low <= one else f"none: one layer needs 2^{low}, another bears 2^{one}"
        yield f"scales at which FP16 keeps all gradients but one in a thousand: {safe}"
        yield f"at 2^{one} FP16 loses {together:.2%} of them; with the largest safe scale for each layer {apart:.2%}"
    if report.watched:
        memory = {name: size for name, size in report.watched[-1].memory.items() if size}
        yield "memory: " + ", ".join(f"{name} {size / 2**20:.3g} MiB" for name, size in memory.items())
    for cast, (times, size) in report.watched[-1].casts.items() if report.watched else ():
        yield f"casts in a step: {times} from {cast}, {size / 2**20:.3g} MiB written"


def power(scale: float) -> str:
    """Return 2^16 for 65536, and other numbers in short."""
    significand, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if significand == 0.5 else f"{scale:g}"


def page(report: Seen) -> str:
    """Return a page that needs nothing else."""
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>watch: {escape(report.model)}</title>'
    dark = '<meta name="color-scheme" content="light dark"><style>body { margin: 0; }</style>'
    return f"{head}{dark}<body>{body(report)}</body></html>\n"


def body(report: Seen) -> str:
    """Return the inside of a page: the text, and for each kind a row of pictures, one for each format."""
    formats = [FORMATS[name] for name in report.formats]
    parts = [f"<h2>{escape(report.model)}</h2><pre>{escape(text(report))}</pre>"]
    for kind in KINDS if report.watched else ():
        scale = report.watched[-1].scale if "gradients" in kind else 1.0
        log2_scale = round(math.log2(scale)) if scale > 0 else 0
        rows = report.histograms(kind)
        heads = "".join(f"<th>{f.name}" + f" at scale {power(scale)}" * (scale != 1) + "</th>" for f in formats)
        lines = "".join(_row(name, shift(h, log2_scale), formats) for name, h in rows.items())
        parts.append(f"<h3>{kind}</h3><table><tr><th></th>{heads}</tr>{lines}</table>")
    return f'{STYLE}<div class="labkit-watch">{"".join(parts)}</div>'


def _row(name: str, histogram: ExponentHistogram, formats: list[Format]) -> str:
    return f"<tr><td>{escape(name)}</td>{''.join(f'<td>{picture(histogram, f)}</td>' for f in formats)}</tr>"


def picture(histogram: ExponentHistogram, format: Format = FP16, width: int = 240, height: int = 36) -> str:
    """Return a histogram as SVG, each binade in the colour of what the format does to it."""
    shares = fate(histogram, format)
    said = ", ".join(f"{share:.1%} {what}" for what, share in vars(shares).items() if share)
    said = said or "all zero" if histogram.total else "nothing"
    first, last = SHOWN
    step, tallest = width / (last - first), max(histogram.counts, default=0)
    bars = []
    for i in np.flatnonzero(histogram.counts):
        exponent, size = histogram.lo + int(i), height * math.log1p(histogram.counts[i]) / math.log1p(tallest)
        x = (min(max(exponent, first), last - 1) - first) * step
        what = next(k for k, v in vars(fate(_only(exponent), format)).items() if v)
        place = f'x="{x:.1f}" y="{height - size:.1f}" width="{step:.1f}" height="{size:.1f}"'
        bars.append(f'<rect class="{what}" {place}/>')
    axis = f'<line x1="0" x2="{width}" y1="{height}" y2="{height}"/>'
    return (
        f'<svg role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}"><title>{said}</title>'
        f"{axis}{''.join(bars)}</svg><br><small>{said}</small>"
    )


def _only(exponent: int) -> ExponentHistogram:
    return ExponentHistogram(np.ones(1, dtype=np.int64), exponent, 0, 0)
