"""Formats, block formats, codes and neighbours, against gfloat, ml_dtypes and numpy."""

import dataclasses
import math
from itertools import product

import gfloat
import ml_dtypes
import numpy as np
import pytest

from labkit.formats import (
    BF16,
    BLOCK_FORMATS,
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    FP64,
    MXFP4,
    NVFP4,
    TF32,
    Format,
    Overflow,
    Rounding,
    Specials,
    classify,
    decode,
    decode_blocks,
    encode,
    join,
    next_down,
    next_up,
    round_blocks,
    round_to,
    rounding_interval,
    split,
)

ALL = [*FORMATS.values(), Format("mine", 4, 7), Format("flat", 2, 1)]


def test_worked_example_of_fp16():
    assert FP16.bits == 16
    assert FP16.bias == 15
    assert FP16.precision == 11
    assert FP16.emin == -14
    assert FP16.emax == 15
    assert FP16.max == (2 - 2**-10) * 2**15 == 65504
    assert FP16.smallest_normal == 2**-14
    assert FP16.smallest_subnormal == 2**-24
    assert FP16.epsilon == 2**-10
    assert FP16.codes == 65536
    assert FP16.code_dtype == np.uint16
    assert FP16.max_code == 0x7BFF
    assert FP16.infinity_code == 0x7C00
    assert FP16.nan_code == 0x7E00


@pytest.mark.parametrize("format", ALL, ids=lambda row: row.name)
def test_derived_numbers_equal_those_of_gfloat(format, gfloat_row):
    info = gfloat_row(format)
    assert format.max == info.max
    assert format.smallest_subnormal == info.smallest
    assert format.emax == math.frexp(info.max)[1] - 1


@pytest.mark.parametrize(
    "format", [row for row in FORMATS.values() if row is not TF32], ids=lambda row: row.name
)
def test_derived_numbers_equal_those_of_ml_dtypes(format, dtype_of):
    info = ml_dtypes.finfo(dtype_of(format))
    assert format.bits == info.bits
    for name in ("max", "smallest_normal", "smallest_subnormal"):
        assert getattr(format, name) == float(getattr(info, name)), name
    assert format.epsilon == float(info.eps)


def test_a_custom_format_has_derived_numbers():
    mine = Format("mine", exponent_bits=4, significand_bits=7)
    assert mine.bits == 12
    assert mine.bias == 7
    assert mine.max == 255


def test_equal_formats_have_the_same_hash():
    mine = Format("mine", exponent_bits=4, significand_bits=7)
    assert {mine: "kept"}[Format("mine", 4, 7)] == "kept"


def test_a_custom_format_is_immutable():
    mine = Format("mine", exponent_bits=4, significand_bits=7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        mine.exponent_bits = 5


def test_codes_of_more_than_32_bits_have_64():
    wide = Format("wide", exponent_bits=8, significand_bits=31)
    assert wide.bits == 40
    assert wide.code_dtype == np.uint64


@pytest.mark.parametrize(
    ("exponent_bits", "significand_bits", "specials", "explanation"),
    [
        (0, 0, Specials.IEEE, "expected exponent_bits .* got 0"),
        (40, 10, Specials.IEEE, "expected exponent_bits .* an integer from 2 to 11, got 40"),
        (5, 53, Specials.IEEE, "expected significand_bits .* got 53"),
        (5, -1, Specials.IEEE, "expected significand_bits .* got -1"),
        (5.0, 10, Specials.IEEE, "expected exponent_bits .* got 5.0"),
        (True, 10, Specials.IEEE, "expected exponent_bits .* got True"),
        (5, 0, Specials.IEEE, "infinity and NaN differ in the significand"),
        (11, 52, Specials.NONE, "do not fit in float64"),
    ],
)
def test_impossible_formats_are_refused(exponent_bits, significand_bits, specials, explanation):
    with pytest.raises(ValueError, match=explanation):
        Format("odd", exponent_bits, significand_bits, specials)


def test_specials_by_name_are_refused():
    with pytest.raises(TypeError, match=r"expected specials to be one of .*, got 'FN'"):
        Format("odd", 4, 3, "FN")


def test_a_format_without_a_zero_needs_a_nan():
    with pytest.raises(ValueError, match="needs a NaN"):
        Format("odd", 8, 0, Specials.NONE, has_zero=False)


def test_a_format_with_a_sign_needs_a_zero():
    with pytest.raises(ValueError, match=r"got a sign without a zero\. Give signed=False"):
        Format("odd", 8, 0, Specials.FN, has_zero=False)


@pytest.mark.parametrize(
    ("outer", "inner", "held"),
    [
        (FP32, FP16, True),
        (FP64, FP32, True),
        (FP16, BF16, False),
        (BF16, FP16, False),
        (FP16, FP16, True),
        (FP16, E5M2, True),
        (FP16, E4M3, True),
        (BF16, E8M0, True),
        (FP32, TF32, True),
        (E8M0, E2M1, False),
    ],
)
def test_contains_means_every_value_of_the_other_format(dtype_of, outer, inner, held):
    assert outer.contains(inner) is held
    if inner.bits <= 16:
        with np.errstate(over="ignore", invalid="ignore"):
            values = (
                np.arange(inner.codes)
                .astype(inner.code_dtype)
                .view(dtype_of(inner))
                .astype(np.float64)
            )
            finite = values[np.isfinite(values)]
            kept = finite.astype(np.float32).astype(dtype_of(outer)).astype(np.float64)
        assert (kept == finite).all() == held


def test_worked_example_of_an_mxfp4_block():
    values = np.zeros(32)
    values[:4] = [12.0, 7.9, -3.0, 0.2]
    blocks = round_blocks(values, MXFP4)
    # 2^floor(log2 12) = 8, and the largest exponent of E2M1 is 2, so the scale is 8 / 2^2 = 2.
    assert decode(blocks.scales, E8M0).tolist() == [2.0]
    assert decode(blocks.elements[0, :4], E2M1).tolist() == [6.0, 4.0, -1.5, 0.0]
    assert decode_blocks(blocks)[:4].tolist() == [12.0, 8.0, -3.0, 0.0]


def test_mx_blocks_round_as_in_gfloat(gfloat_row):
    def scale_rule(emax, block):
        """Return the scale of OCP MX 6.3, by frexp instead of a logarithm."""
        return 2.0 ** (np.frexp(np.abs(block).max())[1] - 1 - emax)

    modes = {
        Rounding.NEAREST_EVEN: gfloat.RoundMode.TiesToEven,
        Rounding.TOWARD_ZERO: gfloat.RoundMode.TowardZero,
    }
    mx = [row for row in BLOCK_FORMATS.values() if row.scale is E8M0]
    for format, (rounding, mode) in product(mx, modes.items()):
        rng = np.random.default_rng(format.element.bits)
        spread = rng.integers(-12, 3, size=(40, 32)) + rng.integers(-100, 100, size=(40, 1))
        values = np.ldexp(rng.uniform(-2, 2, (40, 32)), spread)
        oracle = gfloat.BlockFormatInfo(
            format.name, gfloat_row(format.element), 32, gfloat_row(E8M0)
        )
        wanted = np.stack(
            [gfloat.quantize_block(oracle, block, scale_rule, mode) for block in values]
        )
        assert np.array_equal(decode_blocks(round_blocks(values, format, rounding)), wanted), (
            format,
            rounding,
        )


def test_nvfp4_blocks_round_as_in_ml_dtypes(dtype_of):
    values = np.random.default_rng(4).normal(size=(100, 16)).astype(np.float32)
    largest = np.abs(values).max(-1)
    wanted = (largest / np.float32(6)).astype(dtype_of(E4M3)).astype(np.float64)
    blocks = round_blocks(values, NVFP4)
    assert np.array_equal(decode(blocks.scales, E4M3)[:, 0], wanted)
    scaled = values.astype(np.float64) / wanted[:, np.newaxis]
    assert np.array_equal(
        decode(blocks.elements, E2M1)[:, 0], scaled.astype(np.float32).astype(dtype_of(E2M1))
    )


def test_bits_of_a_value_in_every_block_format():
    bits = {row.name: row.bits_per_value for row in BLOCK_FORMATS.values()}
    assert bits == {
        "MXFP8": 8.25,
        "MXFP8_E5M2": 8.25,
        "MXFP6": 6.25,
        "MXFP6_E3M2": 6.25,
        "MXFP4": 4.25,
        "NVFP4": 4.5,
    }


each_block_format = pytest.mark.parametrize(
    "format", BLOCK_FORMATS.values(), ids=lambda format: format.name
)


@each_block_format
def test_blocks_of_extreme_numbers_are_zero_or_the_largest(format):
    largest = format.scale.max * format.element.max
    for value, wanted in ((0.0, 0.0), (2.0**-300, 0.0), (2.0**300, largest)):
        blocks = round_blocks(np.full(2 * format.size, value), format)
        assert decode_blocks(blocks).tolist() == [wanted] * (2 * format.size)


@each_block_format
def test_blocks_run_along_the_last_axis(format):
    blocks = round_blocks(np.random.default_rng(5).normal(size=(7, 4 * format.size)), format)
    assert blocks.scales.shape == (7, 4)
    assert blocks.elements.shape == (7, 4, format.size)


@each_block_format
def test_rows_without_numbers_have_no_blocks(format):
    nothing = round_blocks(np.zeros((3, 0)), format)
    assert nothing.elements.shape == (3, 0, format.size)
    assert decode_blocks(nothing).shape == (3, 0)


@pytest.mark.parametrize(
    ("values", "explanation"),
    [
        (np.ones(31), r"a multiple of 32, the block size of MXFP4, got shape \(31,\)"),
        (1.0, "a multiple of 32"),
        (np.full(32, np.inf), "an infinity or NaN"),
        (np.full(32, np.nan), "an infinity or NaN"),
    ],
)
def test_invalid_blocks_are_refused(values, explanation):
    with pytest.raises(ValueError, match=explanation):
        round_blocks(values, MXFP4)


def test_blocks_are_not_rounded_stochastically():
    with pytest.raises(ValueError, match=r"got stochastic\. Take NEAREST_EVEN"):
        round_blocks(np.ones(32), MXFP4, "STOCHASTIC")


MINE = Format("mine", exponent_bits=4, significand_bits=7)
SMALL = [row for row in FORMATS.values() if row.bits <= 16]


def test_worked_example_of_a_code():
    # 0x3555 = 0 01101 0101010101: 2^(13 - 15) * (1 + 341/1024), the FP16 value nearest to 1/3
    assert split(0x3555, FP16) == (0, 13, 341)
    assert decode(0x3555, FP16) == 2.0**-2 * (1 + 341 / 1024) == 0.333251953125
    assert encode(0.333251953125, FP16) == 0x3555
    assert join(0, 13, 341, FP16) == 0x3555


@pytest.mark.parametrize("format", [*SMALL, MINE, TF32], ids=lambda format: format.name)
def test_codes_decode_as_in_ml_dtypes_and_gfloat(dtype_of, gfloat_row, assert_same_bits, format):
    codes = np.arange(format.codes).astype(format.code_dtype)
    values = decode(codes, format)
    assert_same_bits(
        values, gfloat.decode_ndarray(gfloat_row(format), codes.astype(int)), codes, format
    )
    if format in SMALL:
        # A cast of a signalling NaN sets the flag for invalid operations.
        with np.errstate(invalid="ignore"):
            assert_same_bits(values, codes.view(dtype_of(format)).astype(np.float64), codes, format)


@pytest.mark.parametrize("format", [*SMALL, MINE, TF32], ids=lambda format: format.name)
def test_encode_undoes_decode(format):
    codes = np.arange(format.codes)
    values = decode(codes, format)
    expected = codes.copy()
    is_nan = np.isnan(values)
    # All NaNs have one code after decoding, and a format without NaN has none.
    if is_nan.any():
        expected[is_nan] = format.nan_code
    assert np.array_equal(encode(values, format), expected)
    assert np.array_equal(join(*split(codes, format), format), codes)


def test_nan_of_any_payload_is_encoded_as_one_code():
    payload = np.array([0x7C01, 0xFFFF], np.uint16).view(np.float16)
    assert encode(payload, FP16).tolist() == [0x7E00, 0x7E00]


@pytest.mark.parametrize(("format", "native"), [(FP32, np.float32), (FP64, np.float64)])
def test_fp32_and_fp64_codes_equal_numpy_s(assert_same_bits, format, native):
    codes = np.random.default_rng(3).integers(format.codes, size=500_000, dtype=np.uint64)
    codes = codes.astype(format.code_dtype)
    with np.errstate(invalid="ignore"):
        wanted = codes.view(native).astype(np.float64)
    assert_same_bits(decode(codes, format), wanted, codes, format)
    known = ~np.isnan(wanted)
    assert np.array_equal(encode(wanted[known], format), codes[known])


def test_shapes_are_kept():
    assert decode(0x3C00, FP16).shape == ()
    assert decode(np.uint16(0x3C00), FP16).shape == ()
    assert decode([], FP16).shape == (0,)


def test_codes_of_no_numbers_have_their_dtype():
    assert encode([], FP16).dtype == np.uint16


def test_memory_layout_does_not_matter():
    grid = np.arange(12).reshape(3, 4)
    assert np.array_equal(decode(grid[:, ::2].T, FP16), decode(grid, FP16)[:, ::2].T)
    assert np.array_equal(encode(np.eye(3)[::-1, ::2], E4M3), encode(np.eye(3), E4M3)[::-1, ::2])


def test_big_endian_codes_are_decoded():
    assert decode(np.array([0x3C00], ">u2"), FP16) == 1.0


@pytest.mark.parametrize(
    ("value", "format", "explanation"),
    [
        (
            0.1,
            FP16,
            r"0\.1 is not a value of FP16; the nearest is 0\.0999755859375\. Round first: "
            r"encode\(round_to",
        ),
        (65520.0, FP16, "65520.0 is not a value of FP16; the nearest is inf"),
        (np.inf, E4M3, "inf is not a value of E4M3"),
        (0.0, E8M0, "0.0 is not a value of E8M0"),
        (-1.0, E8M0, "-1.0 is not a value of E8M0"),
        (np.nan, E2M1, "E2M1 has no NaN"),
        (2**53 + 1, FP64, "whole numbers beyond 2\\^53"),
    ],
)
def test_encode_refuses_values_outside_of_the_format(value, format, explanation):
    with pytest.raises(ValueError, match=explanation):
        encode([1.0, value] if isinstance(value, float) else value, format)


@pytest.mark.parametrize(
    ("codes", "error", "explanation"),
    [
        (0x10000, ValueError, "FP16 codes have 16 bits: 0 to 0xffff, got 0x10000"),
        (-1, ValueError, "got -0x1"),
        (1.0, TypeError, r"encode\(values, format\) makes codes of values"),
        ("0x3c00", TypeError, r"parse\(text, format\) of text"),
        (2**64, TypeError, "are integers"),
        ([True], TypeError, "got bool"),
    ],
)
def test_decode_refuses_invalid_codes(codes, error, explanation):
    with pytest.raises(error, match=explanation):
        decode(codes, FP16)


def test_join_refuses_an_exponent_with_too_many_bits():
    message = "the exponent field of FP16 has 5 bits: 0 to 0x1f, got 0x20"
    with pytest.raises(ValueError, match=message):
        join(0, 32, 0, FP16)


# The values of this format are powers of two and zero.
FLAT = Format("flat", exponent_bits=3, significand_bits=0, specials=E4M3.specials)
DETERMINISTIC = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


def test_neighbours_of_one_are_at_two_distances():
    """The spacing of the binade below 1 is half as large."""
    assert next_up(1.0, FP16) == 1 + 2**-10
    assert next_down(1.0, FP16) == 1 - 2**-11


def test_the_smallest_numbers_are_the_neighbours_of_zero():
    assert next_up([0.0, -0.0], FP16).tolist() == [2**-24, 2**-24]
    assert np.signbit(next_up(-(2.0**-24), FP16))


def test_infinity_is_the_neighbour_of_the_largest_number():
    assert next_up([65504, np.inf, -np.inf], FP16).tolist() == [np.inf, np.inf, -65504]


def test_nan_is_the_neighbour_where_a_format_has_no_infinity():
    assert np.isnan(next_up([448.0, np.nan], E4M3)).all()
    assert np.isnan(next_down(2.0**-127, E8M0))


def test_the_largest_number_is_its_own_neighbour_in_a_format_of_numbers_only():
    assert next_up([6.0, -6.0], E2M1).tolist() == [6, -4]


def test_a_number_that_a_format_lacks_has_no_neighbour():
    with pytest.raises(ValueError, match="is not a value of FP16"):
        next_up(0.1, FP16)


@pytest.mark.parametrize("format", [FP16, BF16, FP32, FP64], ids=lambda format: format.name)
def test_neighbours_equal_numpy_s_nextafter(dtype_of, assert_same_bits, format):
    codes = np.random.default_rng(7).integers(format.codes, size=100_000, dtype=np.uint64)
    native = (np.arange(format.codes) if format.bits == 16 else codes).astype(format.code_dtype)
    native = native.view(dtype_of(format))
    for step, toward in ((next_up, np.inf), (next_down, -np.inf)):
        with np.errstate(all="ignore"):
            wanted = np.nextafter(native, native.dtype.type(toward)).astype(float)
            given = native.astype(float)
        assert_same_bits(step(given, format), wanted, given, format, step)


def test_next_up_and_next_down_visit_all_values():
    for format in SMALL:
        values = np.unique(decode(np.arange(format.codes), format))
        values = values[~np.isnan(values)]
        assert np.array_equal(next_up(values[:-1], format), values[1:]), format
        assert np.array_equal(next_down(values[1:], format), values[:-1]), format


def test_codes_are_classified_as_in_gfloat(gfloat_row):
    words = {
        gfloat.FloatClass.ZERO: "zero",
        gfloat.FloatClass.SUBNORMAL: "subnormal",
        gfloat.FloatClass.NORMAL: "normal",
        gfloat.FloatClass.INFINITE: "infinity",
        gfloat.FloatClass.NAN: "nan",
    }
    for format in SMALL:
        row = gfloat_row(format)
        # gfloat classifies one code at a time; 7 is odd, so the codes have all last bits.
        codes = np.arange(0, format.codes, 1 if format.bits <= 8 else 7)
        wanted = [words[gfloat.decode_float(row, int(code)).fclass] for code in codes]
        assert classify(codes, format).tolist() == wanted, format


def test_worked_example_of_rounding_intervals():
    low, high, low_in, high_in = rounding_interval([0x3C00, 0x3C01, 0x0000, 0x8000, 0x7C00], FP16)
    assert low.tolist() == [1 - 2**-12, 1 + 2**-11, 0, -(2**-25), 65520]
    assert high.tolist() == [1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 0, np.inf]
    assert low_in.tolist() == [True, False, True, True, True]
    assert high_in.tolist() == [True, False, True, False, True]
    to_the_neighbours = (1 - 2**-11, 1 + 2**-10, False, False)
    assert rounding_interval(0x3C00, FP16, Rounding.STOCHASTIC) == to_the_neighbours


def test_ends_of_a_rounding_interval_round_as_stated():
    zeroless = Format("zeroless", 3, 2, Specials.FN, signed=False, has_zero=False)
    for format, rounding, overflow in product([*SMALL, FLAT, zeroless], DETERMINISTIC, Overflow):
        codes = np.arange(format.codes)
        codes = codes[~np.isnan(decode(codes, format))]
        value = decode(codes, format)
        low, high, low_in, high_in = rounding_interval(codes, format, rounding, overflow)

        def rounds_to_it(points, value=value, arguments=(format, rounding, overflow)):
            rounded = round_to(points, *arguments)
            return (rounded == value) & (np.signbit(rounded) == np.signbit(value))

        filled = low < high
        # A real 0 rounds to +0, so an end at 0 says nothing about the interval of -0.
        real = {"low": (low != 0) | ~np.signbit(value), "high": (high != 0) | ~np.signbit(value)}
        right = {
            "the low end": (rounds_to_it(low) == low_in) | ~(filled & real["low"]),
            "the high end": (rounds_to_it(high) == high_in) | ~(filled & real["high"]),
            "just above the low end": rounds_to_it(np.nextafter(low, np.inf)) | ~filled,
            "just below the high end": rounds_to_it(np.nextafter(high, -np.inf)) | ~filled,
            "just below it": ~rounds_to_it(np.nextafter(low, -np.inf)) | (low == -np.inf),
            "just above it": ~rounds_to_it(np.nextafter(high, np.inf)) | (high == np.inf),
        }
        wrong = {
            where: codes[~is_right][:3] for where, is_right in right.items() if not is_right.all()
        }
        assert wrong == {}, (format, rounding, overflow)


def test_rounding_intervals_that_do_not_exist():
    with pytest.raises(ValueError, match="no real number rounds to NaN"):
        rounding_interval(0x7E00, FP16)
    with pytest.raises(ValueError, match="points between two FP64 values"):
        rounding_interval(0, FP64)
    low, high, *inside = rounding_interval(0x7F80, BF16, overflow=Overflow.SATURATE)
    assert low == high
    assert inside == [False, False]
