"""The still picture for a host without widgets: it is offered, it is a picture, and it says why it stands still."""

import struct
import sys
import zlib

import numpy as np
import pytest
import torch

from labkit.formats import FP16
from labkit.instrument import snapshot
from labkit.train import recorded
from labkit.widgets import (
    FATE_COLOURS,
    UnderflowHistogram,
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
from labkit.widgets.base.figures import png
from labkit.widgets.underflow.figure import WHY_STATIC, fate_of_binade

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


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


def pixels(file: bytes) -> tuple[int, int]:
    """Return width and height of a PNG, after checking that its header is whole."""
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    assert zlib.crc32(file[12:29]) == struct.unpack(">I", file[29:33])[0]
    return struct.unpack(">II", file[16:24])


def test_the_bundle_has_the_widget_and_for_others_a_picture_and_words(snap):
    widget = UnderflowHistogram(snap, log2_scale=10)
    data, _ = widget._repr_mimebundle_()
    assert data[WIDGET_VIEW]["model_id"] == widget.model_id
    assert pixels(data["image/png"])[0] > 600
    assert data["text/plain"] == f"{widget.sentence}\n{WHY_STATIC}"


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


def test_one_layer_alone(snap):
    assert "of layer head" in words(static_underflow(snap, layer="head"))
    with pytest.raises(KeyError):
        static_underflow(snap, layer="haed")


def test_it_says_why_it_stands_still(snap):
    said = words(static_underflow(snap))
    assert WHY_STATIC in said
    assert "At scale 2⁰ (no scaling)" in said


def test_a_figure_leaves_pyplot_alone(snap):
    loaded = "matplotlib.pyplot" in sys.modules
    png(static_underflow(snap))
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_binades_have_the_fate_that_numpy_gives_their_middle():
    for exponent in range(-40, 22):
        with np.errstate(over="ignore"):
            rounded = np.float16(1.5 * 2.0**exponent)
        expected = (
            "underflowed"
            if rounded == 0
            else "overflowed"
            if np.isinf(rounded)
            else "subnormal"
            if rounded < 2.0**-14
            else "normal"
        )
        assert fate_of_binade(exponent, FP16) == expected


@pytest.mark.parametrize("name", ["race", "sums", "sweep", "roofline"])
def test_a_figure_of_a_lesson_has_a_text_alternative(name):
    """What IPython hands to JupyterLab is an image with words, and the words are those of its sentence."""
    from html.parser import HTMLParser

    from IPython.core.formatters import DisplayFormatter

    races, few = [recorded("digits", recipe, 0) for recipe in ("FP32", "O1")], sum_errors((64,))
    made = {
        "race": lambda: (race_figure(races), race_sentence(races)),
        "sums": lambda: (sum_errors_figure(few), "Same inputs, emulated to the bit"),
        "sweep": lambda: (sweep_figure("size"), sweep_sentence(recorded_gemm("size", "cpu")[0])),
        "roofline": lambda: (roofline_figure(), "a case waits for memory"),
    }
    figure, sentence = made[name]()
    shown, _ = DisplayFormatter().format(figure)
    found = {}

    class Images(HTMLParser):
        def handle_starttag(self, tag, attributes):
            found[tag] = dict(attributes)

    Images().feed(shown["text/html"])
    assert sentence in found["img"]["alt"]
    assert found["img"]["src"].startswith("data:image/png;base64,iVBOR")
