"""Still pictures, for hosts where widgets do not run.

matplotlib draws once what the browser draws at every frame, with the same colours and hatching. It
is loaded when the first figure is made, so importing the widgets stays quick. A figure of a lesson
is SVG in a notebook: it has the colours of the theme and the width of the page. Where a host shows
only PNG, its colours are read on white and on black.

Invariant: a figure is built from `Figure` alone; no pyplot, no window, no global state.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

import numpy as np

from labkit.widgets.base.number_words import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart by people who see colours differently; each colour so dark
# that its contrast on white is 4.5. A figure is drawn in these. Its PNG has a white background; its
# SVG gets the colours of the page's theme (THEMED).
FATE_COLOURS = {
    "underflowed": "#C05400",
    "subnormal": "#7A7200",
    "normal": "#1878B0",
    "overflowed": "#B8458A",
}
FATE_HATCHES = {"underflowed": "////", "subnormal": "....", "normal": "", "overflowed": "xxxx"}
FORMAT_COLOURS = {
    "FP32": "#1A1A1A",
    "TF32": "#1A1A1A",
    "FP16": "#0072B2",
    "BF16": "#00805C",
    "E4M3": "#8F5F00",
    "E5M2": "#8F5F00",
}
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
INK = "#1F1F1F"
QUIET = "#595959"
STYLE: dict[Any, Any] = {
    **dict.fromkeys(
        (
            "text.color",
            "axes.labelcolor",
            "axes.edgecolor",
            "xtick.color",
            "ytick.color",
            "grid.color",
        ),
        INK,
    ),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
}
# colour of a figure -> colours of its SVG, in a light theme and in a dark one
THEMED = {
    INK: ("#1f1f1f", "#e6e6e6"),
    QUIET: ("#595959", "#b0b0b0"),
    FORMAT_COLOURS["FP32"]: ("#1a1a1a", "#f2f2f2"),
    FORMAT_COLOURS["FP16"]: ("#0072b2", "#4fa8dc"),
    FORMAT_COLOURS["BF16"]: ("#00805c", "#2fc299"),
    FORMAT_COLOURS["E4M3"]: ("#8f5f00", "#e69f00"),
    FATE_COLOURS["underflowed"]: ("#c05400", "#ff7a33"),
    FATE_COLOURS["subnormal"]: ("#7a7200", "#f0e442"),
    FATE_COLOURS["normal"]: ("#1878b0", "#56b4e9"),
    FATE_COLOURS["overflowed"]: ("#b8458a", "#d98bb5"),
}
# A figure grows at most by this factor: its smallest text then has 16 px on a wide page.
LARGEST = 1.45
THEMES = (
    "<style>.labkit-figure { color-scheme: light dark; max-width: 100%; } "
    '[data-jp-theme-light="true"] .labkit-figure, .vscode-light .labkit-figure '
    "{ color-scheme: light; } "
    '[data-jp-theme-light="false"] .labkit-figure, .vscode-dark .labkit-figure '
    "{ color-scheme: dark; }</style>"
)
# Width of FP32's line in points, so that it shows under a thin line that covers it.
BROAD = 5.0

P = ParamSpec("P")


def on_any_page(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Let a function draw without a background, in colours that suit a white and a black page."""

    @wraps(draw)
    def drawn(*args: P.args, **named: P.kwargs) -> Figure:
        import matplotlib as mpl

        with mpl.rc_context(STYLE):
            figure = draw(*args, **named)
        for axes in figure.axes:
            # ticks are made when the figure is shown
            axes.tick_params(which="both", colors=INK)
        return figure

    return drawn


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """Return an empty figure, `width` by `height` inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), **options)


def why_still(how: str, what: str = "This picture stands") -> str:
    """Return why something does not move, and how it would.

    `how` ends the sentence "Open the notebook in JupyterLab (`make lab`)".

    >>> why_still("to slide", what="This figure stands")[:74]
    'This figure stands still, because interactive widgets do not run here. Ope'
    """
    opened = f"Open the notebook in JupyterLab (`make lab`) {how}."
    return f"{what} still, because interactive widgets do not run here. {opened}"


def still(words: str, why: str, figure: Figure | None = None) -> dict[str, Any]:
    """Return what a host without widgets shows: text, why it does not move, and any picture."""
    text = {"text/plain": f"{words}\n{why}"}
    return text if figure is None else {**text, "image/png": png(figure)}


def as_page(content: dict[str, Any], *sentences: str) -> dict[str, Any]:
    """Return what a host without widgets shows below sentences, as text and as HTML."""
    words = "\n".join([*sentences, content["text/plain"]])
    notes = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    body = content.get("text/html", f"<pre>{escape(content['text/plain'])}</pre>")
    if "image/png" in content:
        body = _as_element(content["image/png"], content["text/plain"])
    return {"text/plain": words, "text/html": f'<div role="note">{notes}</div>{body}'}


def png(figure: Figure, dpi: int = 96) -> bytes:
    """Return a figure as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    file = io.BytesIO()
    # No colour is read on white and on black, so a PNG brings its own page.
    FigureCanvasAgg(figure).print_figure(file, format="png", dpi=dpi, facecolor="white")
    return file.getvalue()


def svg(figure: Figure, words: str) -> str:
    """Return a figure as SVG for a page, in the colours of its theme, with a text alternative."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file = io.StringIO()
    # the names inside of one picture are not those of another
    salt = hashlib.sha256(words.encode()).hexdigest()
    with mpl.rc_context({"svg.hashsalt": salt}):
        FigureCanvasSVG(figure).print_figure(
            file, format="svg", metadata={"Date": None}, bbox_inches=None
        )
    drawn = file.getvalue().partition("</metadata>")[2]
    drawn = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), drawn)
    for colour, (light, dark) in THEMED.items():
        drawn = re.sub(colour, f"light-dark({light}, {dark})", drawn, flags=re.IGNORECASE)
    width, height = (72 * inches for inches in figure.get_size_inches())
    size = (
        f'viewBox="0 0 {width:g} {height:g}" style="max-width: 100%; width: '
        f'{LARGEST * width:.0f}pt; height: auto"'
    )
    named = (
        f'role="img" aria-label="{escape(words, quote=True)}" '
        'xmlns:xlink="http://www.w3.org/1999/xlink"'
    )
    return (
        f'{THEMES}<div class="labkit-figure"><svg xmlns="http://www.w3.org/2000/svg" {named} '
        f"{size}>{drawn}</div>"
    )


def described(figure: Figure, *sentences: str) -> Figure:
    """Give a figure a text alternative: a notebook then shows it as an image with these words.

    IPython takes the figure's own HTML; that of matplotlib is only for windows in a browser.
    """
    figure._repr_html_ = partial(svg, figure, " ".join(sentences))  # type: ignore[method-assign]
    # for hosts that do not show HTML
    figure._repr_png_ = partial(png, figure)  # type: ignore[attr-defined]
    return figure


def _as_element(picture: bytes, words: str) -> str:
    """Return a PNG file as an element of a page, with a text alternative."""
    return (
        f'<img alt="{escape(words, quote=True)}" style="max-width:100%" src="{data_url(picture)}">'
    )


def data_url(picture: bytes) -> str:
    """Return a PNG file as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def captioned(
    figure: Figure, at: tuple[float, float], words: str, why: str, *, foot: float = 0.02
) -> Figure:
    """Write into a figure what it shows now, and at its foot why it does not move.

    The place is given in shares of the figure's size.
    """
    figure.text(*at, raised(wrapped(words, 118)), fontsize=9.5, va="top", color=INK)
    figure.text(at[0], foot, wrapped(why, 130), fontsize=8.5, color=QUIET)
    return figure


def panel(axes: Axes, title: str = "") -> None:
    """Style a panel as all are: two sides of a frame, quiet ticks, its title above on the left."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(which="both", labelsize=8.5, colors=QUIET)
    if title:
        axes.set_title(title, loc="left", fontsize=10, color=INK)


def power_ticks(axis: Callable[..., Any], exponents: range) -> None:
    """Mark powers of two on an axis of exponents.

    `axis` is `set_yticks` or `set_xticks` of its Axes.
    """
    axis(list(exponents), [raised(f"2^{e}") for e in exponents], fontsize=9)


def wrapped(text: str, width: int) -> str:
    """Return text in lines of at most `width` characters."""
    return "\n".join(textwrap.wrap(text, width))


def raised(text: str) -> str:
    """Return a power of two such as 2^-24 with a raised exponent, in Unicode.

    Formulas of matplotlib take ten times as long to draw.
    """
    return re.sub(r"\^(-?\d+)", lambda match: match[1].translate(RAISED), text)


@dataclass(frozen=True)
class Curve:
    """What happened at the first steps of a run, a value for each.

    A value that is not finite is a gap, and named.

    Attributes:
        origin: the step before the first value.
        crosses: steps that were skipped.
    """

    values: Sequence[float]
    colour: str
    name: str = ""
    dash: str = "-"
    width: float = 1.6
    origin: int = 0
    crosses: Sequence[int] = ()


@dataclass(frozen=True)
class Panel:
    """Curves over one axis of steps: of losses, of the log2 of scales, or of shares from 0 to 1.

    Attributes:
        window: of a scale: from where each step overflows, and below which it underflows.
    """

    title: str
    kind: str
    curves: Sequence[Curve]
    window: tuple[Iterable[float], Iterable[float]] | None = None


# of panels, in inches
HEIGHTS = {"loss": 2.6, "scale": 1.3, "share": 0.9}


def steps_figure(
    panels: Sequence[Panel],
    total: int,
    words: str,
    why: str,
    marks: Sequence[tuple[float, str]] = (),
) -> Figure:
    """Draw panels one below another, with a line at each mark, and `words` below them."""
    heights = [HEIGHTS[each.kind] for each in panels]
    size = sum(heights) + 0.4 * len(panels) + 1.5
    figure = new_figure(9, size)
    drawn = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    figure.subplots_adjust(
        left=0.09, right=0.92, top=1 - 0.35 / size, bottom=1.45 / size, hspace=0.45
    )
    for axes, each in zip(drawn, panels, strict=True):
        panel(axes, each.title)
        _draw_curves(axes, each)
        for at, label in marks:
            axes.axvline(at, color=QUIET, linewidth=0.8, linestyle="-" if label else ":")
    for at, label in marks:
        drawn[0].text(
            at,
            0.95,
            f" {raised(label)}",
            transform=drawn[0].get_xaxis_transform(),
            fontsize=8.5,
            va="top",
        )
    drawn[-1].set_xlim(0, total)
    drawn[-1].set_xlabel("step", fontsize=9, color=QUIET)
    return captioned(figure, (0.09, 0.95 / size), words, why, foot=0.1 / size)


def _draw_curves(axes: Axes, panel: Panel) -> None:
    above, below = (np.array([*edge], float) for edge in panel.window or ((), ()))
    if len(above):
        axes.fill_between(
            range(1, len(above) + 1),
            above,
            40,
            color=FATE_COLOURS["overflowed"],
            alpha=0.25,
            linewidth=0,
        )
        axes.fill_between(
            range(1, len(below) + 1),
            -8,
            below,
            color=FATE_COLOURS["underflowed"],
            alpha=0.2,
            linewidth=0,
        )
    for i, curve in enumerate(panel.curves):
        values = np.array(curve.values, float)
        steps = curve.origin + np.arange(1, len(values) + 1)
        finite = np.isfinite(values)
        style: dict[str, Any] = {
            "color": curve.colour,
            "linestyle": curve.dash,
            "linewidth": curve.width,
        }
        if panel.kind == "scale":
            axes.step(steps, values, where="mid", **style)
            axes.plot(
                curve.crosses,
                [values[at - curve.origin - 1] for at in curve.crosses],
                "x",
                color=INK,
            )
        # a measured number stays until it is measured again
        elif panel.kind == "share" and finite.any():
            at, shares = (
                np.append(all[finite], last)
                for all, last in ((steps, steps[-1]), (values, values[finite][-1]))
            )
            axes.step(at, shares, where="post", marker="o", markersize=3, **style)
        elif panel.kind == "loss" and finite.any():
            axes.plot(steps, np.where(finite & (values > 0), values, np.nan), **style)
            # two that end alike are read
            end = (steps[finite][-1], values[finite][-1])
            side = ("bottom", "top")[i % 2]
            words: dict[str, Any] = {
                "color": curve.colour,
                "weight": "bold",
                "fontsize": 9,
                "va": side,
            }
            axes.annotate(curve.name, end, (5, 0), textcoords="offset points", **words)
        if panel.kind == "loss" and not finite.all():
            bad = int(np.argmin(finite))
            said = f" {curve.name}: {short(values[bad])} from step {steps[bad]}"
            axes.text(
                steps[bad],
                0.05,
                said,
                transform=axes.get_xaxis_transform(),
                color=FATE_COLOURS["underflowed"],
            )
    if panel.kind == "loss":
        axes.set_yscale("log")
        for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            axis(lambda value, _: short(value))
    elif panel.kind == "scale":
        shown = [
            float(value)
            for values in (*(curve.values for curve in panel.curves), above)
            for value in values
        ]
        low = min([-0.5, *shown])
        high = max([14.5, *shown]) + 2
        axes.set_ylim(low, high)
        power_ticks(axes.set_yticks, range(8 * math.ceil(low / 8), math.ceil(high), 8))
    else:
        axes.set_ylim(-0.03, 1.05)
        axes.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])


class End(NamedTuple):
    """A curve's name, where it ends on the axis of values, and its colour."""

    name: str
    value: float
    colour: str


def name_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Write each curve's name beside its end, apart from the next; the axis is as it will be.

    One that ends in NaN or beyond the axis is named at its edge.
    """
    limits = axes.get_ylim()
    values = [
        min(max(end.value, limits[0]), limits[1]) if end.value == end.value else limits[0]
        for end in ends
    ]
    low, high, *places = (
        float(axes.transScale.transform((1, value))[1]) for value in (*limits, *values)
    )
    heights = spread([(place - low) / (high - low) for place in places], 0.06)
    for end, value, height in zip(ends, values, heights, strict=True):
        axes.annotate(
            end.name,
            (axes.get_xlim()[1], value),
            xytext=(1.03, height),
            textcoords="axes fraction",
            color=end.colour,
            fontsize=9,
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": end.colour,
                "linewidth": 0.7,
                "relpos": (0, 0.5),
            },
            annotation_clip=False,
        )


def spread(heights: list[float], apart: float) -> list[float]:
    """Move labels as little as needed so that they are `apart`, in the order of their heights.

    >>> spread([0.5, 0.5, 0.9], 0.1)
    [0.45, 0.55, 0.9]
    """
    order = np.argsort(heights, kind="stable")
    groups: list[list[float]] = []  # middle, how many
    for i in order:
        groups.append([heights[i], 1])
        while (
            len(groups) > 1
            and groups[-1][0] - groups[-2][0] < apart * (groups[-1][1] + groups[-2][1]) / 2
        ):
            (middle, n) = groups.pop()
            (other, m) = groups.pop()
            groups.append([(middle * n + other * m) / (n + m), n + m])
    placed = [middle + apart * (k - (n - 1) / 2) for middle, n in groups for k in range(int(n))]
    found = [0.0] * len(heights)
    for i, height in zip(order, placed, strict=True):
        found[i] = round(height, 9)
    return found
