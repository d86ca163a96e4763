"""Still pictures for pages without widgets: true, with words, and read on a white page as on a black one."""

import io
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
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
    FATE_COLOURS,
    BeatTheScaler,
    ScalerPresets,
    UnderflowHistogram,
    Workbench,
    gains_figure,
    race_figure,
    race_sentence,
    recorded_gemm,
    roofline_figure,
    static_underflow,
    sum_errors,
    sum_errors_figure,
    sweep_figure,
    sweep_sentence,
)
from labkit.widgets.base.figures import THEMED, png
from labkit.widgets.driven.controller import Button
from labkit.widgets.scaler_timeline.widget import static_timeline
from labkit.widgets.underflow.widget import WHY_STATIC


@pytest.fixture
def snap():
    spread = torch.exp2(torch.linspace(-34, -6, 400))
    return snapshot({"conv": spread, "head": spread * 2.0**20}, step=0, kind="weight gradients")


def words(figure):
    return " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


def bars(figure):
    """Return colour -> total height of its bars, in percent."""
    heights = dict.fromkeys(FATE_COLOURS.values(), 0.0)
    for container in figure.axes[0].containers:
        for patch in container:
            red, green, blue, _ = (round(255 * part) for part in patch.get_facecolor())
            heights[f"#{red:02X}{green:02X}{blue:02X}"] += patch.get_height()
    return heights


def test_it_names_its_layer_and_why_it_does_not_move(snap):
    said = words(static_underflow(snap))
    assert WHY_STATIC in said
    assert "at scale 2⁰" in said
    assert "of head," in words(static_underflow(snap, layer="head"))
    with pytest.raises(KeyError):
        static_underflow(snap, layer="haed")


def test_bars_are_as_tall_as_the_fractions(snap):
    widget = UnderflowHistogram(snap)
    for k in (0, 6, 30):
        widget.log2_scale = k
        drawn = bars(static_underflow(snap, FP16, k))
        # At 2^30 some of layer head lies beyond the axis, so overflow may be drawn shorter, never taller.
        for name, colour in FATE_COLOURS.items():
            if name == "overflowed":
                assert drawn[colour] <= 100 * widget.fractions[name] + 1e-9
            else:
                assert drawn[colour] == pytest.approx(100 * widget.fractions[name])


def test_a_figure_leaves_pyplot_alone(snap):
    loaded = "matplotlib.pyplot" in sys.modules
    png(static_underflow(snap))
    assert ("matplotlib.pyplot" in sys.modules) == loaded


class Images(HTMLParser):
    """Collects the attributes of the first drawing."""

    def handle_starttag(self, tag, attributes):
        self.found = getattr(self, "found", None) or (dict(attributes) if tag == "svg" else {})


def test_a_figure_of_a_lesson_has_a_text_alternative():
    """What IPython hands to JupyterLab is an image with words, and the words are those of its sentence."""
    races = [recorded("digits", recipe, 0) for recipe in ("FP32", "O1")]
    for figure, sentence in (
        (race_figure(races), race_sentence(races)),
        (sum_errors_figure(sum_errors((64,))), "Same inputs, emulated to the bit"),
        (sweep_figure("size"), sweep_sentence(recorded_gemm("size", "cpu")[0])),
        (roofline_figure(), "a case waits for memory"),
    ):
        shown, _ = DisplayFormatter().format(figure)
        page = Images()
        page.feed(shown["text/html"])
        assert sentence in page.found["aria-label"]
        assert page.found["role"] == "img"
        assert "max-width: 100%" in page.found["style"], "as wide as the page"
        assert len(shown["text/html"]) < 400_000
        assert shown["image/png"]


# --- colours ---

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


def test_each_colour_of_a_theme_is_read_on_its_page():
    for of_png, colours in THEMED.items():
        for colour, page in zip(colours, PAGES.values(), strict=True):
            assert contrast(colour, page) >= LEAST, (of_png, colour)


def inks(figure):
    """Return what is drawn to be seen: (what, colour) of texts, lines, markers, bars and their edges; zones are not."""
    for artist in figure.findobj(
        lambda a: a.get_visible() and (a.get_alpha() is None or np.min(a.get_alpha()) > FAINT)
    ):
        if isinstance(artist, Text) and artist.get_text().strip():
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
    every_fate = {"conv": torch.exp2(torch.linspace(-34, 17, 400))}
    return static_underflow(snapshot(every_fate, step=0, kind="weight gradients"))


def stepped(widget):
    widget.controller.handle(Button.START)
    for _ in range(3):
        widget.controller.tick()
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
    "presets": lambda: (board := ScalerPresets()) and static_timeline(board.replays, board.trace),
    "bench": lambda: stepped(Workbench("digits", "FP16 static", steps=3, device="cpu")),
    "game": lambda: stepped(BeatTheScaler(steps=3, device="cpu")),
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
