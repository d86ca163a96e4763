"""The report of a watch: queries, text, pictures, files and exports.

Idea: counts per binade show the effect of another format or scale, and which scales are safe. A picture has one bar for
each binade, coloured by the effect of the format at the scale of the run. It is text (SVG), in the colours of the
reader's light or dark theme.

Invariants: a report that is saved and loaded is equal to the original. A page loads nothing from a network, and each
picture has a description in words.
"""

from __future__ import annotations

import importlib
import json
import math
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch

import labkit
from labkit.formats import FORMATS, FP16, Format
from labkit.instrument.fate import Fate, fate
from labkit.instrument.histogram import ExponentHistogram, merge, shift
from labkit.instrument.records import (
    KINDS,
    AgainstFP32,
    Finding,
    NonFinite,
    Skip,
    WatchedStep,
    Window,
    trimmed,
    window,
)  # fmt: skip

SHOWN = (-80, 40)  # exponents in a picture
MOST_NAMES = 4  # in a line of text
LOST_TO_MENTION = 0.01  # share of a layer's gradients
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
NAMES = {"weights": "parameters", "weight gradients": "gradients", "activation gradients": "activation_gradients"}


@dataclass(frozen=True)
class Report:
    """The results of a watch, which print, show in a notebook, save and load.

    steps       number of steps, skipped ones included
    watched     the sampled ones
    unseen      what could not be observed, and why
    """

    model: str
    steps: int
    watched: tuple[WatchedStep, ...] = ()
    skips: tuple[Skip, ...] = ()
    non_finite: tuple[NonFinite, ...] = ()
    against_fp32: tuple[AgainstFP32, ...] = ()
    findings: tuple[Finding, ...] = ()
    unseen: tuple[str, ...] = ()
    formats: tuple[str, ...] = ("FP16", "BF16")

    def histograms(self, kind: str, step: int | None = None) -> dict[str, ExponentHistogram]:
        """Return name -> histogram of one watched step, or of all together.

        Raises:
            ValueError: the kind is unknown, or the step was not watched.
        """
        if kind not in KINDS:
            raise ValueError(f"kind: expected {', '.join(KINDS)}; got {kind!r}")
        chosen = [w for w in self.watched if step in (None, w.step)]
        if step is not None and not chosen:
            seen = ", ".join(str(w.step) for w in self.watched) or "none"
            raise ValueError(f"step {step} was not watched; watched: {seen}. watch(model, every=1) watches each step.")
        names = dict.fromkeys(name for w in chosen for name in w.histograms.get(kind, {}))
        each = [w.histograms.get(kind, {}) for w in chosen]
        return {name: trimmed(merge(h[name] for h in each if name in h)) for name in names}

    def fates(self, kind: str, format: Format = FP16, log2_scale: int = 0, step: int | None = None) -> dict[str, Fate]:
        """Return name -> the effect of a format on one kind of numbers, multiplied by 2^log2_scale."""
        return {name: fate(shift(h, log2_scale), format) for name, h in self.histograms(kind, step).items()}

    def gradients(self) -> dict[str, ExponentHistogram]:
        """Return all unscaled gradients by name, with those of FP32 for steps that were replayed in it."""
        parts: dict[str, list[ExponentHistogram]] = {}
        for histograms in (*(w.histograms for w in self.watched), *(a.histograms for a in self.against_fp32)):
            for kind in ("activation gradients", "weight gradients"):
                for name, histogram in histograms.get(kind, {}).items():
                    parts.setdefault(f"{kind} of {name}", []).append(histogram)
        merged = {name: merge(histograms) for name, histograms in parts.items()}
        return {name: histogram for name, histogram in merged.items() if histogram.finite_non_zero}

    def safe_scales(self, format: Format = FP16, tolerance: float = 1e-3) -> dict[str, Window]:
        """Return the window of safe scales of each layer's or parameter's gradients."""
        return {name: window(h, format, tolerance) for name, h in self.gradients().items()}

    def one_scale(self, format: Format = FP16) -> tuple[int, float, float]:
        """Return the largest scale (log2) that is safe for all, its losses, and those of a scale for each layer.

        Raises:
            ValueError: no gradient was observed.
        """
        gradients = self.gradients()
        if not gradients:
            raise ValueError("no non-zero gradient was observed, so nothing limits the scale")
        windows = {name: window(h, format) for name, h in gradients.items()}
        one, total = min(w.high for w in windows.values()), sum(h.finite_non_zero for h in gradients.values())
        together = sum(fate(shift(h, one), format).underflowed * h.finite_non_zero for h in gradients.values())
        apart = sum(
            fate(shift(h, windows[name].high), format).underflowed * h.finite_non_zero for name, h in gradients.items()
        )
        return one, together / total, apart / total

    def save(self, folder: str | Path = "watch-report") -> Path:
        """Write report.html, report.json and report.txt into a folder, created if missing; return it."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(json.dumps(to_plain(self), allow_nan=True), encoding="utf-8")
        (folder / "report.html").write_text(_page(self), encoding="utf-8")
        (folder / "report.txt").write_text(f"{self}\n", encoding="utf-8")
        return folder

    def to_tensorboard(self, writer: Any) -> None:
        """Write all histograms to a torch.utils.tensorboard.SummaryWriter: unscaled, of magnitudes, each at its step.

        Source: SummaryWriter.add_histogram_raw.
        """
        for step, name, histogram in _named_histograms(self):
            edges, counts = _binades(histogram)
            middles = edges[1:] * 0.75
            writer.add_histogram_raw(
                name,
                min=float(edges[0]),
                max=float(edges[-1]),
                num=int(counts.sum()),
                sum=float((middles * counts).sum()),
                sum_squares=float((middles**2 * counts).sum()),
                bucket_limits=edges[1:].tolist(),
                bucket_counts=counts.tolist(),
                global_step=step,
            )

    def to_wandb(self, run: Any) -> None:
        """Log all histograms to a run of W&B under the names of wandb.watch: unscaled, of magnitudes, each at its step.

        Raises:
            ModuleNotFoundError: wandb is not installed.
        """
        wandb = importlib.import_module("wandb")
        logged: dict[int, dict[str, Any]] = {}
        for step, name, histogram in _named_histograms(self):
            edges, counts = _binades(histogram)
            logged.setdefault(step, {})[name] = wandb.Histogram(np_histogram=(counts, edges))
        for step, histograms in logged.items():
            run.log(histograms, step=step)

    @staticmethod
    def load(path: str | Path) -> Report:
        """Read a report.json, or that of a folder.

        Raises:
            ValueError: the file is not a report of a watch.
        """
        path = Path(path)
        stored = (path / "report.json" if path.is_dir() else path).read_text(encoding="utf-8")
        try:
            plain = json.loads(stored)
        except ValueError:  # no JSON at all
            plain = None
        if not isinstance(plain, dict) or "watched" not in plain:
            raise ValueError(f"{path}: expected a report of a watch, as Report.save writes it")
        return from_plain(plain)

    def __str__(self) -> str:
        """Return plain text, as for an issue."""
        return _text(self)

    def _repr_html_(self) -> str:
        return _body(self)


def to_plain(report: Report) -> dict[str, Any]:
    """Return a report as values of JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple(_RECORDS.values())):
            return {name: plain(item) for name, item in vars(value).items()}
        if isinstance(value, ExponentHistogram):
            return {"lo": value.lo, "counts": value.counts.tolist(), "zeros": value.zeros, "bad": value.non_finite}
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple | list) else value

    return {name: plain(value) for name, value in vars(report).items()}


_RECORDS: dict[str, type] = {
    "watched": WatchedStep,
    "skips": Skip,
    "non_finite": NonFinite,
    "against_fp32": AgainstFP32,
    "findings": Finding,
}


def from_plain(plain: Mapping[str, Any]) -> Report:
    """Return the report that `to_plain` wrote."""
    values: dict[str, Any] = {}
    for name, value in plain.items():
        value = _from_json(value)
        values[name] = tuple(_RECORDS[name](**item) for item in value) if name in _RECORDS else value
    return Report(**values)


def _from_json(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"lo", "counts", "zeros", "bad"}:
        return ExponentHistogram(np.array(value["counts"], dtype=np.int64), value["lo"], value["zeros"], value["bad"])
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value.items()}
    return tuple(_from_json(item) for item in value) if isinstance(value, list) else value


def _named_histograms(report: Report) -> Iterator[tuple[int, str, ExponentHistogram]]:
    for watched in report.watched:
        for kind, layers in watched.histograms.items():
            for name, histogram in layers.items():
                if histogram.finite_non_zero:
                    yield watched.step, f"{NAMES.get(kind, kind)}/{name}", histogram


def _binades(histogram: ExponentHistogram) -> tuple[Any, Any]:
    """Return [n + 1] edges and [n] counts; zeros are in a first bin from 0."""
    edges = 2.0 ** np.arange(histogram.lo, histogram.lo + len(histogram.counts) + 1)
    return np.concatenate([[0.0], edges]), np.concatenate([[histogram.zeros], histogram.counts])


def _text(report: Report) -> str:
    first = f"{report.model}: {report.steps} steps, {len(report.watched)} sampled, {len(report.skips)} skipped"
    lines = [f"{first} (labkit {labkit.__version__}, torch {torch.__version__}, {platform.system()})"]
    lines += ["found:", *(f"- {line}" for line in _findings(report))] if report.findings else [_all_clear(report)]
    repairs = dict.fromkeys((finding.what, finding.repair) for finding in report.findings)
    lines += [f"  -> {what}: {repair}" for what, repair in repairs]
    lines += [f"- {line}" for line in _numbers(report)]
    lines += [f"- step {skip.step} skipped at scale {_power(skip.scale)}: {skip.why}" for skip in report.skips[:5]]
    lines += [f"- {len(report.skips) - 5} more were skipped"] if len(report.skips) > 5 else []
    return "\n".join(lines + [f"- not observed: {what}" for what in report.unseen])


def _all_clear(report: Report) -> str:
    """Return the headline of a report without findings, with what FP16 would lose of a run in a wider format."""
    if not report.steps:
        return "No optimizer of this model stepped, so there is nothing to report."
    gradients = report.gradients()
    if any(w.half for w in report.watched) or not gradients or report.watched[-1].scale <= 0:
        return "Nothing wrong was found."
    used = round(math.log2(report.watched[-1].scale))
    lost = {name: fate(shift(h, used), FP16).underflowed for name, h in gradients.items()}
    name, share = max(lost.items(), key=lambda item: item[1])
    if share < LOST_TO_MENTION:
        return "Nothing wrong was found."
    where = name.replace("activation gradients of", "activation gradients of layer")
    low, high = max(w.low for w in report.safe_scales().values()), report.one_scale()[0]
    advice = f"use a scale from 2^{low} to 2^{high}" if low <= high else "no single scale keeps all gradients"
    return f"Nothing wrong was found in this format. In FP16, {share:.0%} of the {where} would be lost; {advice}."


def _findings(report: Report) -> list[str]:
    """Return a line for each kind of finding and step, with the names that share them."""
    grouped: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for finding in report.findings:
        grouped.setdefault((finding.what, finding.step), []).append((finding.layer, finding.says))
    return [
        f"step {step}: {what}" + f" in {_listed([n for n, _ in found])}" * bool(found[0][0]) + f": {found[0][1]}"
        for (what, step), found in grouped.items()
    ]


def _listed(names: list[str]) -> str:
    """Return the first names, and how many more."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _numbers(report: Report) -> Iterator[str]:
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


def _power(scale: float) -> str:
    """Return 2^16 for 65536, and other numbers in short form."""
    significand, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if significand == 0.5 else f"{scale:g}"


def _page(report: Report) -> str:
    """Return a self-contained page."""
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>watch: {escape(report.model)}</title>'
    dark = '<meta name="color-scheme" content="light dark"><style>body { margin: 0; }</style>'
    return f"{head}{dark}<body>{_body(report)}</body></html>\n"


def _body(report: Report) -> str:
    """Return the body of a page: the text, and for each kind a table of pictures, one for each format."""
    formats = [FORMATS[name] for name in report.formats]
    parts = [f"<h2>{escape(report.model)}</h2><pre>{escape(_text(report))}</pre>"]
    for kind in KINDS if report.watched else ():
        scale = report.watched[-1].scale if "gradients" in kind else 1.0
        log2_scale = round(math.log2(scale)) if scale > 0 else 0
        rows = report.histograms(kind)
        heads = "".join(f"<th>{f.name}" + f" at scale {_power(scale)}" * (scale != 1) + "</th>" for f in formats)
        lines = "".join(_row(name, shift(h, log2_scale), formats) for name, h in rows.items())
        parts.append(f"<h3>{kind}</h3><table><tr><th></th>{heads}</tr>{lines}</table>")
    return f'{STYLE}<div class="labkit-watch">{"".join(parts)}</div>'


def _row(name: str, histogram: ExponentHistogram, formats: list[Format]) -> str:
    return f"<tr><td>{escape(name)}</td>{''.join(f'<td>{_picture(histogram, f)}</td>' for f in formats)}</tr>"


def _picture(histogram: ExponentHistogram, format: Format = FP16, width: int = 240, height: int = 36) -> str:
    """Return a histogram as SVG, each binade in the colour of its class in the format."""
    shares = fate(histogram, format)
    description = ", ".join(f"{share:.1%} {what}" for what, share in vars(shares).items() if share)
    description = description or ("all zero" if histogram.total else "nothing")
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
        f'<svg role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}"><title>{description}</title>'
        f"{axis}{''.join(bars)}</svg><br><small>{description}</small>"
    )


def _only(exponent: int) -> ExponentHistogram:
    return ExponentHistogram(np.ones(1, dtype=np.int64), exponent, 0, 0)
