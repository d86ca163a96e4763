"""The page's arithmetic against labkit.formats, and the bit explorer."""

import math
import random
import re
from dataclasses import replace
from decimal import ROUND_DOWN, Context, Decimal
from fractions import Fraction
from itertools import product
from typing import Any

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
    FP64,
    Format,
    Rounding,
    Specials,
    decode,
    parse,
    round_to,
    ulp,
)
from labkit.widgets import BitExplorer
from labkit.widgets.base.number_words import brief, number
from labkit.widgets.exact.rows import exact_text, format_row
from tests.widgets.pages import Scripts

FOLDERS = ("exact", "bits")
CODES = """(name, codes) => codes.map((text) => {
  const [format, code] = [F[name], BigInt(text)];
  const value = decode(code, format);
  const finite = Number.isFinite(value);
  return [
    value,
    Number.isNaN(value) ? null : encode(value, format),
    classOf(code, format),
    neighbour(value, format, 1),
    neighbour(value, format, -1),
    exactText(value),
    hexFloat(value),
    finite ? exactDecimal(value) : "",
    ...(finite ? [ulpOf(value, format), brief(exactly(value)), leading(exactly(value), 20)] : []),
    ...(finite ? [spaced(exactly(value)), numberText(value)] : []),
  ];
})"""
PARSE = """(name, texts) => texts.map((text) => {
  try {
    const { kind, exact, value, code } = parse(text, F[name]);
    return [kind, exact && [exact.n, exact.d], value, code];
  } catch (error) { return error.message; }
})"""
ROUND = "(name, mode, all) => all.map((x) => roundValue(x, F[name], mode))"
TEXTS = [
    "0.1",
    "1/3",
    "-1/3",
    "2^-24",
    "1.5*2^-14",
    "3×2^-7",
    "0x1.8p-3",
    "-0",
    "0",
    "inf",
    "-inf",
    "nan",
    "∞",
    "65520",
    "65519.99",
    "1e400",
    "1e-3000",
    "-5",
    "1e-50",
    "0x3c00",
    "0b0_01111_0000000000",
    "0b0_01111_00000000000",
    "0b000000000000000001",
    "  7 ",
    "+3",
    "−2",
    ".5",
    "5.",
    "2**(-3)",
    "2^3000",
    "2^3001",
    "0b012",
    "abc",
    "0,1",
    "3c00",
    "0x1.8",
    "",
    "1/0",
    "1e99999",
    "--1",
    "-0x3c00",
    "0x123456789abcdef01",
    "9" * 1300,
]


def same(a: float | None, b: float | None) -> bool:
    """Return whether two numbers have equal bits, where all NaNs are equal."""
    if a is None or b is None:
        return a is b
    return bool(np.isnan(a) and np.isnan(b)) or (a == b and np.signbit(a) == np.signbit(b))


def neighbour(value: float, format: Format, step: Any) -> float | None:
    """Return the neighbour of a value by next_up or next_down, or None where there is none."""
    if np.isnan(value):
        return None
    result = float(step(value, format))
    return None if np.isnan(result) or result == value else result


@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda row: row.name)
def test_codes_have_the_values_and_texts_of_python(js: Scripts, format: Format) -> None:
    chance = random.Random(7)
    codes = (
        range(format.codes)
        if format.bits <= 8
        else sorted({chance.randrange(format.codes) for _ in range(600)})
    )
    for code, found in zip(
        codes, js.run(CODES, format.name, [str(code) for code in codes]), strict=True
    ):
        value = float(decode(code, format))
        assert same(found[0], value), code
        assert found[1] == (None if np.isnan(value) else code)
        assert found[2] == formats.classify(code, format), code
        for theirs, step in zip(found[3:5], (formats.next_up, formats.next_down), strict=True):
            assert same(theirs, neighbour(value, format, step)), code
        assert found[5:7] == [exact_text(value), formats.hex_float(value)]
        if np.isfinite(value):
            decimal, spacing, short, cut, for_sentences, written = found[7:]
            assert decimal == formats.exact_decimal(value), code
            assert spacing == float(ulp(value, format)), code
            assert short == brief(value), code
            assert written == number(value), code
            shown = Context(prec=20, rounding=ROUND_DOWN).create_decimal(decimal)
            assert Decimal(cut.replace("…", "")) == shown, code
            assert ("…" in cut) == (shown != Decimal(decimal)), code
            # Powers of two above 8 are also written as powers in sentences.
            significand, exponent = math.frexp(value)
            if abs(value) > 8 and abs(significand) == 0.5:
                sign = "-" if value < 0 else ""
                assert for_sentences == f"{sign}2^{exponent - 1} = {short}", code


@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda row: row.name)
def test_text_is_parsed_and_refused_as_in_python(js: Scripts, format: Format) -> None:
    chance = random.Random(7)
    texts = [
        *TEXTS,
        *(repr(chance.uniform(-1, 1) * 2.0 ** chance.randint(-60, 60)) for _ in range(150)),
    ]
    texts += [f"{chance.randint(1, 9999)}/{chance.randint(1, 99999)}" for _ in range(50)]
    for text, found in zip(texts, js.run(PARSE, format.name, texts), strict=True):
        if isinstance(found, str):
            with pytest.raises(ValueError, match=f"^{re.escape(found)}$"):
                parse(text, format)
            continue
        expected = parse(text, format)
        kind, exact, value, code = found
        assert kind == expected.kind, text
        assert code == expected.code, text
        assert same(value, expected.value), text
        assert (exact and Fraction(*exact)) == expected.exact, text


@pytest.mark.parametrize(
    "format", [row for row in FORMATS.values() if row is not FP64], ids=lambda row: row.name
)
def test_values_round_as_in_python(js: Scripts, format: Format) -> None:
    chance = random.Random(7)
    low = format.emin - format.significand_bits - 3
    high = format.emax + 2
    numbers = [
        chance.choice((-1, 1)) * chance.random() * 2.0 ** chance.randint(low, high)
        for _ in range(200)
    ]
    held = [float(decode(chance.randrange(format.max_code), format)) for _ in range(60)]
    numbers += [
        0.0,
        -0.0,
        *held,
        *(value + float(ulp(value, format)) / 2 for value in held),
    ]
    for mode in (mode for mode in Rounding if mode is not Rounding.STOCHASTIC):
        for x, value in zip(numbers, js.run(ROUND, format.name, mode.name, numbers), strict=True):
            assert same(value, float(round_to(x, format, mode))), (mode, x)


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


def test_exact_text_of_a_value_is_parsed_as_this_value():
    for value in (0.1, 2.0**-24, -0.0, 65504.0, 2.0**-149, np.inf, -np.inf):
        back = parse(exact_text(value), FP64).value
        np.testing.assert_equal(back, value)
        assert np.signbit(back) == np.signbit(value), value


def test_steps_go_to_the_neighbours_of_a_value():
    explorer = BitExplorer(FP16, "0")
    for direction, value in ((+1, 2.0**-24), (+1, 2.0**-23), (+1, 3 * 2.0**-24), (-1, 2.0**-23)):
        explorer.step(direction)
        assert explorer.value == value
    explorer.text = "65504"
    explorer.step(+1)
    assert explorer.value == np.inf


def test_there_is_no_step_beyond_the_largest_value():
    # E4M3 and E2M1 have no infinity.
    for format in (FP16, E4M3, E2M1):
        with pytest.raises(ValueError, match="no larger value"):
            BitExplorer(format, "inf" if format is FP16 else str(format.max)).step(+1)


class TestFormats:
    def test_the_number_stays_and_the_bits_change(self):
        explorer = BitExplorer(FP16, "0.1")
        explorer.format = BF16
        assert explorer.text == "0.1"
        assert explorer.value == float(torch.tensor(0.1).bfloat16())
        assert explorer.code == 0x3DCD
        explorer.format = FP16
        # A code is converted to its number for the next format.
        explorer.text = "0x3c01"
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

    def test_every_format_has_a_whole_view_of_every_number(self, js):
        numbers = ["0", "-0", "1", "-1/3", "1e-9", "1e9", "inf", "6e-8", "2^-149", "448.1"]
        for format, text in product(FORMATS.values(), numbers):
            shown = view(js, text, format, FORMATS.values())
            bits = [str(int(bit["on"])) for field in shown["fields"] for bit in field["bits"]]
            assert len(bits) == format.bits, (format.name, text)
            assert int("".join(bits), 2) == shown["code"], (
                format.name,
                text,
            )
            assert shown["code"] == parse(text, format).code, (
                format.name,
                text,
            )
            assert shown["sentence"].endswith("."), (format.name, text)
            assert len(shown["facts"]) == 5, (format.name, text)

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


def test_the_formula_of_each_kind_of_number(js):
    assert formula_of(js, "1.5", FP16) == [
        "(−1)^S × 2^E^ − 15 × 1.F",
        "(−1)^0 × 2^15^ − 15 × 1.1000000000 (binary)",
        "2^0 × 1.5",
    ]
    # A subnormal number has no hidden bit.
    assert formula_of(js, "-3*2^-24", FP16) == [
        "(−1)^S × 2^−14 × 0.F",
        "(−1)^1 × 2^−14 × 0.0000000011 (binary)",
        "−2^−14 × 0.0029296875",
    ]
    assert formula_of(js, "4", E8M0) == ["2^E^ − 127", "2^129^ − 127", "2^2 × 1"]
    for code, format, expected in (
        (0x7C00, FP16, "infinity: all bits of E are 1 and all bits of F are 0"),
        (0xFC00, FP16, "−infinity: all bits of E are 1 and all bits of F are 0"),
        (0x7E00, FP16, "NaN, not a number: all bits of E are 1 and F is not 0"),
        (0x7F, E4M3, "NaN, not a number: all bits of E and F are 1 (E4M3 has no infinity)"),
    ):
        assert formula_of(js, code, format) == [expected]
    (letters, _, _) = view(js, "1.5", FP16, [])["formula"]
    assert {piece[0]: piece[1] for piece in letters if piece[1:] and piece[1]} == {
        "S": "S",
        "E": "E",
        "F": "F",
    }


def test_the_sentence_describes_the_rounding_of_a_number(js):
    for text, format, expected in (
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
    ):
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
    assert page.trait("sentence") == root.locator(".lk-sentence").get_attribute("data-text")


def test_text_that_is_no_number_is_refused_beside_its_box(page):
    root = page.show(BitExplorer(FP16, 0.1))
    box = root.get_by_role("textbox", name="Number")
    before = state_of(page)
    box.fill("0,1")
    error = root.locator(".be-hint.lk-error")
    assert "Write a decimal point, not a comma: 0.1." in error.text_content()
    assert box.input_value() == "0,1"
    assert box.get_attribute("aria-invalid") == "true"
    assert state_of(page) == before
    box.fill("0.1")
    assert error.count() == 0


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
