"""Figures on a page: their text alternatives, and their contrast in both themes."""

import io
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

from labkit import widgets
from labkit.instrument import snapshot
from labkit.train import recorded
from labkit.widgets import (
    race_figure,
    roofline_figure,
    static_underflow,
    sum_errors_figure,
    sweep_figure,
)
from labkit.widgets.base.figures import THEMED, png
from labkit.widgets.driven.controller import Button
from labkit.widgets.scaler_timeline.widget import static_timeline
from tests.widgets.contrasts import LEAST, contrast
from tests.widgets.test_scale_map_figure import painted_with_gradients


class Images(HTMLParser):
    """Collects the attributes of the first drawing."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def handle_starttag(self, tag, attributes):
        if tag == "svg" and not self.found:
            self.found = dict(attributes)


def displayed(figure):
    """Return MIME type -> content, as IPython displays a figure."""
    contents, _ = DisplayFormatter().format(figure)
    return contents


RACES = [recorded("digits", recipe, 0) for recipe in ("FP32", "O1")]
PAINTED = [recorded("painted_picture", recipe, 0) for recipe in ("FP32", "FP16")]
# name -> a figure, and the sentence that its label must contain
WITH_SENTENCES = {
    "race": lambda: (race_figure(RACES), widgets.race_sentence(RACES)),
    "pictures": lambda: (widgets.pictures_figure(PAINTED), widgets.pictures_sentence(PAINTED)),
    "sums": lambda: (
        sum_errors_figure(widgets.sum_errors((64,))),
        "Same inputs, emulated to the bit",
    ),
    "size": lambda: (
        sweep_figure("size"),
        widgets.sweep_sentence(widgets.recorded_gemm("size", "cpu")[0]),
    ),
    "roofline": lambda: (roofline_figure(), "A case waits for memory"),
}


@pytest.mark.parametrize("name", WITH_SENTENCES)
def test_a_figure_has_its_sentence_as_a_text_alternative(name):
    figure, sentence = WITH_SENTENCES[name]()
    page = Images()
    page.feed(displayed(figure)["text/html"])
    assert page.found["role"] == "img"
    assert sentence in page.found["aria-label"]


def test_a_figure_is_no_wider_than_its_page():
    page = Images()
    page.feed(displayed(roofline_figure())["text/html"])
    assert "max-width: 100%" in page.found["style"]


@pytest.mark.parametrize("name", WITH_SENTENCES)
def test_a_figure_is_small_enough_for_a_notebook(name):
    figure, _ = WITH_SENTENCES[name]()
    assert len(displayed(figure)["text/html"]) < 400_000


def test_a_figure_has_a_png_for_readers_without_svg():
    assert displayed(roofline_figure())["image/png"]


# An opacity up to which an artist is a zone or a grid in the background.
FAINT = 0.5
WHITE = (1.0, 1.0, 1.0)
BLACK = to_rgb("#111111")


@pytest.mark.parametrize("of_png", THEMED)
def test_colours_of_a_theme_have_enough_contrast(of_png):
    on_white, on_black = THEMED[of_png]
    assert contrast(on_white, WHITE) >= LEAST
    assert contrast(on_black, BLACK) >= LEAST


def inks(figure):
    """Yield (description, colour) of texts, lines, markers and bars, without the background."""
    for artist in figure.findobj(
        lambda a: a.get_visible() and (a.get_alpha() is None or np.min(a.get_alpha()) > FAINT)
    ):
        if isinstance(artist, Text) and artist.get_text().strip():
            yield f"text {artist.get_text()!r}", artist.get_color()
        elif isinstance(artist, Line2D) and len(artist.get_xdata()):
            marker_colours = (
                [artist.get_markeredgecolor()]
                if artist.get_marker() not in ("None", "", None)
                else []
            )
            for colour in [artist.get_color(), *marker_colours]:
                yield "line", colour
        elif isinstance(artist, LineCollection):
            for colour in artist.get_colors():
                yield "lines", colour[:3]
        elif isinstance(artist, Rectangle) and artist.get_facecolor()[3] > 0.5:
            yield "bar", artist.get_facecolor()[:3]


def figure_of_all_fates():
    gradients = {"conv": torch.exp2(torch.linspace(-34, 17, 400))}
    return static_underflow(snapshot(gradients, step=0, kind="weight gradients"))


def figure_after_three_steps(widget):
    widget.controller.handle(Button.START)
    for _ in range(3):
        widget.controller.tick()
    figure = widget.figure("why it is still")
    widget.close()
    return figure


def figure_of_presets():
    board = widgets.ScalerPresets()
    return static_timeline(board.replays, board.trace)


FIGURES = {
    "race": lambda: race_figure(
        [recorded("segmentation", name, 0) for name in ("FP32", "FP16", "FP16 static")]
    ),
    "pictures": lambda: widgets.pictures_figure(
        [recorded("painted_picture", name, 0) for name in ("FP32", "FP16", "FP16 static")]
    ),
    "map": lambda: widgets.scale_map_figure(painted_with_gradients()),
    "roofline": roofline_figure,
    "alignment": lambda: sweep_figure("alignment"),
    "layers": lambda: sweep_figure("layers"),
    "published": widgets.gains_figure,
    "generations": widgets.generations_figure,
    "sums": sum_errors_figure,
    "underflow": figure_of_all_fates,
    "presets": figure_of_presets,
    "bench": lambda: figure_after_three_steps(
        widgets.Workbench("digits", "FP16 static", steps=3, device="cpu")
    ),
    "game": lambda: figure_after_three_steps(widgets.BeatTheScaler(steps=3, device="cpu")),
}


@pytest.mark.parametrize("name", FIGURES)
def test_colours_have_enough_contrast_on_a_white_page(name):
    figure = FIGURES[name]()
    corner = imread(io.BytesIO(png(figure)))[0, 0]
    assert corner.tolist() == [1, 1, 1, 1]
    found = {(what, to_rgba(colour)[:3]) for what, colour in inks(figure)}
    assert len(found) > 3
    assert [what for what, colour in found if contrast(colour, WHITE) < LEAST] == []


@pytest.mark.parametrize("name", FIGURES)
def test_every_dark_colour_has_one_for_a_dark_theme(name):
    """A colour that the table lacks would stay dark on the black page of an SVG."""
    known = {to_rgba(colour)[:3] for colour in THEMED}
    unknown = [
        (what, colour)
        for what, colour in inks(FIGURES[name]())
        if contrast(colour, BLACK) < 3 and to_rgba(colour)[:3] not in known
    ]
    assert unknown == []
