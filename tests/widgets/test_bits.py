"""The bit explorer: its state in Python, its view, and its page."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
import traitlets

from labkit import formats
from labkit.formats import (
    BF16,
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    Format,
    Specials,
    parse,
)
from labkit.widgets import BitExplorer
from labkit.widgets.base.number_words import brief
from labkit.widgets.exact.rows import format_row

FOLDERS = ("exact", "bits")


VIEW = """(text, name, others) => {
  const format = F[name];
  const state = typeof text === "string" ? explore(text, format) : withCode(format, BigInt(text));
  const view = exploredView(state, others.map((other) => F[other]));
  const { fields, valueText, formula, facts, sentence, rows } = view;
  return { code: state.code, fields, value: valueText, formula, facts, sentence, rows };
}"""


def view(js, text, format, others=()):
    return js.run(VIEW, text, format.name, [other.name for other in others])


def formula_of(js, text, format):
    """Return the lines of the formula as text, with ^ before exponents."""
    lines = view(js, text, format)["formula"]
    return [
        "".join(f"^{piece[0]}" if piece[2:] == [True] else piece[0] for piece in line)
        for line in lines
    ]


def test_flipped_bits_have_the_values_of_numpy():
    explorer = BitExplorer(FP16, 1.0)
    for bit in range(16):
        explorer.flip(bit)
        np.testing.assert_equal(
            explorer.value, float(np.uint16(0x3C00 ^ (1 << bit)).view(np.float16))
        )
        explorer.flip(bit)
        assert explorer.value == 1.0
        assert explorer.code == 0x3C00


def test_the_bits_of_a_nan_are_kept():
    explorer = BitExplorer(FP16, 1.0)
    explorer.code = 0x7E01
    explorer.flip(1)
    assert explorer.code == 0x7E03
    assert np.isnan(explorer.value)


def test_a_typed_code_of_a_nan_is_kept():
    explorer = BitExplorer(FP16, "0x7e00")
    explorer.text = "0x7e01"
    assert explorer.code == 0x7E01


def test_another_nan_code_replaces_a_typed_code():
    explorer = BitExplorer(FP16, "0x7e00")
    explorer.code = 0x7E01
    assert explorer.text == "nan"
    assert explorer.code == 0x7E01


def test_another_format_of_a_known_name_is_refused():
    """The page tells formats apart by their names."""
    explorer = BitExplorer(FP16, 1.0)
    with pytest.raises(traitlets.TraitError, match="FP16 is the name of another format"):
        explorer.format = replace(FP16, significand_bits=8)
    assert explorer.format is FP16
    assert explorer.code == 0x3C00


def test_two_compared_formats_of_one_name_are_refused():
    narrow = replace(FP16, significand_bits=8)
    with pytest.raises(traitlets.TraitError, match="FP16 is the name of another format"):
        BitExplorer(FP16, compare=(narrow,))


def test_a_row_that_replaces_a_format_is_derived_again(js):
    """A page may get another row for a name that it has already drawn."""
    function = """(first, second) => {
      let rows = [first];
      const formats = knownFormats({ get: () => rows }, derived);
      const before = formats.called("FP16").p;
      rows = [second];
      return [before, formats.called("FP16").p];
    }"""
    rows = [format_row(FP16), format_row(replace(FP16, significand_bits=8))]
    assert js.run(function, *rows) == [10, 8]


def test_a_known_format_is_derived_once(js):
    function = """(row) => {
      const formats = knownFormats({ get: () => [row] }, derived);
      return formats.called("FP16") === formats.called("FP16");
    }"""
    assert js.run(function, format_row(FP16)) is True


def test_a_bit_that_the_format_lacks_is_refused():
    explorer = BitExplorer(FP16, 1.0)
    with pytest.raises(ValueError, match=r"expected 0 to 15 \(FP16\), got 16"):
        explorer.flip(16)
    assert explorer.code == 0x3C00


def test_text_is_rounded_once():
    """FP64 would round this number to the tie 1 + 2^-11, and FP16 that to 1."""
    assert BitExplorer(FP16, "1.00048828125000000000000001").value == 1.0009765625


def test_text_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="is not a number"):
        BitExplorer(FP16, "one")


def test_steps_go_to_the_neighbours_of_a_value():
    explorer = BitExplorer(FP16, "0")
    for direction, value in ((+1, 2.0**-24), (+1, 2.0**-23), (+1, 3 * 2.0**-24), (-1, 2.0**-23)):
        explorer.step(direction)
        assert explorer.value == value


def test_infinity_is_a_step_above_the_largest_finite_number():
    explorer = BitExplorer(FP16, "65504")
    explorer.step(+1)
    assert explorer.value == np.inf


def test_there_is_no_step_from_nan():
    for direction in (+1, -1):
        with pytest.raises(ValueError, match="NaN is neither larger nor smaller"):
            BitExplorer(FP16, "nan").step(direction)


# E4M3 and E2M1 have no infinity.
@pytest.mark.parametrize(("format", "largest"), [(FP16, "inf"), (E4M3, "448"), (E2M1, "6")])
def test_there_is_no_step_beyond_the_largest_value(format, largest):
    with pytest.raises(ValueError, match="no larger value"):
        BitExplorer(format, largest).step(+1)


def format_and_text(part):
    """Return a part of a test's name."""
    return part if isinstance(part, str) else part.name


NUMBERS = ["0", "-0", "1", "-1/3", "1e-9", "1e9", "inf", "6e-8", "2^-149", "448.1"]
NUMBERS_OF_FORMATS = pytest.mark.parametrize(
    ("format", "text"), [*product(FORMATS.values(), NUMBERS)], ids=format_and_text
)


class TestFormats:
    def test_the_number_stays_and_the_bits_change(self):
        explorer = BitExplorer(FP16, "0.1")
        explorer.format = BF16
        assert explorer.text == "0.1"
        assert explorer.value == float(torch.tensor(0.1).bfloat16())
        assert explorer.code == 0x3DCD

    def test_a_code_becomes_its_number_in_another_format(self):
        explorer = BitExplorer(FP16, "0x3c01")
        explorer.format = FP32
        assert explorer.text == "1.0009765625"
        assert explorer.value == 1.0009765625

    def test_a_nan_stays_in_a_format_that_has_one(self):
        explorer = BitExplorer(FP32, "nan")
        with pytest.raises(traitlets.TraitError, match="E2M1 has no NaN"):
            explorer.format = E2M1
        assert explorer.format is FP32

    def test_a_format_of_ones_own_is_one_row_of_the_page(self, page):
        mine = Format("mine", exponent_bits=4, significand_bits=7)
        explorer = BitExplorer(mine, "1/3", compare=(FP16, mine))
        assert [row["name"] for row in explorer.get_state()["_formats"]].count("mine") == 1
        root = page.show(explorer)
        assert root.locator("tbody th").all_text_contents() == ["mine", "FP16"]

    @NUMBERS_OF_FORMATS
    def test_the_bits_of_a_view_are_those_of_the_code(self, js, text, format):
        shown = view(js, text, format)
        bits = [str(int(bit["on"])) for field in shown["fields"] for bit in field["bits"]]
        assert "".join(bits) == f"{parse(text, format).code:0{format.bits}b}"

    @NUMBERS_OF_FORMATS
    def test_a_view_has_a_sentence_and_five_facts(self, js, text, format):
        shown = view(js, text, format)
        assert shown["sentence"].endswith(".")
        assert len(shown["facts"]) == 5

    def test_side_by_side_the_errors_are_those_of_torch(self, js):
        rows = {row["format"]: row for row in view(js, "0.1", FP16, [FP32, BF16, E4M3])["rows"]}
        dtypes = {
            "FP16": torch.float16,
            "FP32": torch.float32,
            "BF16": torch.bfloat16,
            "E4M3": torch.float8_e4m3fn,
        }
        assert list(rows) == list(dtypes)
        for name, dtype in dtypes.items():
            held = Fraction(float(torch.tensor(0.1).to(dtype).float()))
            error = held - Fraction(1, 10)
            assert rows[name]["error"].replace("−", "-") == ("+" if error > 0 else "") + brief(
                error
            )
            assert float(rows[name]["value"].rstrip("…")) == pytest.approx(float(held), rel=1e-11)

    def test_side_by_side_a_number_beyond_a_format_says_so(self, js):
        rows = {
            row["format"]: row for row in view(js, "-70000", FP16, [E4M3, E2M1, E8M0, FP32])["rows"]
        }
        assert rows["FP16"]["value"] == "minus infinity"
        assert rows["E2M1"]["value"] == "−6"
        errors = [rows[name]["error"] for name in ("FP16", "E4M3", "E8M0", "FP32")]
        assert errors == ["overflows", "no number", "no number", "exact"]


@pytest.mark.parametrize(
    ("text", "format", "expected"),
    [
        (
            "1.5",
            FP16,
            [
                "(−1)^S × 2^E^ − 15 × 1.F",
                "(−1)^0 × 2^15^ − 15 × 1.1000000000 (binary)",
                "2^0 × 1.5",
            ],
        ),
        # A subnormal number has no hidden bit.
        (
            "-3*2^-24",
            FP16,
            [
                "(−1)^S × 2^−14 × 0.F",
                "(−1)^1 × 2^−14 × 0.0000000011 (binary)",
                "−2^−14 × 0.0029296875",
            ],
        ),
        ("4", E8M0, ["2^E^ − 127", "2^129^ − 127", "2^2 × 1"]),
    ],
)
def test_the_formula_of_a_finite_number(js, text, format, expected):
    assert formula_of(js, text, format) == expected


@pytest.mark.parametrize(
    ("code", "format", "expected"),
    [
        (0x7C00, FP16, "infinity: all bits of E are 1 and all bits of F are 0"),
        (0xFC00, FP16, "−infinity: all bits of E are 1 and all bits of F are 0"),
        (0x7E00, FP16, "NaN, not a number: all bits of E are 1 and F is not 0"),
        (0x7F, E4M3, "NaN, not a number: all bits of E and F are 1 (E4M3 has no infinity)"),
    ],
)
def test_the_formula_of_infinity_or_nan_is_a_sentence(js, code, format, expected):
    assert formula_of(js, code, format) == [expected]


def test_letters_of_the_formula_have_the_colours_of_their_fields(js):
    letters, _, _ = view(js, "1.5", FP16)["formula"]
    fields = {piece[0]: piece[1] for piece in letters if piece[1:] and piece[1]}
    assert fields == {"S": "S", "E": "E", "F": "F"}


@pytest.mark.parametrize(
    ("text", "format", "expected"),
    [
        ("0.1", FP16, "the nearest one is 0.0999755859375, which is 2.44e-5 below it (0.4 ulp)."),
        ("-0.1", FP16, "the nearest one is -0.0999755859375, which is 2.44e-5 above it (0.4 ulp)."),
        ("1", FP16, "1 is exact in FP16: a normal number, whose ulp is 2^-10 = 9.77e-4."),
        ("-0", FP16, "-0 is exact in FP16: zero has a code for each sign, and +0 equals -0."),
        (
            "2^-24",
            FP16,
            "2^-24 is exact in FP16: a subnormal number, whose ulp is 2^-24 = 5.96e-8.",
        ),
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
    ],
)
def test_the_sentence_describes_the_rounding_of_a_number(js, text, format, expected):
    assert expected in view(js, text, format)["sentence"]


def test_zero_has_one_code_in_a_format_without_a_sign(js):
    unsigned = Format(
        "unsigned", exponent_bits=4, significand_bits=3, specials=Specials.FN, signed=False
    )
    js.add(unsigned)
    sentence = view(js, "0", unsigned)["sentence"]
    assert sentence == "0 is exact in unsigned: the code whose bits are all 0."


def state_of(page):
    """Return format, code and text of the explorer in a page."""
    return page.trait("format"), int(page.trait("code"), 16), page.trait("text")


def bit(root, number):
    return root.locator(f".be-bit[data-bit='{number}']")


def test_clicked_bit_changes_the_number_without_a_kernel(page):
    root = page.show(BitExplorer(FP16, 1.0))
    bit(root, 15).click()
    assert state_of(page) == ("FP16", 0xBC00, "-1")


def test_explorer_without_a_change_says_what_to_do(page):
    root = page.show(BitExplorer(FP16, 1.0))
    hint = root.locator(".be-hint").text_content()
    assert hint.startswith("Click a bit, or type a number: ")


def test_keys_flip_the_bits(page):
    root = page.show(BitExplorer(FP16, -1.0))
    bit(root, 15).focus()
    for keys, code in (("End Enter", 0xBC01), ("ArrowLeft Space", 0xBC03), ("Home Space", 0x3C03)):
        for key in keys.split():
            page.page.keyboard.press(key)
        assert state_of(page)[1] == code
        assert code == int("".join(root.locator(".be-bit b").all_inner_texts()), 2)


def test_tab_stops_at_one_bit_only(page):
    root = page.show(BitExplorer(FP16, 1.0))
    assert root.locator(".be-bit[tabindex='0']").count() == 1


def test_bits_have_names_for_a_screen_reader(page):
    root = page.show(BitExplorer(FP16, formats.decode(0x3C02, FP16)))
    assert bit(root, 1).get_attribute("aria-pressed") == "true"
    assert bit(root, 0).get_attribute("aria-label") == "0: significand, bit 0, weight 2^-10"


def test_typed_text_is_kept_as_it_is_typed(page):
    root = page.show(BitExplorer(FP16, 1.0))
    box = root.get_by_role("textbox", name="Number")
    for text, code in (("0x3c01", 0x3C01), ("0x1.8p-3", 0x3200), ("0.1", 0x2E66)):
        box.fill("")
        box.press_sequentially(text)
        assert (box.input_value(), *state_of(page)) == (text, "FP16", code, text)


def test_python_has_the_sentence_of_the_page(page):
    root = page.show(BitExplorer(FP16, 1.0))
    root.get_by_role("textbox", name="Number").fill("0.1")
    assert page.trait("sentence") == root.locator(".lk-sentence").get_attribute("data-text")


def test_text_that_is_not_a_number_is_refused_beside_its_box(page):
    root = page.show(BitExplorer(FP16, 0.1))
    box = root.get_by_role("textbox", name="Number")
    before = state_of(page)
    box.fill("0,1")
    error = root.locator(".be-hint.lk-error")
    assert "Write a decimal point, not a comma: 0.1." in error.text_content()
    assert box.get_attribute("aria-invalid") == "true"
    assert state_of(page) == before


def test_a_refused_text_can_be_edited(page):
    root = page.show(BitExplorer(FP16, 0.1))
    box = root.get_by_role("textbox", name="Number")
    box.fill("0,1")
    assert box.input_value() == "0,1"
    box.fill("0.1")
    assert root.locator(".be-hint.lk-error").count() == 0


def test_python_takes_the_state_of_the_page(page):
    explorer = BitExplorer(FP16, 0.1)
    root = page.show(explorer)
    root.get_by_role("button", name="next").click()
    root.locator("select").select_option("BF16")
    # From 0x3DCD, these bits make a NaN with a payload.
    bit(root, 14).click()
    bit(root, 5).click()
    state = {name: page.trait(name) for name in ("format", "code", "text")}
    assert state["format"] == "BF16"
    explorer.set_state(state)
    assert (explorer.format, explorer.code, explorer.text) == (BF16, *state_of(page)[1:])


def test_a_change_by_another_view_is_shown(page):
    root = page.show(BitExplorer(FP32, "0x3f800000"))
    # As `put` does: the old text is not a code of the new format.
    page.set(format="FP16", code="0x4000", text="2")
    assert root.get_by_role("textbox", name="Number").input_value() == "2"
    assert root.locator(".be-bit").count() == 16
    assert page.errors == []


def test_python_keeps_the_payload_of_nan():
    explorer = BitExplorer(FP16, 1.0)
    explorer.set_state({"format": "FP16", "code": "0x7e01", "text": "nan"})
    assert explorer.code == 0x7E01


def test_first_number_of_an_explorer_is_a_tenth():
    assert BitExplorer().text == "0.1"


@pytest.mark.parametrize(
    ("before", "text", "state"),
    [
        # The text is a code of both formats, of another number in each.
        (FP16, "0x3c00", {"format": "BF16", "code": "0x1", "text": "0x1"}),
        # The text is too long for the old format.
        (E4M3, "0x38", {"format": "FP16", "code": "0x3c00", "text": "0x3c00"}),
    ],
)
def test_a_text_beside_a_format_is_one_of_the_new_format(
    before: Format, text: str, state: dict[str, str]
) -> None:
    explorer = BitExplorer(before, text)
    explorer.set_state(state)
    assert explorer.format.name == state["format"]
    assert explorer.code == int(state["code"], 0)
    assert explorer.text == state["text"]


def test_a_format_without_a_text_keeps_the_number() -> None:
    explorer = BitExplorer(FP16, "0x3c00")
    explorer.set_state({"format": "BF16"})
    assert explorer.value == 1.0
