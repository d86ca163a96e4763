"""Still pictures have no background, and each of their colours is read on a white page as on a black one."""

import io

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.image import imread
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from labkit.formats import FP16
from labkit.instrument import snapshot
from labkit.train import recorded
from labkit.widgets import (
    BeatTheScaler,
    BitExplorer,
    NumberLine,
    ScalerPresets,
    SwallowedUpdates,
    Workbench,
    gains_figure,
    race_figure,
    roofline_figure,
    static_underflow,
    sum_errors_figure,
    sweep_figure,
)
from labkit.widgets.base.figures import png
from labkit.widgets.bits.figure import FIELD_COLOURS, static_bits
from labkit.widgets.driven.state import Button
from labkit.widgets.number_line.figure import static_number_line
from labkit.widgets.scaler_timeline.figure import static_timeline
from labkit.widgets.swallowed.figure import static_swallowed

LEAST = 4.0
FAINT = 0.5  # what is drawn at most so strongly is a zone or a grid, behind what is to be read
PAGES = {"white": (1.0, 1.0, 1.0), "#111": to_rgb("#111111")}


def luminance(colour):
    """Relative luminance (WCAG 2.2)."""
    parts = np.array(to_rgb(colour))
    return float(np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722))


def contrast(one, other):
    """Contrast of two colours (WCAG 2.2): 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard():
    assert contrast("black", "white") == pytest.approx(21)
    assert contrast("#767676", "white") == pytest.approx(4.54, abs=0.005)  # a grey known for being just enough


def inks(figure):
    """Return what is drawn to be seen: (what, colour) of texts, lines, markers, bars and their edges; zones are not."""
    for artist in figure.findobj(
        lambda a: a.get_visible() and (a.get_alpha() is None or np.min(a.get_alpha()) > FAINT)
    ):
        if isinstance(artist, Text) and artist.get_text().strip():
            if artist.get_color() != "white":  # on a coloured cell: see below
                yield f"text {artist.get_text()!r}", artist.get_color()
        elif isinstance(artist, Line2D) and len(artist.get_xdata()):
            marked = [artist.get_markeredgecolor()] if artist.get_marker() not in ("None", "", None) else []
            for colour in [artist.get_color(), *marked]:
                yield "line", colour
        elif isinstance(artist, LineCollection):
            for colour in artist.get_colors():
                yield "lines", colour[:3]
        elif isinstance(artist, Rectangle) and artist.get_facecolor()[3] > 0.5:
            yield "bar", artist.get_facecolor()[:3]


def race():
    return race_figure([recorded("segmentation", recipe, 0) for recipe in ("FP32", "FP16", "FP16 static")])


def underflow():
    return static_underflow(
        snapshot({"conv": torch.exp2(torch.linspace(-34, 17, 400))}, step=0, kind="weight gradients")
    )


def bench():
    widget = Workbench("digits", "FP16 static", steps=3, device="cpu")
    return stepped(widget, widget.bench)


def game():
    widget = BeatTheScaler(steps=3, device="cpu")
    return stepped(widget, widget.duel)


def stepped(widget, lockstep):
    lockstep.handle(Button.START)
    for _ in range(3):
        lockstep.tick()
    figure = widget.figure("why it stands")
    widget.close()
    return figure


FIGURES = {
    "race": race,
    "roofline": roofline_figure,
    "alignment": lambda: sweep_figure("alignment"),
    "layers": lambda: sweep_figure("layers"),
    "published": gains_figure,
    "sums": sum_errors_figure,
    "underflow": underflow,
    "bits": lambda: static_bits(BitExplorer()._view),
    "number line": lambda: (line := NumberLine()) and static_number_line(FP16, line.window, line.scale, line.rounded),
    "swallowed": lambda: (board := SwallowedUpdates()) and static_swallowed(board.curves, board.weight, board.update),
    "presets": lambda: (board := ScalerPresets()) and static_timeline(board.replays, board.trace),
    "bench": bench,
    "game": game,
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_colour_is_read_on_white_and_on_black(name):
    figure = FIGURES[name]()
    corner = imread(io.BytesIO(png(figure)))[0, 0]
    assert corner[3] == 0, "there is no background"
    found = {(what, to_rgba(colour)[:3]) for what, colour in inks(figure)}
    assert len(found) > 3
    weak = {
        (what, page, round(contrast(colour, on), 2))
        for what, colour in found
        for page, on in PAGES.items()
        if contrast(colour, on) < LEAST
    }
    assert weak == set()


def test_a_bit_is_read_in_its_cell():
    assert all(contrast("white", cell) >= LEAST for cell in FIELD_COLOURS.values())
