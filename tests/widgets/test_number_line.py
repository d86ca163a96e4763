"""The number line, and swallowed updates against plain loops of numpy and torch."""

import warnings
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import traitlets

from labkit.formats import (
    BF16,
    E2M1,
    E4M3,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    FP64,
    Format,
    Rounding,
    round_to,
)
from labkit.widgets import NumberLine, SwallowedUpdates
from labkit.widgets.number_line.widget import as_text, whole
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
from tests.widgets.pages import Scripts

NARROW = [row for row in FORMATS.values() if row is not FP64]
OUTCOMES = (
    "(x, name, mode) => outcomesOf(x, F[name], mode).map(({ value, odds }) => [value, "
    "odds.n, odds.d])"
)


class Outcome(NamedTuple):
    value: float
    odds: Fraction


class Line(Scripts):
    """The page's functions as methods of Python."""

    def outcomes(self, x: float, format: Format, mode: Rounding) -> list[Outcome]:
        return [
            Outcome(value, Fraction(n, d))
            for value, n, d in self.run(OUTCOMES, x, format.name, mode.name)
        ]

    def interval(self, x: float, format: Format, mode: Rounding) -> Any:
        return self.run(
            "(x, name, mode) => intervalOf(x, F[name], mode)", x, format.name, mode.name
        )

    def rounded(self, x: float, format: Format, mode: Rounding) -> Any:
        return self.run(
            "(x, name, mode) => roundedView(x, F[name], mode)", x, format.name, mode.name
        )

    def sentence(self, x: float, format: Format, mode: Rounding) -> Any:
        return self.rounded(x, format, mode)["sentence"]


FOLDERS = ("exact", "number_line", "swallowed")
SCRIPTS = Line


@pytest.mark.parametrize(
    ("mode", "value"),
    [("NEAREST_EVEN", "2048"), ("NEAREST_AWAY", "2050"), ("STOCHASTIC", "2048 or 2050")],
)
def test_each_mode_has_its_value(page, mode, value):
    """2049 is half-way between two FP16 numbers."""
    root = page.show(NumberLine(FP16, 2049.0))
    page.set(rounding=mode)
    assert root.locator(f"label:has(input[value={mode}]) .nl-value").text_content() == value


def test_the_sentence_of_a_tie_under_stochastic_rounding(page):
    page.show(NumberLine(FP16, 2049.0))
    page.set(rounding="STOCHASTIC")
    assert page.trait("sentence") == (
        "2049 lies half-way between the FP16 numbers 2048 and 2050, 2 apart; stochastic "
        "rounding makes it 2048 in 50% and 2050 in 50% of the draws."
    )


class TestBox:
    """The box for the number x."""

    def test_a_number_is_kept_as_it_was_typed(self, page):
        box = page.show(NumberLine(FP16, 2049.0)).get_by_role("textbox", name="x")
        box.fill("2^-24")
        assert page.trait("x") == 2.0**-24
        assert box.input_value() == "2^-24"

    def test_the_box_has_the_number_that_python_sets(self, page):
        box = page.show(NumberLine(FP16, 2049.0)).get_by_role("textbox", name="x")
        page.set(x=0.25)
        assert box.input_value() == "0.25"

    @pytest.mark.parametrize("text", ["0,1", "x", "", "inf", "nan"])
    def test_a_text_that_is_not_a_finite_number_is_refused(self, page, text):
        root = page.show(NumberLine(FP16, 0.25))
        box = root.get_by_role("textbox", name="x")
        box.fill(text)
        assert root.locator(".nl-problem").text_content()
        assert page.trait("x") == 0.25
        assert box.input_value() == text

    def test_a_number_from_python_replaces_a_refused_text(self, page):
        root = page.show(NumberLine(FP16, 0.25))
        box = root.get_by_role("textbox", name="x")
        box.fill("0,1")
        page.set(x=3)
        assert root.locator(".nl-problem").text_content() == ""
        assert box.input_value() == "3"


class TestOutcomes:
    def test_stochastic_odds_have_the_number_as_their_mean(self, js):
        for format, x in product(NARROW, [0.1, 5.3, 1e-9, 447.9, 0.3333, 1e5]):
            found = js.outcomes(x, format, Rounding.STOCHASTIC)
            assert js.sentence(x, format, Rounding.STOCHASTIC).endswith("."), (format.name, x)
            assert sum(o.odds for o in found) == 1, (format.name, x)
            assert all(0 < o.odds <= 1 for o in found), (format.name, x)
            if (
                len(found) == 2
                and np.isfinite([o.value for o in found]).all()
                and x > format.smallest_normal
            ):
                assert sum(o.odds * Fraction(o.value) for o in found) == Fraction(x), (
                    format.name,
                    x,
                )

    def test_the_odds_are_those_of_many_draws(self, js):
        draws = np.random.default_rng(0).integers(2**32, size=20_000)
        for x in (0.1, -0.1, 2048.5, 65530.0, 1e-8):
            rounded = round_to(
                np.full(draws.shape, x), FP16, Rounding.STOCHASTIC, random_bits=draws
            )
            found = js.outcomes(x, FP16, Rounding.STOCHASTIC)
            assert set(rounded) == {o.value for o in found}, x
            for o in found:
                sigma = float(o.odds * (1 - o.odds) / draws.size) ** 0.5
                assert (rounded == o.value).mean() == pytest.approx(float(o.odds), abs=4 * sigma), x

    def test_one_row_for_each_rounding(self, js):
        found = js.rounded(0.1, FP16, Rounding.NEAREST_EVEN)["rows"]
        rows = {row["mode"]: (row["value"], row["error"]) for row in found}
        down = ("0.0999755859375", "-2.44e-5")
        up = ("0.10003662109375", "+3.66e-5")
        assert rows == {
            "NEAREST_EVEN": down,
            "NEAREST_AWAY": down,
            "TOWARD_ZERO": down,
            "TOWARD_POSITIVE": up,
            "TOWARD_NEGATIVE": down,
            "STOCHASTIC": ("0.0999755859375 or 0.10003662109375", "60% or 40%"),
        }

    def test_every_rounding_keeps_an_exact_number(self, js):
        assert {row["error"] for row in js.rounded(0.5, FP16, Rounding.STOCHASTIC)["rows"]} == {
            "exact"
        }
        assert (
            js.sentence(0.5, FP16, Rounding.STOCHASTIC)
            == "0.5 is exact in FP16: every rounding keeps it."
        )


class TestInterval:
    def test_ends_of_the_interval_round_as_x_does(self, js):
        modes = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]
        for case in product(
            [FP16, BF16, E4M3, E2M1, E8M0, FP32],
            modes,
            [0.1, -5.3, 2049.0, 448.0, 3e-8, -3e-8, 1.0],
        ):
            format, rounding, x = case
            value = js.outcomes(x, format, rounding)[0].value
            ends = js.interval(x, format, rounding)
            if np.isnan(value):
                assert ends is None, case
                continue
            for side, beyond in (("low", -np.inf), ("high", np.inf)):
                if ends[side] is None or not (format.signed or ends[side] > 0):
                    continue
                at = float(round_to(ends[side], format, rounding))
                assert (at == value) == ends[f"{side}_in"], case
                outside = float(round_to(np.nextafter(ends[side], beyond), format, rounding))
                assert outside != value or format.max == abs(value), case

    def test_the_interval_of_zero_has_both_signs(self, js):
        ends = {"low": -(2.0**-25), "high": 2.0**-25, "low_in": True, "high_in": True}
        assert js.interval(1e-9, FP16, Rounding.NEAREST_EVEN) == ends
        assert js.interval(-1e-9, FP16, Rounding.NEAREST_EVEN) == ends

    def test_the_interval_of_infinity_has_no_outer_end(self, js):
        assert js.interval(1e6, FP16, Rounding.NEAREST_EVEN)["high"] is None
        assert js.interval(-1e6, FP16, Rounding.NEAREST_EVEN)["low"] is None


def test_window_stays_when_the_format_changes():
    line = NumberLine(FP16, 2049.0)
    line.window = (1.0, 3.0)
    line.format = BF16
    assert line.window == (1.0, 3.0)


def test_the_whole_line_has_the_window_of_its_format():
    line = NumberLine(BF16, 2049.0)
    line.window = (1.0, 3.0)
    line.whole()
    assert line.window == whole(BF16, "log")


def test_a_window_with_zero_is_left_for_the_scale_of_logarithms():
    line = NumberLine(BF16, 2049.0)
    line.scale, line.window = "linear", (-1.0, 1.0)
    line.scale = "log"
    assert line.window == whole(BF16, "log")


def test_a_page_gets_the_row_of_a_format_of_ones_own():
    line = NumberLine(FP16)
    line.format = Format("mine", exponent_bits=4, significand_bits=7)
    assert "mine" in [row["name"] for row in line.get_state()["_formats"]]


def test_a_number_line_of_fp64_is_refused():
    with pytest.raises(traitlets.TraitError, match="FP64"):
        NumberLine(FP64)


def test_another_format_of_a_known_name_is_refused():
    """The page tells formats apart by their names."""
    line = NumberLine(FP16)
    with pytest.raises(traitlets.TraitError, match="FP16 is the name of another format"):
        line.format = replace(FP16, significand_bits=8)
    assert line.format == FP16
    line.close()


def test_the_sentence_has_the_neighbours_and_the_result(js):
    for x, format, expected in (
        (
            0.1,
            FP16,
            "0.1 lies between the FP16 numbers 0.0999755859375 and 0.10003662109375, 2^-14 = "
            "6.1e-5",
        ),
        (
            70000.0,
            FP16,
            "70000 lies beyond the last FP16 number, 65504; to nearest, ties to even, it "
            "becomes inf",
        ),
        (-70000.0, FP16, "-70000 lies beyond the last FP16 number, -65504;"),
        (
            449.0,
            E4M3,
            "449 lies beyond the last E4M3 number, 448; to nearest, ties to even, it becomes 448.",
        ),
        (-1.0, E8M0, "-1 becomes NaN: E8M0 has no sign, so nothing below 0."),
        (0.0, E8M0, "0 becomes NaN: E8M0 has no zero."),
    ):
        assert expected in js.sentence(x, format, Rounding.NEAREST_EVEN)


def test_text_of_a_number_has_its_value():
    for x in (0.1, -1e-7, 2049.0, 1e22, 65504.5):
        assert float(as_text(x)) == x


def test_values_for_screen_readers_have_digits_after_the_point(js):
    for value, text in ((1e-100, "0"), (0.5, "0.5"), (-0.25, "-0.25"), (1e21, "1" + "0" * 21)):
        assert js.run("plainDecimal", value) == text


def test_texts_of_odds(js):
    for share, text in (
        ((1, 2), "50%"),
        ((1, 3), "33.3%"),
        ((1, 10**5), "<0.1%"),
        ((1, 1), "100%"),
    ):
        assert js.run("(n, d) => oddsText(fraction(BigInt(n), BigInt(d)))", *share) == text


def test_the_axis_shows_where_numbers_overflow_and_underflow(js):
    for format in NARROW:
        facts = js.run("(name) => lineFormat(F[name])", format.name)
        if facts["ends_from"] is not None:
            assert not np.isfinite(round_to(facts["ends_from"] * (1 + 2.0**-40), format)), (
                format.name
            )
            assert round_to(facts["ends_from"] * (1 - 2.0**-40), format) == format.max, format.name
        if format.has_zero:
            assert round_to(facts["zero_to"], format) == 0, format.name
            assert (
                round_to(facts["zero_to"] * (1 + 2.0**-40), format) == format.smallest_subnormal
            ), format.name


TICKS = """(low, high) => {
  const labels = [];
  const pen = { measureText: () => ({ width: 0 }), fillRect() {}, fillText: (t) => labels.push(t) };
  drawNumbers({ pen, lens: lens(low, high, false, 700) });
  return labels;
}"""


def test_an_axis_of_a_few_float64_numbers_has_few_ticks(js):
    """Beside 1 the step of the ticks is so small that a counter of them cannot count by 1."""
    assert 0 < len(js.run(TICKS, 1.0, 1 + 2.0**-50)) < 20


def test_an_axis_of_whole_numbers_has_a_tick_at_each(js):
    assert js.run(TICKS, 0.0, 7.0) == ["0", "1", "2", "3", "4", "5", "6", "7"]


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
