"""The gradient zoom: from all layers to the bits of one gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from labkit.formats import FP16
from labkit.widgets import GradientZoom
from labkit.widgets.underflow.widget import windows
from tests.widgets.pages import Page, Scripts
from tests.widgets.test_underflow import gradient_sentence

FOLDERS = ("exact", "bits", "underflow", "zoom")


@pytest.fixture
def zoom() -> GradientZoom:
    """Return a zoom of two steps and two layers; the second step has gradients times 2^-10."""
    torch.manual_seed(0)
    first = {"conv": torch.randn(2, 3, 4, 5) * 2.0**-12, "head": torch.randn(7) * 2.0**-8}
    return GradientZoom(
        {0: first, 40: {name: gradient * 2.0**-10 for name, gradient in first.items()}}
    )


class TestSentenceOfAZoom:
    """The sentence at each level of a zoom, from all layers to an element."""

    @pytest.fixture
    def sentence_at(self, page, zoom: GradientZoom) -> Callable[..., str]:
        page.show(zoom)

        def sentence_at(**traits: Any) -> str:
            page.set(**traits)
            return str(page.trait("sentence"))

        return sentence_at

    def test_gradients_above_the_range_do_not_underflow(self, sentence_at) -> None:
        assert sentence_at(zoom=0, frame=0).startswith(
            "At scale 2^0 (no scaling), none of these activation gradients underflow"
        )

    def test_the_share_of_all_layers_that_underflows(self, sentence_at) -> None:
        before, found, _ = sentence_at(zoom=0, frame=1).partition(
            "of these activation gradients underflow in FP16"
        )
        assert found
        assert "none" not in before

    def test_the_share_of_a_layer_that_underflows(self, sentence_at) -> None:
        expected = "of the activation gradients of layer conv underflow"
        assert expected in sentence_at(zoom=1, frame=1)

    def test_the_number_of_elements_that_are_shown(self, sentence_at) -> None:
        expected = "Of the 120 shown, 0% are zero already in FP32."
        assert sentence_at(zoom=2, frame=1).endswith(expected)

    def test_an_element_is_named_by_its_index(self, sentence_at) -> None:
        """The sixth row of a tensor of shape [2, 3, 4, 5] has the index [0, 1, 1]."""
        sentence = sentence_at(zoom=3, frame=1, row=5, column=2)
        assert sentence.startswith("conv[0, 1, 1, 2] at step 40 is ")

    def test_a_row_that_a_layer_lacks_becomes_its_last_one(self, sentence_at, page) -> None:
        sentence = sentence_at(zoom=3, frame=1, row=23, column=4, layer="head")
        assert sentence.startswith("head[4] at step 40")
        assert (page.trait("row"), page.trait("column")) == (0, 4)


def test_the_bits_of_a_gradient_are_those_of_numpy(page: Page, zoom: GradientZoom) -> None:
    zoom.zoom, zoom.frame, zoom.row, zoom.column = 3, 1, 5, 2
    root = page.show(zoom)
    for k in (0, 5, 30):
        page.set(log2_scale=k)
        code = int(np.float32(zoom.gradient * 2.0**k).astype(np.float16).view(np.uint16))
        assert "".join(root.locator(".be-bit b").all_text_contents()) == f"{code:016b}"


@pytest.mark.parametrize("gradient", [1.5 * 2.0**-14, -3e-4, 0.1, 32000.0])
def test_times_two_moves_only_the_exponent(js: Scripts, gradient: float) -> None:
    code = int(np.float16(gradient).view(np.uint16))
    doubled = int(np.float16(2 * gradient).view(np.uint16))
    assert doubled - code == 1 << 10
    # The five bits of the exponent field.
    before = code >> 10 & 31
    after = doubled >> 10 & 31
    moved = f"from {before} to {after}: the significand stays."
    assert moved in gradient_sentence(js, gradient, 0)


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [
        (2.0**-26, "Times two, it is 0 as well."),
        (2.0**-25, "FP16 makes it 0: its size is at most 2^-25"),
        (2.0**-25, "Times two, its size in FP16 is 2^-24 = 5.96e-8, and it is not lost."),
        (1.5 * 2.0**-26, "Times two, its size in FP16 is 2^-24 = 5.96e-8, and it is not lost."),
        (-1.5 * 2.0**-26, "Times two, its size in FP16 is 2^-24 = 5.96e-8, and it is not lost."),
        (2.0**-20, "its significand bits move one place to the left"),
        (2.0**-14 - 2.0**-25, "less of it is rounded off, and its significand bits change."),
        (40000.0, "Times two, it is inf."),
        (1e6, "FP16 makes it inf: its size is 65520 or more."),
        (-1e6, "FP16 makes it inf: its size is 65520 or more."),
        (0.0, "It is exactly zero already in FP32: no scale changes that."),
    ],
)
def test_the_sentence_names_what_fp16_makes_of_a_gradient(
    js: Scripts, gradient: float, expected: str
) -> None:
    assert expected in gradient_sentence(js, gradient, 0)
    # A scale and a gradient with the same product.
    assert expected in gradient_sentence(js, gradient * 2.0**-8, 8)


@pytest.mark.parametrize(
    ("gradient", "name"),
    [("Infinity", "infinity"), ("-Infinity", "minus infinity"), ("NaN", "NaN")],
)
def test_the_sentence_of_a_gradient_that_is_not_finite(
    js: Scripts, gradient: str, name: str
) -> None:
    state = f"zoom: 3, name: 'w[0]', step: 4, log2Scale: 8, format: F.FP16, gradient: {gradient}"
    sentence = js.run(f"() => zoomSentence({{ {state} }})")
    assert sentence == f"w[0] at step 4 is {name} already in FP32: no scale changes that."


@pytest.mark.parametrize(
    ("size", "fate"),
    [
        (2.0**-25, "underflowed"),
        (1.01 * 2.0**-25, "subnormal"),
        (2.0**-14, "normal"),
        (65519.0, "normal"),
        (65520.0, "overflowed"),
    ],
)
def test_a_cell_of_a_zoom_has_the_fate_of_its_number(js: Scripts, size: float, fate: str) -> None:
    assert js.run("fateOfNumber", size, windows(FP16)) == fate


def test_a_zoom_opens_on_the_largest_gradient() -> None:
    gradient = torch.tensor([[1e-9, -3e-3, 0.0], [2e-3, torch.nan, 1e-4]])
    widget = GradientZoom({0: {"a": gradient}})
    assert widget.row == 0
    assert widget.column == 1
    assert widget.gradient == pytest.approx(-3e-3)


def test_the_bits_of_a_gradient_cannot_be_turned(page: Page, zoom: GradientZoom) -> None:
    zoom.zoom = 3
    root = page.show(zoom)
    row = root.get_by_role("group", name="bits of this FP16 code")
    assert "Space" not in row.get_attribute("aria-label")
    bit = row.locator("[data-bit='0']")
    before = bit.get_attribute("aria-label")
    bit.click(force=True)
    assert bit.get_attribute("aria-label") == before
    assert bit.get_attribute("aria-disabled") == "true"


def test_steps_may_have_their_layers_in_another_order() -> None:
    first = {"conv": torch.tensor([1.0]), "head": torch.tensor([2.0])}
    later = {"head": torch.tensor([20.0]), "conv": torch.tensor([10.0])}
    zoom = GradientZoom({0: first, 1: later})
    assert np.frombuffer(zoom._cells, np.float32).tolist() == [1.0, 2.0, 10.0, 20.0]
    named = [[row["name"] for row in shot["rows"]] for shot in zoom._film]
    assert named[0] == named[1]


def test_another_layer_clamps_the_position(zoom: GradientZoom) -> None:
    zoom.zoom, zoom.row, zoom.column = 3, 23, 4
    zoom.layer = "head"
    assert zoom.row == 0
    assert zoom.column == 4


@pytest.mark.parametrize(
    ("film", "message"),
    [
        ({}, "at least one step"),
        ({0: {"empty": torch.zeros(0)}}, "at least one layer"),
        ({0: {"a": torch.ones(2)}, 1: {"b": torch.ones(2)}}, "the same layers"),
    ],
)
def test_gradients_that_a_zoom_cannot_show_are_refused(film: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GradientZoom(film)


@pytest.mark.parametrize("film", [[torch.ones(2)], {0: torch.ones(2)}])
def test_gradients_of_another_type_are_refused(film: Any) -> None:
    with pytest.raises(TypeError, match="step -> a dict of layer -> gradient"):
        GradientZoom(film)


@pytest.mark.parametrize("gradient", [[1.0], torch.tensor([1])])
def test_a_gradient_that_is_no_tensor_of_floats_is_refused(gradient: Any) -> None:
    with pytest.raises(TypeError, match=r"expected (a torch tensor|FP16, BF16 or FP32), got"):
        GradientZoom({0: {"conv": gradient}})
