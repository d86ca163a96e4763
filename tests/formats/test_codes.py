"""Codes, values and their neighbours, against gfloat, ml_dtypes and numpy."""

from itertools import product

import gfloat
import numpy as np
import pytest

from labkit.formats import (
    BF16,
    E2M1,
    E4M3,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    FP64,
    TF32,
    Format,
    Overflow,
    Rounding,
    classify,
    decode,
    encode,
    join,
    next_down,
    next_up,
    round_to,
    rounding_interval,
    split,
)

SMALL = [row for row in FORMATS.values() if row.bits <= 16]
MINE = Format("mine", exponent_bits=4, significand_bits=7)


def test_one_code_worked_out_by_hand():
    # 0x3555 = 0 01101 0101010101: 2^(13 - 15) * (1 + 341/1024), the FP16 value nearest to 1/3
    assert split(0x3555, FP16) == (0, 13, 341)
    assert decode(0x3555, FP16) == 2.0**-2 * (1 + 341 / 1024) == 0.333251953125
    assert encode(0.333251953125, FP16) == 0x3555
    assert join(0, 13, 341, FP16) == 0x3555


def test_every_code_decodes_as_ml_dtypes_and_gfloat_decode_it(dtype_of, gfloat_row, assert_same_bits):
    for format in (*SMALL, MINE, TF32):
        codes = np.arange(format.codes).astype(format.code_dtype)
        values = decode(codes, format)
        assert_same_bits(values, gfloat.decode_ndarray(gfloat_row(format), codes.astype(int)), codes, format)
        if format in SMALL:
            with np.errstate(invalid="ignore"):  # signalling NaNs
                assert_same_bits(values, codes.view(dtype_of(format)).astype(np.float64), codes, format)


def test_encode_undoes_decode_join_undoes_split_and_all_nans_become_one():
    for format in (*SMALL, MINE, TF32):
        codes = np.arange(format.codes)
        values = decode(codes, format)
        assert np.array_equal(encode(values, format), np.where(np.isnan(values), format.nan_code or 0, codes)), format
        assert np.array_equal(join(*split(codes, format), format), codes), format


def test_random_wide_codes_are_the_machines_own(assert_same_bits):
    for format, native in ((FP32, np.float32), (FP64, np.float64)):
        codes = np.random.default_rng(3).integers(format.codes, size=500_000, dtype=np.uint64)
        codes = codes.astype(format.code_dtype)
        with np.errstate(invalid="ignore"):
            wanted = codes.view(native).astype(np.float64)
        assert_same_bits(decode(codes, format), wanted, codes, format)
        known = ~np.isnan(wanted)
        assert np.array_equal(encode(wanted[known], format), codes[known]), format


def test_shapes_are_kept_and_memory_layout_does_not_matter():
    assert decode(0x3C00, FP16).shape == decode(np.uint16(0x3C00), FP16).shape == ()
    assert decode([], FP16).shape == (0,)
    assert encode([], FP16).dtype == np.uint16
    grid = np.arange(12).reshape(3, 4)
    assert np.array_equal(decode(grid[:, ::2].T, FP16), decode(grid, FP16)[:, ::2].T)
    assert np.array_equal(encode(np.eye(3)[::-1, ::2], E4M3), encode(np.eye(3), E4M3)[::-1, ::2])
    assert decode(np.array([0x3C00], ">u2"), FP16) == 1.0, "big-endian"


def test_encode_refuses_what_the_format_does_not_hold():
    for value, format, explanation in (
        (0.1, FP16, r"0\.1 is no FP16 value; the nearest is 0\.0999755859375\. Round first: encode\(round_to"),
        (65520.0, FP16, "65520.0 is no FP16 value; the nearest is inf"),
        (np.inf, E4M3, "inf is no E4M3 value"),
        (0.0, E8M0, "0.0 is no E8M0 value"),
        (-1.0, E8M0, "-1.0 is no E8M0 value"),
        (np.nan, E2M1, "E2M1 has no NaN"),
        (2**53 + 1, FP64, "whole numbers beyond 2\\^53"),
    ):
        with pytest.raises(ValueError, match=explanation):
            encode([1.0, value] if isinstance(value, float) else value, format)


def test_a_nan_payload_is_not_kept():
    payload = np.array([0x7C01, 0xFFFF], np.uint16).view(np.float16)
    assert encode(payload, FP16).tolist() == [0x7E00, 0x7E00]
    assert encode(-np.nan, BF16) == 0x7FC0


def test_decode_and_join_refuse_what_is_no_code():
    for codes, error, explanation in (
        (0x10000, ValueError, "FP16 codes have 16 bits: 0 to 0xffff, got 0x10000"),
        (-1, ValueError, "got -0x1"),
        (1.0, TypeError, r"encode\(values, format\) makes codes of values"),
        ("0x3c00", TypeError, r"parse\(text, format\) of text"),
        (2**64, TypeError, "are integers"),
        ([True], TypeError, "got bool"),
    ):
        with pytest.raises(error, match=explanation):
            decode(codes, FP16)
    with pytest.raises(ValueError, match="the exponent field of FP16 has 5 bits: 0 to 0x1f, got 0x20"):
        join(0, 32, 0, FP16)


FLAT = Format("flat", exponent_bits=3, significand_bits=0, specials=E4M3.specials)  # powers of two and zero
DETERMINISTIC = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


def test_around_one_and_at_the_ends():
    assert next_up(1.0, FP16) == 1 + 2**-10
    assert next_down(1.0, FP16) == 1 - 2**-11  # the binade below is twice as fine
    assert next_up([0.0, -0.0], FP16).tolist() == [2**-24, 2**-24]
    assert np.signbit(next_up(-(2.0**-24), FP16))
    assert next_up([65504, np.inf, -np.inf], FP16).tolist() == [np.inf, np.inf, -65504]
    assert np.isnan(next_up([448.0, np.nan], E4M3)).all()
    assert next_up([6.0, -6.0], E2M1).tolist() == [6, -4]
    assert np.isnan(next_down(2.0**-127, E8M0))
    with pytest.raises(ValueError, match="is no FP16 value"):
        next_up(0.1, FP16)


def test_neighbours_are_numpys_nextafter(dtype_of, assert_same_bits):
    for format in (FP16, BF16, FP32, FP64):
        codes = np.random.default_rng(7).integers(format.codes, size=100_000, dtype=np.uint64)
        native = (np.arange(format.codes) if format.bits == 16 else codes).astype(format.code_dtype)
        native = native.view(dtype_of(format))
        for step, toward in ((next_up, np.inf), (next_down, -np.inf)):
            with np.errstate(all="ignore"):
                wanted, given = np.nextafter(native, native.dtype.type(toward)).astype(float), native.astype(float)
            assert_same_bits(step(given, format), wanted, given, format, step)


def test_small_formats_step_through_their_values_in_order():
    for format in SMALL:
        values = np.unique(decode(np.arange(format.codes), format))
        values = values[~np.isnan(values)]
        assert np.array_equal(next_up(values[:-1], format), values[1:]), format
        assert np.array_equal(next_down(values[1:], format), values[:-1]), format


def test_every_code_is_classified_as_gfloat_does(gfloat_row):
    words = {
        gfloat.FloatClass.ZERO: "zero",
        gfloat.FloatClass.SUBNORMAL: "subnormal",
        gfloat.FloatClass.NORMAL: "normal",
        gfloat.FloatClass.INFINITE: "infinity",
        gfloat.FloatClass.NAN: "nan",
    }
    for format in SMALL:
        row, codes = gfloat_row(format), np.arange(0, format.codes, 1 if format.bits <= 8 else 7)
        wanted = [words[gfloat.decode_float(row, int(code)).fclass] for code in codes]
        assert classify(codes, format).tolist() == wanted, format


def test_fp16_intervals_by_hand():
    low, high, low_in, high_in = rounding_interval([0x3C00, 0x3C01, 0x0000, 0x8000, 0x7C00], FP16)
    assert low.tolist() == [1 - 2**-12, 1 + 2**-11, 0, -(2**-25), 65520]
    assert high.tolist() == [1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 0, np.inf]
    assert low_in.tolist() == [True, False, True, True, True]
    assert high_in.tolist() == [True, False, True, False, True]


def test_the_ends_of_an_interval_round_as_it_says():
    for format, rounding, overflow in product([*SMALL, FLAT], DETERMINISTIC, Overflow):
        codes = np.arange(format.codes)
        codes = codes[~np.isnan(decode(codes, format))]
        value = decode(codes, format)
        low, high, low_in, high_in = rounding_interval(codes, format, rounding, overflow)

        def rounds_to_it(points, value=value, how=(format, rounding, overflow)):
            rounded = round_to(points, *how)
            return (rounded == value) & (np.signbit(rounded) == np.signbit(value))

        filled = low < high
        real = {"low": (low != 0) | ~np.signbit(value), "high": (high != 0) | ~np.signbit(value)}  # 0 is +0's number
        right = {
            "the low end": (rounds_to_it(low) == low_in) | ~(filled & real["low"]),
            "the high end": (rounds_to_it(high) == high_in) | ~(filled & real["high"]),
            "just above the low end": rounds_to_it(np.nextafter(low, np.inf)) | ~filled,
            "just below the high end": rounds_to_it(np.nextafter(high, -np.inf)) | ~filled,
            "just below it": ~rounds_to_it(np.nextafter(low, -np.inf)) | (low == -np.inf) | (low == 0),
            "just above it": ~rounds_to_it(np.nextafter(high, np.inf)) | (high == np.inf) | (high == 0),
        }
        wrong = {where: codes[~is_right][:3] for where, is_right in right.items() if not is_right.all()}
        assert wrong == {}, (format, rounding, overflow)


def test_stochastic_intervals_reach_to_the_neighbours():
    low, high, low_in, high_in = rounding_interval(0x3C00, FP16, Rounding.STOCHASTIC)
    assert (low, high, low_in, high_in) == (1 - 2**-11, 1 + 2**-10, False, False)


def test_intervals_that_do_not_exist_are_answered():
    with pytest.raises(ValueError, match="no real number rounds to NaN"):
        rounding_interval(0x7E00, FP16)
    with pytest.raises(ValueError, match="points between two FP64 values"):
        rounding_interval(0, FP64)
    low, high, low_in, high_in = rounding_interval(0x7F80, BF16, overflow=Overflow.SATURATE)
    assert low == high
    assert not low_in
    assert not high_in
