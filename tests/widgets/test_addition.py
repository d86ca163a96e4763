"""The addition player: what stands on the paper at each station, in bits and in words. No browser is needed."""

import json
from fractions import Fraction

import numpy as np
import pytest
import traitlets

from labkit.formats import BF16, E4M3, E8M0, FP16, FP32, Format
from labkit.widgets import AdditionPlayer
from labkit.widgets.addition.board import MOST_COLUMNS, columns, paper, scenes
from labkit.widgets.addition.sheet import exact_number, number, sheet

ADD = ["Write", "Align", "Add", "Normalise", "Guard, round, sticky", "Round"]


def bits(row, kinds=("kept", "zero", "rest", "fallen")):
    """Return the bits of a row as written, from left to right."""
    return "".join(cell.text for cell in sorted(row.cells, key=lambda cell: -cell.place) if cell.kind in kinds)


def row(scene, name):
    return next(row for row in scene.rows if row.name == name)


def value(row):
    """Read a row of the paper as a number: its bits, its point and its exponent."""
    size = sum(int(cell.text) * Fraction(2) ** (cell.place - row.point + row.exponent) for cell in row.cells)
    return -size if row.sign else size


def said(a, b, format=FP16, operation="add"):
    return {scene.title: scene.sentence for scene in scenes(sheet(a, b, format, operation))}


class TestOnePlusATenThousandth:
    """By hand: 0.0001 is 1.1010001110 x 2^-14 in FP16; 14 places further right, nothing of it reaches 2^-10."""

    @pytest.fixture
    def paper(self):
        return scenes(sheet("1", "0.0001", FP16))

    def test_it_has_six_stations(self, paper):
        assert [scene.title for scene in paper] == ADD

    def test_both_are_written_with_their_own_exponent(self, paper):
        a, b = (row(paper[0], name) for name in "ab")
        assert (bits(a), a.exponent) == ("10000000000", 0)
        assert (bits(b), b.exponent) == ("11010001110", -14)
        assert paper[0].sentence == "a is 1.0000000000 × 2^0 and b, rounded to FP16, is 1.1010001110 × 2^-14."

    def test_aligning_moves_every_bit_of_b_fourteen_columns_to_the_right(self, paper):
        before = {cell.key: cell.place for cell in row(paper[0], "b").cells}
        after = {cell.key: cell.place for cell in row(paper[1], "b").cells if cell.key in before}
        assert after == {key: place - 14 for key, place in before.items()}

    def test_what_falls_off_is_remembered_in_the_sticky_bit(self, paper):
        b = row(paper[1], "b")
        assert bits(b, ("zero", "kept", "rest")) == "0" * 11 + "001"
        assert bits(b, ("fallen",)) == "11010001110"
        assert {cell.place for cell in b.cells if cell.kind == "rest"} == {-13}
        assert "all its 11 bits now lie beyond the 11 places that FP16 keeps" in paper[1].sentence

    def test_it_is_rounded_down_and_lost(self, paper):
        assert paper[4].sentence == (
            "Guard 0, round 0, sticky 1: less than half of the last place, so round down; b is lost."
        )
        assert value(row(paper[5], "result")) == 1
        assert paper[5].sentence == (
            "1 + 1.0002e-4 = 1 in FP16. The exact sum is 1.00010001659…, so the error is −0.102 ulp; b left no trace."
        )


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ("2048", "1", "exactly half. The last bit kept is 0 (even), so to be even round down; b is lost."),
        ("2050", "1", "exactly half. The last bit kept is 1 (odd), so to be even round up."),
        ("2048", "1.5", "Guard 1, round 1, sticky 0: more than half of the last place, so round up."),
        ("2048", "1.0009765625", "Guard 1, round 0, sticky 1: more than half of the last place, so round up."),
        ("1.5", "1.75", "Guard 0, round 0, sticky 0: nothing stands beyond the places kept, so the result is exact."),
        ("0.0001", "1", "so round down; a is lost."),
    ],
)
def test_the_decision_in_words(a, b, words):
    assert said(a, b)["Guard, round, sticky"].endswith(words)


@pytest.mark.parametrize(
    ("a", "b", "station", "words"),
    [
        ("1", "1", "Align", "Both are written with 2^0 already: nothing moves."),
        ("1", "0", "Align", "One of them is 0: there is nothing to align."),
        ("1", "0.5", "Align", "it moves 1 place to the right; only zeros pass beyond"),
        (
            "1",
            "-0.99951171875",
            "Add",
            "The signs differ, so one is subtracted: the result is 0.0000000000, and beyond",
        ),
        ("1", "-0.99951171875", "Normalise", "11 leading bits cancelled: the 11 places move to 2^-11, and zeros fill"),
        ("1", "-2^-13", "Normalise", "The leading bit cancelled: the 11 places move to 2^-1."),
        ("1.5", "1.75", "Normalise", "begins one place further left, so the 11 places move there"),
        ("1", "-1", "Normalise", "The sum is exactly 0"),
        ("2^-15", "2^-16", "Normalise", "FP16 has no exponent below -14"),
        ("60000", "40000", "Round", "= inf in FP16: the sum, 100000, is beyond the largest value, 65504."),
    ],
)
def test_each_station_in_words(a, b, station, words):
    assert words in said(a, b)[station]


def test_infinities_are_not_added_bit_by_bit():
    found = scenes(sheet("inf", "-inf", FP16))
    assert [scene.title for scene in found] == ["Write", "Result"]
    assert found[-1].sentence.startswith("inf + −inf = NaN: with an infinity or a NaN a rule decides")


def test_products_have_stations_of_their_own():
    found = said("1.5", "2^-14", operation="multiply")
    assert list(found) == ["Write", "Multiply", "Normalise", "Guard, round, sticky", "Round"]
    assert "1.1, and the exponents added, 0 + (-14) = -14" in found["Multiply"]


def random_operands(count):
    """Return pairs of finite float16 codes as text, near enough to each other to be interesting, and some far apart."""
    generator = np.random.default_rng(3)
    a, b = generator.integers(0, 2**16, (2, count)).astype(np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        near = (a * generator.uniform(-2, 2, count)).astype(np.float16)
    pairs = [*zip(a, b, strict=True), *zip(a, near, strict=True)]
    return [(x, y) for x, y in pairs if np.isfinite(x) and np.isfinite(y)]


@pytest.mark.parametrize("operation", ["add", "multiply"])
def test_the_paper_is_right_for_any_two_numbers(operation):
    """The result row is what numpy's float16 gives; the rows above it add up to it, up to what sticky stands for."""
    pairs = random_operands(300)
    assert len(pairs) > 500
    for x, y in pairs:
        one = sheet(repr(float(x)), repr(float(y)), FP16, operation)
        with np.errstate(all="ignore"):
            expected = x + y if operation == "add" else x * y
        found = scenes(one)
        exact = (
            Fraction(float(x)) + Fraction(float(y)) if operation == "add" else Fraction(float(x)) * Fraction(float(y))
        )
        assert one.exact == exact
        assert [value(row(found[0], name)) for name in "ab"] == [Fraction(float(x)), Fraction(float(y))]
        total = value(row(found[-2], {"add": "sum", "multiply": "product"}[operation]))
        assert abs(total - exact) < Fraction(2) ** (one.window - 12)  # sticky stands for less than the round bit
        if not np.isfinite(expected):
            assert one.error is None
            continue
        assert value(row(found[-1], "result")) == Fraction(float(expected))
        assert one.error == (Fraction(float(expected)) - exact) / Fraction(2) ** (one.window - 10)
        assert abs(one.error) <= Fraction(1, 2)


def test_guard_and_round_stand_right_behind_the_window():
    for x, y in random_operands(100):
        one = sheet(repr(float(x)), repr(float(y)), FP16)
        scene = scenes(one)[-2]
        if len(scene.rows) < 3 or not one.total.significand:
            continue
        cells = {cell.place: cell.text for cell in row(scene, "sum").cells}
        last = scene.window[1]
        beyond = [cells.get(last - 1, "0"), cells.get(last - 2, "0")]
        assert beyond == [str(int(one.cut.guard)), str(int(one.cut.round))]
        sticky = any(text == "1" for place, text in cells.items() if scene.sticky <= place <= last - 3)
        assert sticky == bool(one.cut.sticky)


@pytest.mark.parametrize(
    ("a", "b", "format", "operation"),
    [
        ("1", "1e-37", FP32, "add"),
        ("2^127", "2^-149", FP32, "add"),
        ("2^-100", "1.1*2^-40", FP32, "multiply"),
        ("1", "1e-30", BF16, "add"),
        ("1", "0.0001", FP16, "add"),
        ("448", "2^-9", E4M3, "add"),
    ],
)
def test_the_paper_stays_narrow_and_keeps_what_matters(a, b, format, operation):
    found = scenes(sheet(a, b, format, operation))
    drawn = columns(found)
    assert len(drawn) <= MOST_COLUMNS
    assert len(set(drawn) - {None}) == len(drawn) - drawn.count(None)
    for scene in found:
        assert set(range(scene.window[1] - 3, scene.window[0] + 1)) <= set(drawn)


class TestPlayer:
    @pytest.fixture
    def player(self):
        return AdditionPlayer(1.0, 0.0001)

    def test_the_state_is_always_true(self, player):
        for step, title in enumerate(ADD):
            player.step = step
            assert player._paper["scenes"][step]["title"] == title
            assert player.sentence == said("1", "0.0001")[title] == player._paper["scenes"][step]["sentence"]

    def test_a_new_number_a_new_sum_at_the_same_station(self, player):
        player.step = 5
        player.b = "0x1400"  # 2^-10
        assert player.value == 1.0009765625
        assert player.sentence == "1 + 9.7656e-4 = 1.001 in FP16, exactly."

    def test_what_cannot_be_read_is_answered_and_kept(self, player):
        player.b = "1,5"
        assert list(player.problems) == ["b"]
        assert "Write a decimal point, not a comma: 1.5." in player.problems["b"]
        assert (player.b, player.value) == ("1,5", 1.0)
        player.b = "1.5"
        assert (player.problems, player.value) == ({}, 2.5)

    def test_a_code_too_long_for_a_new_format_is_answered(self, player):
        player.a = "0x3C00"
        player.format_name = "E4M3"
        assert "E4M3 codes have 8" in player.problems["a"]
        player.format_name = "FP16"
        assert player.problems == {}

    def test_other_formats(self, player):
        player.format_name = "FP32"
        assert player.value == float(np.float32(1) + np.float32(0.0001))
        player.format_name = "BF16"
        assert player.value == 1.0

    def test_a_format_of_ones_own_is_offered(self):
        player = AdditionPlayer(1, 0.25, Format("mine", exponent_bits=4, significand_bits=2))
        assert player._choices == ["FP16", "BF16", "E4M3", "E5M2", "FP32", "mine"]
        assert (player.format_name, player.value) == ("mine", 1.25)

    def test_fewer_stations_never_leave_the_step_behind(self, player):
        player.step = 5
        player.a = "inf"
        assert (player.step, player.stations) == (1, ["Write", "Result"])
        with pytest.raises(traitlets.TraitError, match="0 to 1 here; it was given 2"):
            player.step = 2

    def test_operation(self, player):
        player.operation = "multiply"
        assert player.value == float(np.float16(0.0001))
        with pytest.raises(traitlets.TraitError, match=r"no operation 'divide' here; there are 'add', 'multiply'"):
            player.operation = "divide"

    def test_bad_input_to_begin_with_is_refused(self):
        with pytest.raises(ValueError, match="'one' is no number"):
            AdditionPlayer("one", 2)
        with pytest.raises(ValueError, match="no sign"):
            AdditionPlayer(1, 2, E8M0)
        with pytest.raises(traitlets.TraitError, match="no format 'FP17'"):
            AdditionPlayer(1, 2).format_name = "FP17"

    def test_any_kind_of_number_may_be_given(self):
        player = AdditionPlayer(np.float16(0.1), np.int64(3))
        assert (player.a, player.b) == ("0.0999755859375", "3")

    def test_what_is_sent_is_plain_json(self, player):
        json.loads(json.dumps({name: value for name, value in player.get_state().items() if name != "layout"}))

    def test_a_host_without_widgets_gets_the_paper_as_text(self, player):
        data, _ = player._repr_mimebundle_()
        assert data["text/plain"].startswith(paper(player._scenes))
        assert "result   1.0000000000" in data["text/plain"]
        assert "do not run here" in data["text/plain"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-0.0, "−0"), (2049.0, "2,049"), (1e7, "1e7"), (5.9604e-8, "5.9604e-8"), (float("nan"), "NaN")],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("exact", "text"),
    [
        (Fraction(0), "0"),
        (Fraction(-1, 2), "−0.5"),
        (Fraction(100_000), "100000"),
        (Fraction(2**120), "1.32922799578491587290380…e36"),
        (Fraction(1, 1024), "0.0009765625"),
    ],
)
def test_exact_number(exact, text):
    assert exact_number(exact) == text
