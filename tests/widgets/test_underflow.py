"""The underflow histogram: its shares, its sentences, and its motion."""

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
from labkit.widgets import ALL_LAYERS, UnderflowHistogram
from labkit.widgets.underflow.widget import LOG2_SCALES, rows, windows, zeros_counted
from tests.widgets.pages import Page, Scripts

FOLDERS = ("exact", "underflow")
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
