"""The number line without a browser: what every rounding makes of a number, and that the state is always true."""

import json
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
import traitlets

from labkit.formats import BF16, E2M1, E4M3, E8M0, FORMATS, FP16, FP32, FP64, Format, Rounding, round_to
from labkit.widgets.number_line.figure import values_between
from labkit.widgets.number_line.widget import NumberLine
from labkit.widgets.number_line.words import axis, interval, odds, outcomes, rounded, row, sentence, whole, written

NARROW = [row for row in FORMATS.values() if row is not FP64]


@pytest.fixture
def line():
    return NumberLine(FP16, 2049.0)


def becomes(widget):
    return [value["at"] for value in widget.rounded["values"]]


def test_worked_example(line):
    """2049 is half-way between two FP16 numbers."""
    assert becomes(line) == [2048.0]
    line.rounding = Rounding.NEAREST_AWAY
    assert becomes(line) == [2050.0]
    line.rounding = Rounding.STOCHASTIC
    assert [(value["at"], value["odds"]) for value in line.rounded["values"]] == [(2048.0, "50%"), (2050.0, "50%")]
    assert line.sentence == (
        "2049 lies half-way between the FP16 numbers 2048 and 2050, 2 apart; stochastic rounding makes it 2048 in 50% "
        "and 2050 in 50% of the draws."
    )


class TestOutcomes:
    @pytest.mark.parametrize("x", [0.1, -0.1, 1e-9, 65519.0, 65520.0, -1e6, 0.0, 3 * 2.0**-25, 1 / 3])
    def test_to_nearest_is_what_numpy_and_torch_do(self, x):
        with np.errstate(over="ignore"):
            assert outcomes(x, FP16, Rounding.NEAREST_EVEN)[0].value == float(np.float16(x))
        x = float(np.float32(x))  # torch rounds float64 twice
        assert outcomes(x, BF16, Rounding.NEAREST_EVEN)[0].value == float(torch.tensor(x).bfloat16())

    @pytest.mark.parametrize("format", NARROW, ids=lambda row: row.name)
    @pytest.mark.parametrize("x", [0.1, 5.3, 1e-9, 447.9, 0.3333, 1e5])
    def test_stochastic_odds_have_the_number_as_their_mean(self, format, x):
        found = outcomes(x, format, Rounding.STOCHASTIC)
        assert sum(o.odds for o in found) == 1
        assert all(0 < o.odds <= 1 for o in found)
        if len(found) == 2 and np.isfinite([o.value for o in found]).all() and x > format.smallest_normal:
            assert sum(o.odds * Fraction(o.value) for o in found) == Fraction(x)

    @pytest.mark.parametrize("x", [0.1, -0.1, 2048.5, 65530.0, 1e-8])
    def test_the_odds_are_those_of_many_draws(self, x):
        draws = np.random.default_rng(0).integers(2**32, size=20_000)
        seen = round_to(np.full(draws.shape, x), FP16, Rounding.STOCHASTIC, random_bits=draws)
        found = outcomes(x, FP16, Rounding.STOCHASTIC)
        assert set(seen) == {o.value for o in found}
        for o in found:
            sigma = float(o.odds * (1 - o.odds) / draws.size) ** 0.5
            assert (seen == o.value).mean() == pytest.approx(float(o.odds), abs=4 * sigma)

    def test_one_row_for_each_rounding(self):
        found = rounded(0.1, FP16, Rounding.NEAREST_EVEN)["rows"]
        rows = {one["mode"]: (one["value"], one["error"]) for one in found}
        down, up = ("0.0999755859375", "-2.44e-5"), ("0.10003662109375", "+3.66e-5")
        assert rows == {
            "NEAREST_EVEN": down, "NEAREST_AWAY": down, "TOWARD_ZERO": down, "TOWARD_POSITIVE": up,
            "TOWARD_NEGATIVE": down, "STOCHASTIC": ("0.0999755859375 or 0.10003662109375", "60% or 40%"),
        }  # fmt: skip

    def test_what_is_exact_is_kept_and_said(self):
        assert {row(0.5, FP16, mode)["error"] for mode in Rounding} == {"exact"}
        assert sentence(0.5, FP16, Rounding.STOCHASTIC) == "0.5 is exact in FP16: every rounding keeps it."


class TestInterval:
    @pytest.mark.parametrize("format", [FP16, BF16, E4M3, E2M1, E8M0, FP32], ids=lambda row: row.name)
    @pytest.mark.parametrize("rounding", [mode for mode in Rounding if mode is not Rounding.STOCHASTIC])
    @pytest.mark.parametrize("x", [0.1, -5.3, 2049.0, 448.0, 3e-8, -3e-8, 1.0])
    def test_its_ends_round_as_x_does_and_what_is_beyond_does_not(self, format, rounding, x):
        value = outcomes(x, format, rounding)[0].value
        ends = interval(x, format, rounding)
        if np.isnan(value):
            assert ends is None
            return
        for side, beyond in (("low", -np.inf), ("high", np.inf)):
            if ends[side] is None or not (format.signed or ends[side] > 0):
                continue
            at = float(round_to(ends[side], format, rounding))
            assert (at == value) == ends[f"{side}_in"]
            outside = float(round_to(np.nextafter(ends[side], beyond), format, rounding))
            assert outside != value or format.max == abs(value)

    def test_zero_has_both_sides(self):
        ends = {"low": -(2.0**-25), "high": 2.0**-25, "low_in": True, "high_in": True}
        assert interval(1e-9, FP16, Rounding.NEAREST_EVEN) == ends
        assert interval(-1e-9, FP16, Rounding.NEAREST_EVEN) == ends

    def test_beyond_the_largest_it_has_no_end(self):
        assert interval(1e6, FP16, Rounding.NEAREST_EVEN)["high"] is None
        assert interval(-1e6, FP16, Rounding.NEAREST_EVEN)["low"] is None


class TestState:
    def test_text_moves_x_and_x_writes_the_text(self, line):
        line.text = "2^-24"
        assert (line.x, line.text) == (2.0**-24, "2^-24")
        line.x = 0.25
        assert line.text == "0.25"

    @pytest.mark.parametrize("text", ["0,1", "x", "", "inf", "nan"])
    def test_bad_text_stays_and_x_does_too(self, line, text):
        line.text = text
        assert line.problem
        assert (line.x, line.text) == (2049.0, text)
        line.x = 3.0
        assert (line.problem, line.text) == ("", "3")

    @pytest.mark.parametrize("format", NARROW, ids=lambda row: row.name)
    @pytest.mark.parametrize("x", [-0.1, 0.0, 1e-30, 1.0, 447.0, 1e30])
    def test_every_format_has_an_answer_that_json_can_hold(self, format, x):
        widget = NumberLine(format, x)
        sent = json.loads(json.dumps(widget.get_state(), allow_nan=False, default=str))
        assert sent["rounded"]["x"] == x
        assert len(sent["rounded"]["rows"]) == len(Rounding)
        assert sent["sentence"].endswith(".")

    def test_the_window_stays_when_the_format_changes(self, line):
        line.window = (1.0, 3.0)
        line.format = BF16
        assert line.window == (1.0, 3.0)
        assert "BF16" in line.sentence
        line.whole()
        assert line.window == whole(BF16, "log")

    def test_a_log_scale_has_no_place_for_zero(self):
        line = NumberLine(FP16, scale="linear")
        assert line.window[0] < 0
        line.scale = "log"
        assert line.window == whole(FP16, "log")
        with pytest.raises(traitlets.TraitError, match="above 0"):
            line.window = (-1.0, 1.0)

    @pytest.mark.parametrize("window", [(1.0, 1.0), (2.0, 1.0), (1.0, np.inf), (np.nan, 1.0)])
    def test_an_empty_or_endless_window_is_refused(self, line, window):
        before = line.window
        with pytest.raises(traitlets.TraitError):
            line.window = window
        assert line.window == before

    @pytest.mark.parametrize("x", [np.inf, np.nan])
    def test_x_is_a_place(self, line, x):
        with pytest.raises(traitlets.TraitError, match="finite"):
            line.x = x
        assert line.x == 2049.0

    def test_what_x_itself_is_cannot_be_rounded_to(self):
        with pytest.raises(traitlets.TraitError, match="FP64"):
            NumberLine(FP64)

    def test_a_learner_may_bring_a_format(self, line):
        line.format = Format("mine", exponent_bits=4, significand_bits=7)
        assert "mine" in line._formats
        assert line.rounded["values"][0]["text"] == "infinity"


class TestSentence:
    @pytest.mark.parametrize(
        ("x", "format", "said"),
        [
            (0.1, FP16, "0.1 lies between the FP16 numbers 0.0999755859375 and 0.10003662109375, 2^-14 = 6.1e-5"),
            (70000.0, FP16, "70000 lies beyond the last FP16 number, 65504; to nearest, ties to even, it becomes inf"),
            (-70000.0, FP16, "-70000 lies beyond the last FP16 number, -65504;"),
            (449.0, E4M3, "449 lies beyond the last E4M3 number, 448; to nearest, ties to even, it becomes 448."),
            (-1.0, E8M0, "-1 becomes NaN: E8M0 has no sign, so nothing below 0."),
            (0.0, E8M0, "0 becomes NaN: E8M0 has no zero."),
        ],
    )  # fmt: skip
    def test_says_where_x_lies_and_what_it_becomes(self, x, format, said):
        assert said in sentence(x, format, Rounding.NEAREST_EVEN)


@pytest.mark.parametrize("x", [0.1, -1e-7, 2049.0, 1e22, 65504.5])
def test_x_is_written_as_it_reads(x):
    assert float(written(x)) == x


@pytest.mark.parametrize(("share", "said"), [("1/2", "50%"), ("1/3", "33.3%"), ("1/100000", "<0.1%"), ("1", "100%")])
def test_odds(share, said):
    assert odds(Fraction(share)) == said


@pytest.mark.parametrize("format", NARROW, ids=lambda row: row.name)
def test_the_axis_says_where_rounding_leaves_the_numbers(format):
    facts = axis(format)
    if facts["ends_from"] is not None:
        assert not np.isfinite(round_to(facts["ends_from"] * (1 + 2.0**-40), format))
        assert round_to(facts["ends_from"] * (1 - 2.0**-40), format) == format.max
    if format.has_zero:
        assert round_to(facts["zero_to"], format) == 0
        assert round_to(facts["zero_to"] * (1 + 2.0**-40), format) == format.smallest_subnormal


class TestStillPicture:
    @pytest.mark.parametrize("ends", [(1.0, 1.1), (-0.001, 0.001), (65000.0, 1e6), (-1e6, 1e6), (-1e-9, 1e-7)])
    def test_it_counts_the_numbers_of_each_column_as_numpy_does(self, ends):
        every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
        every = np.unique(every[np.isfinite(every)])
        edges = np.linspace(*ends, 37)
        expected = [((every > low) & (every <= high)).sum() for low, high in pairwise(edges)]
        np.testing.assert_array_equal(values_between(edges, FP16), expected)

    @pytest.mark.parametrize("format", [FP32, BF16, E4M3, E2M1, E8M0], ids=lambda row: row.name)
    def test_a_whole_line_has_all_numbers(self, format):
        codes = np.array([format.max_code + 1]) * (2 if format.signed else 1) - (format.signed and format.has_zero)
        assert values_between(np.array([-1.1, 1.1]) * format.max, format).sum() == codes[0]

    def test_where_widgets_do_not_run_there_is_a_picture_and_the_sentence(self, line):
        bundle, _ = line._repr_mimebundle_()
        assert line.sentence in bundle["text/plain"]
        assert bundle["image/png"].startswith(b"\x89PNG")
