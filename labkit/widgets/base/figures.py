"""Still pictures, for hosts where widgets do not run.

matplotlib draws once what the browser draws at every frame, with the same colours and hatching. It
is loaded when the first figure is made, so that importing the widgets stays quick. A figure of a
lesson is SVG in a notebook, in the colours of the theme and as wide as the page allows. A host that
does not show HTML gets a PNG on a white background.

Invariant: a figure is built from `Figure` alone, without pyplot, windows or global state.
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
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

import numpy as np

from labkit.records.templates import markup
from labkit.widgets.base.number_words import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    FloatArray = np.ndarray[Any, np.dtype[np.float64]]

# Okabe and Ito's palette, whose colours colour-blind people can tell apart, darkened to a contrast
# of 4.5 on white. Figures are drawn in these colours; in SVG they become those of the page's theme
# (THEMED).
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
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
# Colour of a figure -> colours of its SVG, in a light theme and in a dark one. The first is the
# colour itself, and no second one is a key: `svg` replaces one after the other.
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
# A figure grows at most by this factor, which gives its smallest text 16 px on a wide page.
LARGEST = 1.45
THEMES = (
    "<style>.labkit-figure { color-scheme: light dark; max-width: 100%; } "
    '[data-jp-theme-light="true"] .labkit-figure, .vscode-light .labkit-figure '
    "{ color-scheme: light; } "
    '[data-jp-theme-light="false"] .labkit-figure, .vscode-dark .labkit-figure '
    "{ color-scheme: dark; }</style>"
)
# Width of FP32's line in points, which shows beneath a thin line that covers it.
BROAD = 5.0

P = ParamSpec("P")


def on_any_page(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Make a function draw without a background, in the colours that `svg` replaces.

    Args:
        draw: A function that returns a figure.
    """

    @wraps(draw)
    def drawn(*args: P.args, **named: P.kwargs) -> Figure:
        import matplotlib as mpl

        with mpl.rc_context(STYLE):
            figure = draw(*args, **named)
        for axes in figure.axes:
            # Ticks are made when the figure is shown, after the style has been reset.
            axes.tick_params(which="both", colors=INK)
        return figure

    return drawn


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """Return an empty figure, `width` by `height` inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), **options)


def why_still(how: str, what: str = "This picture stands") -> str:
    """Return why something does not move, and how it would.

    Args:
        how: The end of the sentence "Open the notebook in JupyterLab (`make lab`) ...".
        what: The beginning of the sentence "... still, because ...".

    >>> why_still("to slide", what="This figure stands")[:74]
    'This figure stands still, because interactive widgets do not run here. Ope'
    """
    remedy = f"Open the notebook in JupyterLab (`make lab`) {how}."
    return f"{what} still, because interactive widgets do not run here. {remedy}"


def still(text: str, why: str, figure: Figure | None = None) -> dict[str, Any]:
    """Return what a host without widgets shows, as MIME type -> content.

    Args:
        text: What the picture shows.
        why: Why it does not move, as `why_still` returns it.
        figure: The picture, if there is one.
    """
    content: dict[str, Any] = {"text/plain": f"{text}\n{why}"}
    if figure is not None:
        content["image/png"] = png(figure)
    return content


def as_page(content: dict[str, Any], *sentences: str) -> dict[str, Any]:
    """Return sentences with content below them, as text and as HTML.

    Args:
        content: MIME type -> content, as `still` returns it. Its picture comes before its HTML, and
            its HTML before its text.
        *sentences: Paragraphs above it.
    """
    text = content["text/plain"]
    notes = markup("").join(markup("<p>{}</p>").format(sentence) for sentence in sentences)
    if "image/png" in content:
        body = markup('<img alt="{}" style="max-width:100%" src="{}">').format(
            text, data_url(content["image/png"])
        )
    elif "text/html" in content:
        body = markup(content["text/html"])
    else:
        body = markup("<pre>{}</pre>").format(text)
    html = markup('<div role="note">{}</div>{}').format(notes, body)
    return {"text/plain": "\n".join([*sentences, text]), "text/html": str(html)}


def png(figure: Figure, dpi: int = 96) -> bytes:
    """Return a figure as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    file = io.BytesIO()
    # No colour is readable on white and on black, so a PNG has a background.
    FigureCanvasAgg(figure).print_figure(file, format="png", dpi=dpi, facecolor="white")
    return file.getvalue()


def svg(figure: Figure, text: str) -> str:
    """Return a figure as SVG for a page, in the colours of its theme.

    Args:
        figure: A figure in the colours of this module.
        text: The text alternative.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file = io.StringIO()
    # matplotlib derives ids from the salt; within a page they must differ between pictures.
    salt = hashlib.sha256(text.encode()).hexdigest()
    with mpl.rc_context({"svg.hashsalt": salt}):
        FigureCanvasSVG(figure).print_figure(
            file, format="svg", metadata={"Date": None}, bbox_inches=None
        )
    # The drawing and the end of the <svg> element follow the metadata; the element starts below.
    drawing = file.getvalue().partition("</metadata>")[2]
    # Two decimals of a point are enough for a path, and shorten the file.
    drawing = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), drawing)
    for colour, (light, dark) in THEMED.items():
        drawing = re.sub(colour, f"light-dark({light}, {dark})", drawing, flags=re.IGNORECASE)
    width, height = (72 * inches for inches in figure.get_size_inches())
    element = markup(
        '{}<div class="labkit-figure"><svg xmlns="http://www.w3.org/2000/svg" role="img" '
        'aria-label="{}" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {:g} {:g}" '
        'style="max-width: 100%; width: {:.0f}pt; height: auto">{}</div>'
    ).format(markup(THEMES), text, width, height, LARGEST * width, markup(drawing))
    return str(element)


def described(figure: Figure, *sentences: str) -> Figure:
    """Give a figure a text alternative: a notebook then shows it as an image with this text.

    IPython takes the figure's own HTML; that of matplotlib is only for windows in a browser.

    Args:
        figure: The figure, which is changed.
        *sentences: The text alternative.
    """
    figure._repr_html_ = partial(svg, figure, " ".join(sentences))  # type: ignore[method-assign]
    # The PNG is for hosts that do not show HTML.
    figure._repr_png_ = partial(png, figure)  # type: ignore[attr-defined]
    return figure


def data_url(picture: bytes) -> str:
    """Return a PNG file as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def captioned(
    figure: Figure, at: tuple[float, float], text: str, why: str, *, foot: float = 0.02
) -> Figure:
    """Write into a figure what it shows, and at its foot why it does not move.

    Args:
        figure: The figure, which is changed.
        at: The place of the text's upper left corner, in shares of the figure's size.
        text: What the figure shows.
        why: Why it does not move, as `why_still` returns it.
        foot: The height of `why`, in shares of the figure's size.
    """
    figure.text(*at, raised(wrapped(text, 118)), fontsize=9.5, va="top", color=INK)
    figure.text(at[0], foot, wrapped(why, 130), fontsize=8.5, color=QUIET)
    return figure


def panel(axes: Axes, title: str = "") -> None:
    """Style a panel: two sides of a frame, quiet ticks, a title above on the left."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(which="both", labelsize=8.5, colors=QUIET)
    if title:
        axes.set_title(title, loc="left", fontsize=10, color=INK)


def power_ticks(axis: Callable[..., Any], exponents: range) -> None:
    """Mark powers of two on an axis of exponents.

    Args:
        axis: `set_yticks` or `set_xticks` of the Axes.
        exponents: Those that are marked.
    """
    axis(list(exponents), [raised(f"2^{e}") for e in exponents], fontsize=9)


def wrapped(text: str, width: int) -> str:
    """Return text in lines of at most `width` characters."""
    return "\n".join(textwrap.wrap(text, width))


def raised(text: str) -> str:
    """Return a power of two such as 2^-24 with a raised exponent, in Unicode.

    A text with a formula of matplotlib would take ten times as long to draw.
    """
    return re.sub(r"\^(-?\d+)", lambda match: match[1].translate(RAISED), text)


@dataclass(frozen=True)
class Curve:
    """A value for each step of a run, from its beginning.

    A value that is not finite is a gap; the first one is named in the picture.

    Attributes:
        dash: The line style, as matplotlib spells it.
        width: The width of the line in points.
        origin: The step before the first value.
        crosses: The steps that were skipped.
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
    """Curves over one axis of steps.

    Attributes:
        kind: "loss"; "scale", for the log2 of loss scales; or "share", for shares from 0 to 1.
        window: For each step, the scale from which gradients overflow, and the one below which they
            underflow; None without these, and for other kinds.
    """

    title: str
    kind: str
    curves: Sequence[Curve]
    window: tuple[Iterable[float], Iterable[float]] | None = None


# kind of a panel -> its height in inches
HEIGHTS = {"loss": 2.6, "scale": 1.3, "share": 0.9}


def steps_figure(
    panels: Sequence[Panel],
    total: int,
    text: str,
    why: str,
    marks: Sequence[tuple[float, str]] = (),
) -> Figure:
    """Draw panels one below another, with text below them.

    Args:
        panels: From top to bottom.
        total: The number of steps.
        text: What the figure shows.
        why: Why it does not move, as `why_still` returns it.
        marks: (step, label) of vertical lines.
    """
    heights = [HEIGHTS[each.kind] for each in panels]
    size = sum(heights) + 0.4 * len(panels) + 1.5
    figure = new_figure(9, size)
    drawn = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    figure.subplots_adjust(
        left=0.09, right=0.92, top=1 - 0.35 / size, bottom=1.45 / size, hspace=0.45
    )
    for axes, each in zip(drawn, panels, strict=True):
        panel(axes, each.title)
        _draw_panel(axes, each)
        for at, label in marks:
            axes.axvline(at, color=QUIET, linewidth=0.8, linestyle="-" if label else ":")
    top = drawn[0]
    for at, label in marks:
        transform = top.get_xaxis_transform()
        top.text(at, 0.95, f" {raised(label)}", transform=transform, fontsize=8.5, va="top")
    drawn[-1].set_xlim(0, total)
    drawn[-1].set_xlabel("step", fontsize=9, color=QUIET)
    return captioned(figure, (0.09, 0.95 / size), text, why, foot=0.1 / size)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw the curves of a panel, and give its axis of values a scale and ticks."""
    for number, curve in enumerate(panel.curves):
        values = np.array(curve.values, float)
        if panel.kind == "scale":
            _draw_scale(axes, curve, values)
        elif panel.kind == "share":
            _draw_share(axes, curve, values)
        else:
            # The names of two curves that end at the same place are above and below it.
            side = "top" if number % 2 else "bottom"
            _draw_loss(axes, curve, values, side)
    if panel.kind == "loss":
        axes.set_yscale("log")
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            set_formatter(lambda value, _: short(value))
    elif panel.kind == "scale":
        overflows, underflows = (np.array([*edge], float) for edge in panel.window or ((), ()))
        shown = [float(value) for curve in panel.curves for value in curve.values]
        # A step whose gradients are all 0 overflows at no scale.
        shown += overflows[np.isfinite(overflows)].tolist()
        low = min([-0.5, *shown])
        high = max([14.5, *shown]) + 2
        axes.set_ylim(low, high)
        power_ticks(axes.set_yticks, range(8 * math.ceil(low / 8), math.ceil(high), 8))
        # Before the first step, the window is empty.
        if len(overflows):
            _draw_window(axes, overflows, underflows)
    else:
        axes.set_ylim(-0.03, 1.05)
        axes.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])


def _draw_window(axes: Axes, overflows: FloatArray, underflows: FloatArray) -> None:
    """Shade the scales at which gradients overflow, and those at which they underflow.

    Args:
        axes: Where to draw; its limits are final.
        overflows: log2 of the scale from which gradients overflow, shape (steps,).
        underflows: log2 of the scale below which they underflow, shape (steps,).
    """
    bottom, top = axes.get_ylim()
    axes.fill_between(
        range(1, len(overflows) + 1),
        np.clip(overflows, bottom, top),
        top,
        color=FATE_COLOURS["overflowed"],
        alpha=0.25,
        linewidth=0,
    )
    axes.fill_between(
        range(1, len(underflows) + 1),
        bottom,
        np.clip(underflows, bottom, top),
        color=FATE_COLOURS["underflowed"],
        alpha=0.2,
        linewidth=0,
    )


def _steps(curve: Curve) -> np.ndarray[Any, np.dtype[np.int64]]:
    return curve.origin + np.arange(1, len(curve.values) + 1)


def _line_style(curve: Curve) -> dict[str, Any]:
    return {"color": curve.colour, "linestyle": curve.dash, "linewidth": curve.width}


def _draw_scale(axes: Axes, curve: Curve, values: FloatArray) -> None:
    """Draw log2 of a loss scale, with a cross at each skipped step."""
    axes.step(_steps(curve), values, where="mid", **_line_style(curve))
    at_crosses = [values[step - curve.origin - 1] for step in curve.crosses]
    axes.plot(curve.crosses, at_crosses, "x", color=INK)


def _draw_share(axes: Axes, curve: Curve, values: FloatArray) -> None:
    """Draw a share that is measured at some steps: it stays until it is measured again."""
    finite = np.isfinite(values)
    if not finite.any():
        return
    steps = _steps(curve)
    # The last share is drawn up to the last step.
    at = np.append(steps[finite], steps[-1])
    shares = np.append(values[finite], values[finite][-1])
    axes.step(at, shares, where="post", marker="o", markersize=3, **_line_style(curve))


def _draw_loss(axes: Axes, curve: Curve, values: FloatArray, side: str) -> None:
    """Draw a loss with its name at its last value above 0, and name its first one not finite.

    Args:
        axes: Where to draw.
        curve: The curve of the loss.
        values: Its values.
        side: The side of the name that is at the curve's end, "bottom" or "top".
    """
    steps = _steps(curve)
    finite = np.isfinite(values)
    # A logarithmic axis has no place for 0.
    shown = finite & (values > 0)
    if shown.any():
        axes.plot(steps, np.where(shown, values, np.nan), **_line_style(curve))
        axes.annotate(
            curve.name,
            (steps[shown][-1], values[shown][-1]),
            (5, 0),
            textcoords="offset points",
            color=curve.colour,
            weight="bold",
            fontsize=9,
            va=side,
        )
    if not finite.all():
        first = int(np.argmin(finite))
        axes.text(
            steps[first],
            0.05,
            f" {curve.name}: {short(values[first])} from step {steps[first]}",
            transform=axes.get_xaxis_transform(),
            color=FATE_COLOURS["underflowed"],
        )


class End(NamedTuple):
    """A curve's name, where it ends on the axis of values, and its colour."""

    name: str
    value: float
    colour: str


def name_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Write each curve's name beside its end, apart from the other names.

    Call it when the limits of the axes are final. A curve that ends beyond the axis is named at its
    edge, one that ends in NaN at the lower edge.
    """
    bottom, top = axes.get_ylim()
    values = []
    for end in ends:
        value = bottom if math.isnan(end.value) else end.value
        values.append(min(max(value, bottom), top))

    # Names are spread in shares of the axis, which may be logarithmic.
    def place(value: float) -> float:
        return float(axes.transScale.transform((1, value))[1])

    length = place(top) - place(bottom)
    heights = spread([(place(value) - place(bottom)) / length for value in values], 0.06)
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
    # Labels that touch form a group around the mean of their heights: [middle, number of labels].
    # A group that touches the one below merges with it, which may make it touch the next.
    groups: list[list[float]] = []
    for i in order:
        groups.append([heights[i], 1])
        while len(groups) > 1:
            lower, lower_count = groups[-2]
            upper, upper_count = groups[-1]
            count = lower_count + upper_count
            if upper - lower >= apart * count / 2:
                break
            groups[-2:] = [[(lower * lower_count + upper * upper_count) / count, count]]
    sorted_heights = []
    for middle, count in groups:
        lowest = middle - apart * (count - 1) / 2
        sorted_heights += [lowest + apart * number for number in range(int(count))]
    placed = [0.0] * len(heights)
    for i, height in zip(order, sorted_heights, strict=True):
        placed[i] = round(height, 9)
    return placed
