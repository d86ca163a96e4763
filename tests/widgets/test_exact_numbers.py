"""The page's arithmetic of numbers against labkit.formats."""

import math
import random
import re
from decimal import ROUND_DOWN, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labkit import formats
from labkit.formats import FORMATS, FP64, Format, Rounding, decode, parse, round_to, ulp
from labkit.widgets.base.number_words import brief, number
from labkit.widgets.exact.rows import exact_text
from tests.widgets.pages import Scripts

FOLDERS = ("exact", "bits")
ALL_FORMATS = pytest.mark.parametrize("format", FORMATS.values(), ids=lambda row: row.name)


def same(a: float | None, b: float | None) -> bool:
    """Return whether two numbers have equal bits, where all NaNs are equal."""
    if a is None or b is None:
        return a is b
    return bool(np.isnan(a) and np.isnan(b)) or (a == b and np.signbit(a) == np.signbit(b))


# --- codes ----------------------------------------------------------------------------------------


def codes_of(format: Format) -> list[int]:
    """Return all codes of a small format, and 600 random ones of another."""
    if format.bits <= 8:
        return list(range(format.codes))
    chance = random.Random(7)
    return sorted({chance.randrange(format.codes) for _ in range(600)})


def finite_codes_of(format: Format) -> list[int]:
    return [code for code in codes_of(format) if np.isfinite(float(decode(code, format)))]


def for_each_code(js: Scripts, expression: str, format: Format, codes: list[int]) -> Any:
    """Return pairs of a code and what an expression of JavaScript gives for it.

    The expression may use `format`, `code` and its `value`.
    """
    function = """(name, codes) => codes.map((text) => {
      const [format, code] = [F[name], BigInt(text)];
      const value = decode(code, format);
      return EXPRESSION;
    })"""
    found = js.run(
        function.replace("EXPRESSION", expression), format.name, [str(code) for code in codes]
    )
    return zip(codes, found, strict=True)


def neighbour(value: float, format: Format, step: Any) -> float | None:
    """Return the neighbour of a value by next_up or next_down, or None where there is none."""
    if np.isnan(value):
        return None
    result = float(step(value, format))
    return None if np.isnan(result) or result == value else result


@ALL_FORMATS
def test_codes_have_the_values_of_python(js: Scripts, format: Format) -> None:
    for code, value in for_each_code(js, "value", format, codes_of(format)):
        assert same(value, float(decode(code, format))), code


@ALL_FORMATS
def test_values_have_the_codes_that_they_came_from(js: Scripts, format: Format) -> None:
    encoded = "Number.isNaN(value) ? null : encode(value, format)"
    for code, found in for_each_code(js, encoded, format, codes_of(format)):
        assert found == (None if np.isnan(float(decode(code, format))) else code)


@ALL_FORMATS
def test_codes_have_the_classes_of_python(js: Scripts, format: Format) -> None:
    for code, found in for_each_code(js, "classOf(code, format)", format, codes_of(format)):
        assert found == formats.classify(code, format), code


@pytest.mark.parametrize(("direction", "step"), [(1, formats.next_up), (-1, formats.next_down)])
@ALL_FORMATS
def test_codes_have_the_neighbours_of_python(
    js: Scripts, format: Format, direction: int, step: Any
) -> None:
    expression = f"neighbour(value, format, {direction})"
    for code, found in for_each_code(js, expression, format, codes_of(format)):
        assert same(found, neighbour(float(decode(code, format)), format, step)), code


@ALL_FORMATS
def test_codes_have_the_spacing_of_python(js: Scripts, format: Format) -> None:
    for code, found in for_each_code(js, "ulpOf(value, format)", format, finite_codes_of(format)):
        assert found == float(ulp(decode(code, format), format)), code


@pytest.mark.parametrize(
    ("expression", "text_of"),
    [("exactText(value)", exact_text), ("hexFloat(value)", formats.hex_float)],
)
@ALL_FORMATS
def test_all_codes_have_the_texts_of_python(
    js: Scripts, format: Format, expression: str, text_of: Any
) -> None:
    for code, found in for_each_code(js, expression, format, codes_of(format)):
        assert found == text_of(float(decode(code, format))), code


@pytest.mark.parametrize(
    ("expression", "text_of"),
    [
        ("exactDecimal(value)", formats.exact_decimal),
        ("brief(exactly(value))", brief),
        ("numberText(value)", number),
    ],
)
@ALL_FORMATS
def test_finite_codes_have_the_texts_of_python(
    js: Scripts, format: Format, expression: str, text_of: Any
) -> None:
    for code, found in for_each_code(js, expression, format, finite_codes_of(format)):
        assert found == text_of(float(decode(code, format))), code


@ALL_FORMATS
def test_a_long_decimal_is_cut_off_at_a_mark(js: Scripts, format: Format) -> None:
    expression = "leading(exactly(value), 20)"
    for code, found in for_each_code(js, expression, format, finite_codes_of(format)):
        exact = Decimal(formats.exact_decimal(float(decode(code, format))))
        shown = Context(prec=20, rounding=ROUND_DOWN).create_decimal(exact)
        assert Decimal(found.replace("…", "")) == shown, code
        assert ("…" in found) == (shown != exact), code


@ALL_FORMATS
def test_powers_of_two_above_8_are_written_as_powers_too(js: Scripts, format: Format) -> None:
    expression = "spaced(exactly(value))"
    for code, found in for_each_code(js, expression, format, finite_codes_of(format)):
        value = float(decode(code, format))
        significand, exponent = math.frexp(value)
        if abs(value) > 8 and abs(significand) == 0.5:
            sign = "-" if value < 0 else ""
            assert found == f"{sign}2^{exponent - 1} = {brief(value)}", code


# --- texts ----------------------------------------------------------------------------------------

PARSE = """(name, texts) => texts.map((text) => {
  try {
    const { kind, exact, value, code } = parse(text, F[name]);
    return [kind, exact && [exact.n, exact.d], value, code];
  } catch (error) { return error.message; }
})"""
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


def texts_of_numbers() -> list[str]:
    """Return TEXTS, and 200 random decimals and fractions."""
    chance = random.Random(7)
    decimals = [repr(chance.uniform(-1, 1) * 2.0 ** chance.randint(-60, 60)) for _ in range(150)]
    fractions = [f"{chance.randint(1, 9999)}/{chance.randint(1, 99999)}" for _ in range(50)]
    return [*TEXTS, *decimals, *fractions]


def parsed(js: Scripts, format: Format) -> Any:
    """Return pairs of a text, and the page's result or its error message."""
    texts = texts_of_numbers()
    return zip(texts, js.run(PARSE, format.name, texts), strict=True)


@ALL_FORMATS
def test_text_is_refused_as_in_python(js: Scripts, format: Format) -> None:
    refused = [(text, found) for text, found in parsed(js, format) if isinstance(found, str)]
    assert len(refused) > 5
    for text, message in refused:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            parse(text, format)


@ALL_FORMATS
def test_text_is_parsed_as_in_python(js: Scripts, format: Format) -> None:
    accepted = [(text, found) for text, found in parsed(js, format) if not isinstance(found, str)]
    assert len(accepted) > 200
    for text, (kind, exact, value, code) in accepted:
        expected = parse(text, format)
        assert (kind, code) == (expected.kind, expected.code), text
        assert same(value, expected.value), text
        assert (exact and Fraction(*exact)) == expected.exact, text


def test_exact_text_of_a_value_is_parsed_as_this_value() -> None:
    for value in (0.1, 2.0**-24, 0.0, -0.0, 65504.0, 2.0**-149, np.inf, -np.inf):
        assert same(parse(exact_text(value), FP64).value, value), value


# --- rounding -------------------------------------------------------------------------------------

ROUND = "(name, mode, all) => all.map((x) => roundValue(x, F[name], mode))"


def numbers_to_round(format: Format) -> list[float]:
    """Return random numbers, zeros, and values of a format with the ties beside them."""
    chance = random.Random(7)
    low = format.emin - format.significand_bits - 3
    high = format.emax + 2
    numbers = [0.0, -0.0]
    for _ in range(200):
        sign = chance.choice((-1, 1))
        numbers.append(sign * chance.random() * 2.0 ** chance.randint(low, high))
    for _ in range(60):
        value = float(decode(chance.randrange(format.max_code), format))
        numbers += [value, value + float(ulp(value, format)) / 2]
    return numbers


@pytest.mark.parametrize(
    "mode",
    [mode for mode in Rounding if mode is not Rounding.STOCHASTIC],
    ids=lambda mode: mode.name,
)
@pytest.mark.parametrize(
    "format", [row for row in FORMATS.values() if row is not FP64], ids=lambda row: row.name
)
def test_values_round_as_in_python(js: Scripts, format: Format, mode: Rounding) -> None:
    numbers = numbers_to_round(format)
    for x, value in zip(numbers, js.run(ROUND, format.name, mode.name, numbers), strict=True):
        assert same(value, float(round_to(x, format, mode))), x
