"""The addition player: each station in bits and in words."""

from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import traitlets

from labkit.formats import BF16, E2M1, E4M3, E8M0, FP16, FP32, FP64, Format
from labkit.widgets import AdditionPlayer
from labkit.widgets.base.number_words import number
from tests.widgets.pages import Scripts

ADD = ["Write", "Align", "Add", "Normalise", "Guard, round, sticky", "Round"]
SHEETS = """(pairs, name, operation) => pairs.map(([a, b]) => {
  const sheet = sheetOf([parse(a, F[name]), parse(b, F[name])], F[name], operation);
  const ratio = (x) => x && [x.n, x.d];
  return [ratio(sheet.exact), ratio(sheet.error), sheet.window, scenesOf(sheet)];
})"""

# The bits that are visible: for each line from left to right, by their position on the screen.
READ_PAPER = """() => {
  const parts = [...document.querySelectorAll(".ad-paper .ad-bit:not(.ad-point)")].map((part) => {
    const [x, y] = part.style.transform.match(/-?[\\d.]+/g).map(Number);
    return {x, y, bit: part.textContent};
  });
  const lines = new Map();
  for (const part of parts.sort((a, b) => a.y - b.y || a.x - b.x)) {
    lines.set(part.y, (lines.get(part.y) ?? "") + part.bit);
  }
  return [...lines.values()];
}"""


class Cell(NamedTuple):
    key: str
    text: str
    place: int
    kind: str


class Sheets(Scripts):
    """The page's functions as methods of Python."""

    def paper(self, a: str, b: str, format: Format = FP16, operation: str = "add") -> Any:
        return self.run(
            "(a, b, name, way) => paperOf(a, b, F[name], way)", a, b, format.name, operation
        )

    def scenes(self, *case: Any) -> Any:
        return self.paper(*case)["scenes"]

    def sentences(self, *case: Any, **named: Any) -> dict[str, str]:
        return {scene["title"]: scene["sentence"] for scene in self.paper(*case, **named)["scenes"]}


FOLDERS = ("exact", "addition")
SCRIPTS = Sheets


def cells(row):
    return [Cell(**cell) for cell in row["cells"]]


def bits(row, kinds=("kept", "zero", "rest", "fallen")):
    """Return the bits of a row as written, from left to right."""
    return "".join(
        cell.text for cell in sorted(cells(row), key=lambda cell: -cell.place) if cell.kind in kinds
    )


def row(scene, name):
    return next(row for row in scene["rows"] if row["name"] == name)


def value(row):
    """Return the number that a row represents by its bits, point and exponent."""
    size = sum(
        int(cell.text) * Fraction(2) ** (cell.place - row["point"] + row["exponent"])
        for cell in cells(row)
    )
    return -size if row["sign"] else size


def test_worked_example_of_a_term_that_is_lost(js):
    """0.0001 is 1.1010001110 x 2^-14 in FP16, below 2^-10, the last place of 1."""
    found = js.scenes("1", "0.0001")
    assert [scene["title"] for scene in found] == ADD
    a, b = (row(found[0], name) for name in "ab")
    assert bits(a) == "10000000000"
    assert a["exponent"] == 0
    assert bits(b) == "11010001110"
    assert b["exponent"] == -14
    assert (
        found[0]["sentence"]
        == "a is 1.0000000000 × 2^0 and b, rounded to FP16, is 1.1010001110 × 2^-14."
    )
    before = {cell.key: cell.place for cell in cells(b)}
    aligned = row(found[1], "b")
    after = {cell.key: cell.place for cell in cells(aligned) if cell.key in before}
    assert after == {key: place - 14 for key, place in before.items()}
    assert bits(aligned, ("zero", "kept", "rest")) == "0" * 11 + "001"
    assert bits(aligned, ("fallen",)) == "11010001110"
    assert {cell.place for cell in cells(aligned) if cell.kind == "rest"} == {-13}
    assert "all its 11 bits now lie beyond the 11 places that FP16 keeps" in found[1]["sentence"]
    assert found[4]["sentence"].endswith(
        "sticky 1: less than half of the last place, so round down; b is lost."
    )
    assert value(row(found[5], "result")) == 1
    assert found[5]["sentence"] == (
        "1 + 1.0002e-4 = 1 in FP16. The exact sum is 1.00010001659…, so the error is −0.102 "
        "ulp; b left no trace."
    )


def test_a_saturated_result_is_not_a_lost_operand(js):
    sentences = js.sentences("6", "1", E2M1)
    assert sentences["Round"] == ("6 + 1 = 6 in E2M1: the sum, 7, is beyond the largest value, 6.")
    assert "lost" not in sentences["Guard, round, sticky"]
    assert "error" not in dict(js.paper("6", "1", E2M1)["facts"])


@pytest.mark.parametrize("format", [BF16, E4M3, FP16, FP32, FP64])
def test_every_place_that_the_format_keeps_has_a_column(js, format):
    numbers = (format.smallest_subnormal, format.smallest_normal, 1.0, format.max)
    for a, b, operation in product(numbers, numbers, ("add", "multiply")):
        paper = js.paper(repr(a), repr(b), format, operation)
        for scene in paper["scenes"]:
            first, last = scene["window"]
            assert set(range(last, first + 1)) <= set(paper["columns"]), (a, b, scene["title"])


def test_a_calculation_with_fewer_stations_keeps_the_step_inside():
    player = AdditionPlayer(1.0, 2.0)
    player.step = 5
    player.operation = "multiply"
    assert player.step == 4
    player.a = "inf"
    assert player.step == 1


ROUNDING_BITS = "Guard, round, sticky"
ALMOST_MINUS_1 = "-0.99951171875"


@pytest.mark.parametrize(
    ("a", "b", "station", "expected"),
    [
        (
            "2048",
            "1",
            ROUNDING_BITS,
            "exactly half. The last bit kept is 0 (even), so to be even round down; b is lost.",
        ),
        (
            "2050",
            "1",
            ROUNDING_BITS,
            "exactly half. The last bit kept is 1 (odd), so to be even round up.",
        ),
        (
            "2048",
            "1.5",
            ROUNDING_BITS,
            "Guard 1, round 1, sticky 0: more than half of the last place, so round up.",
        ),
        (
            "2048",
            "1.0009765625",
            ROUNDING_BITS,
            "Guard 1, round 0, sticky 1: more than half of the last place, so round up.",
        ),
        (
            "1.5",
            "1.75",
            ROUNDING_BITS,
            "Guard 0, round 0, sticky 0: nothing lies beyond the places kept, so the result is",
        ),
        ("0.0001", "1", ROUNDING_BITS, "so round down; a is lost."),
        ("1", "1", "Align", "Both are written with 2^0 already: nothing moves."),
        ("1", "0", "Align", "One of them is 0: there is nothing to align."),
        ("1", "0.5", "Align", "it moves 1 place to the right; only zeros pass beyond"),
        (
            "1",
            ALMOST_MINUS_1,
            "Add",
            "The signs differ, so one is subtracted: the result is 0.0000000000, and beyond",
        ),
        (
            "1",
            ALMOST_MINUS_1,
            "Normalise",
            "11 leading bits cancelled: the 11 places move to 2^-11, and zeros fill",
        ),
        ("1", "-2^-13", "Normalise", "The leading bit cancelled: the 11 places move to 2^-1."),
        ("1.5", "1.75", "Normalise", "begins one place further left, so the 11 places move there"),
        ("1", "-1", "Normalise", "The sum is exactly 0"),
        ("2^-15", "2^-16", "Normalise", "FP16 has no exponent below -14"),
        (
            "60000",
            "40000",
            "Round",
            "= inf in FP16: the sum, 100000, is beyond the largest value, 65504.",
        ),
    ],
)
def test_each_station_has_a_sentence(js, a, b, station, expected):
    assert expected in js.sentences(a, b)[station]


def test_infinities_have_two_stations(js):
    found = js.scenes("inf", "-inf")
    assert [scene["title"] for scene in found] == ["Write", "Result"]
    assert found[-1]["sentence"].startswith(
        "inf + −inf = NaN: with an infinity or a NaN a rule decides"
    )


def test_a_product_has_a_station_that_multiplies(js):
    found = js.sentences("1.5", "2^-14", operation="multiply")
    assert list(found) == ["Write", "Multiply", "Normalise", "Guard, round, sticky", "Round"]
    assert "1.1, and the exponents added, 0 + (-14) = -14" in found["Multiply"]


def random_operands(count):
    """Return pairs of finite float16 numbers, of any size and of nearly the same size."""
    generator = np.random.default_rng(3)
    a, b = generator.integers(0, 2**16, (2, count)).astype(np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        near = (a * generator.uniform(-2, 2, count)).astype(np.float16)
    pairs = [*zip(a, b, strict=True), *zip(a, near, strict=True)]
    return [(x, y) for x, y in pairs if np.isfinite(x) and np.isfinite(y)]


@pytest.mark.parametrize("operation", ["add", "multiply"])
def test_stations_of_random_operands_are_right(js, operation):
    """The result is that of numpy's float16.

    The rows above add up to it, but for the sticky bit.
    """
    pairs = random_operands(60)
    assert len(pairs) > 90
    sheets = js.run(SHEETS, [[repr(float(x)), repr(float(y))] for x, y in pairs], "FP16", operation)
    for (x, y), (exact, error, window, found) in zip(pairs, sheets, strict=True):
        with np.errstate(all="ignore"):
            expected = x + y if operation == "add" else x * y
        a = Fraction(float(x))
        b = Fraction(float(y))
        exact = Fraction(*exact)
        assert exact == (a + b if operation == "add" else a * b)
        assert [value(row(found[0], name)) for name in "ab"] == [a, b]
        total = value(row(found[-2], {"add": "sum", "multiply": "product"}[operation]))
        # The sticky bit stands for less than the round bit.
        assert abs(total - exact) < Fraction(2) ** (window - 12)
        if not np.isfinite(expected):
            assert error is None
            continue
        assert value(row(found[-1], "result")) == Fraction(float(expected))
        assert Fraction(*error) == (Fraction(float(expected)) - exact) / Fraction(2) ** (
            window - 10
        )
        assert abs(Fraction(*error)) <= Fraction(1, 2)


FAR_APART = pytest.mark.parametrize(
    ("a", "b", "format", "operation"),
    [
        ("1", "1e-37", FP32, "add"),
        ("2^127", "2^-149", FP32, "add"),
        ("2^-100", "1.1*2^-40", FP32, "multiply"),
        ("1", "1e-30", BF16, "add"),
        ("448", "2^-9", E4M3, "add"),
    ],
)


@FAR_APART
def test_the_paper_is_narrow(js, a, b, format, operation):
    drawn = js.paper(a, b, format, operation)["columns"]
    assert len(drawn) <= 58


@FAR_APART
def test_no_column_of_the_paper_is_drawn_twice(js, a, b, format, operation):
    # None is a gap.
    places = [place for place in js.paper(a, b, format, operation)["columns"] if place is not None]
    assert len(set(places)) == len(places)


@FAR_APART
def test_the_paper_has_the_places_that_a_format_keeps(js, a, b, format, operation):
    """Three more places decide the rounding."""
    paper = js.paper(a, b, format, operation)
    for first, last in (scene["window"] for scene in paper["scenes"]):
        assert set(range(last - 3, first + 1)) <= set(paper["columns"])


class TestPlayer:
    def test_player_opens_at_the_station_align(self, page):
        page.show(AdditionPlayer(1.0, 0.0001))
        assert page.trait("step") == 1

    def test_the_page_walks_through_the_stations_without_a_kernel(self, js, page):
        root = page.show(AdditionPlayer(1.0, 0.0001))
        # The paper is drawn once its width is known, after the sentence.
        root.locator(".ad-paper .ad-bit").first.wait_for(state="attached")
        root.get_by_role("button", name="First").click(force=True)
        sentences = js.sentences("1", "0.0001")
        seen = {}
        for title in ADD:
            assert root.locator(".lk-sentence").get_attribute("data-text") == sentences[title]
            seen[title] = page.page.evaluate(READ_PAPER)
            root.get_by_role("button", name="Next").click(force=True)
        assert seen["Write"] == ["10000000000", "11010001110"]
        assert seen["Align"] == ["10000000000", "0" * 11 + "001" + "11010001110"]
        assert seen["Round"][2:] == ["10000000000001", "10000000000"]

    def test_play_at_the_end_begins_again(self, page):
        root = page.show(AdditionPlayer(1.0, 0.0001))
        root.get_by_role("button", name="Last").click()
        root.get_by_role("button", name="Play").click()
        assert page.trait("step") == 0

    def test_code_is_an_operand(self, page):
        root = page.show(AdditionPlayer(1.0, 0.0001))
        root.get_by_role("button", name="Last").click()
        box = root.get_by_label("b", exact=True)
        # This is the code of 2^-10; the station stays.
        box.fill("0x1400")
        box.press("Tab")
        assert page.trait("sentence") == "1 + 9.7656e-4 = 1.001 in FP16, exactly."

    def test_operand_that_is_no_number_is_refused_beside_its_box(self, page):
        root = page.show(AdditionPlayer(1.0, 0.5))
        box = root.get_by_label("b", exact=True)
        box.fill("1,5")
        box.press("Tab")
        alert = root.get_by_role("alert").text_content()
        assert "Write a decimal point, not a comma: 1.5." in alert
        assert box.input_value() == "1,5"
        assert box.get_attribute("aria-invalid") == "true"
        assert page.trait("b") == "0.5"

    def test_change_from_outside_clears_the_alert_and_its_text(self, page):
        root = page.show(AdditionPlayer(1.0, 0.5))
        box = root.get_by_label("b", exact=True)
        box.fill("1,5")
        box.press("Tab")
        assert root.locator(".ad-problem").text_content() != ""
        page.set(a="2")
        assert root.locator(".ad-problem").text_content() == ""
        assert box.input_value() == "0.5"

    def test_sum_of_infinity_has_fewer_stations(self, page):
        root = page.show(AdditionPlayer(1.0, 0.0001))
        root.get_by_role("button", name="Last").click()
        assert page.trait("step") == len(ADD) - 1
        # The step is clamped to the last station.
        page.set(a="inf")
        assert page.trait("step") == 1

    def test_formats_and_operations_of_a_player(self):
        player = AdditionPlayer(1.0, 0.0001)
        player.format_name = "FP32"
        assert player.value == float(np.float32(1) + np.float32(0.0001))
        player.format_name = "BF16"
        assert player.value == 1.0
        player.format_name, player.operation = "FP16", "multiply"
        assert player.value == float(np.float16(0.0001))
        player.b = "1.5"
        assert player.value == 1.5

    def test_a_player_adds_in_a_format_of_ones_own(self):
        custom = AdditionPlayer(1, 0.25, Format("mine", exponent_bits=4, significand_bits=2))
        assert custom.format_name == "mine"
        assert custom.value == 1.25

    def test_operands_may_be_numbers_of_numpy(self):
        player = AdditionPlayer(np.float16(0.1), np.int64(3))
        assert player.a == "0.0999755859375"
        assert player.b == "3"
        assert "add       0 10000 1000110011  3.09" in player.still()["text/plain"]

    def test_invalid_operands_are_refused(self):
        with pytest.raises(ValueError, match="'one' is not a number"):
            AdditionPlayer("one", 2)
        with pytest.raises(ValueError, match="no sign"):
            AdditionPlayer(1, 2, E8M0)


def test_texts_of_numbers():
    values = [0.0, -0.0, 2049.0, 1e7, 5.9604e-8, float("nan")]
    assert [number(value) for value in values] == ["0", "−0", "2,049", "1e7", "5.9604e-8", "NaN"]


def test_texts_of_exact_numbers(js):
    exact = [("0", "1"), ("-1", "2"), ("100000", "1"), (str(2**120), "1"), ("1", "1024")]
    assert [
        js.run("(n, d) => exactNumber(fraction(BigInt(n), BigInt(d)))", *pair) for pair in exact
    ] == [
        "0",
        "−0.5",
        "100000",
        "1.32922799578491587290380…e36",
        "0.0009765625",
    ]


def test_a_format_without_the_code_of_a_number_is_refused():
    player = AdditionPlayer("0x3C00", 1.0)
    with pytest.raises(traitlets.TraitError, match="has 14 bits; E4M3 codes have 8"):
        player.format_name = "E4M3"
    assert player.format is FP16
    assert player.value == 2.0


def test_a_page_keeps_its_format_if_a_code_is_too_long(page):
    root = page.show(AdditionPlayer("0x3C00", 1.0))
    root.locator("label", has_text="E4M3").click()
    assert page.trait("format_name") == "FP16"
    assert root.get_by_label("FP16").is_checked()


def test_a_problem_with_a_format_is_shown_until_another_is_chosen(page):
    root = page.show(AdditionPlayer("0x3C00", 1.0))
    problem = root.locator(".ad-problem")
    root.locator("label", has_text="E4M3").click()
    assert problem.text_content() == "format: '0x3c00' has 14 bits; E4M3 codes have 8."
    root.locator("label", has_text="BF16").click()
    assert problem.text_content() == ""
    assert page.trait("format_name") == "BF16"
