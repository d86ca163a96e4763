"""The underflow histogram and the gradient zoom: data, shares and sentences."""

import json
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
    """What stands under the histogram of each layer."""
    zeros = [row["name"] for row in sent if row["elements"] and row["zeros"] == row["elements"]]
    each = {row["name"]: (row, row["name"], []) for row in sent}
    each[ALL_LAYERS] = each[ALL_LAYERS][0], None, zeros
    return {name: js.run("noteOf", *given) for name, given in each.items()}


@pytest.fixture
def gradients():
    generator = torch.Generator().manual_seed(0)
    return {
        "conv": torch.exp2(torch.randn(4000, generator=generator) * 4 - 24),
        "relu": torch.relu(torch.randn(1000, generator=generator)) * 2.0**-20,
        "head": torch.exp2(torch.randn(500, generator=generator) * 2 - 8),
    }


def test_the_page_says_it_in_a_sentence_that_code_can_read(page):
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


def moments(js: Scripts, reduced: bool) -> Any:
    """The bars at 0 to 600 ms after the scale went from 2^10 to 1, and once a hand
    moved it to 2^4.
    """
    row = rows(snapshot({"conv": ON_THE_EDGE}, step=0, kind=KIND))[0]
    return js.run(MOTION, row, windows(FP16), reduced)


def test_bars_glide_to_a_scale_and_follow_a_hand_at_once(js):
    on_the_way = [moment["log2Scale"] for moment in moments(js, False)]
    assert on_the_way == [10, 2.5, 0, 0, 0, 4]
    assert [moment["moving"] for moment in moments(js, False)][:5] == [
        True,
        True,
        True,
        True,
        False,
    ]


def test_what_leaves_the_format_falls_and_no_other_bar(js):
    first = moments(js, False)[0]
    assert first["falls"] == [[-30, -26]]


def test_nothing_moves_with_reduced_motion(js):
    still = moments(js, True)
    assert [moment["log2Scale"] for moment in still] == [0, 0, 0, 0, 0, 4]
    assert not any(moment["moving"] or moment["falls"] for moment in still)


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
    """numpy is the oracle: scale each element, round it to float16, look where it went."""
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
            # The three slivers of `fate`: an element there may be counted with its neighbours.
            sliver = (scaled == 2.0**-25) | ((rounded == 2.0**-14) & (scaled < 2.0**-14))
            sliver |= (scaled >= 65520) & (scaled < 65536)
            slack = sliver.mean() + 1e-12
            assert widget.fractions["underflowed"] == pytest.approx(
                (rounded == 0).mean(), abs=slack
            )
            assert widget.fractions["overflowed"] == pytest.approx(
                np.isinf(rounded).mean(), abs=slack
            )
            subnormal = (rounded > 0) & (rounded < 2.0**-14)
            assert widget.fractions["subnormal"] == pytest.approx(subnormal.mean(), abs=slack)


def test_the_page_has_the_shares_of_python(js, gradients):
    """For each layer and scale: the counts, shifted, have the fate. Nothing is sent once for each
    scale.
    """
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


def test_the_sentence_names_layer_and_format_and_warns_of_infinity(js):
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
    nothing = exponent_histogram(torch.zeros(5))
    assert "all of them are zero already in FP32" in sentence(fate(nothing, FP16), FP16, 4)


def test_note_counts_what_is_left_out(js, gradients):
    h = exponent_histogram(torch.tensor([0.0, 0.0, 1.0, float("inf"), float("nan")]))
    found = notes(
        js, rows(GradSnapshot(1, KIND, {"conv": h, "one": exponent_histogram(torch.ones(1))}))
    )
    assert found["conv"] == (
        "40% of all 5 elements of layer conv are exactly zero already in FP32 and are left out. "
        "2 are infinite or NaN already in FP32 and are left out."
    )
    assert found["one"] == "None of the 1 elements of layer one is exactly zero in FP32."
    # the last layer's weights are zero
    layers = {"0": torch.zeros(20), "1": torch.zeros(20), "2": torch.ones(5)}
    shown = notes(js, rows(snapshot(layers, step=1, kind=KIND)))
    assert shown[ALL_LAYERS].endswith(
        "are exactly zero already in FP32 and are left out. All zero: 0, 1."
    )
    assert (
        shown["0"]
        == "All 20 elements of layer 0 are exactly zero already in FP32: no gradient arrives here."
    )
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
    assert {row["observed"] for row in rows(snap)} == {None}
    with pytest.raises(ValueError, match=r"no layers.*backward pass"):
        UnderflowHistogram(GradSnapshot(0, KIND, {}))
    histograms = {"conv": exponent_histogram(torch.ones(2))}
    with pytest.raises(
        ValueError, match=r"expected one share for each of the layers \['conv'\], got \['cnov'\]"
    ):
        zeros_counted({"cnov": 0.5}, histograms)
    with pytest.raises(ValueError, match=r"shares from 0 to 1.*40"):
        zeros_counted({"conv": 40}, histograms)


def test_windows_are_where_torch_rounds_to_infinity_and_to_zero():
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
    """Two steps of two layers; the second step's gradients are 2^-10 times as large."""
    torch.manual_seed(0)
    first = {"conv": torch.randn(2, 3, 4, 5) * 2.0**-12, "head": torch.randn(7) * 2.0**-8}
    return GradientZoom(
        {0: first, 40: {name: gradient * 2.0**-10 for name, gradient in first.items()}}
    )


def test_a_zoom_says_what_is_seen_at_each_distance(page, zoom: GradientZoom) -> None:
    root = page.show(zoom)

    def sentence_at(**traits: Any) -> str:
        page.set(**traits)
        return str(page.trait("sentence"))

    assert sentence_at(zoom=0).startswith(
        "At scale 2^0 (no scaling), none of these activation gradients underflow"
    )
    said = sentence_at(frame=1)
    assert "of these activation gradients underflow in FP16" in said
    assert "none" not in said.split(" underflow")[0]
    assert "of the activation gradients of layer conv underflow" in sentence_at(zoom=1)
    said = sentence_at(zoom=3, row=5, column=2)  # the sixth row of [2, 3, 4, 5] is [0, 1, 1]
    assert said.startswith("conv[0, 1, 1, 2] at step 40 is ")
    zoom.frame, zoom.row, zoom.column = 1, 5, 2
    for k in (0, 5, 30):  # the bits are numpy's
        page.set(log2_scale=k)
        code = int(np.float32(zoom.gradient * 2.0**k).astype(np.float16).view(np.uint16))
        assert "".join(root.locator(".be-bit b").all_text_contents()) == f"{code:016b}"
    assert sentence_at(zoom=2).endswith("Of the 120 shown, 0% are zero already in FP32.")
    assert sentence_at(zoom=3, row=23, column=4, layer="head").startswith("head[4] at step 40")
    assert (page.trait("row"), page.trait("column")) == (0, 4)


@pytest.mark.parametrize("gradient", [1.5 * 2.0**-14, -3e-4, 0.1, 32000.0])
def test_times_two_moves_only_the_exponent(js: Scripts, gradient: float) -> None:
    code = int(np.float16(gradient).view(np.uint16))
    doubled = int(np.float16(2 * gradient).view(np.uint16))
    assert doubled - code == 1 << 10
    # the five bits of the exponent field
    before = code >> 10 & 31
    after = doubled >> 10 & 31
    moved = f"from {before} to {after}: the significand stays."
    assert moved in gradient_sentence(js, gradient, 0)


@pytest.mark.parametrize(
    ("gradient", "says"),
    [
        (2.0**-26, "Times two, it is 0 as well."),
        (2.0**-25, "FP16 makes it 0: its size is at most 2^-25"),
        (1.5 * 2.0**-26, "its size is rounded up to 2^-24 = 5.96e-8, and it is not lost."),
        (-1.5 * 2.0**-26, "its size is rounded up to 2^-24 = 5.96e-8, and it is not lost."),
        (2.0**-20, "its significand bits move one place to the left"),
        (40000.0, "Times two, it is inf."),
        (1e6, "FP16 makes it inf: its size is 65520 or more."),
        (-1e6, "FP16 makes it inf: its size is 65520 or more."),
        (0.0, "It is exactly zero already in FP32: no scale changes that."),
    ],
)
def test_the_sentence_names_what_fp16_makes_of_a_gradient(
    js: Scripts, gradient: float, says: str
) -> None:
    assert says in gradient_sentence(js, gradient, 0)
    # a scale and a gradient with the same product
    assert says in gradient_sentence(js, gradient * 2.0**-8, 8)


@pytest.mark.parametrize(
    ("gradient", "name"),
    [("Infinity", "infinity"), ("-Infinity", "minus infinity"), ("NaN", "NaN")],
)
def test_a_gradient_that_is_no_number_is_called_so(js: Scripts, gradient: str, name: str) -> None:
    looked = f"zoom: 3, name: 'w[0]', step: 4, log2Scale: 8, format: F.FP16, gradient: {gradient}"
    said = js.run(f"() => zoomSentence({{ {looked} }})")
    assert said == f"w[0] at step 4 is {name} already in FP32: no scale changes that."


def test_zoom_opens_on_the_largest_gradient(
    zoom: GradientZoom,
) -> None:
    gradient = torch.tensor([[1e-9, -3e-3, 0.0], [2e-3, torch.nan, 1e-4]])
    widget = GradientZoom({0: {"a": gradient}})
    assert (widget.row, widget.column, widget.gradient) == (0, 1, pytest.approx(-3e-3))
    zoom.zoom, zoom.row, zoom.column = 3, 23, 4
    zoom.layer = "head"
    assert (zoom.row, zoom.column) == (0, 4)
    with pytest.raises(ValueError, match="at least one step"):
        GradientZoom({})
    with pytest.raises(ValueError, match="at least one layer"):
        GradientZoom({0: {"empty": torch.zeros(0)}})
    for film in ([torch.ones(2)], {0: torch.ones(2)}):
        with pytest.raises(TypeError, match="step -> a dict of layer -> gradient"):
            GradientZoom(film)
    with pytest.raises(ValueError, match="the same layers"):
        GradientZoom({0: {"a": torch.ones(2)}, 1: {"b": torch.ones(2)}})
