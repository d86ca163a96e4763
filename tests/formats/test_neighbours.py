"""Neighbours, classes, and the real numbers that a code stands for."""

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
    Format,
    Overflow,
    Rounding,
    classify,
    decode,
    next_down,
    next_up,
    round_to,
    rounding_interval,
)

SMALL = [row for row in FORMATS.values() if row.bits <= 16]
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
