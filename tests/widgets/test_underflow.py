"""The underflow histogram and the gradient zoom: data, shares and sentences."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from labkit.formats import BF16, E5M2, FP16
from labkit.instrument import (
    ExponentHistogram,
    Fate,
    GradSnapshot,
    exponent_histogram,
    fate,
    shift,
    snapshot,
)
from labkit.widgets import ALL_LAYERS, GradientZoom, UnderflowHistogram
from labkit.widgets.underflow.widget import LOG2_SCALES, rows, windows, zeros_counted
from tests.widgets.pages import Page, Scripts

FOLDERS = ("exact", "bits", "underflow", "zoom")
KIND = "activation gradients"


def gradient_sentence(js: Scripts, gradient: float, log2_scale: int) -> Any:
    return js.run("(gradient, k) => gradientSentence(gradient, k, F.FP16)", gradient, log2_scale)


def notes(js: Scripts, sent: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the note under the histogram of each layer."""
    zeros = [row["name"] for row in sent if row["elements"] and row["zeros"] == row["elements"]]
    arguments = {row["name"]: (row, row["name"], []) for row in sent}
    arguments[ALL_LAYERS] = arguments[ALL_LAYERS][0], None, zeros
    return {name: js.run("noteOf", *values) for name, values in arguments.items()}


@pytest.fixture
def gradients():
    generator = torch.Generator().manual_seed(0)
    return {
        "conv": torch.exp2(torch.randn(4000, generator=generator) * 4 - 24),
        "relu": torch.relu(torch.randn(1000, generator=generator)) * 2.0**-20,
        "head": torch.exp2(torch.randn(500, generator=generator) * 2 - 8),
    }


def test_the_sentence_follows_the_scale(page):
    layer = torch.tensor([2.0**-30, 2.0**-28, 2.0**-20, 2.0**-10])
    root = page.show(UnderflowHistogram(snapshot({"conv": layer}, step=0, kind=KIND)))
    assert page.trait("sentence") == (
        "At scale 2^0 (no scaling), 50% of these activation gradients underflow in FP16, 25% "
        "are subnormal and 25% keep full precision."
    )
    root.get_by_role("slider").fill("5")
    assert page.trait("sentence") == (
        "At scale 2^5, none of these activation gradients underflow in FP16, 75% are subnormal "
        "and 25% keep full precision."
    )


def test_a_tour_moves_the_scale(page):
    layer = torch.tensor([2.0**-30, 2.0**-10])
    root = page.show(UnderflowHistogram(snapshot({"conv": layer}, step=0, kind=KIND)))
    root.get_by_role("button", name="Tour").click()
    for _ in range(3):
        root.get_by_role("button", name="Next").click()
    assert page.trait("log2_scale") == 10


MOTION = """(row, limits, reduced) => {
  globalThis.matchMedia = () => ({ matches: reduced });
  const [layer] = prepared([row]);
  const motion = scaleMotion();
  motion.at(layer, limits, 10, false, 0);
  const moments = [0, 100, 200, 400, 600].map((now) => motion.at(layer, limits, 0, false, now));
  const held = motion.at(layer, limits, 4, true, 700);
  return [...moments, held].map(({ log2Scale, falls, moving }) => (
    { log2Scale, falls: falls.map((fall) => fall.exponents), moving }));
}"""
ON_THE_EDGE = torch.tensor([2.0**-40, 2.0**-30, 2.0**-26, 2.0**-20])


def moments(js: Scripts, *, reduced: bool) -> Any:
    """Return the bars after the scale changed from 2^10 to 1, and after a drag to 2^4.

    Those after the change are of 0 to 600 ms.
    """
    row = rows(snapshot({"conv": ON_THE_EDGE}, step=0, kind=KIND))[0]
    return js.run(MOTION, row, windows(FP16), reduced)


def test_bars_move_to_a_scale_in_steps(js):
    *moving, _ = moments(js, reduced=False)
    assert [moment["log2Scale"] for moment in moving] == [10, 2.5, 0, 0, 0]
    assert [moment["moving"] for moment in moving] == [True, True, True, True, False]


def test_bars_follow_a_drag_at_once(js):
    *_, dragged = moments(js, reduced=False)
    assert dragged["log2Scale"] == 4


def test_only_bars_that_leave_the_format_fall(js):
    first = moments(js, reduced=False)[0]
    assert first["falls"] == [[-30, -26]]


def test_nothing_moves_with_reduced_motion(js):
    still = moments(js, reduced=True)
    assert [moment["log2Scale"] for moment in still] == [0, 0, 0, 0, 0, 4]
    assert not any(moment["moving"] or moment["falls"] for moment in still)


# Whether elements of a row do not overlap.
APART = """(parts) => parts.map((part) => part.getBoundingClientRect()).every(
  (box, i, all) => i === 0 || all[i - 1].right <= box.left
)"""


@pytest.mark.browser
def test_on_a_telephone_rows_have_room_for_their_words(browser):
    narrow = Page(browser, 390)
    layer = torch.tensor([2.0**-30, 2.0**-28, 2.0**-20, 2.0**-10])
    root = narrow.show(UnderflowHistogram(snapshot({"features.conv1": layer}, step=0, kind=KIND)))
    for row in (".uf-layers-head span:not(:empty)", ".uf-layer:has(:checked) span:not(:empty)"):
        assert root.locator(row).evaluate_all(APART)
    names = root.locator(".uf-name")
    assert names.evaluate_all("(all) => all.every((one) => one.scrollWidth <= one.clientWidth)")


def test_fractions_agree_with_rounding_every_element(gradients):
    """The oracle scales each element and rounds it to float16 by numpy."""
    widget = UnderflowHistogram(snapshot(gradients, step=3, kind=KIND))
    for layer in gradients:
        widget.layer = layer
        values = gradients[layer].numpy().astype(np.float64)
        values = values[values != 0]
        for k in (0, 4, 10, 20, 30):
            widget.log2_scale = k
            with np.errstate(over="ignore"):
                scaled = np.abs(values * 2.0**k)
                rounded = scaled.astype(np.float16)
            # In three small ranges, `fate` may count an element with its neighbours.
            in_range = (scaled == 2.0**-25) | ((rounded == 2.0**-14) & (scaled < 2.0**-14))
            in_range |= (scaled >= 65520) & (scaled < 65536)
            slack = in_range.mean() + 1e-12
            assert widget.fractions["underflowed"] == pytest.approx(
                (rounded == 0).mean(), abs=slack
            )
            assert widget.fractions["overflowed"] == pytest.approx(
                np.isinf(rounded).mean(), abs=slack
            )
            subnormal = (rounded > 0) & (rounded < 2.0**-14)
            assert widget.fractions["subnormal"] == pytest.approx(subnormal.mean(), abs=slack)


def test_the_page_has_the_shares_of_python(js, gradients):
    """The page computes the shares of each scale from one histogram by shifting it."""
    widget = UnderflowHistogram(snapshot(gradients, step=3, kind=KIND))
    sent = json.loads(json.dumps(widget.get_state()))
    assert [row["name"] for row in sent["_rows"]] == [ALL_LAYERS, *gradients]
    for row in sent["_rows"]:
        widget.layer = row["name"]
        received = ExponentHistogram(np.array(row["counts"]), row["lo"], zeros=0, non_finite=0)
        assert min(row["counts"][0], row["counts"][-1]) > 0
        for k in LOG2_SCALES:
            widget.log2_scale = k
            assert vars(fate(shift(received, k), FP16)) == widget.fractions
            shares = js.run(
                "(row, k, limits) => fractions(prepared([row])[0], k, limits)",
                row,
                k,
                sent["_windows"],
            )
            assert shares == widget.fractions


def test_the_sentence_names_layer_format_and_overflow(js):
    def sentence(what: Fate, format: Any, log2_scale: int, layer: str | None = None) -> Any:
        return js.run("sayFate", vars(what), log2_scale, layer, KIND, format.name)

    assert sentence(Fate(0.5, 0.0, 0.5, 0.0), FP16, 3, "conv") == (
        "At scale 2^3, 50% of the activation gradients of layer conv underflow in FP16 and 50% "
        "keep full precision."
    )
    for lot, format, k, end in (
        (
            (0.0, 0.0, 0.9999, 0.0001),
            FP16,
            30,
            "0.01% overflow; a single infinity spoils the whole step.",
        ),
        (
            (1.0, 0.0, 0.0, 0.0),
            FP16,
            0,
            "gradients underflow in FP16 and none keeps full precision.",
        ),
        (
            (0.0, 0.0, 1.0, 0.0),
            BF16,
            0,
            "these activation gradients underflow in BF16 and 100% keep full precision.",
        ),
    ):
        assert sentence(Fate(*lot), format, k).endswith(end)


def test_the_sentence_says_that_all_are_zero_in_fp32(js):
    nothing = vars(fate(exponent_histogram(torch.zeros(5)), FP16))
    text = js.run("sayFate", nothing, 4, None, KIND, "FP16")
    assert "all of them are zero already in FP32" in text


def test_notes_count_zeros_and_non_finite_gradients(js, gradients):
    h = exponent_histogram(torch.tensor([0.0, 0.0, 1.0, float("inf"), float("nan")]))
    found = notes(
        js, rows(GradSnapshot(1, KIND, {"conv": h, "one": exponent_histogram(torch.ones(1))}))
    )
    assert found["conv"] == (
        "40% of all 5 elements of layer conv are exactly zero already in FP32 and are left out. "
        "2 are infinite or NaN already in FP32 and are left out."
    )
    assert found["one"] == "None of the 1 elements of layer one is exactly zero in FP32."


def test_notes_name_layers_whose_gradients_are_all_zero(js):
    # As if the weights of the last layer were zero.
    layers = {"0": torch.zeros(20), "1": torch.zeros(20), "2": torch.ones(5)}
    shown = notes(js, rows(snapshot(layers, step=1, kind=KIND)))
    assert shown[ALL_LAYERS].endswith(
        "are exactly zero already in FP32 and are left out. All zero: 0, 1."
    )
    assert (
        shown["0"]
        == "All 20 elements of layer 0 are exactly zero already in FP32: no gradient arrives here."
    )


def test_observed_shares_are_averaged_over_all_layers(gradients):
    snap = snapshot(gradients, step=0, kind=KIND)
    found = {
        row["name"]: row["observed"] for row in rows(snap, {"conv": 0.5, "relu": 0.1, "head": 0.0})
    }
    assert found == {
        ALL_LAYERS: (0.5 * 4000 + 0.1 * 1000) / 5500,
        "conv": 0.5,
        "relu": 0.1,
        "head": 0.0,
    }


def test_a_snapshot_without_observed_shares_has_none(gradients):
    snap = snapshot(gradients, step=0, kind=KIND)
    assert {row["observed"] for row in rows(snap)} == {None}


def test_invalid_snapshots_and_shares_are_refused():
    with pytest.raises(ValueError, match=r"no layers.*backward pass"):
        UnderflowHistogram(GradSnapshot(0, KIND, {}))
    histograms = {"conv": exponent_histogram(torch.ones(2))}
    with pytest.raises(
        ValueError, match=r"expected one share for each of the layers \['conv'\], got \['cnov'\]"
    ):
        zeros_counted({"cnov": 0.5}, histograms)
    with pytest.raises(ValueError, match=r"shares from 0 to 1.*40"):
        zeros_counted({"conv": 40}, histograms)


def test_limits_are_where_torch_rounds_to_infinity_and_zero():
    """Just below the edge torch keeps a finite (or non-zero) number, at the edge it does not."""
    for format, dtype in ((FP16, torch.float16), (BF16, torch.bfloat16), (E5M2, torch.float8_e5m2)):
        edges = windows(format)
        top = torch.tensor(edges["overflows_from"])
        low = 2.0 ** edges["survives_from"]
        assert torch.isfinite(torch.nextafter(top, torch.tensor(0.0)).to(dtype).float()), (
            format.name
        )
        assert torch.isinf(top.to(dtype).float()), format.name
        assert torch.tensor(low * 1.01).to(dtype).float() > 0, format.name
        assert torch.tensor(low / 2 * 1.99).to(dtype).float() == 0, format.name


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
