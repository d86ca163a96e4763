"""What does a learner see where widgets do not run? The same picture, standing still.

Idea: matplotlib draws once what the browser draws at every frame, with the same colours and hatching. It is loaded when
the first figure is made, so importing the widgets stays quick.

Invariant: a figure is built from `Figure` alone; no pyplot, no window, no global state.
"""

from __future__ import annotations

import base64
import io
import re
import textwrap
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by people who see colours differently.
FATE_COLOURS = {"underflowed": "#D55E00", "subnormal": "#F0E442", "normal": "#56B4E9", "overflowed": "#CC79A7"}
FATE_HATCHES = {"underflowed": "////", "subnormal": "....", "normal": "", "overflowed": "xxxx"}
FORMAT_COLOURS = {"FP32": "#1A1A1A", "FP16": "#0072B2", "BF16": "#009E73", "E4M3": "#E69F00", "E5M2": "#E69F00"}
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
INK, QUIET = "#1f1f1f", "#595959"


def why_still(how: str, what: str = "This picture stands") -> str:
    """Say why something does not move, and how it would: `how` ends "Open the notebook in JupyterLab (`make lab`)".

    >>> why_still("to slide", what="This figure stands")[:74]
    'This figure stands still, because interactive widgets do not run here. Ope'
    """
    opened = f"Open the notebook in JupyterLab (`make lab`) {how}."
    return f"{what} still, because interactive widgets do not run here. {opened}"


def still(words: str, why: str, figure: Figure | None = None) -> dict[str, Any]:
    """Return what a host without widgets shows: words, why they do not move, and a picture where there is one."""
    text = {"text/plain": f"{words}\n{why}"}
    return text if figure is None else {**text, "image/png": png(figure)}


def png(figure: Figure, dpi: int = 96) -> bytes:
    """Return a figure as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    file = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(file, format="png", dpi=dpi, facecolor="white")
    return file.getvalue()


def described(figure: Figure, *sentences: str) -> Figure:
    """Give a figure a text alternative: a notebook then shows it as an image with these words, for who does not see it.

    IPython asks the figure itself for its HTML; matplotlib's own answer is only for windows in a browser.
    """
    words = escape(" ".join(sentences), quote=True)

    def image() -> str:
        encoded = base64.b64encode(png(figure)).decode()
        return f'<img alt="{words}" style="max-width:100%" src="data:image/png;base64,{encoded}">'

    figure._repr_html_ = image  # type: ignore[method-assign]
    return figure


def captioned(figure: Figure, at: tuple[float, float], words: str, why: str, *, foot: float = 0.02) -> Figure:
    """Write what a figure shows now at a place in it (shares of its size), and at its foot why it stands still."""
    figure.text(*at, raised(wrapped(words, 118)), fontsize=9.5, va="top", color=INK)
    figure.text(at[0], foot, wrapped(why, 130), fontsize=8.5, color=QUIET)
    return figure


def panel(axes: Axes, title: str = "") -> None:
    """Give a panel the look of all: two sides of a frame, quiet ticks, its title above on the left."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(which="both", labelsize=8.5, colors=QUIET)
    if title:
        axes.set_title(title, loc="left", fontsize=10, color=INK)


def wrapped(text: str, width: int) -> str:
    """Return text in lines of at most `width` characters."""
    return "\n".join(textwrap.wrap(text, width))


def raised(text: str) -> str:
    """Write 2^-24 with a raised exponent, in Unicode: matplotlib's formulas take ten times as long to draw."""
    return re.sub(r"\^(-?\d+)", lambda match: match[1].translate(RAISED), text)
