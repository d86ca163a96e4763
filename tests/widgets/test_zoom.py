"""From a network to the bits of one gradient: what is said at each distance, and what twice the scale moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labkit.widgets import GradientZoom
from labkit.widgets.zoom.widget import gradient_sentence


@pytest.fixture
def zoom() -> GradientZoom:
    """Two steps of two layers; the second step's gradients are 2^-10 times as large."""
    torch.manual_seed(0)
    first = {"conv": torch.randn(2, 3, 4, 5) * 2.0**-12, "head": torch.randn(7) * 2.0**-8}
    return GradientZoom({0: first, 40: {name: gradient * 2.0**-10 for name, gradient in first.items()}})


def test_worked_example(zoom: GradientZoom) -> None:
    assert zoom.sentence.startswith("At scale 2^0 (no scaling), none of these activation gradients underflow")
    zoom.frame = 1
    assert "of these activation gradients underflow in FP16" in zoom.sentence
    assert "none" not in zoom.sentence.split(" underflow")[0]
    zoom.zoom = 1
    assert "of the activation gradients of layer conv underflow" in zoom.sentence
    zoom.zoom, zoom.row, zoom.column = 3, 5, 2  # the sixth row of [2, 3, 4, 5] is [0, 1, 1]
    assert zoom.sentence.startswith("conv[0, 1, 1, 2] at step 40 is ")
    assert [len(field["bits"]) for field in zoom.get_state()["_bits"]] == [1, 5, 10]
    zoom.zoom = 2
    assert zoom.get_state()["_bits"] == []
    assert zoom.sentence.endswith("Of the 120 shown, 0% are zero already in FP32.")


def test_the_bits_are_numpys(zoom: GradientZoom) -> None:
    zoom.zoom = 3
    for frame, k in ((0, 0), (1, 0), (1, 5), (1, 30)):
        zoom.frame, zoom.log2_scale = frame, k
        with np.errstate(over="ignore"):
            code = int(np.float32(zoom.gradient * 2.0**k).astype(np.float16).view(np.uint16))
        bits = "".join(str(int(bit["on"])) for field in zoom.get_state()["_bits"] for bit in field["bits"])
        assert bits == f"{code:016b}"


def test_times_two_moves_only_the_exponent_of_a_normal_number() -> None:
    for gradient in (1.5 * 2.0**-14, -3e-4, 0.1, 32000.0):
        once, twice = (int(np.float32(x).astype(np.float16).view(np.uint16)) for x in (gradient, 2 * gradient))
        assert twice - once == 1 << 10
        fields = [code >> 10 & 31 for code in (once, twice)]
        assert f"from {fields[0]} to {fields[1]}: the significand stays." in gradient_sentence(gradient, 0)


def test_both_ends_are_said() -> None:
    for gradient, says in (
        (2.0**-26, "Times two, it is 0 as well."),
        (1.5 * 2.0**-26, "Times two, it is rounded up to 2^-24 = 5.96e-8 and is not lost."),
        (2.0**-20, "its significand bits move one place to the left"),
        (40000.0, "Times two, it is inf."),
        (1e6, "FP16 makes it inf: it is 65520 or more."),
        (0.0, "It is exactly zero already in FP32: no scale changes that."),
    ):
        assert says in gradient_sentence(gradient, 0)
        assert says in gradient_sentence(gradient * 2.0**-8, 8)


def test_a_smaller_layer_keeps_the_cell_inside(zoom: GradientZoom) -> None:
    zoom.zoom, zoom.row, zoom.column = 3, 23, 4
    zoom.layer = "head"
    assert (zoom.row, zoom.column) == (0, 4)
    assert zoom.sentence.startswith("head[4] at step 0")


def test_a_film_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        GradientZoom({})
    with pytest.raises(ValueError, match="at least one layer"):
        GradientZoom({0: {"empty": torch.zeros(0)}})
    for film in ([torch.ones(2)], {0: torch.ones(2)}):
        with pytest.raises(TypeError, match="step -> a dict of layer -> gradient"):
            GradientZoom(film)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the same layers"):
        GradientZoom({0: {"a": torch.ones(2)}, 1: {"b": torch.ones(2)}})
