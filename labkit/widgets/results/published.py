"""Published gains on a GPU, drawn as hexagons, never as lines like measurements of our own.

If the lab has no record of a GPU, a panel shows what was published about a card that the reader
chooses, below the ceilings of its data sheet.

Invariant: a hexagon is a number with a source in data/published.csv; a dotted line is a promise of
a data sheet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.bench import Published, data_sheet, gains, published
from labkit.formats import FP16, FP32
from labkit.widgets.base.figures import (
    FORMAT_COLOURS,
    INK,
    QUIET,
    described,
    new_figure,
    on_any_page,
    wrapped,
)
from labkit.widgets.base.number_words import two_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CARD = "A100"
EIGHT_BITS = FORMAT_COLOURS["E4M3"]
COLOURS = {
    **FORMAT_COLOURS,
    "FP64": QUIET,
    "TF32": INK,
    "FP8": EIGHT_BITS,
    "MXFP8": EIGHT_BITS,
    "NVFP4": EIGHT_BITS,
}
# The hexagon of a published number, and the line of a data sheet's number.
MARK: dict[str, Any] = {"marker": "H", "mfc": "none", "ls": "none", "ms": 6, "mew": 1.2}
PROMISED: dict[str, Any] = {"ls": ":", "lw": 1.3}
# One benchmark ran the same four trainings on a card of each generation, from Volta (2017) to
# Blackwell (2024).
GENERATIONS = {
    "V100": "Volta",
    "Quadro RTX 8000": "Turing",
    "A100": "Ampere",
    "RTX 6000 Ada": "Ada",
    "GH200": "Hopper",
    "B200": "Blackwell",
}
TRAININGS = {
    "resnet50": ("ResNet-50", "o"),
    "bert_base_squad": ("BERT-base", "s"),
    "bert_large_squad": ("BERT-large", "D"),
    "gnmt": ("GNMT", "^"),
}
# A row without a side is the best result of products whose sides are in this range.
SWEPT = (1024, 10240)


def draw_published(axes: Axes, figure: str, card: str) -> str:
    """Draw the published numbers of a card, and return a sentence about them.

    Args:
        axes: the panel to draw into.
        figure: "roofline", or the name of a sweep.
        card: one of `labkit.bench.cards()`.

    Returns:
        The sentence; "" if nothing is published for this figure, and then nothing is drawn.

    Raises:
        ValueError: the card does not exist.
    """
    if figure not in DRAWINGS or not published(card=card):
        return ""
    draw = DRAWINGS[figure]
    sentence = draw(axes, card)
    axes.set_title(
        f"Published by others: {card}\n(sources and dates: data/published.csv)",
        fontsize=9,
        loc="left",
    )
    return sentence


@on_any_page
def gains_figure(card: str = CARD) -> Figure:
    """Draw the published speedups of FP16 on a card: products, training, inference.

    Raises:
        ValueError: the card does not exist; the message lists all cards.
    """
    groups = [
        (kind, reference, ratios)
        for kind in KINDS
        for reference, ratios in gains(kind, card).items()
    ]
    figure = new_figure(9, 1.6 + 0.55 * len(groups), layout="constrained")
    axes = figure.subplots()
    if not groups:
        words = f"For the {card}, no speed of FP16 relative to another format was published."
        axes.set_axis_off()
        axes.text(0.5, 0.5, words, ha="center", color=QUIET)
        return described(figure, words)
    axes.spines[["top", "right"]].set_visible(False)
    # Marks of a row are spread over seven heights, so that equal ratios do not cover each other.
    heights = np.linspace(-0.25, 0.25, 7)
    for row, (_, _, ratios) in enumerate(groups):
        spread = heights[np.arange(len(ratios)) % len(heights)]
        middle = median(ratios)
        axes.plot(ratios, row + spread, color=COLOURS["FP16"], **MARK)
        axes.plot([middle, middle], [row - 0.4, row + 0.4], color=COLOURS["FP32"], lw=2)
    _draw_promises(axes, card)
    axes.axvline(1, color=QUIET, lw=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    labels = [f"{KINDS[kind]}\nover {wide} ({len(ratios)})" for kind, wide, ratios in groups]
    axes.set_yticks(range(len(groups)), labels)
    axes.set_ylim(len(groups) - 0.4, -0.9)
    axes.set(xlabel="times as fast in FP16 (bar: the median)")
    axes.set_title(
        f"Published by others: {card}. A hexagon is one number with its source",
        fontsize=9,
        loc="left",
    )
    words = gains_sentence(card)
    figure.supxlabel(wrapped(words, 115), fontsize=9.5)
    return described(figure, words)


def _draw_promises(axes: Axes, card: str) -> None:
    """Draw a line at each speedup that a data sheet promises, with its name above the first row."""
    for name, promise in _promises(card).items():
        axes.axvline(promise, color=COLOURS[name], **PROMISED)
        text = f" data sheet, over {name}: {two_digits(promise)}"
        axes.text(promise, -0.6, text, fontsize=8, color=QUIET)


@on_any_page
def generations_figure() -> Figure:
    """Draw the speedups of four trainings in FP16, on a card of each generation since Volta.

    The reference is FP32 on the first two cards. Later cards have TF32, and the source does not say
    whether their FP32 runs used it; their marks are hollow.
    """
    figure = new_figure(9, 4.2, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    places = {card: place for place, card in enumerate(GENERATIONS)}
    ends: dict[str, tuple[float, float]] = {}
    for workload, (name, mark) in TRAININGS.items():
        rows = generation_rows(workload)
        ratios = [row.ratio for row in rows if row.ratio is not None]
        ends[name] = (ratios[0], ratios[-1])
        xs = [places[row.card] for row in rows]
        axes.plot(xs, ratios, color=COLOURS["FP16"], lw=0.8, ls=":")
        for x, row, ratio in zip(xs, rows, ratios, strict=True):
            face = COLOURS["FP16"] if row.reference == "FP32" else "none"
            axes.plot([x], [ratio], color=COLOURS["FP16"], marker=mark, mfc=face, ls="none", ms=7)
        axes.text(places["V100"] - 0.12, ratios[0], name, ha="right", va="center", fontsize=9)
    axes.axhline(1, color=QUIET, lw=0.8)
    axes.set_xlim(-1, len(places) - 0.6)
    axes.set_ylim(0.8, None)
    axes.set_xticks(range(len(places)), [f"{card}\n{name}" for card, name in GENERATIONS.items()])
    axes.set(ylabel="times as fast in FP16")
    axes.set_title(
        "Published by others: training in FP16. Filled: over FP32; hollow: over FP32 or TF32",
        fontsize=9,
        loc="left",
    )
    parts = [f"{name} {first:.2f} to {last:.2f}" for name, (first, last) in ends.items()]
    words = (
        "How many times as fast training is in FP16, from the V100 to the B200: "
        f"{', '.join(parts)}. The reference of the hollow marks may be TF32, which is "
        "itself faster than FP32."
    )
    figure.supxlabel(wrapped(words, 115), fontsize=9.5)
    return described(figure, words)


def generation_rows(workload: str) -> list[Published]:
    """Return the published trainings of a workload on the cards of `GENERATIONS`, in order."""
    # The benchmark behind `GENERATIONS` ran in NVIDIA's NGC containers.
    rows = {
        row.card: row
        for row in published("training")
        if row.workload == workload and "NGC" in row.software
    }
    return [rows[card] for card in GENERATIONS if card in rows]


def gains_sentence(card: str) -> str:
    """Return a sentence with the range and the median of the published gains of a card.

    Returns "" if nothing was published.

    >>> gains_sentence("RTX 4090")[:75]
    'On the RTX 4090 others measured FP16 in products 3.1 to 3.2 times (3.2 in t'
    """
    parts = [
        f"{name} {_range(ratios)} as fast as {wide}"
        for kind, name in KINDS.items()
        for wide, ratios in gains(kind, card).items()
    ]
    if not parts:
        return ""
    sentence = f"On the {card} others measured FP16 in {', '.join(parts)}."
    promised = [f"{two_digits(value)} over {name}" for name, value in _promises(card).items()]
    if promised:
        sentence += f" Its data sheet promises {' and '.join(promised)}."
    return sentence


def _range(ratios: Sequence[float]) -> str:
    """Return the range and the median of sorted ratios.

    >>> _range([1.0, 2.0, 4.0]), _range([1.5])
    ('1 to 4 times (2 in the middle)', '1.5 times')
    """
    if len(ratios) == 1:
        return f"{two_digits(ratios[0])} times"
    return (
        f"{two_digits(ratios[0])} to {two_digits(ratios[-1])} times "
        f"({two_digits(median(ratios))} in the middle)"
    )


def _promises(card: str) -> dict[str, float]:
    """Return the speedup that a data sheet promises for FP16 over FP32 and, if listed, TF32."""
    roof = data_sheet(card)
    if roof is None:
        return {}
    peaks = {format.name: peak for format, peak in roof.peaks.items()}
    return {name: peaks["FP16"] / peaks[name] for name in ("FP32", "TF32") if name in peaks}


def _by_format(rows: Sequence[Published]) -> dict[str, list[Published]]:
    """Group rows by format, in the order of `COLOURS`."""
    grouped: dict[str, list[Published]] = {}
    for row in rows:
        grouped.setdefault(row.format, []).append(row)
    return {name: grouped[name] for name in COLOURS if name in grouped}


def _mark(name: str) -> dict[str, Any]:
    """Return the mark of a format; the one of TF32 is half filled."""
    mark = {**MARK, "color": COLOURS[name]}
    if name == "TF32":
        mark.update(fillstyle="left", mfc=COLOURS[name], markerfacecoloralt="none")
    return mark


def logarithmic(axes: Axes, **labels: str) -> None:
    """Set logarithmic scales with plain numbers: base 2 for sizes or intensities, 10 for speeds."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(**labels)


def _speeds(axes: Axes, xlabel: str) -> None:
    """Make both axes of a panel of speeds logarithmic, and add a legend above the data."""
    from matplotlib.ticker import NullFormatter

    logarithmic(axes, xlabel=xlabel, ylabel="TFLOP/s")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    # A factor of 4 is room for the legend.
    _, top = axes.get_ylim()
    axes.set_ylim(top=4 * top)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper left", columnspacing=1.2)


def _size(axes: Axes, card: str) -> str:
    """Draw products by their side; those without a side, the best of several, as a line."""
    rows = published("product", card)
    if not rows:
        axes.set_axis_off()
        axes.text(0.5, 0.5, f"No product of the {card} was published", ha="center", color=QUIET)
        return f"For the {card}, no product was published; choose another card."
    smallest, largest = SWEPT
    geometric_middle = (smallest * largest) ** 0.5
    for name, format_rows in _by_format(rows).items():
        with_side = [row for row in format_rows if row.side]
        mark = _mark(name)
        sides = [row.side for row in with_side]
        axes.plot(sides, [row.value for row in with_side], label=name, **mark)
        for row in format_rows:
            if not row.side:
                axes.plot(SWEPT, [row.value, row.value], color=COLOURS[name], lw=0.8, ls="-")
                axes.plot([geometric_middle], [row.value], **mark)
    roof = data_sheet(card)
    if roof is not None:
        for format, peak in roof.peaks.items():
            axes.axhline(peak / 1e12, color=COLOURS[format.name], **PROMISED)
    _speeds(axes, "side of the product, (m n k)^(1/3); a line: the best of these sides")
    narrow = "FP16" if any(row.format == "FP16" for row in rows) else "BF16"
    best = max(row.value for row in rows if row.format == narrow)
    speed = f"{best:,.0f}" if best >= 100 else f"{best:.3g}"
    text = f"For the {card}, products in {narrow} were published with up to {speed} TFLOP/s"
    for wide, ratios in gains("product", card, narrow).items():
        if wide != "data sheet":
            text += f", {_range(ratios)} as fast as {wide} in the same source"
    return f"{text}."


def _roofline(axes: Axes, card: str) -> str:
    """Draw a data sheet's ceilings, and the published products under them."""
    roof = data_sheet(card)
    rows = [row for row in published("product", card) if row.side]
    if roof is None:
        axes.set_axis_off()
        axes.text(0.5, 0.5, f"No bandwidth is on file for the {card}", ha="center", color=QUIET)
        return (
            f"For the {card}, no bandwidth is on file, so its roofline cannot be drawn; choose "
            "another card."
        )
    for name, format_rows in _by_format(rows).items():
        intensities = [row.intensity for row in format_rows]
        axes.plot(intensities, [row.value for row in format_rows], **_mark(name))
    largest = max([row.intensity for row in rows], default=2 * roof.ridge(FP16))
    xs = np.geomspace(0.25, 2 * largest, 200)
    for format in roof.peaks:
        heights = [roof.ceiling(x, format) / 1e12 for x in xs]
        axes.plot(
            xs, heights, color=COLOURS[format.name], label=f"{format.name}, data sheet", **PROMISED
        )
    _speeds(axes, "arithmetic intensity, FLOP per byte")
    return (
        f"By its data sheet the {card} moves {roof.bandwidth / 1e9:,.0f} GB/s, so its "
        f"ridge is at {two_digits(roof.ridge(FP32))} FLOP per byte in FP32 and at "
        f"{two_digits(roof.ridge(FP16))} in FP16."
    )


def _bandwidth(axes: Axes, card: str) -> str:
    """Draw every card's bandwidth by data sheet, the chosen one filled."""
    rows = sorted(
        (row for row in published("data sheet") if row.format == "memory"),
        key=lambda row: row.value,
    )
    for place, row in enumerate(rows):
        axes.plot([0, row.value], [place, place], color=QUIET, **PROMISED)
        mark = dict(MARK)
        if row.card == card:
            mark["mfc"] = COLOURS["FP16"]
        axes.plot([row.value], [place], color=COLOURS["FP16"], **mark)
        axes.text(row.value, place, f"   {row.value:,.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row.card for row in rows])
    axes.margins(x=0.15)
    axes.set(xlabel="GB/s by data sheet", xlim=(0, None))
    bandwidths = {row.card: row.value for row in rows}
    if card not in bandwidths:
        return f"For the {card}, no bandwidth is on file."
    bandwidth = bandwidths[card]
    return (
        f"The {card} moves {bandwidth:,.0f} GB a second by its data sheet: {bandwidth / 4:,.0f} "
        f"thousand million numbers in FP32, {bandwidth / 2:,.0f} in FP16, twice as many."
    )


def _alignment(axes: Axes, card: str) -> str:
    """Draw the gains of aligned sizes on all cards for which they were published."""
    rows = [row for row in published("alignment") if row.ratio and row.ratio > 1]
    ratios = [row.ratio for row in rows if row.ratio]
    for place, (row, ratio) in enumerate(zip(rows, ratios, strict=True)):
        axes.plot([ratio], [place], color=COLOURS[row.format], **MARK)
    labels = [wrapped(f"{row.card}, {row.format}: {row.workload}", 40) for row in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=6.5)
    axes.axvline(1, color=QUIET, lw=0.8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(xlabel="times as fast as the size that is not a multiple")
    sentence = (
        f"Sizes rounded to a multiple of 8 or 64 were published to be {min(ratios):.2f} to "
        f"{max(ratios):.2f} times as fast"
    )
    if card not in [row.card for row in rows]:
        sentence += f" (none of them on a {card})"
    return f"{sentence}."


KINDS = {"product": "products", "training": "training", "inference": "inference"}
DRAWINGS: dict[str, Callable[[Axes, str], str]] = {
    "size": _size,
    "roofline": _roofline,
    "bandwidth": _bandwidth,
    "alignment": _alignment,
}
