"""Swallowed updates: every curve against a plain loop that nobody here wrote the arithmetic of."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from labkit.formats import BF16, FP16, FP32
from labkit.widgets import SwallowedUpdates
from labkit.widgets.swallowed.curves import METHODS, compensated, curves, moved, random_bits, repeated, stochastic
from labkit.widgets.swallowed.widget import UPDATES, WEIGHTS, quarters

FOLDERS = ("exact", "swallowed")
STEPS = 1000


def numpy_loop(weight, update, steps, dtype):
    """The plain loop, in whatever `dtype(number)` makes: numpy's numbers or torch's."""
    w, u = dtype(weight), dtype(update)
    found = [w]
    for _ in range(steps):
        w = w - u
        found.append(w)
    return np.array([float(each) for each in found])


def bfloat16(number):
    return torch.tensor(number, dtype=torch.float64).float().bfloat16()


def pairs(count, seed=0):
    """Return pairs of a weight and an update: some where the sliders stand, some anywhere."""
    generator = np.random.default_rng(seed)
    draw = generator.uniform
    on = [(float(generator.choice(WEIGHTS)), float(generator.choice(UPDATES))) for _ in range(count)]
    anywhere = [(float(2.0 ** draw(-6, 6)), float(2.0 ** draw(-22, -3))) for _ in range(count)]
    return on + anywhere


def test_guessing_ahead_gives_what_the_plain_loops_of_numpy_and_torch_give():
    for weight, update in pairs(40):
        for format, dtype in ((FP16, np.float16), (FP32, np.float32)):
            found = repeated(weight, update, STEPS, format)
            assert np.array_equal(found, numpy_loop(weight, update, STEPS, dtype)), (weight, update, format.name)
    for weight, update in pairs(10):
        assert np.array_equal(repeated(weight, update, 300, BF16), numpy_loop(weight, update, 300, bfloat16)), (
            weight,
            update,
        )


def test_kahan_ends_within_an_ulp_of_the_exact_sum():
    for weight, update in pairs(40, seed=4)[:40]:
        exact = weight - STEPS * update
        found = compensated(weight, update, STEPS)[-1]
        largest = max(weight, abs(exact))
        assert abs(found - exact) <= float(np.spacing(np.float16(largest)))


def test_a_master_copy_is_seen_as_its_float16():
    for weight, update in pairs(2, seed=5):
        master = numpy_loop(weight, update, STEPS, np.float32).astype(np.float32)
        found = curves(weight, update, STEPS)["FP16 + FP32 master"]
        assert np.array_equal(found, master.astype(np.float16).astype(np.float64))


class TestStochastic:
    def test_each_step_goes_to_one_of_the_two_neighbours(self):
        for weight, update in pairs(3, seed=6):
            w = stochastic(weight, update, 200)
            u = float(np.float16(update))
            for before, after in pairwise(w):
                near = np.float16(before - u)
                neighbours = [near, np.nextafter(near, np.float16(np.inf)), np.nextafter(near, np.float16(-np.inf))]
                assert after in [float(x) for x in neighbours]
                assert abs(after - (before - u)) < float(np.spacing(near)) or after == before - u

    def test_it_arrives_on_average_within_four_sigma(self):
        """A step of a quarter ulp moves by a whole one with probability 1/4: variance 3/16 ulp^2 a step."""
        ulp = 2.0**-11
        update = ulp / 4
        end = stochastic(1.0, update, STEPS)[-1]
        sigma = np.sqrt(STEPS * 3 / 16) * ulp
        assert abs(end - (1 - STEPS * update)) < 4 * sigma


def test_every_method_starts_from_the_same_wherever_the_sliders_stand():
    for values in (WEIGHTS, UPDATES):
        exact = np.array(values)
        assert np.array_equal(exact.astype(np.float16).astype(np.float64), exact)
        assert torch.equal(torch.tensor(exact).bfloat16().double(), torch.tensor(exact))


CURVES = "(all, steps, random) => all.map(([w, u]) => curvesOf(w, u, steps, random).map((curve) => [...curve]))"
SENTENCE = """(weight, update, steps, random) => {
  return swallowedSentence(curvesOf(weight, update, steps, random), weight, update, steps);
}"""


def sentence(js, weight, update, steps=STEPS):
    return js.run(SENTENCE, weight, update, steps, random_bits(steps).tolist())


def test_the_curves_of_the_page_are_those_of_python(js):
    cases = [*pairs(12, seed=9), (65504.0, 1.0), (2.0**-24, 2.0**-24), (60000.0, 65504.0)]
    for (weight, update), found in zip(cases, js.run(CURVES, cases, 300, random_bits(300).tolist()), strict=True):
        if update == 65504.0:  # beyond the largest number
            assert found[1][-1] == -np.inf
            continue
        expected = curves(weight, update, 300)
        for name, curve in zip(METHODS, found, strict=True):
            assert np.array_equal(curve, expected[name]), (weight, update, name)


class TestWidget:
    def test_the_page_follows_its_sliders_without_a_kernel(self, page):
        swallowed = SwallowedUpdates(update=2.0**-10)
        root = page.show(swallowed)
        moves = root.locator("td[data-key=moved]").all_text_contents()
        assert moves == [f"{n:,}" for n in swallowed.moved.values()]
        root.get_by_role("slider").last.fill("0")
        assert page.trait("update") == UPDATES[0]
        assert page.trait("sentence").startswith("1,000 updates of 2^-20 should take the weight from 1 to 0.999: ")
        root.get_by_role("button", name="BF16").click()
        assert page.trait("highlight") == "BF16"

    def test_off_the_sliders_positions(self):
        swallowed = SwallowedUpdates(weight=0.3, update=1e-4, steps=50)
        assert swallowed.moved["FP16"] == moved(numpy_loop(0.3, 1e-4, 50, np.float16))
        with pytest.raises(ValueError, match="steps: expected 1 to 100,000, got 0"):
            SwallowedUpdates(steps=0)


def test_the_sentence_says_which_go_too_far_and_which_stay_short(js):
    """At 1.5 an update of 0.625 ulp is rounded up to a whole one; from 16 to 8 one of 1.25 ulp is rounded down."""
    said = sentence(js, 1.5, 1.25 * 2.0**-11)
    assert said.startswith("1,000 updates of 1.25 × 2^-11 should take the weight from 1.5 to 0.8896: ")
    assert said.endswith("BF16 has not moved once, FP16 ends at 0.7617, too far.")
    said = sentence(js, 16.0, 1.25 * 2.0**-7)
    assert "FP16 ends at 8.188, too short a way" in said
    assert sentence(js, 1.0, 2.0**-6, 10).endswith("FP16 + FP32 master arrive.")

    values = [0.0625, 1.75 * 8, 0.3]
    assert (
        [js.run("quarters", value) for value in values]
        == [quarters(value) for value in values]
        == ["2^-4 = 0.0625", "1.75 × 2^3 = 14", "0.3"]
    )
