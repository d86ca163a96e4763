"""Published gains on a GPU, drawn as hexagons, never as lines like measurements of our own.

Idea: where the lab has no record of a GPU, a panel shows what was published of a card, under the
ceilings of its data sheet. The card is the reader's choice.

Invariant: a hexagon is a number with a source in data/published.csv; a dotted line is a data
sheet's promise.
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
SWEPT = (1024, 10240)  # the sides of which a row that gives none took the best


def draw_published(axes: Axes, figure: str, card: str) -> str:
    """Draw what is published for a figure ("roofline", or a sweep) of a card; return its text.

    Returns "", and draws nothing, where nothing is published for this figure.

    Raises:
        ValueError: the card does not exist.
    """
    if figure not in DRAWINGS or not published(card=card):
        return ""
    sentence = DRAWINGS[figure](axes, card)
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
    told = [
        (kind, reference, ratios)
        for kind in KINDS
        for reference, ratios in gains(kind, card).items()
    ]
    shown = new_figure(9, 1.6 + 0.55 * len(told), layout="constrained")
    axes = shown.subplots()
    if not told:
        words = f"Of the {card} no speed of FP16 beside another format was published."
        axes.set_axis_off()
        axes.text(0.5, 0.5, words, ha="center", color=QUIET)
        return described(shown, words)
    axes.spines[["top", "right"]].set_visible(False)
    for row, (_, _, ratios) in enumerate(told):
        spread = np.linspace(-0.25, 0.25, 7)[np.arange(len(ratios)) % 7]
        axes.plot(ratios, row + spread, color=COLOURS["FP16"], **MARK)
        axes.plot([median(ratios)] * 2, [row - 0.4, row + 0.4], color=COLOURS["FP32"], lw=2)
    for name, promise in _promises(card).items():
        axes.axvline(promise, color=COLOURS[name], **PROMISED)
        axes.text(
            promise,
            -0.6,
            f" data sheet, over {name}: {two_digits(promise)}",
            fontsize=8,
            color=QUIET,
        )
    axes.axvline(1, color=QUIET, lw=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(
        range(len(told)),
        [f"{KINDS[kind]}\nover {wide} ({len(ratios)})" for kind, wide, ratios in told],
    )
    axes.set_ylim(len(told) - 0.4, -0.9)
    axes.set(xlabel="times as fast in FP16 (bar: the middle one)")
    axes.set_title(
        f"Published by others: {card}. A hexagon is one number with its source",
        fontsize=9,
        loc="left",
    )
    words = gains_sentence(card)
    shown.supxlabel(wrapped(words, 115), fontsize=9.5)
    return described(shown, words)


@on_any_page
def generations_figure() -> Figure:
    """Draw the speedups of four trainings in FP16, on a card of each generation since Volta.

    The reference is FP32 on the first two. Later cards have TF32, and the source does not say
    whether their FP32 runs used it; these marks are hollow.
    """
    shown = new_figure(9, 4.2, layout="constrained")
    axes = shown.subplots()
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
    shown.supxlabel(wrapped(words, 115), fontsize=9.5)
    return described(shown, words)


def generation_rows(workload: str) -> list[Published]:
    """Return the published trainings of a workload on the cards of `GENERATIONS`, in order."""
    rows = {
        row.card: row
        for row in published("training")
        if row.workload == workload and row.card in GENERATIONS and "NGC" in row.software
    }
    return [rows[card] for card in GENERATIONS if card in rows]


def gains_sentence(card: str) -> str:
    """Return the range and the middle of what was published of a card, in one sentence.

    >>> gains_sentence("RTX 4090")[:75]
    'On the RTX 4090 others measured FP16 in products 3.1 to 3.2 times (3.2 in t'
    """
    found = [
        (name, wide, ratios)
        for kind, name in KINDS.items()
        for wide, ratios in gains(kind, card).items()
    ]
    parts = [f"{name} {_range(ratios)} as fast as {wide}" for name, wide, ratios in found]
    promised = [f"{two_digits(value)} over {name}" for name, value in _promises(card).items()]
    sheet = f". Its data sheet promises {' and '.join(promised)}" if promised else ""
    return f"On the {card} others measured FP16 in {', '.join(parts)}{sheet}." if parts else ""


def _range(ratios: Sequence[float]) -> str:
    """Return sorted ratios as "0.97 to 5.8 times (2.9 in the middle)", a single one as "1.5 times".

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
    found: dict[str, list[Published]] = {}
    for row in rows:
        found.setdefault(row.format, []).append(row)
    return dict(sorted(found.items(), key=lambda each: list(COLOURS).index(each[0])))


def _mark(name: str) -> dict[str, Any]:
    """Return the mark of a format; TF32 has FP32's colour, so its hexagon is half filled."""
    half = (
        {"fillstyle": "left", "mfc": COLOURS[name], "markerfacecoloralt": "none"}
        if name == "TF32"
        else {}
    )
    return {**MARK, "color": COLOURS[name], **half}


def logarithmic(axes: Axes, **labels: str) -> None:
    """Give speeds over sizes or intensities their scales, with plain numbers."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(**labels)


def _speeds(axes: Axes, xlabel: str) -> None:
    from matplotlib.ticker import NullFormatter

    logarithmic(axes, xlabel=xlabel, ylabel="TFLOP/s")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(top=4 * axes.get_ylim()[1])  # a band for the legend
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper left", columnspacing=1.2)


def _size(axes: Axes, card: str) -> str:
    """Draw products by their side; one without a side, the best of several, over all of them."""
    rows = published("product", card)
    if not rows:
        axes.set_axis_off()
        axes.text(0.5, 0.5, f"No product of the {card} was published", ha="center", color=QUIET)
        return f"Of the {card} no product was published; choose another card."
    for name, own in _by_format(rows).items():
        sided = [row for row in own if row.side]
        mark = _mark(name)
        axes.plot([r.side for r in sided], [r.value for r in sided], label=name, **mark)
        for row in own:
            if not row.side:
                axes.plot(SWEPT, [row.value] * 2, color=COLOURS[name], lw=0.8, ls="-")
                axes.plot([(SWEPT[0] * SWEPT[1]) ** 0.5], [row.value], **mark)
    roof = data_sheet(card)
    for format, peak in roof.peaks.items() if roof else ():
        axes.axhline(peak / 1e12, color=COLOURS[format.name], **PROMISED)
    _speeds(axes, "side of the product, (m n k)^(1/3); a line: the best of these sides")
    narrow = "FP16" if any(row.format == "FP16" for row in rows) else "BF16"
    best = max(row.value for row in rows if row.format == narrow)
    speed = f"{best:,.0f}" if best >= 100 else f"{best:.3g}"
    parts = [
        f", {_range(ratios)} as fast as {wide} in the same source"
        for wide, ratios in gains("product", card, narrow).items()
        if wide != "data sheet"
    ]
    return (
        f"Of the {card} products in {narrow} were published with up to {speed} TFLOP/s"
        f"{';'.join(parts)}."
    )


def _roofline(axes: Axes, card: str) -> str:
    """Draw a data sheet's ceilings, and the published products under them."""
    roof = data_sheet(card)
    rows = [row for row in published("product", card) if row.side]
    if roof is None:
        axes.set_axis_off()
        axes.text(0.5, 0.5, f"No bandwidth is on file for the {card}", ha="center", color=QUIET)
        return (
            f"Of the {card} no bandwidth is on file, so its roofline cannot be drawn; choose "
            "another card."
        )
    for name, own in _by_format(rows).items():
        axes.plot([row.intensity for row in own], [row.value for row in own], **_mark(name))
    furthest = max([row.intensity for row in rows], default=2 * roof.ridge(FP16))
    xs = np.geomspace(0.25, 2 * furthest, 200)
    for format in roof.peaks:
        heights = [roof.ceiling(x, format) / 1e12 for x in xs]
        axes.plot(
            xs, heights, color=COLOURS[format.name], label=f"{format.name}, data sheet", **PROMISED
        )
    _speeds(axes, "arithmetic intensity, FLOP for each byte")
    return (
        f"By its data sheet the {card} moves {roof.bandwidth / 1e9:,.0f} GB/s, so its "
        f"ridge is at {two_digits(roof.ridge(FP32))} FLOP a byte in FP32 and at "
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
        face = {"mfc": COLOURS["FP16"]} if row.card == card else {}
        axes.plot([row.value], [place], color=COLOURS["FP16"], **{**MARK, **face})
        axes.text(row.value, place, f"   {row.value:,.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row.card for row in rows])
    axes.margins(x=0.15)
    axes.set(xlabel="GB/s by data sheet", xlim=(0, None))
    own = next((row.value for row in rows if row.card == card), None)
    if own is None:
        return f"Of the {card} no bandwidth is on file."
    numbers = (
        f"{own / 4:,.0f} thousand million numbers in FP32, {own / 2:,.0f} in FP16, twice as many"
    )
    return f"The {card} moves {own:,.0f} GB a second by its data sheet: {numbers}."


def _alignment(axes: Axes, card: str) -> str:
    """Draw what aligned sizes gained, on whichever card that was published.

    The others have no such row.
    """
    rows = [row for row in published("alignment") if row.ratio and row.ratio > 1]
    ratios = [row.ratio for row in rows if row.ratio]
    for place, (row, ratio) in enumerate(zip(rows, ratios, strict=True)):
        axes.plot([ratio], [place], color=COLOURS[row.format], **MARK)
    labels = [wrapped(f"{row.card}, {row.format}: {row.workload}", 40) for row in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=6.5)
    axes.axvline(1, color=QUIET, lw=0.8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(xlabel="times as fast as the size that is no multiple")
    elsewhere = "" if any(row.card == card for row in rows) else f" (none of them on a {card})"
    gained = f"{min(ratios):.2f} to {max(ratios):.2f} times as fast"
    return f"Sizes rounded to a multiple of 8 or 64 were published to be {gained}{elsewhere}."


KINDS = {"product": "products", "training": "training", "inference": "inference"}
DRAWINGS: dict[str, Callable[[Axes, str], str]] = {
    "size": _size,
    "roofline": _roofline,
    "bandwidth": _bandwidth,
    "alignment": _alignment,
}
