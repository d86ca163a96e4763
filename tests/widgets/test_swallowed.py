"""Swallowed updates, against plain loops of numpy and torch."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch

from labkit.formats import BF16, FP16, FP32
from labkit.widgets import SwallowedUpdates
from labkit.widgets.swallowed.curves import (
    METHODS,
    compensated,
    curves,
    moved,
    random_bits,
    repeated,
    stochastic,
)
from labkit.widgets.swallowed.widget import UPDATES, WEIGHTS, quarters

FOLDERS = ("swallowed",)
STEPS = 1000


def numpy_loop(weight, update, steps, dtype):
    """Return the weights of a plain loop on numbers that `dtype` makes, of numpy or torch."""
    w = dtype(weight)
    u = dtype(update)
    found = [w]
    for _ in range(steps):
        w = w - u
        found.append(w)
    return np.array([float(number) for number in found])


def bfloat16(number):
    return torch.tensor(number, dtype=torch.float64).float().bfloat16()


def pairs(count, seed=0):
    """Return pairs of a weight and an update, at positions of the sliders and anywhere else."""
    generator = np.random.default_rng(seed)
    draw = generator.uniform
    on_sliders = [
        (float(generator.choice(WEIGHTS)), float(generator.choice(UPDATES))) for _ in range(count)
    ]
    anywhere = [(float(2.0 ** draw(-6, 6)), float(2.0 ** draw(-22, -3))) for _ in range(count)]
    return on_sliders + anywhere


def test_repeated_updates_equal_plain_loops():
    for weight, update in pairs(40):
        for format, dtype in ((FP16, np.float16), (FP32, np.float32)):
            found = repeated(weight, update, STEPS, format)
            assert np.array_equal(found, numpy_loop(weight, update, STEPS, dtype)), (
                weight,
                update,
                format.name,
            )
    for case in pairs(10):
        assert np.array_equal(repeated(*case, 300, BF16), numpy_loop(*case, 300, bfloat16)), case


def test_a_weight_beyond_the_largest_value_stays_infinite():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curve = repeated(1.0, 65504.0, 4, FP16)
    assert curve.tolist() == [1.0, -65504.0, -np.inf, -np.inf, -np.inf]


def test_a_weight_that_stays_infinite_or_nan_does_not_move(js):
    found = curves(1.0, 65504.0, 10)
    moves = {name: moved(curve) for name, curve in found.items()}
    # From 1 to -65503 or -65504, to -inf, and with Kahan's compensation to NaN.
    assert moves == {
        "FP32": 10,
        "FP16": 2,
        "BF16": 10,
        "FP16 + Kahan": 3,
        "FP16 + stochastic": 2,
        "FP16 + FP32 master": 2,
    }
    count = "(w, u, steps, random) => curvesOf(w, u, steps, random).map((c) => movesIn(c))"
    assert js.run(count, 1.0, 65504.0, 10, random_bits(10).tolist()) == list(moves.values())


def test_the_curve_of_a_master_has_its_fp16_copies():
    for weight, update in pairs(2, seed=5):
        master = numpy_loop(weight, update, STEPS, np.float32).astype(np.float32)
        found = curves(weight, update, STEPS)["FP16 + FP32 master"]
        assert np.array_equal(found, master.astype(np.float16).astype(np.float64))


def test_kahan_ends_within_an_ulp_of_the_exact_sum():
    for weight, update in pairs(40, seed=4)[:40]:
        exact = weight - STEPS * update
        found = compensated(weight, update, STEPS)[-1]
        largest = max(weight, abs(exact))
        assert abs(found - exact) <= float(np.spacing(np.float16(largest)))


class TestStochastic:
    def test_each_step_goes_to_one_of_the_two_neighbours(self):
        for weight, update in pairs(3, seed=6):
            w = stochastic(weight, update, 200)
            u = float(np.float16(update))
            for before, after in pairwise(w):
                near = np.float16(before - u)
                neighbours = [
                    near,
                    np.nextafter(near, np.float16(np.inf)),
                    np.nextafter(near, np.float16(-np.inf)),
                ]
                assert after in [float(x) for x in neighbours]
                assert abs(after - (before - u)) < float(np.spacing(near)) or after == before - u

    def test_the_mean_is_within_four_standard_deviations(self):
        """An update of a quarter ulp moves the weight by an ulp with probability 1/4.

        Its variance is 3/16 ulp^2.
        """
        ulp = 2.0**-11
        update = ulp / 4
        end = stochastic(1.0, update, STEPS)[-1]
        sigma = np.sqrt(STEPS * 3 / 16) * ulp
        assert abs(end - (1 - STEPS * update)) < 4 * sigma


CURVES = (
    "(all, steps, random) => all.map(([w, u]) => curvesOf(w, u, steps, random).map((curve) "
    "=> [...curve]))"
)
SENTENCE = """(weight, update, steps, random) => {
  return swallowedSentence(curvesOf(weight, update, steps, random), weight, update, steps);
}"""


def sentence(js, weight, update, steps=STEPS):
    return js.run(SENTENCE, weight, update, steps, random_bits(steps).tolist())


def test_the_curves_of_the_page_equal_those_of_python(js):
    cases = [*pairs(12, seed=9), (65504.0, 1.0), (2.0**-24, 2.0**-24), (60000.0, 65504.0)]
    for (weight, update), found in zip(
        cases, js.run(CURVES, cases, 300, random_bits(300).tolist()), strict=True
    ):
        if update == 65504.0:  # beyond the largest number
            assert found[1][-1] == -np.inf
            continue
        expected = curves(weight, update, 300)
        for name, curve in zip(METHODS, found, strict=True):
            assert np.array_equal(curve, expected[name]), (weight, update, name)


def test_the_page_follows_its_sliders_without_a_kernel(page):
    swallowed = SwallowedUpdates(update=2.0**-10)
    root = page.show(swallowed)
    moves = root.locator("td[data-key=moved]").all_text_contents()
    assert moves == [f"{n:,}" for n in swallowed.moved.values()]
    root.get_by_role("slider").last.fill("0")
    assert page.trait("update") == UPDATES[0]
    assert page.trait("sentence").startswith(
        "1,000 updates of 2^-20 should take the weight from 1 to 0.999: "
    )
    root.get_by_role("button", name="BF16").click()
    assert page.trait("highlight") == "BF16"


def test_a_weight_between_the_places_of_the_slider_is_kept():
    swallowed = SwallowedUpdates(weight=0.3, update=1e-4, steps=50)
    assert swallowed.moved["FP16"] == moved(numpy_loop(0.3, 1e-4, 50, np.float16))


def test_swallowed_updates_of_no_step_are_refused():
    with pytest.raises(ValueError, match="steps: expected 1 to 100,000, got 0"):
        SwallowedUpdates(steps=0)


@pytest.mark.parametrize("steps", [2.5, True, "10"])
def test_steps_of_swallowed_updates_are_an_int(steps):
    with pytest.raises(TypeError, match="steps: expected an int, got"):
        SwallowedUpdates(steps=steps)


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.4, 1.1, ["0.4", "0.6", "0.8", "1.0"]),
        (1 - 2e-7, 1, ["0.9999998", "0.99999985", "0.9999999", "0.99999995", "1"]),
        (5e-8, 1.3e-7, ["6e−8", "8e−8", "1.0e−7", "1.2e−7"]),
    ],
)
def test_ticks_of_weights_tell_them_apart(js, low, high, texts):
    found = js.run("(low, high) => weightTicks(low, high).map(([, text]) => text)", low, high)
    assert len(set(found)) == len(found) > 2
    assert [float(text.replace("−", "-")) for text in found] == pytest.approx(
        [float(text.replace("−", "-")) for text in texts], rel=1e-12
    )


def test_an_infinite_weight_is_drawn_at_the_edge(page):
    root = page.show(SwallowedUpdates(weight=65504.0, update=65504.0, steps=4))
    assert root.locator("[data-curve=FP16] [data-key=end]").text_content() == "−inf"
    lines = root.locator("polyline").all()
    assert lines
    for points in lines:
        assert "NaN" not in points.get_attribute("points")


def test_the_sentence_names_the_ends_of_an_overflow(js):
    text = sentence(js, 65504.0, 65504.0, 4)
    assert "FP16 ends at −inf, too far" in text
    # After an overflow, Kahan's sum subtracts infinity from infinity.
    assert text.endswith("FP16 + Kahan ends at NaN.")


def test_one_update_is_in_the_singular(page):
    page.show(SwallowedUpdates(weight=1.0, update=2.0**-10, steps=1))
    assert page.trait("sentence").startswith("1 update of 2^-10 should take the weight from 1 to")


def test_the_sentence_says_which_go_too_far_and_which_stay_short(js):
    """At 1.5 an update of 0.625 ulp is rounded up to a whole one.

    From 16 to 8, one of 1.25 ulp is rounded down.
    """
    text = sentence(js, 1.5, 1.25 * 2.0**-11)
    assert text.startswith(
        "1,000 updates of 1.25 × 2^-11 should take the weight from 1.5 to 0.8896: "
    )
    assert text.endswith("BF16 has not moved once, FP16 ends at 0.7617, too far.")
    text = sentence(js, 16.0, 1.25 * 2.0**-7)
    assert "FP16 ends at 8.188, too short a way" in text


def test_the_sentence_says_that_a_master_arrives(js):
    assert sentence(js, 1.0, 2.0**-6, 10).endswith("FP16 + FP32 master arrive.")


def test_page_and_kernel_write_a_quarter_of_a_power_alike(js):
    for value, text in ((0.0625, "2^-4 = 0.0625"), (1.75 * 8, "1.75 × 2^3 = 14"), (0.3, "0.3")):
        assert js.run("quarters", value) == text
        assert quarters(value) == text
