"""The number line: a number, its neighbours, and where it is rounded to."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
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
from labkit.widgets import NumberLine
from labkit.widgets.number_line.widget import as_text, whole
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


FOLDERS = ("exact", "number_line")
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


def test_a_drag_of_the_line_survives_a_change_of_scale(page):
    root = page.show(NumberLine(FP16, 1.0))
    box = root.locator(".nl-line canvas").bounding_box()
    mouse = page.page.mouse
    mouse.move(box["x"] + 200, box["y"] + 60)
    mouse.down()
    mouse.move(box["x"] + 210, box["y"] + 60)
    low, high = page.trait("window")
    assert (low, high) != NumberLine(FP16, 1.0).window
    page.set(scale="linear")
    mouse.move(box["x"] + 211, box["y"] + 60)
    # Not the old logarithms, which end at 18.
    assert page.trait("window") == [low, high]
    mouse.move(box["x"] + 201, box["y"] + 60)
    assert page.trait("window")[1] > FP16.max


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


@pytest.mark.parametrize("exponent", [-1074, -1022, -1, 0, 52, 64, 127, 1023])
def test_the_mark_of_a_power_of_two_is_long(js: Line, exponent: int) -> None:
    assert js.run("isPowerOfTwo", -(2.0**exponent)) is True


@pytest.mark.parametrize("exponent", [-1022, 0, 64, 127])
def test_the_mark_after_a_power_of_two_is_short(js: Line, exponent: int) -> None:
    assert js.run("isPowerOfTwo", 2.0**exponent * (1 + 2.0**-48)) is False
