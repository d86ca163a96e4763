"""The figure of an underflow histogram without a page."""

import subprocess
import sys

import pytest
import torch

from labkit import widgets
from labkit.formats import FP16
from labkit.instrument import snapshot
from labkit.widgets import static_underflow
from labkit.widgets.underflow.widget import WHY_STATIC


@pytest.fixture
def snap():
    spread = torch.exp2(torch.linspace(-34, -6, 400))
    return snapshot({"conv": spread, "head": spread * 2.0**20}, step=0, kind="weight gradients")


def bars(figure):
    """Return colour -> total height of its bars, in percent."""
    heights = dict.fromkeys(widgets.FATE_COLOURS.values(), 0.0)
    for container in figure.axes[0].containers:
        for patch in container:
            red, green, blue, _ = (round(255 * channel) for channel in patch.get_facecolor())
            heights[f"#{red:02X}{green:02X}{blue:02X}"] += patch.get_height()
    return heights


def texts(figure):
    return " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


def test_figure_says_why_it_is_still(snap):
    assert WHY_STATIC in texts(static_underflow(snap))


def test_figure_names_its_scale(snap):
    assert "at scale 2⁰" in texts(static_underflow(snap))


def test_figure_names_its_layer(snap):
    assert "of head," in texts(static_underflow(snap, layer="head"))


def test_an_unknown_layer_is_refused(snap):
    with pytest.raises(KeyError, match="haed"):
        static_underflow(snap, layer="haed")


def test_a_figure_is_drawn_without_pyplot(tmp_path):
    """pyplot would choose a backend for the whole process."""
    program = """
import sys, torch
from labkit.instrument import snapshot
from labkit.widgets import static_underflow
from labkit.widgets.base.figures import png
png(static_underflow(snapshot({"layer": torch.ones(3)}, step=0, kind="weight gradients")))
print("matplotlib.pyplot" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("log2_scale", [0, 6])
def test_bars_have_the_heights_of_the_fractions(snap, log2_scale):
    fractions = widgets.UnderflowHistogram(snap, log2_scale=log2_scale).fractions
    drawn = bars(static_underflow(snap, FP16, log2_scale))
    for name, colour in widgets.FATE_COLOURS.items():
        assert drawn[colour] == pytest.approx(100 * fractions[name]), name


def test_numbers_beyond_the_axis_are_not_drawn(snap):
    """At a scale of 2^30, a part of layer head is beyond the axis."""
    fractions = widgets.UnderflowHistogram(snap, log2_scale=30).fractions
    drawn = bars(static_underflow(snap, FP16, 30))
    assert 0 < drawn[widgets.FATE_COLOURS["overflowed"]] < 100 * fractions["overflowed"]
