"""Figures and sentences of timed matrix products: recorded on a GPU, beside those of this machine.

Idea: each panel shows one record, and its title says whose it is. Both panels of a figure have
their own axis of speed: two devices on one axis would make the slower one a flat line. A sentence
compares what one device did with one clock.

Invariant: only numbers that were measured on this machine appear as such; a missing record is named
as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.bench import (
    ElementwiseCase,
    GemmCase,
    GemmRecord,
    GemmRun,
    Roofline,
    from_json,
    intensity,
    roofline,
)
from labkit.formats import Format
from labkit.records import recorded_files
from labkit.widgets.base.figures import FORMAT_COLOURS, QUIET, described, new_figure, on_any_page
from labkit.widgets.base.number_words import two_digits
from labkit.widgets.results.published import CARD, draw_published, logarithmic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOT_RECORDED = "not recorded yet: `make gpu` on a machine with a GPU records it"
# never by colour alone
STYLES: dict[str, dict[str, Any]] = {
    "FP64": {"color": QUIET, "marker": "D", "ls": ":"},
    "FP32": {"color": FORMAT_COLOURS["FP32"], "marker": "o", "ls": "-"},
    "TF32": {"color": FORMAT_COLOURS["FP32"], "marker": "v", "ls": "--"},
    "FP16": {"color": FORMAT_COLOURS["FP16"], "marker": "s", "ls": "-"},
    "BF16": {"color": FORMAT_COLOURS["BF16"], "marker": "^", "ls": (0, (5, 2))},
    "E4M3": {"color": FORMAT_COLOURS["E4M3"], "marker": "P", "ls": "-."},
}


def recorded_gemm(sweep: str, kind: str | None = None) -> list[GemmRecord]:
    """Return the records of a sweep that travel with the lab, newest first.

    `kind` asks for "cuda" or "cpu" only.

    >>> recorded_gemm("no such sweep")
    []
    """
    files = recorded_files(f"gemm/*/{sweep}.json").values()
    records = (from_json(file.read_text(encoding="utf-8")) for file in files)
    return sorted(
        (r for r in records if kind in (None, r.kind)), key=lambda r: r.date, reverse=True
    )


def made_where(record: GemmRecord, *, here: bool = False) -> str:
    """Return where and when a record was made: the title of its picture."""
    if here:
        return f"Measured here: {record.device}, torch {record.versions['torch']}"
    driver = f", driver {record.versions['driver']}" if "driver" in record.versions else ""
    return (
        f"Recorded: {record.device}, torch {record.versions['torch']}{driver}, {record.date[:10]}"
    )


def products(record: GemmRecord) -> list[tuple[GemmCase, GemmRun]]:
    """Return the matrix products of a record, each case beside its run."""
    return [(run.case, run) for run in record.runs if isinstance(run.case, GemmCase)]


def by_format(record: GemmRecord) -> dict[Format, list[tuple[GemmCase, GemmRun]]]:
    """Return the matrix products of each format."""
    found: dict[Format, list[tuple[GemmCase, GemmRun]]] = {}
    for case, run in products(record):
        found.setdefault(case.format, []).append((case, run))
    return found


def speed(run: GemmRun) -> str:
    """Format FLOP/s, or bytes a second if nothing is computed, with a unit.

    >>> speed(GemmRun(GemmCase(1000, 1000, 1000), 0.01, 0.01, 0.01, 1, 0.0))
    '200 GFLOP/s'
    """
    if not run.case.flops:
        return f"{run.gbps:.3g} GB/s"
    return f"{run.tflops:.3g} TFLOP/s" if run.tflops >= 1 else f"{1000 * run.tflops:.3g} GFLOP/s"


def sweep_sentence(record: GemmRecord | None) -> str:
    """Return what a sweep shows; None is answered with NOT_RECORDED.

    >>> sweep_sentence(None)
    'not recorded yet: `make gpu` on a machine with a GPU records it'
    """
    if record is None:
        return NOT_RECORDED
    if not record.runs:
        return f"Nothing of this sweep could be timed on {record.device}."
    return f"On {record.device}, {SENTENCES.get(record.sweep, _say_extremes)(record)}."


def _say_size(record: GemmRecord) -> str:
    """Compare the formats at the largest size that FP32 was timed at."""
    found = products(record)
    size = max((case.m for case, _ in found if case.format.name == "FP32"), default=0)
    same = {case.format.name: run for case, run in found if case.m == size}
    if "FP32" not in same:
        return _say_extremes(record)
    base = same.pop("FP32")
    ratios = ", ".join(
        f"{name} {two_digits(base.seconds / run.seconds)} times as fast"
        for name, run in same.items()
    )
    return f"a product of {size} x {size} x {size} in FP32 runs at {speed(base)}; {ratios}"


def _say_alignment(record: GemmRecord) -> str:
    """Compare, for each format, sizes that are not a multiple of 8 with those that are."""
    parts = []
    for format, own in by_format(record).items():
        aligned = [run.tflops for case, run in own if case.k % 8 == 0 and case.n % 8 == 0]
        others = [run.tflops for case, run in own if case.k % 8 or case.n % 8]
        if aligned and others:
            parts.append(f"{format.name} at {median(others) / median(aligned):.0%}")
    return (
        f"sizes that are no multiple of 8 run, in the middle, {', '.join(parts)} of the speed "
        "of those that are"
    )


def _say_batch(record: GemmRecord) -> str:
    """Compare the smallest batch with the largest: what a row costs alone, and among many."""
    parts = []
    few, many = (find(case.m for case, _ in products(record)) for find in (min, max))
    for format, own in by_format(record).items():
        taken = {case.m: run.seconds for case, run in own}
        if few in taken and many in taken:
            parts.append(f"{two_digits(taken[many] / taken[few])} in {format.name}")
    rows = "row takes" if few == 1 else "rows take"
    return f"{many} rows take so many times as long as {few} {rows}: {', '.join(parts)}"


def _say_bandwidth(record: GemmRecord) -> str:
    """Compare copies by format, and the fused activation with the one by hand."""
    seconds = {
        (run.case.op, run.case.format.name): run.seconds
        for run in record.runs
        if isinstance(run.case, ElementwiseCase)
    }
    gains = {
        name: seconds["copy", "FP32"] / taken
        for (op, name), taken in seconds.items()
        if op == "copy"
    }
    parts = [
        f"{name} copies {two_digits(gain)} times as fast as FP32"
        for name, gain in gains.items()
        if name != "FP32"
    ]
    for (op, name), taken in seconds.items():
        if op == "hardswish" and ("hardswish by hand", name) in seconds:
            ratio = seconds["hardswish by hand", name] / taken
            parts.append(
                f"in {name} one kernel is {two_digits(ratio)} times as fast as the same "
                "by hand in four"
            )
    return "; ".join(parts) or _say_extremes(record)


def _say_kernel(record: GemmRecord) -> str:
    """Compare our best tile with torch at each size."""
    parts = []
    for size in dict.fromkeys(case.m for case, _ in products(record)):
        same = [(case.kernel, run) for case, run in products(record) if case.m == size]
        torch_s = [run for kernel, run in same if not kernel]
        ours = sorted(((run.seconds, kernel) for kernel, run in same if kernel))
        if torch_s and ours:
            parts.append(
                f"{torch_s[0].seconds / ours[0][0]:.0%} of cuBLAS at {size} (tiles {ours[0][1]})"
            )
    return f"our own kernel reaches {', '.join(parts)}" if parts else _say_extremes(record)


def _say_extremes(record: GemmRecord) -> str:
    ranked = sorted(record.runs, key=lambda run: run.tflops)
    last = ranked[0]
    first = ranked[-1]
    return (
        f"the fastest is {first.case.label} with {speed(first)}, the slowest "
        f"{last.case.label} with {speed(last)}"
    )


SENTENCES: dict[str, Callable[[GemmRecord], str]] = {
    "size": _say_size,
    "ceilings": _say_size,
    "alignment": _say_alignment,
    "batch": _say_batch,
    "bandwidth": _say_bandwidth,
    "kernel": _say_kernel,
}


@on_any_page
def sweep_figure(sweep: str, here: GemmRecord | None = None, card: str = CARD) -> Figure:
    """Draw a sweep as recorded on a GPU, and beside it `here`, or else the one recorded on a CPU.

    Where no GPU is on record, what others published of a card is shown there, with a mark of its
    own.

    Args:
        sweep: its name: see `labkit.gemm.sweeps`.
        here: what `labkit.bench.measure(sweep)` returned on this machine.
        card: whose published numbers are shown, one of `labkit.bench.cards()`.

    Raises:
        ValueError: `here` is another sweep, or the card does not exist.
    """
    if here is not None and here.sweep != sweep:
        raise ValueError(
            f"this is a picture of the sweep {sweep!r}; `here` is of {here.sweep!r}. "
            f"Measure {sweep!r}."
        )
    right = here or next(iter(recorded_gemm(sweep, "cpu")), None)
    shown = [next(iter(recorded_gemm(sweep, "cuda")), None), right]
    is_here = [False, here is not None]
    bars = (
        0 if sweep in DRAWINGS else max((len(record.runs) for record in shown if record), default=0)
    )
    figure, panels = _two_panels(height=max(4.4, 1.6 + 0.15 * bars))
    words = [] if shown[0] else [draw_published(panels[0], sweep, card)]
    for axes, record, measured in zip(panels, shown, is_here, strict=True):
        if axes is panels[0] and any(words):
            continue
        if record is None or not record.runs:
            _say_nothing(axes, record)
            continue
        DRAWINGS.get(sweep, _bars)(axes, record)
        axes.set_title(fill(made_where(record, here=measured), 44), fontsize=9, loc="left")
    words += [sweep_sentence(record) for record in shown if record is not None]
    return _finished(
        figure, [said for said in words if said] or [f"The sweep {sweep!r} was {NOT_RECORDED}."]
    )


@on_any_page
def roofline_figure(
    sweeps: Sequence[str] = ("size", "layers"), here: Sequence[GemmRecord] = (), card: str = CARD
) -> Figure:
    """Draw the measured ceilings of a GPU and of a CPU, and where cases lie below them.

    Where no GPU is on record, the ceilings are those of a card's data sheet, and the products
    published of it.

    Args:
        sweeps: whose cases are drawn as points.
        here: records of this machine, the sweep "ceilings" among them; without them, the CPU's are
            drawn as recorded.
        card: whose published numbers are shown, one of `labkit.bench.cards()`.

    Raises:
        ValueError: the card does not exist, or `here` holds no copies or no products, so there are
            no ceilings.
    """
    figure, panels = _two_panels()
    wanted = ("ceilings", *sweeps)
    gpu = _of_newest_device(wanted, "cuda")
    right = list(here) or _of_newest_device(wanted, "cpu")
    sentences = [] if gpu else [draw_published(panels[0], "roofline", card)]
    for axes, records, is_here in ((panels[0], gpu, False), (panels[1], right, bool(here))):
        if not records:
            if axes is not panels[0] or not any(sentences):
                _say_nothing(axes, None)
            continue
        runs = [run for record in records for run in record.runs]
        roof = roofline(runs)
        counted = [
            r
            for r in runs
            if not isinstance(r.case, ElementwiseCase) and r.case.format in roof.peaks
        ]
        _draw_roof(axes, roof, counted)
        axes.set_title(fill(made_where(records[0], here=is_here), 44), fontsize=9, loc="left")
        ridges = ", ".join(
            f"{format.name} {two_digits(roof.ridge(format))}" for format in roof.peaks
        )
        waiting = sum(roof.bound(run.case) == "bandwidth" for run in counted)
        sentences.append(
            f"{records[0].device} copies {two_digits(roof.bandwidth / 1e9)} GB/s; below "
            f"so many FLOP a byte a case waits for memory: {ridges}. So do {waiting} of "
            f"these {len(counted)} cases."
        )
    return _finished(
        figure, [said for said in sentences if said] or [f"A roofline was {NOT_RECORDED}."]
    )


def _of_newest_device(sweeps: Sequence[str], kind: str) -> list[GemmRecord]:
    """Return the records of several sweeps by the device whose ceilings were recorded last."""
    newest = recorded_gemm("ceilings", kind)[:1]
    return [
        r for s in sweeps for r in recorded_gemm(s, kind) if newest and r.device == newest[0].device
    ]


def _two_panels(height: float = 4.4) -> tuple[Figure, Sequence[Axes]]:
    figure = new_figure(11, height, layout="constrained")
    panels = figure.subplots(1, 2)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _finished(figure: Figure, sentences: Sequence[str]) -> Figure:
    figure.supxlabel("\n".join(fill(sentence, 135) for sentence in sentences), fontsize=9.5)
    return described(figure, *sentences)


def _say_nothing(axes: Axes, record: GemmRecord | None) -> None:
    """Fill a panel with the words that nothing was recorded."""
    axes.set_axis_off()
    words = NOT_RECORDED if record is None else sweep_sentence(record)
    axes.text(
        0.5,
        0.5,
        fill(words, 34),
        ha="center",
        va="center",
        fontsize=11,
        color=QUIET,
        transform=axes.transAxes,
    )
    axes.set_title("A GPU", fontsize=9, loc="left")


def _lines(
    axes: Axes, points: Mapping[Format, Sequence[tuple[float, float]]], **style: Any
) -> None:
    for format, each in points.items():
        xs, ys = zip(*sorted(each), strict=True)
        axes.plot(xs, ys, label=format.name, ms=4, lw=1.4, **{**STYLES[format.name], **style})


def _unit(runs: Sequence[GemmRun]) -> tuple[float, str]:
    """Return the factor from TFLOP/s to the most readable unit, and that unit."""
    return (1, "TFLOP/s") if max(run.tflops for run in runs) >= 1 else (1000, "GFLOP/s")


def _log_speed(axes: Axes, unit: str) -> None:
    logarithmic(axes, ylabel=unit)
    axes.legend(frameon=False, fontsize=8)


def _size(axes: Axes, record: GemmRecord) -> None:
    factor, unit = _unit(record.runs)
    speeds = {
        format: [(case.m, factor * run.tflops) for case, run in own]
        for format, own in by_format(record).items()
    }
    _lines(axes, speeds)
    _log_speed(axes, unit)
    axes.set(xlabel="m = n = k")


def _alignment(axes: Axes, record: GemmRecord) -> None:
    """Draw speed over k at a fixed n and over n at a fixed k, relative to the multiple of 8."""
    base = max(case.k for case, _ in products(record))
    for side, look in (("k", {}), ("n", {"ls": ":", "mfc": "none"})):
        points: dict[Format, list[tuple[float, float]]] = {}
        for format, runs in by_format(record).items():
            own = {(case.n, case.k): run.tflops for case, run in runs}
            if whole := own.get((base, base)):
                points[format] = [
                    (float(n if side == "n" else k), value / whole)
                    for (n, k), value in own.items()
                    if (k if side == "n" else n) == base
                ]
        _lines(axes, points, **look)
    handles, labels = axes.get_legend_handles_labels()
    half = len(handles) // 2
    axes.legend(handles[:half], labels[:half], frameon=False, fontsize=8)
    axes.set(
        xlabel=f"k (full) or n (hollow), the other sides {base}", ylabel=f"speed; at {base} it is 1"
    )
    axes.set_xticks(range(base - 7, base + 1))
    axes.set_ylim(bottom=0)


def _batch(axes: Axes, record: GemmRecord) -> None:
    _lines(
        axes,
        {
            f: [(case.m, 1000 * run.seconds) for case, run in own]
            for f, own in by_format(record).items()
        },
    )
    base = max(case.k for case, _ in products(record))
    axes.set(xlabel=f"rows of the batch m (n = k = {base})", ylabel="milliseconds")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)


def _bars(axes: Axes, record: GemmRecord) -> None:
    """Draw a bar for each case: FLOP/s, or bytes a second where bytes are the point."""
    runs = record.runs
    factor, unit = _unit(runs)
    if all(isinstance(run.case, ElementwiseCase) for run in runs):
        values = [run.gbps for run in runs]
        unit = "GB/s (of the bytes that must at least be moved)"
    else:
        values = [factor * run.tflops for run in runs]
    axes.barh(
        range(len(runs)), values, color=[STYLES[run.case.format.name]["color"] for run in runs]
    )
    for row, value in enumerate(values):
        axes.text(value, row, f" {value:.3g}", va="center", fontsize=7)
    axes.set_yticks(range(len(runs)), [fill(run.case.label, 46) for run in runs], fontsize=7)
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.margins(x=0.1)
    axes.set(xlabel=unit)


def _draw_roof(axes: Axes, roof: Roofline, counted: Sequence[GemmRun]) -> None:
    """Draw the ceilings, and the runs that multiply matrices in a format whose ceiling is known."""
    factor, unit = _unit(counted)
    xs = np.geomspace(0.25, 2 * max(intensity(run.case) for run in counted), 200)
    for format in roof.peaks:
        look = STYLES[format.name]
        heights = [factor * roof.ceiling(x, format) / 1e12 for x in xs]
        axes.plot(xs, heights, lw=1.2, label=format.name, color=look["color"], ls=look["ls"])
        own = [
            (intensity(run.case), factor * run.tflops)
            for run in counted
            if run.case.format == format
        ]
        axes.plot(*zip(*own, strict=True), look["marker"], color=look["color"], ms=4)
    _log_speed(axes, unit)
    axes.set(xlabel="arithmetic intensity, FLOP for each byte")


DRAWINGS = {"size": _size, "alignment": _alignment, "batch": _batch}
