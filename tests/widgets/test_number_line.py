"""The number line: what every rounding makes of a number, in the page, and the state that Python keeps."""

from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import traitlets

from labkit.formats import BF16, E2M1, E4M3, E8M0, FORMATS, FP16, FP32, FP64, Format, Rounding, round_to
from labkit.widgets import NumberLine
from labkit.widgets.number_line.widget import as_text, whole
from tests.widgets.pages import Scripts

NARROW = [row for row in FORMATS.values() if row is not FP64]
OUTCOMES = "(x, name, mode) => outcomesOf(x, F[name], mode).map(({ value, odds }) => [value, odds.n, odds.d])"


class Outcome(NamedTuple):
    value: float
    odds: Fraction


class Line(Scripts):
    """The functions of the page, called as they would be in Python."""

    def outcomes(self, x: float, format: Format, mode: Rounding) -> list[Outcome]:
        return [Outcome(value, Fraction(n, d)) for value, n, d in self.run(OUTCOMES, x, format.name, mode.name)]

    def interval(self, x: float, format: Format, mode: Rounding) -> Any:
        return self.run("(x, name, mode) => intervalOf(x, F[name], mode)", x, format.name, mode.name)

    def rounded(self, x: float, format: Format, mode: Rounding) -> Any:
        return self.run("(x, name, mode) => roundedView(x, F[name], mode)", x, format.name, mode.name)

    def sentence(self, x: float, format: Format, mode: Rounding) -> Any:
        return self.rounded(x, format, mode)["sentence"]


@pytest.fixture(scope="module")
def js(browser: Any) -> Line:
    return Line(browser, "exact", "number_line")


@pytest.fixture
def line():
    return NumberLine(FP16, 2049.0)


def test_worked_example(page):
    """2049 is half-way between two FP16 numbers."""
    root = page.show(NumberLine(FP16, 2049.0))

    def becomes(mode):
        page.set(rounding=mode)
        return root.locator(f"label:has(input[value={mode}]) .nl-value").text_content()

    assert becomes("NEAREST_EVEN") == "2048"
    assert becomes("NEAREST_AWAY") == "2050"
    assert becomes("STOCHASTIC") == "2048 or 2050"
    assert page.trait("sentence") == (
        "2049 lies half-way between the FP16 numbers 2048 and 2050, 2 apart; stochastic rounding makes it 2048 in 50% "
        "and 2050 in 50% of the draws."
    )


class TestOutcomes:
    def test_to_nearest_is_what_numpy_and_torch_do(self, js):
        x = np.float32([0.1, -0.1, 1e-9, 65519.0, 65520.0, -1e6, 0.0, 3 * 2.0**-25, 1 / 3])  # torch rounds FP64 twice
        with np.errstate(over="ignore"):
            oracles = {FP16: x.astype(np.float16), BF16: torch.tensor(x).bfloat16().float().numpy()}
        for format, oracle in oracles.items():
            found = [js.outcomes(float(each), format, Rounding.NEAREST_EVEN)[0].value for each in x]
            np.testing.assert_array_equal(found, oracle.astype(np.float64))

    def test_stochastic_odds_have_the_number_as_their_mean(self, js):
        for format, x in product(NARROW, [0.1, 5.3, 1e-9, 447.9, 0.3333, 1e5]):
            found = js.outcomes(x, format, Rounding.STOCHASTIC)
            assert sum(o.odds for o in found) == 1, (format.name, x)
            assert all(0 < o.odds <= 1 for o in found), (format.name, x)
            if len(found) == 2 and np.isfinite([o.value for o in found]).all() and x > format.smallest_normal:
                assert sum(o.odds * Fraction(o.value) for o in found) == Fraction(x), (format.name, x)

    def test_the_odds_are_those_of_many_draws(self, js):
        draws = np.random.default_rng(0).integers(2**32, size=20_000)
        for x in (0.1, -0.1, 2048.5, 65530.0, 1e-8):
            seen = round_to(np.full(draws.shape, x), FP16, Rounding.STOCHASTIC, random_bits=draws)
            found = js.outcomes(x, FP16, Rounding.STOCHASTIC)
            assert set(seen) == {o.value for o in found}, x
            for o in found:
                sigma = float(o.odds * (1 - o.odds) / draws.size) ** 0.5
                assert (seen == o.value).mean() == pytest.approx(float(o.odds), abs=4 * sigma), x

    def test_one_row_for_each_rounding(self, js):
        found = js.rounded(0.1, FP16, Rounding.NEAREST_EVEN)["rows"]
        rows = {one["mode"]: (one["value"], one["error"]) for one in found}
        down, up = ("0.0999755859375", "-2.44e-5"), ("0.10003662109375", "+3.66e-5")
        assert rows == {
            "NEAREST_EVEN": down, "NEAREST_AWAY": down, "TOWARD_ZERO": down, "TOWARD_POSITIVE": up,
            "TOWARD_NEGATIVE": down, "STOCHASTIC": ("0.0999755859375 or 0.10003662109375", "60% or 40%"),
        }  # fmt: skip
        assert {row["error"] for row in js.rounded(0.5, FP16, Rounding.STOCHASTIC)["rows"]} == {"exact"}
        assert js.sentence(0.5, FP16, Rounding.STOCHASTIC) == "0.5 is exact in FP16: every rounding keeps it."


class TestInterval:
    def test_its_ends_round_as_x_does_and_what_is_beyond_does_not(self, js):
        modes = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]
        for case in product([FP16, BF16, E4M3, E2M1, E8M0, FP32], modes, [0.1, -5.3, 2049.0, 448.0, 3e-8, -3e-8, 1.0]):
            format, rounding, x = case
            value, ends = js.outcomes(x, format, rounding)[0].value, js.interval(x, format, rounding)
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

    def test_zero_has_both_sides_and_beyond_the_largest_there_is_no_end(self, js):
        ends = {"low": -(2.0**-25), "high": 2.0**-25, "low_in": True, "high_in": True}
        assert js.interval(1e-9, FP16, Rounding.NEAREST_EVEN) == js.interval(-1e-9, FP16, Rounding.NEAREST_EVEN) == ends
        assert js.interval(1e6, FP16, Rounding.NEAREST_EVEN)["high"] is None
        assert js.interval(-1e6, FP16, Rounding.NEAREST_EVEN)["low"] is None


class TestState:
    def test_text_moves_x_and_x_writes_the_text(self, page, line):
        root = page.show(line)
        box = root.get_by_role("textbox", name="x")
        box.fill("2^-24")
        assert (page.trait("x"), box.input_value()) == (2.0**-24, "2^-24")
        page.set(x=0.25)
        assert box.input_value() == "0.25"
        for text in ("0,1", "x", "", "inf", "nan"):
            box.fill(text)
            assert root.locator(".nl-problem").text_content(), text
            assert (page.trait("x"), box.input_value()) == (0.25, text)
        page.set(x=3)
        assert (root.locator(".nl-problem").text_content(), box.input_value()) == ("", "3")

    def test_every_format_answers_every_number(self, js):
        for format, x in product(NARROW, [-0.1, 0.0, 1e-30, 1.0, 447.0, 1e30]):
            view = js.rounded(x, format, Rounding.NEAREST_EVEN)
            assert len(view["rows"]) == len(Rounding), (format.name, x)
            assert view["sentence"].endswith("."), (format.name, x)

    def test_the_window_stays_when_the_format_changes_and_a_log_scale_begins_above_zero(self, line):
        line.window = (1.0, 3.0)
        line.format = BF16
        assert line.window == (1.0, 3.0)
        line.whole()
        assert line.window == whole(BF16, "log")
        line.scale = "linear"
        line.window = (-1.0, 1.0)
        line.scale = "log"
        assert line.window == whole(BF16, "log")

    def test_a_learner_may_bring_a_format_but_not_that_of_x_itself(self, line):
        line.format = Format("mine", exponent_bits=4, significand_bits=7)
        assert "mine" in [row["name"] for row in line.get_state()["_formats"]]
        with pytest.raises(traitlets.TraitError, match="FP64"):
            NumberLine(FP64)


def test_the_sentence_says_where_x_lies_and_what_it_becomes(js):
    for x, format, said in (
        (0.1, FP16, "0.1 lies between the FP16 numbers 0.0999755859375 and 0.10003662109375, 2^-14 = 6.1e-5"),
        (70000.0, FP16, "70000 lies beyond the last FP16 number, 65504; to nearest, ties to even, it becomes inf"),
        (-70000.0, FP16, "-70000 lies beyond the last FP16 number, -65504;"),
        (449.0, E4M3, "449 lies beyond the last E4M3 number, 448; to nearest, ties to even, it becomes 448."),
        (-1.0, E8M0, "-1 becomes NaN: E8M0 has no sign, so nothing below 0."),
        (0.0, E8M0, "0 becomes NaN: E8M0 has no zero."),
    ):
        assert said in js.sentence(x, format, Rounding.NEAREST_EVEN)

    for x in (0.1, -1e-7, 2049.0, 1e22, 65504.5):
        assert float(as_text(x)) == x
    assert [
        js.run("(n, d) => oddsText(fraction(BigInt(n), BigInt(d)))", *share)
        for share in ((1, 2), (1, 3), (1, 10**5), (1, 1))
    ] == ["50%", "33.3%", "<0.1%", "100%"]


def test_the_axis_says_where_rounding_leaves_the_numbers(js):
    for format in NARROW:
        facts = js.run("(name) => lineFormat(F[name])", format.name)
        if facts["ends_from"] is not None:
            assert not np.isfinite(round_to(facts["ends_from"] * (1 + 2.0**-40), format)), format.name
            assert round_to(facts["ends_from"] * (1 - 2.0**-40), format) == format.max, format.name
        if format.has_zero:
            assert round_to(facts["zero_to"], format) == 0, format.name
            assert round_to(facts["zero_to"] * (1 + 2.0**-40), format) == format.smallest_subnormal, format.name
