"""The bit explorer: the state that Python keeps, and every text that the page forms of it."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
import traitlets

from labkit.formats import BF16, E2M1, E4M3, E5M2, E8M0, FORMATS, FP16, FP32, FP64, Format, parse
from labkit.widgets import BitExplorer
from labkit.widgets.base.number_words import brief
from labkit.widgets.exact.rows import exact_text

FOLDERS = ("exact", "bits")
VIEW = """(text, name, others) => {
  const format = F[name];
  const state = typeof text === "string" ? explore(text, format) : withCode(format, BigInt(text));
  const { fields, valueText, formula, facts, sentence, rows } = exploredView(state, others.map((other) => F[other]));
  return { code: state.code, fields, value: valueText, formula, facts, sentence, rows };
}"""


@pytest.fixture
def explorer():
    return BitExplorer(FP16, 1.0)


def view(js, text, format, others=()):
    return js.run(VIEW, text, format.name, [other.name for other in others])


def code_shown(shown):
    """The code whose bits the page shows."""
    return int("".join(str(int(bit["on"])) for field in shown["fields"] for bit in field["bits"]), 2)


def formula_of(js, text, format):
    """The lines of the formula as one reads them aloud: ^ before what is raised."""
    lines = view(js, text, format)["formula"]
    return ["".join(f"^{piece[0]}" if piece[2:] == [True] else piece[0] for piece in line) for line in lines]


class TestBits:
    def test_each_bit_turned_over_gives_what_numpy_reads(self, explorer):
        for bit in range(16):
            explorer.flip(bit)
            np.testing.assert_equal(explorer.value, float(np.uint16(0x3C00 ^ (1 << bit)).view(np.float16)))
            explorer.flip(bit)
            assert (explorer.value, explorer.code) == (1.0, 0x3C00)
        explorer.code = 0x7E01  # the bits of a NaN stay as they were set
        explorer.flip(1)
        assert explorer.code == 0x7E03
        assert np.isnan(explorer.value)

    def test_a_bit_that_the_format_has_not_and_a_beginning_that_is_no_number_are_refused(self, explorer):
        with pytest.raises(ValueError, match=r"expected 0 to 15 \(FP16\), got 16"):
            explorer.flip(16)
        assert explorer.code == 0x3C00
        with pytest.raises(ValueError, match="is no number"):
            BitExplorer(FP16, "one")


class TestText:
    def test_text_is_rounded_once(self):
        """Through FP64 first, this number would become the half-way point, and then 1."""
        assert BitExplorer(FP16, "1.00048828125000000000000001").value == 1.0009765625

    def test_what_is_put_into_the_box_reads_as_the_value(self):
        for value in (0.1, 2.0**-24, -0.0, 65504.0, 2.0**-149, np.inf, -np.inf):
            back = parse(exact_text(value), FP64).value
            np.testing.assert_equal(back, value)
            assert np.signbit(back) == np.signbit(value), value


class TestSteps:
    def test_up_and_down_the_line_as_numpy_does(self, explorer):
        explorer.text = "0"
        for _ in range(3):
            explorer.step(+1)
        assert explorer.value == 3 * 2.0**-24
        explorer.step(-1)
        assert explorer.value == float(np.nextafter(np.float16(3 * 2.0**-24), np.float16(0)))

    def test_beyond_the_largest_comes_infinity_or_nothing(self, explorer):
        explorer.text = "65504"
        explorer.step(+1)
        assert explorer.value == np.inf
        with pytest.raises(ValueError, match="FP16 has no larger value"):
            explorer.step(+1)
        for format in (E4M3, E2M1):  # without infinity
            with pytest.raises(ValueError, match="no larger value"):
                BitExplorer(format, str(format.max)).step(+1)


class TestFormats:
    def test_the_number_stays_and_the_bits_change(self, explorer):
        explorer.text = "0.1"
        explorer.format = BF16
        assert (explorer.text, explorer.value, explorer.code) == ("0.1", float(torch.tensor(0.1).bfloat16()), 0x3DCD)
        explorer.format = FP16
        explorer.text = "0x3c01"  # a code is a number in the next format
        explorer.format = FP32
        assert (explorer.text, explorer.value) == ("1.0009765625", 1.0009765625)
        explorer.text = "nan"
        with pytest.raises(traitlets.TraitError, match="E2M1 has no NaN"):
            explorer.format = E2M1
        assert explorer.format is FP32

    def test_a_format_of_ones_own(self, page):
        mine = Format("mine", exponent_bits=4, significand_bits=7)
        explorer = BitExplorer(mine, "1/3", compare=(FP16, mine))
        assert [row["name"] for row in explorer.get_state()["_formats"]].count("mine") == 1
        root = page.show(explorer)
        assert root.locator("tbody th").all_text_contents() == ["mine", "FP16"]

    def test_every_format_has_a_whole_view_of_every_number(self, js):
        numbers = ["0", "-0", "1", "-1/3", "1e-9", "1e9", "inf", "6e-8", "2^-149", "448.1"]
        for format, text in product(FORMATS.values(), numbers):
            shown = view(js, text, format, FORMATS.values())
            assert sum(len(field["bits"]) for field in shown["fields"]) == format.bits, (format.name, text)
            assert code_shown(shown) == shown["code"] == parse(text, format).code, (format.name, text)
            assert shown["sentence"].endswith("."), (format.name, text)
            assert len(shown["facts"]) == 5, (format.name, text)

    def test_side_by_side_the_errors_are_those_of_torch(self, js):
        rows = {row["format"]: row for row in view(js, "0.1", FP16, [FP32, BF16, E4M3])["rows"]}
        dtypes = {"FP16": torch.float16, "FP32": torch.float32, "BF16": torch.bfloat16, "E4M3": torch.float8_e4m3fn}
        assert list(rows) == list(dtypes)
        for name, dtype in dtypes.items():
            held = Fraction(float(torch.tensor(0.1).to(dtype).float()))
            error = held - Fraction(1, 10)
            assert rows[name]["error"].replace("−", "-") == ("+" if error > 0 else "") + brief(error)
            assert float(rows[name]["value"].rstrip("…")) == pytest.approx(float(held), rel=1e-11)
        rows = {row["format"]: row for row in view(js, "-70000", FP16, [E4M3, E2M1, E8M0, FP32])["rows"]}
        assert (rows["FP16"]["value"], rows["E2M1"]["value"]) == ("minus infinity", "−6")
        told = [rows[name]["error"] for name in ("FP16", "E4M3", "E8M0", "FP32")]
        assert told == ["overflows", "no number", "no number", "exact"]


def test_the_formula_of_each_kind_of_number(js):
    assert formula_of(js, "1.5", FP16) == [
        "(−1)^S × 2^E^ − 15 × 1.F",
        "(−1)^0 × 2^15^ − 15 × 1.1000000000 (binary)",
        "2^0 × 1.5",
    ]
    assert formula_of(js, "-3*2^-24", FP16) == [  # a subnormal number has no hidden bit
        "(−1)^S × 2^−14 × 0.F",
        "(−1)^1 × 2^−14 × 0.0000000011 (binary)",
        "−2^−14 × 0.0029296875",
    ]
    assert formula_of(js, "4", E8M0) == ["2^E^ − 127", "2^129^ − 127", "2^2 × 1"]
    for code, format, said in (
        (0x7C00, FP16, "infinity: all bits of E are 1 and all bits of F are 0"),
        (0xFC00, FP16, "−infinity: all bits of E are 1 and all bits of F are 0"),
        (0x7E00, FP16, "NaN, not a number: all bits of E are 1 and F is not 0"),
        (0x7F, E4M3, "NaN, not a number: all bits of E and F are 1 (E4M3 has no infinity)"),
    ):
        assert formula_of(js, code, format) == [said]
    (letters, _, _) = view(js, "1.5", FP16, [])["formula"]
    assert {piece[0]: piece[1] for piece in letters if piece[1:] and piece[1]} == {"S": "S", "E": "E", "F": "F"}


def test_the_sentence_says_what_became_of_the_number(js):
    for text, format, said in (
        ("0.1", FP16, "the nearest one is 0.0999755859375, which is 2.44e-5 below it (0.4 ulp)."),
        ("-0.1", FP16, "the nearest one is -0.0999755859375, which is 2.44e-5 above it (0.4 ulp)."),
        ("1", FP16, "1 is exact in FP16: a normal number, whose ulp is 2^-10 = 9.77e-4."),
        ("-0", FP16, "-0 is exact in FP16: zero has a code for each sign, and +0 equals -0."),
        ("2^-24", FP16, "2^-24 is exact in FP16: a subnormal number, whose ulp is 2^-24 = 5.96e-8."),
        ("1e-9", FP16, "it becomes 0, since the smallest number above 0 is 2^-24 = 5.96e-8."),
        ("65519", FP16, "65519 is beyond the largest FP16 number, 65504, and becomes that."),
        ("65520", FP16, "65520 is beyond the largest FP16 number, 65504, and becomes infinity."),
        ("-500", E4M3, "-500 becomes NaN: E4M3 ends at 448 and has no infinity."),
        ("-1", E8M0, "-1 becomes NaN: E8M0 has no sign."),
        ("0", E8M0, "0 becomes NaN: E8M0 has no zero."),
        ("100", E2M1, "100 is beyond the largest E2M1 number, 6, and becomes that."),
        ("inf", E5M2, "0x7c is infinity in E5M2: the result of rounding beyond 57344."),
        ("-inf", E4M3, "Minus infinity becomes NaN, 0x7f: E4M3 ends at 448 and has no infinity."),
        ("nan", BF16, "0x7fc0 is NaN in BF16, not a number:"),
    ):
        assert said in view(js, text, format)["sentence"]


def test_it_opens_at_a_tenth_and_invites_to_click(page):
    root = page.show(BitExplorer())
    assert root.get_by_role("textbox", name="Number").input_value() == "0.1"
    assert root.locator(".be-hint").text_content().startswith("Click a bit, or type a number: ")
    assert "is no FP16 number: the nearest one is 0.0999755859375" in page.trait("sentence")


def test_a_page_without_a_kernel_works_and_its_state_is_the_one_python_takes(page):
    explorer = BitExplorer(FP16, 1.0)
    root = page.show(explorer)

    def state():
        return page.trait("format"), int(page.trait("code"), 16), page.trait("text")

    root.locator(".be-bit[data-bit='15']").click()
    assert state() == ("FP16", 0xBC00, "-1")
    assert root.locator(".be-bit[tabindex='0']").count() == 1, "one stop for Tab; arrow keys go on from there"
    for keys, code in (("End Enter", 0xBC01), ("ArrowLeft Space", 0xBC03), ("Home Space", 0x3C03)):
        for key in keys.split():
            page.page.keyboard.press(key)
        assert state()[1] == code == int("".join(root.locator(".be-bit b").all_inner_texts()), 2)
    assert root.locator(".be-bit[data-bit='1']").get_attribute("aria-pressed") == "true"
    assert root.locator(".be-bit[data-bit='0']").get_attribute("aria-label") == "1: significand, bit 0, weight 2^-10"
    box = root.get_by_role("textbox", name="Number")
    for text, code in (("0x3c01", 0x3C01), ("0x1.8p-3", 0x3200), ("0.1", 0x2E66)):
        box.fill("")
        box.press_sequentially(text)
        assert (box.input_value(), *state()) == (text, "FP16", code, text)
    assert page.trait("sentence") == root.locator(".lk-sentence").get_attribute("data-text")
    box.fill("0,1")
    assert "Write a decimal point, not a comma: 0.1." in root.locator(".be-hint.lk-error").text_content()
    assert (box.input_value(), box.get_attribute("aria-invalid")) == ("0,1", "true")
    assert state() == ("FP16", 0x2E66, "0.1")
    box.fill("0.1")
    assert root.locator(".be-hint.lk-error").count() == 0
    root.get_by_role("button", name="next").click()
    root.locator("select").select_option("BF16")
    assert state()[0] == "BF16"
    for bit in (14, 5):  # 0x3DCD, then a NaN with bits of its own
        root.locator(f".be-bit[data-bit='{bit}']").click()
    explorer.set_state({"format": page.trait("format"), "code": page.trait("code"), "text": page.trait("text")})
    assert (explorer.format, explorer.code, explorer.text) == (BF16, *state()[1:])
    explorer.set_state({"format": "FP16", "code": "0x7e01", "text": "nan"})
    assert explorer.code == 0x7E01
