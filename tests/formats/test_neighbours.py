"""Neighbours, classes, and the real numbers that a code stands for."""

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


def name(row):
    return row.name


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


@pytest.mark.parametrize("format", [row for row in SMALL if row.bits == 16], ids=name)
def test_neighbours_are_numpys_nextafter(format, dtype_of, assert_same_bits):
    codes = np.arange(format.codes).astype(format.code_dtype)
    native = codes.view(dtype_of(format))
    for step, toward in ((next_up, np.inf), (next_down, -np.inf)):
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = np.nextafter(native, native.dtype.type(toward)).astype(np.float64)
        assert_same_bits(step(decode(codes, format), format), wanted, codes)


@pytest.mark.parametrize(("format", "native"), [(FP32, np.float32), (FP64, np.float64)], ids=["FP32", "FP64"])
def test_wide_neighbours_are_numpys_nextafter(format, native, assert_same_bits):
    rng = np.random.default_rng(7)
    codes = rng.integers(format.codes, size=100_000, dtype=np.uint64).astype(format.code_dtype)
    values = codes.view(native)
    with np.errstate(all="ignore"):
        up, down = (np.nextafter(values, native(side)).astype(np.float64) for side in (np.inf, -np.inf))
        wide = values.astype(np.float64)
    assert_same_bits(next_up(wide, format), up, wide)
    assert_same_bits(next_down(wide, format), down, wide)


@pytest.mark.parametrize("format", SMALL, ids=name)
def test_small_formats_step_through_their_values_in_order(format):
    values = np.unique(decode(np.arange(format.codes), format))
    values = values[~np.isnan(values)]
    assert np.array_equal(next_up(values[:-1], format), values[1:])
    assert np.array_equal(next_down(values[1:], format), values[:-1])


@pytest.mark.parametrize("format", SMALL, ids=name)
def test_every_code_is_classified_as_gfloat_does(format, gfloat_row):
    row, codes = gfloat_row(format), np.arange(format.codes)
    words = {
        gfloat.FloatClass.ZERO: "zero",
        gfloat.FloatClass.SUBNORMAL: "subnormal",
        gfloat.FloatClass.NORMAL: "normal",
        gfloat.FloatClass.INFINITE: "infinity",
        gfloat.FloatClass.NAN: "nan",
    }
    assert classify(codes, format).tolist() == [words[gfloat.decode_float(row, int(code)).fclass] for code in codes]


def test_fp16_intervals_by_hand():
    low, high, low_in, high_in = rounding_interval([0x3C00, 0x3C01, 0x0000, 0x8000, 0x7C00], FP16)
    assert low.tolist() == [1 - 2**-12, 1 + 2**-11, 0, -(2**-25), 65520]
    assert high.tolist() == [1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 0, np.inf]
    assert low_in.tolist() == [True, False, True, True, True]
    assert high_in.tolist() == [True, False, True, False, True]


@pytest.mark.parametrize("overflow", Overflow, ids=lambda overflow: overflow.name)
@pytest.mark.parametrize("rounding", DETERMINISTIC, ids=lambda mode: mode.name)
@pytest.mark.parametrize("format", [*SMALL, FLAT], ids=name)
def test_the_ends_of_an_interval_round_as_it_says(format, rounding, overflow):
    codes = np.arange(format.codes)
    codes = codes[~np.isnan(decode(codes, format))]
    value = decode(codes, format)
    low, high, low_in, high_in = rounding_interval(codes, format, rounding, overflow)

    def rounds_to_it(points):
        rounded = round_to(points, format, rounding, overflow)
        return (rounded == value) & (np.signbit(rounded) == np.signbit(value))

    filled = low < high
    real = (low != 0) | ~np.signbit(value)  # the real number 0 is +0's, whatever sign its float has
    assert np.array_equal(rounds_to_it(low)[filled & real], low_in[filled & real])
    real = (high != 0) | ~np.signbit(value)
    assert np.array_equal(rounds_to_it(high)[filled & real], high_in[filled & real])
    assert rounds_to_it(np.nextafter(low, np.inf))[filled].all()
    assert rounds_to_it(np.nextafter(high, -np.inf))[filled].all()
    assert not rounds_to_it(np.nextafter(low, -np.inf))[(low > -np.inf) & (low != 0)].any()
    assert not rounds_to_it(np.nextafter(high, np.inf))[(high < np.inf) & (high != 0)].any()


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
