"""Rounding in every mode and parsing of numbers, against independent oracles."""

from decimal import Decimal
from fractions import Fraction
from itertools import product

import gfloat
import ml_dtypes
import numpy as np
import pytest

from labkit.formats import (
    BF16,
    E2M1,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    FP64,
    Format,
    Overflow,
    Rounding,
    Specials,
    decode,
    exact_decimal,
    field_bits,
    hex_float,
    parse,
    round_fraction,
    round_to,
    ulp,
)

MINE = Format("mine", exponent_bits=4, significand_bits=7)
BELOW_FP32 = [row for row in (*FORMATS.values(), MINE) if row.bits <= 19]
DETERMINISTIC = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


def midpoints_and_neighbours(format):
    """Return all values of a format, the midpoints between them, and points beyond the largest.

    The float64 neighbours of each point follow, and then all of them with the other sign.
    """
    values = decode(np.arange(format.max_code + 1), format)
    beyond = format.max + np.arange(1, 4) * ulp(format.max, format) / 2
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2, beyond, [np.inf]])
    near = np.concatenate([points, np.nextafter(points, -np.inf), np.nextafter(points, np.inf)])
    return np.concatenate([near, -near])


def test_worked_example_of_a_tie_in_each_mode():
    # Halfway between 1 and 1 + 2^-10.
    tie = 1 + 2.0**-11
    rounded = {mode: float(round_to([tie, -tie], FP16, mode)[0]) - 1 for mode in DETERMINISTIC}
    assert rounded == {
        Rounding.NEAREST_EVEN: 0,
        Rounding.NEAREST_AWAY: 2**-10,
        Rounding.TOWARD_ZERO: 0,
        Rounding.TOWARD_POSITIVE: 2**-10,
        Rounding.TOWARD_NEGATIVE: 0,
    }
    assert round_to(-tie, FP16, Rounding.TOWARD_NEGATIVE) == -(1 + 2**-10)


def test_a_tie_of_two_odd_codes_goes_to_the_larger_magnitude():
    powers = Format("powers", exponent_bits=4, significand_bits=0, specials=Specials.FN)
    # Without a significand, no neighbour of a tie is even: IEEE 754-2019, 4.3.1.
    assert round_to([1.5, 3.0, -6.0], powers).tolist() == [2, 4, -8]


def test_midpoints_and_neighbours_round_as_in_gfloat(gfloat_round, assert_same_bits):
    for format in (row for row in BELOW_FP32 if row.signed):
        values = midpoints_and_neighbours(format)
        # TF32 has 2^19 codes: every 13th point suffices, and 13 is coprime to the powers of two.
        values = values[:: 13 if format.bits > 16 else 1]
        for rounding, overflow in product(DETERMINISTIC, Overflow):
            saturate = overflow is Overflow.SATURATE or format.specials is Specials.NONE
            wanted = gfloat_round(values, format, rounding, saturate)
            assert_same_bits(
                round_to(values, format, rounding, overflow),
                wanted,
                values,
                format,
                rounding,
                overflow,
            )


def test_custom_formats_round_as_in_gfloat(gfloat_row, gfloat_round, assert_same_bits):
    """The formats have two to five exponent bits, and one to three stored significand bits."""
    for exponent_bits, significand_bits, specials in product(range(2, 6), range(1, 4), Specials):
        format = Format("mine", exponent_bits, significand_bits, specials)
        codes = np.arange(format.codes)
        values = midpoints_and_neighbours(format)
        assert_same_bits(
            decode(codes, format), gfloat.decode_ndarray(gfloat_row(format), codes), codes, format
        )
        for rounding in DETERMINISTIC:
            wanted = gfloat_round(values, format, rounding, specials is Specials.NONE)
            assert_same_bits(round_to(values, format, rounding), wanted, values, format, rounding)


def test_midpoints_of_wide_formats_round_as_in_gfloat(gfloat_round, assert_same_bits):
    for format, rounding in product((FP32, FP64), DETERMINISTIC):
        codes = np.random.default_rng(64).integers(format.max_code, size=100_000, dtype=np.uint64)
        # In float64, adding half an ulp of FP64 rounds back, so there the points are values.
        middles = decode(codes, format) + ulp(decode(codes, format), format) / 2
        values = np.concatenate([middles, -np.nextafter(middles, 0), np.nextafter(middles, np.inf)])
        wanted = gfloat_round(values, format, rounding)
        assert_same_bits(round_to(values, format, rounding), wanted, values, format, rounding)


def test_powers_of_two_round_as_in_ml_dtypes(dtype_of, assert_same_bits):
    # Uniform over codes, so over exponents.
    codes = np.random.default_rng(16).integers(2**31, size=100_000, dtype=np.uint32)
    values = np.concatenate(
        [codes.view(np.float32), np.float32([0, -0.0, -1, np.inf, np.nan, 1.5, 3, 2.0**-140])]
    )
    # ml_dtypes 0.6 rounds all numbers between 2^-127 and 2^-126 up, not to the nearest; they are
    # left out.
    values = values[(values <= 2.0**-127) | (values >= 2.0**-126) | np.isnan(values)]
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(dtype_of(E8M0)).astype(np.float32)
    assert_same_bits(round_to(values, E8M0), wanted, values)


def test_stochastic_rounding_compares_with_the_fraction():
    # A value a quarter of the way to the next one rounds up if 32 random bits are below 2^32 / 4.
    bits = [0, 2**30 - 1, 2**30, 2**32 - 1]
    for format, sign in product((FP16, BF16, E4M3, MINE), (1, -1)):
        for low, step in (
            (1.0, format.epsilon),
            (2 * format.smallest_subnormal, format.smallest_subnormal),
        ):
            quarter = np.full(4, sign * (low + step / 4))
            rounded = round_to(quarter, format, Rounding.STOCHASTIC, random_bits=bits) * sign
            assert rounded.tolist() == [low + step, low + step, low, low], (format, sign, low)
    values = decode(np.arange(FP16.max_code + 1), FP16)
    kept = round_to(values, FP16, Rounding.STOCHASTIC, random_bits=np.zeros(values.shape, int))
    assert np.array_equal(kept, values), "a value of the format was rounded"


def test_random_bits_that_do_not_fit_are_refused():
    for bits, got in (
        (None, "None"),
        ([1], r"shape \(1,\)"),
        ([0.5, 0.5], "an array of float64"),
        ([-1, 0], "a number outside this range"),
        ([2**32, 0], "a number outside this range"),
    ):
        with pytest.raises(ValueError, match=rf"random_bits: expected .*, got {got}\. For"):
            round_to([1.0, 2.0], FP16, Rounding.STOCHASTIC, random_bits=bits)
    with pytest.raises(ValueError, match="random_bits"):
        round_to([1.0, 2.0], FP16, random_bits=[1, 2])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rounding_keeps_the_dtype_of_floats(dtype):
    assert round_to(np.ones(3, dtype), E4M3).dtype == dtype


def test_rounded_integers_are_float64():
    assert round_to(2049, FP16).dtype == np.float64


def test_a_list_can_be_rounded():
    assert round_to([1, 2049], FP16).tolist() == [1, 2048]


@pytest.mark.parametrize(
    "numbers", [np.float32(1), np.ones(3), np.ones((0, 3), np.float32), np.zeros(0)]
)
def test_rounding_keeps_the_shape(numbers):
    assert round_to(numbers, FP16).shape == numbers.shape


def test_rounding_reads_views():
    grid = np.linspace(0, 1, 20, dtype=np.float32).reshape(4, 5)
    assert np.array_equal(round_to(grid.T[::2], E5M2), round_to(grid, E5M2).T[::2])


def test_rounding_returns_memory_of_its_own():
    grid = np.linspace(0, 1, 20, dtype=np.float32).reshape(4, 5)
    before = grid.copy()
    round_to(grid, FP32)[:] = 7
    assert np.array_equal(grid, before)


@pytest.mark.parametrize(
    ("values", "explanation"),
    [
        ("0.1", r"parse\(text, format\) reads text"),
        ([1j], "complex128"),
        ([True], "bool"),
        ([None], "object"),
        (np.ones(2, np.longdouble), "float128|float96|longdouble"),
        (np.ones(2, ml_dtypes.bfloat16), "bfloat16"),
    ],
)
def test_values_of_unsupported_types_are_refused(values, explanation):
    with pytest.raises(TypeError, match=explanation):
        round_to(values, FP16)


def test_nan_is_refused_by_a_format_without_it():
    with pytest.raises(ValueError, match="E3M2 has no NaN"):
        round_to([1.0, np.nan], E3M2)


def test_values_beyond_the_dtype_of_the_array_are_refused():
    small = np.array([1.5, 65504, -0.0], np.float16)
    assert np.array_equal(round_to(small, FP32), small)
    with pytest.raises(ValueError, match="BF16 has values that FP16 cannot hold"):
        round_to(small, BF16)


def test_ulp_is_the_distance_to_the_next_value():
    values = decode(np.arange(FP16.max_code), FP16)
    above = decode(np.arange(1, FP16.max_code + 1), FP16)
    assert np.array_equal(ulp(values, FP16), above - values)


def test_ulp_in_fp64_is_the_spacing_of_numpy():
    values = decode(np.arange(FP16.max_code), FP16)
    assert np.array_equal(ulp(values, FP64), np.spacing(values))


@pytest.mark.parametrize("x", [65504, np.inf])
def test_ulp_at_the_end_is_that_of_the_largest_binade(x):
    assert ulp(x, FP16) == 32


def test_ulp_of_nan_is_nan():
    assert np.isnan(ulp(np.nan, FP16))


@pytest.mark.parametrize(
    ("text", "notation", "code"),
    [
        ("1", "decimal", 0x3C00),
        ("0.1", "decimal", 0x2E66),
        (" -1.5e0 ", "decimal", 0xBE00),
        ("−2", "decimal", 0xC000),
        ("-0", "decimal", 0x8000),
        (".5", "decimal", 0x3800),
        ("5.", "decimal", 0x4500),
        ("1e-8", "decimal", 0x0000),
        ("1e-3000", "decimal", 0x0000),
        ("1e3000", "decimal", 0x7C00),
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
        # 2049 is halfway between 2048 and 2050; more than that goes up.
        ("4098/2", "fraction", 0x6800),
        ("4098000001/2000000", "fraction", 0x6801),
        ("inf", "special", 0x7C00),
        ("-Infinity", "special", 0xFC00),
        ("nan", "special", 0x7E00),
    ],
)
def test_notations_of_numbers(text, notation, code):
    reading = parse(text, FP16)
    assert reading.kind == notation
    assert reading.code == code
    assert np.array_equal(reading.value, float(decode(code, FP16)), equal_nan=True)


def test_the_longest_number_can_be_shown():
    reading = parse(f"0.{'1' * 1190}e-3000", FP16)
    assert "exact=Fraction(" in repr(reading)


@pytest.mark.parametrize(
    ("text", "explanation"),
    [
        ("", "'' is not a number"),
        ("abc def", "'abc def' is not a number. Known forms"),
        ("3c00", "For a code write 0x3c00"),
        ("0,1", "Write a decimal point, not a comma: 0.1"),
        ("0x1.8", "A hex-float ends in p and a power of two: 0x1.8p0"),
        ("1e", "For a code write 0x1e"),
        ("1.2.3", "is not a number"),
        ("0xp3", "is not a number"),
        ("0b012", "A code in binary has only the digits 0 and 1"),
        ("0x13c00", "'0x13c00' has 17 bits; FP16 codes have 16"),
        ("0x10000", "'0x10000' has 17 bits; FP16 codes have 16"),
        ("0b0 01111 00000000000", "'0b00111100000000000' has 17 bits; FP16 codes have 16"),
        ("-0x3c00", "a code has no sign in front"),
        ("1/0", "for infinity write inf"),
        ("1e999999999", "the exponent is beyond 3000"),
        ("0x1p99999", "the exponent is beyond 3000"),
        ("9" * 2000, "this text has 2000 characters"),
        ("١٢", "is not a number"),
    ],
)
def test_invalid_text_is_refused(text, explanation):
    with pytest.raises(ValueError, match=explanation):
        parse(text, FP16)


# Slightly more than the tie 1 + 2^-11; float64 would round it to the tie.
ABOVE_A_TIE = "1.00048828125000000000000000000001"


def test_text_is_rounded_once():
    assert parse(ABOVE_A_TIE, FP16).value == 1 + 2**-10


def test_text_is_rounded_in_the_mode_of_the_call():
    assert parse(ABOVE_A_TIE, FP16, Rounding.TOWARD_ZERO).value == 1.0
    assert parse("-1/3", FP16, Rounding.TOWARD_NEGATIVE).value == -0.33349609375
    assert parse("1e6", FP16, overflow=Overflow.SATURATE).value == 65504


def test_the_exact_number_of_a_text_is_kept():
    assert parse("0.1", FP16).exact == Fraction(1, 10)


def test_infinity_is_nan_in_a_format_without_it():
    assert np.isnan(parse("inf", E4M3).value)


def test_a_number_too_large_is_the_largest_in_a_format_of_numbers_only():
    assert parse("7", E2M1).value == 6


@pytest.mark.parametrize("text", ["-1", "0"])
def test_a_number_that_e8m0_lacks_is_nan(text):
    assert parse(text, E8M0).code == 0xFF


def test_nan_is_refused_by_a_format_of_numbers_only():
    with pytest.raises(ValueError, match="E2M1 has no NaN"):
        parse("nan", E2M1)


@pytest.mark.parametrize(("format", "step"), [(FP16, 97), (BF16, 97), (E4M3, 1)])
def test_printed_values_are_parsed_exactly(format, step):
    for code in np.arange(0, format.max_code + 1, step):
        value = decode(code, format)
        for text in (
            exact_decimal(value),
            hex_float(value),
            hex(code),
            "0b" + field_bits(code, format),
        ):
            assert parse(text, format).code == code, (format, text)


def test_printed_float64_values_are_parsed_as_by_python():
    # Codes below this one are those of positive finite numbers.
    codes = np.random.default_rng(13).integers(2**63 - 2**53, size=150)
    for value in codes.view(np.float64):
        for text in (repr(float(value)), float(value).hex(), exact_decimal(value)):
            assert parse(text, FP64).value == float(value), text
        assert parse(repr(float(value)), FP32).exact == Fraction(repr(float(value)))


def test_fractions_round_as_pythons_division_does():
    rng = np.random.default_rng(14)
    for top, bottom in rng.integers(1, 10**15, size=(500, 2)):
        exact = Fraction(int(top), int(bottom))
        # Python rounds the quotient of two integers correctly.
        assert round_fraction(exact, FP64) == int(top) / int(bottom)
        assert round_fraction(-exact, FP64) == -(int(top) / int(bottom))


def test_negative_fractions_round_to_nan_without_a_sign():
    for text in ("-1e3000", "-1e-3000", "-1/3", "-2^3000"):
        assert np.isnan(parse(text, E8M0).value), text
    assert np.isnan(round_fraction(Fraction(-1, 3), E8M0))


def test_a_fraction_of_zero_rounds_to_nan_without_a_zero():
    assert np.isnan(parse("0/3", E8M0).value)
    assert np.isnan(round_fraction(Fraction(0), E8M0))


def test_stochastic_rounding_of_texts_is_refused():
    with pytest.raises(ValueError, match="needs no random bits"):
        parse("0.1", FP16, "stochastic")
    with pytest.raises(ValueError, match="needs no random bits"):
        round_fraction(Fraction(1, 3), FP16, Rounding.STOCHASTIC)


def test_decimal_texts_of_numbers_are_exact():
    assert exact_decimal(-0.0) == "-0"
    assert exact_decimal(65504.0) == "65504"
    assert exact_decimal(decode(0x3555, FP16)) == "0.333251953125"
    assert Decimal(exact_decimal(0.1)) == Fraction(0.1)


def test_special_values_have_a_text():
    assert exact_decimal(np.inf) == "Infinity"
    assert hex_float(-np.inf) == "-inf"
    assert hex_float(np.nan) == "nan"
    assert hex_float(0.0) == "0x0p+0"


def test_bits_are_grouped_by_field():
    assert field_bits(0x7, E2M1) == "0 11 1"
    # E8M0 has an exponent alone.
    assert field_bits(0x7F, E8M0) == "01111111"
