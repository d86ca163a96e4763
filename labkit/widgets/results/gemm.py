"""Figures and sentences of timed matrix products: recorded on a GPU, beside those of this machine.

Each panel shows one record, and its title names the device. Both panels of a figure have their own
axis of speed: on a common axis the slower device would be a flat line. A sentence compares runs of
one device with one clock.

Invariant: only numbers that were measured on this machine are marked as such, and a missing record
is named as missing.
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
# Formats also differ by marker or line, never by colour alone.
STYLES: dict[str, dict[str, Any]] = {
    "FP64": {"color": QUIET, "marker": "D", "ls": ":"},
    "FP32": {"color": FORMAT_COLOURS["FP32"], "marker": "o", "ls": "-"},
    "TF32": {"color": FORMAT_COLOURS["FP32"], "marker": "v", "ls": "--"},
    "FP16": {"color": FORMAT_COLOURS["FP16"], "marker": "s", "ls": "-"},
    "BF16": {"color": FORMAT_COLOURS["BF16"], "marker": "^", "ls": (0, (5, 2))},
    "E4M3": {"color": FORMAT_COLOURS["E4M3"], "marker": "P", "ls": "-."},
}


def recorded_gemm(sweep: str, kind: str | None = None) -> list[GemmRecord]:
    """Return the records of a sweep that come with the lab, newest first.

    Args:
        sweep: the name of the sweep.
        kind: "cuda" or "cpu" for records of such devices only.

    >>> recorded_gemm("no such sweep")
    []
    """
    files = recorded_files(f"gemm/*/{sweep}.json").values()
    records = [from_json(file.read_text(encoding="utf-8")) for file in files]
    if kind is not None:
        records = [record for record in records if record.kind == kind]
    return sorted(records, key=lambda record: record.date, reverse=True)


def made_where(record: GemmRecord, *, here: bool = False) -> str:
    """Return the title of a record's picture: where and when it was made."""
    software = f"torch {record.versions['torch']}"
    if here:
        return f"Measured here: {record.device}, {software}"
    if "driver" in record.versions:
        software += f", driver {record.versions['driver']}"
    day = record.date[:10]
    return f"Recorded: {record.device}, {software}, {day}"


def products(record: GemmRecord) -> list[tuple[GemmCase, GemmRun]]:
    """Return the matrix products of a record, each case beside its run."""
    return [(run.case, run) for run in record.runs if isinstance(run.case, GemmCase)]


def by_format(record: GemmRecord) -> dict[Format, list[tuple[GemmCase, GemmRun]]]:
    """Return the matrix products of each format."""
    grouped: dict[Format, list[tuple[GemmCase, GemmRun]]] = {}
    for case, run in products(record):
        grouped.setdefault(case.format, []).append((case, run))
    return grouped


def speed(run: GemmRun) -> str:
    """Return the speed of a run with its unit: FLOP/s, or bytes per second of a case without FLOP.

    >>> speed(GemmRun(GemmCase(1000, 1000, 1000), 0.01, 0.01, 0.01, 1, 0.0))
    '200 GFLOP/s'
    """
    if not run.case.flops:
        return f"{run.gbps:.3g} GB/s"
    factor, unit = _unit([run])
    return f"{factor * run.tflops:.3g} {unit}"


def sweep_sentence(record: GemmRecord | None) -> str:
    """Return a sentence about the results of a sweep; NOT_RECORDED for None.

    >>> sweep_sentence(None)
    'not recorded yet: `make gpu` on a machine with a GPU records it'
    """
    if record is None:
        return NOT_RECORDED
    if not record.runs:
        return f"Nothing of this sweep could be timed on {record.device}."
    compare = SENTENCES.get(record.sweep, _say_extremes)
    return f"On {record.device}, {compare(record)}."


def _say_size(record: GemmRecord) -> str:
    """Compare the formats at the largest size that FP32 was timed at."""
    fp32_sizes = [case.m for case, _ in products(record) if case.format.name == "FP32"]
    if not fp32_sizes:
        return _say_extremes(record)
    size = max(fp32_sizes)
    runs = {case.format.name: run for case, run in products(record) if case.m == size}
    base = runs.pop("FP32")
    parts = [
        f"{name} {two_digits(base.seconds / run.seconds)} times as fast"
        for name, run in runs.items()
    ]
    text = f"a product of {size} x {size} x {size} in FP32 runs at {speed(base)}"
    return f"{text}; {', '.join(parts)}" if parts else text


def _say_alignment(record: GemmRecord) -> str:
    """Compare, for each format, sizes that are not a multiple of 8 with those that are."""
    parts = []
    for format, runs in by_format(record).items():
        aligned = [run.tflops for case, run in runs if case.k % 8 == 0 and case.n % 8 == 0]
        others = [run.tflops for case, run in runs if case.k % 8 or case.n % 8]
        if aligned and others:
            parts.append(f"{median(others) / median(aligned):.0%} ({format.name})")
    if not parts:
        return _say_extremes(record)
    return (
        f"sizes that are not multiples of 8 reach {', '.join(parts)} of the median speed of "
        "those that are"
    )


def _say_batch(record: GemmRecord) -> str:
    """Compare the times of the smallest batch and the largest."""
    batches = [case.m for case, _ in products(record)]
    if len(set(batches)) < 2:
        return _say_extremes(record)
    few = min(batches)
    many = max(batches)
    parts = []
    for format, runs in by_format(record).items():
        seconds = {case.m: run.seconds for case, run in runs}
        if few in seconds and many in seconds:
            parts.append(f"{two_digits(seconds[many] / seconds[few])} times ({format.name})")
    if not parts:
        return _say_extremes(record)
    rows = "row" if few == 1 else "rows"
    return f"{many} rows take {', '.join(parts)} as long as {few} {rows}"


def _say_bandwidth(record: GemmRecord) -> str:
    """Compare copies by format, and the fused activation with the one by hand."""
    seconds = {
        (run.case.op, run.case.format.name): run.seconds
        for run in record.runs
        if isinstance(run.case, ElementwiseCase)
    }
    parts = []
    for (op, name), copy_seconds in seconds.items():
        if op == "copy" and name != "FP32" and ("copy", "FP32") in seconds:
            ratio = seconds["copy", "FP32"] / copy_seconds
            parts.append(f"{name} copies {two_digits(ratio)} times as fast as FP32")
    for (op, name), fused_seconds in seconds.items():
        if op == "hardswish" and ("hardswish by hand", name) in seconds:
            ratio = seconds["hardswish by hand", name] / fused_seconds
            parts.append(
                f"in {name} one kernel is {two_digits(ratio)} times as fast as the same "
                "by hand in four"
            )
    if not parts:
        return _say_extremes(record)
    return "; ".join(parts)


def _say_kernel(record: GemmRecord) -> str:
    """Compare our kernel, with its fastest tiles, with torch at each size."""
    parts = []
    # A dict and not a set, to keep the order of the sizes.
    for size in dict.fromkeys(case.m for case, _ in products(record)):
        runs = [(case.kernel, run) for case, run in products(record) if case.m == size]
        # A case without the name of a kernel was run by torch.
        torch_runs = [run for kernel, run in runs if not kernel]
        our_times = [(run.seconds, kernel) for kernel, run in runs if kernel]
        if torch_runs and our_times:
            seconds, tiles = min(our_times)
            ratio = torch_runs[0].seconds / seconds
            parts.append(f"{ratio:.0%} of cuBLAS at {size} (tiles {tiles})")
    if not parts:
        return _say_extremes(record)
    return f"our own kernel reaches {', '.join(parts)}"


def _say_extremes(record: GemmRecord) -> str:
    """Return words that name the fastest and the slowest product, or elementwise case."""
    by_flops = sorted((run for _, run in products(record)), key=lambda run: run.tflops)
    if by_flops:
        slowest, fastest = by_flops[0], by_flops[-1]
        speeds = speed(fastest), speed(slowest)
    else:
        by_bytes = sorted(record.runs, key=lambda run: run.gbps)
        slowest, fastest = by_bytes[0], by_bytes[-1]
        speeds = f"{fastest.gbps:.3g} GB/s", f"{slowest.gbps:.3g} GB/s"
    return (
        f"the fastest is {fastest.case.label} with {speeds[0]}, the slowest "
        f"{slowest.case.label} with {speeds[1]}"
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
    """Draw a sweep as recorded on a GPU, and beside it as measured here or recorded on a CPU.

    Without a record of a GPU, its panel shows published numbers of a card, marked as such.

    Args:
        sweep: the name of the sweep, see `labkit.bench.sweeps`.
        here: the result of `labkit.bench.measure(sweep)` on this machine; without it, the newest
            record of a CPU is drawn.
        card: the card whose published numbers are shown, one of `labkit.bench.cards()`.

    Raises:
        ValueError: `here` is another sweep, or the card does not exist.
    """
    if here is not None and here.sweep != sweep:
        raise ValueError(
            f"this is a picture of the sweep {sweep!r}; `here` is of {here.sweep!r}. "
            f"Measure {sweep!r}."
        )
    gpu_record = _newest(sweep, "cuda")
    other_record = _newest(sweep, "cpu") if here is None else here
    records = [record for record in (gpu_record, other_record) if record is not None]
    height = 4.4
    if sweep not in DRAWINGS and records:
        # One bar for each run: the longest list needs room.
        bars = max(len(record.runs) for record in records)
        height = max(height, 1.6 + 0.15 * bars)
    figure, panels = _two_panels(height)

    sentences = []
    published = "" if gpu_record else draw_published(panels[0], sweep, card)
    if published:
        sentences.append(published)
    else:
        _draw_record(panels[0], sweep, gpu_record, "A GPU")
    _draw_record(panels[1], sweep, other_record, "A CPU", here=here is not None)
    sentences += [sweep_sentence(record) for record in records]
    if not sentences:
        sentences = [f"The sweep {sweep!r} was {NOT_RECORDED}."]
    return _finished(figure, sentences)


def _newest(sweep: str, kind: str) -> GemmRecord | None:
    """Return the newest record of a sweep on a kind of device; None without one."""
    records = recorded_gemm(sweep, kind)
    return records[0] if records else None


def _draw_record(
    axes: Axes, sweep: str, record: GemmRecord | None, device: str, *, here: bool = False
) -> None:
    """Draw a record into a panel, or say there that nothing was recorded or timed.

    Args:
        axes: The panel.
        sweep: The name of the sweep.
        record: The record; None without one.
        device: The title without a record.
        here: Whether the record was made on this machine just now.
    """
    if record is None:
        _say_nothing(axes, NOT_RECORDED, device)
        return
    title = made_where(record, here=here)
    if not record.runs:
        _say_nothing(axes, sweep_sentence(record), title)
        return
    draw = DRAWINGS.get(sweep, _bars)
    draw(axes, record)
    axes.set_title(fill(title, 44), fontsize=9, loc="left")


@on_any_page
def roofline_figure(
    sweeps: Sequence[str] = ("size", "layers"), here: Sequence[GemmRecord] = (), card: str = CARD
) -> Figure:
    """Draw the measured ceilings of a GPU and of a CPU, and the cases below them.

    Without a record of a GPU, its panel shows the ceilings of a card's data sheet and published
    products.

    Args:
        sweeps: the sweeps whose cases are drawn as points.
        here: records of this machine, including the sweep "ceilings"; without them, the records of
            a CPU are drawn.
        card: the card whose published numbers are shown, one of `labkit.bench.cards()`.

    Raises:
        ValueError: the card does not exist, or `here` lacks the copies or products that ceilings
            are computed from.
    """
    figure, panels = _two_panels()
    wanted = ("ceilings", *sweeps)
    gpu_records = _of_newest_device(wanted, "cuda")
    other_records = list(here) if here else _of_newest_device(wanted, "cpu")

    sentences = []
    published = "" if gpu_records else draw_published(panels[0], "roofline", card)
    if published:
        sentences.append(published)
    elif gpu_records:
        sentences.append(_draw_measured_roof(panels[0], gpu_records, here=False))
    else:
        _say_nothing(panels[0], NOT_RECORDED, "A GPU")
    if other_records:
        sentences.append(_draw_measured_roof(panels[1], other_records, here=bool(here)))
    else:
        _say_nothing(panels[1], NOT_RECORDED, "A CPU")
    if not sentences:
        sentences = [f"A roofline was {NOT_RECORDED}."]
    return _finished(figure, sentences)


def _draw_measured_roof(axes: Axes, records: Sequence[GemmRecord], *, here: bool) -> str:
    """Draw the ceilings and the cases of one device, and return a sentence about them."""
    runs = [run for record in records for run in record.runs]
    roof = roofline(runs)
    products_only = [run for run in runs if not isinstance(run.case, ElementwiseCase)]
    shown = [run for run in products_only if run.case.format in roof.peaks]
    _draw_roof(axes, roof, shown)
    axes.set_title(fill(made_where(records[0], here=here), 44), fontsize=9, loc="left")
    ridges = ", ".join(f"{format.name} {two_digits(roof.ridge(format))}" for format in roof.peaks)
    waiting = [run for run in shown if roof.bound(run.case) == "bandwidth"]
    return (
        f"{records[0].device} copies {two_digits(roof.bandwidth / 1e9)} GB/s. A case waits for "
        f"memory below these FLOP per byte: {ridges}. So do {len(waiting)} of these {len(shown)} "
        "cases."
    )


def _of_newest_device(sweeps: Sequence[str], kind: str) -> list[GemmRecord]:
    """Return the records of several sweeps on the device whose ceilings were recorded last."""
    newest = _newest("ceilings", kind)
    if newest is None:
        return []
    records = [record for sweep in sweeps for record in recorded_gemm(sweep, kind)]
    return [record for record in records if record.device == newest.device]


def _two_panels(height: float = 4.4) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure of a height in inches with two panels side by side."""
    figure = new_figure(11, height, layout="constrained")
    panels = figure.subplots(1, 2)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _finished(figure: Figure, sentences: Sequence[str]) -> Figure:
    """Write sentences below a figure, and describe it by them for screen readers."""
    figure.supxlabel("\n".join(fill(sentence, 135) for sentence in sentences), fontsize=9.5)
    return described(figure, *sentences)


def _say_nothing(axes: Axes, words: str, title: str) -> None:
    """Write into an empty panel why nothing is drawn there."""
    axes.set_axis_off()
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
    axes.set_title(fill(title, 44), fontsize=9, loc="left")


def _lines(
    axes: Axes, points: Mapping[Format, Sequence[tuple[float, float]]], **style: Any
) -> None:
    """Draw a line for each format; `style` overrides its usual style."""
    for format, format_points in points.items():
        xs, ys = zip(*sorted(format_points), strict=True)
        format_style = STYLES[format.name] | style
        axes.plot(xs, ys, label=format.name, ms=4, lw=1.4, **format_style)


def _unit(runs: Sequence[GemmRun]) -> tuple[float, str]:
    """Return the factor from TFLOP/s to the most readable unit, and that unit."""
    if max(run.tflops for run in runs) >= 1:
        return 1, "TFLOP/s"
    return 1000, "GFLOP/s"


def _log_speed(axes: Axes, unit: str) -> None:
    """Make both axes of a panel of speeds logarithmic, and add a legend."""
    logarithmic(axes, ylabel=unit)
    axes.legend(frameon=False, fontsize=8)


def _size(axes: Axes, record: GemmRecord) -> None:
    """Draw speed over the side of square products."""
    factor, unit = _unit(record.runs)
    speeds = {
        format: [(case.m, factor * run.tflops) for case, run in runs]
        for format, runs in by_format(record).items()
    }
    _lines(axes, speeds)
    _log_speed(axes, unit)
    axes.set(xlabel="m = n = k")


def _alignment(axes: Axes, record: GemmRecord) -> None:
    """Draw speed over k at a fixed n and over n at a fixed k, relative to the multiple of 8."""
    base = max(case.k for case, _ in products(record))
    over_k: dict[Format, list[tuple[float, float]]] = {}
    over_n: dict[Format, list[tuple[float, float]]] = {}
    for format, runs in by_format(record).items():
        speeds = {(case.n, case.k): run.tflops for case, run in runs}
        base_speed = speeds.get((base, base))
        if not base_speed:
            continue
        over_k[format] = [(k, value / base_speed) for (n, k), value in speeds.items() if n == base]
        over_n[format] = [(n, value / base_speed) for (n, k), value in speeds.items() if k == base]
    _lines(axes, over_k)
    _lines(axes, over_n, ls=":", mfc="none")
    # The second half of the lines repeats the formats of the first.
    handles, labels = axes.get_legend_handles_labels()
    half = len(handles) // 2
    axes.legend(handles[:half], labels[:half], frameon=False, fontsize=8)
    axes.set(
        xlabel=f"k (full) or n (hollow), the other sides {base}", ylabel=f"speed; at {base} it is 1"
    )
    axes.set_xticks(range(base - 7, base + 1))
    axes.set_ylim(bottom=0)


def _batch(axes: Axes, record: GemmRecord) -> None:
    """Draw time over the number of rows."""
    times = {
        format: [(case.m, 1000 * run.seconds) for case, run in runs]
        for format, runs in by_format(record).items()
    }
    _lines(axes, times)
    base = max(case.k for case, _ in products(record))
    axes.set(xlabel=f"rows of the batch m (n = k = {base})", ylabel="milliseconds")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)


def _bars(axes: Axes, record: GemmRecord) -> None:
    """Draw a bar for each case: FLOP/s, or bytes per second in a sweep of elementwise cases."""
    runs = record.runs
    factor, unit = _unit(runs)
    if all(isinstance(run.case, ElementwiseCase) for run in runs):
        values = [run.gbps for run in runs]
        unit = "GB/s (of the bytes that must at least be moved)"
    else:
        values = [factor * run.tflops for run in runs]
    colours = [STYLES[run.case.format.name]["color"] for run in runs]
    axes.barh(range(len(runs)), values, color=colours)
    for row, value in enumerate(values):
        axes.text(value, row, f" {value:.3g}", va="center", fontsize=7)
    axes.set_yticks(range(len(runs)), [fill(run.case.label, 46) for run in runs], fontsize=7)
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.margins(x=0.1)
    axes.set(xlabel=unit)


def _draw_roof(axes: Axes, roof: Roofline, runs: Sequence[GemmRun]) -> None:
    """Draw the ceilings, and matrix products in formats whose ceiling is known."""
    factor, unit = _unit(runs)
    xs = np.geomspace(0.25, 2 * max(intensity(run.case) for run in runs), 200)
    for format in roof.peaks:
        style = STYLES[format.name]
        heights = [factor * roof.ceiling(x, format) / 1e12 for x in xs]
        axes.plot(xs, heights, lw=1.2, label=format.name, color=style["color"], ls=style["ls"])
        in_format = [run for run in runs if run.case.format == format]
        intensities = [intensity(run.case) for run in in_format]
        speeds = [factor * run.tflops for run in in_format]
        axes.plot(intensities, speeds, style["marker"], color=style["color"], ms=4)
    _log_speed(axes, unit)
    axes.set(xlabel="arithmetic intensity, FLOP per byte")


DRAWINGS = {"size": _size, "alignment": _alignment, "batch": _batch}
