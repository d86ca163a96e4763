"""Numbers as people write them: read once and exactly, printed exactly."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from labkit.formats import (
    BF16,
    E2M1,
    E4M3,
    E8M0,
    FP16,
    FP32,
    FP64,
    Overflow,
    Rounding,
    decode,
    exact_decimal,
    field_bits,
    hex_float,
    parse,
    round_fraction,
)


def test_forms_a_learner_may_type():
    for text, kind, code in (
        ("1", "decimal", 0x3C00),
        ("0.1", "decimal", 0x2E66),
        (" -1.5e0 ", "decimal", 0xBE00),
        ("−2", "decimal", 0xC000),
        ("-0", "decimal", 0x8000),
        (".5", "decimal", 0x3800),
        ("5.", "decimal", 0x4500),
        ("1e-8", "decimal", 0x0000),
        ("1e-5000", "decimal", 0x0000),
        ("1e5000", "decimal", 0x7C00),
        ("65519.999999999999999999999", "decimal", 0x7BFF),
        ("65520", "decimal", 0x7C00),
        ("0x3c00", "code", 0x3C00),
        ("0X3C00", "code", 0x3C00),
        ("0b0_01111_0000000000", "code", 0x3C00),
        ("0b0 01111 0000000000", "code", 0x3C00),
        ("0x1.8p-3", "hex-float", 0x3200),
        ("-0x1p-24", "hex-float", 0x8001),
        ("0x.8p1", "hex-float", 0x3C00),
        ("2^-24", "power of two", 0x0001),
        ("2**10", "power of two", 0x6400),
        ("1.5*2^-14", "power of two", 0x0600),
        ("1.5 × 2^(-14)", "power of two", 0x0600),
        ("1/3", "fraction", 0x3555),
        ("-1 / 3", "fraction", 0xB555),
        ("inf", "special", 0x7C00),
        ("-Infinity", "special", 0xFC00),
        ("nan", "special", 0x7E00),
    ):
        reading = parse(text, FP16)
        assert (reading.kind, reading.code) == (kind, code), text
        assert np.array_equal(reading.value, float(decode(code, FP16)), equal_nan=True), text


def test_what_is_no_number_is_refused():
    for text, explanation in (
        ("", "'' is no number"),
        ("abc def", "'abc def' is no number. Known forms"),
        ("3c00", "For a code write 0x3c00"),
        ("0,1", "Write a decimal point, not a comma: 0.1"),
        ("0x1.8", "A hex-float ends in p and a power of two: 0x1.8p0"),
        ("1e", "For a code write 0x1e"),
        ("1.2.3", "is no number"),
        ("--1", "is no number"),
        ("0x", "is no number"),
        ("0xp3", "is no number"),
        ("0b012", "is no number"),
        ("0x13c00", "'0x13c00' has 17 bits; FP16 codes have 16"),
        ("-0x3c00", "a code has no sign in front"),
        ("1/0", "for infinity write inf"),
        ("1e999999999", "the exponent is beyond 5000"),
        ("0x1p99999", "the exponent is beyond 5000"),
        ("9" * 2000, "this text has 2000 characters"),
        ("١٢", "is no number"),
    ):
        with pytest.raises(ValueError, match=explanation):
            parse(text, FP16)


def test_text_is_rounded_once_and_in_any_mode():
    above_a_tie = "1.00048828125000000000000000000001"  # 1 + 2^-11 and a little: float64 would lose the little
    assert parse(above_a_tie, FP16).value == 1 + 2**-10
    assert parse(above_a_tie, FP16, Rounding.TOWARD_ZERO).value == 1.0
    assert parse("-1/3", FP16, Rounding.TOWARD_NEGATIVE).value == -0.33349609375
    assert parse("1e6", FP16, overflow=Overflow.SATURATE).value == 65504
    assert parse("0.1", FP16).exact == Fraction(1, 10)


def test_other_formats_have_their_own_answers():
    assert np.isnan(parse("inf", E4M3).value)
    assert parse("7", E2M1).value == 6
    assert parse("-1", E8M0).code == parse("0", E8M0).code == 0xFF
    with pytest.raises(ValueError, match="E2M1 has no NaN"):
        parse("nan", E2M1)


def test_values_survive_being_written_and_read():
    for format, step in ((FP16, 97), (BF16, 97), (E4M3, 1)):
        for code in np.arange(0, format.max_code + 1, step):
            value = decode(code, format)
            for text in (exact_decimal(value), hex_float(value), hex(code), "0b" + field_bits(code, format)):
                assert parse(text, format).code == code, (format, text)


def test_random_float64_survive_and_agree_with_python():
    for value in np.random.default_rng(13).integers(2**63 - 2**53, size=150).view(np.float64):
        for text in (repr(float(value)), float(value).hex(), exact_decimal(value)):
            assert parse(text, FP64).value == float(value), text
        assert parse(repr(float(value)), FP32).exact == Fraction(repr(float(value)))


def test_fractions_round_as_pythons_division_does():
    rng = np.random.default_rng(14)
    for top, bottom in rng.integers(1, 10**15, size=(500, 2)):
        exact = Fraction(int(top), int(bottom))
        assert round_fraction(exact, FP64) == int(top) / int(bottom)  # correctly rounded, says Python
        assert round_fraction(-exact, FP64) == -(int(top) / int(bottom))


def test_printing_is_exact():
    assert exact_decimal(-0.0) == "-0"
    assert exact_decimal(65504.0) == "65504"
    assert Decimal(exact_decimal(0.1)) == Fraction(0.1)
    assert (exact_decimal(np.inf), hex_float(-np.inf), hex_float(np.nan)) == ("Infinity", "-inf", "nan")
    assert hex_float(0.0) == "0x0p+0"
    assert exact_decimal(decode(0x3555, FP16)) == "0.333251953125"
    assert field_bits(0x7F, E8M0) == "01111111"
    assert field_bits(0x7, E2M1) == "0 11 1"
