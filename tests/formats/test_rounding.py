"""Rounding once, in every mode, against oracles nobody here wrote."""

from itertools import product

import gfloat
import ml_dtypes
import numpy as np
import pytest

from labkit.formats import (
    BF16,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    FP64,
    TF32,
    Format,
    Overflow,
    Rounding,
    Specials,
    decode,
    round_to,
    ulp,
)

MINE = Format("mine", exponent_bits=4, significand_bits=7)
BELOW_FP32 = [row for row in (*FORMATS.values(), MINE) if row.bits <= 19]
DETERMINISTIC = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


def midpoints_and_neighbours(format):
    """Every value, every half-way point, and the float64 numbers next to each; beyond max as well; both signs."""
    values = decode(np.arange(format.max_code + 1), format)
    beyond = format.max + np.arange(1, 4) * ulp(format.max, format) / 2
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2, beyond, [np.inf]])
    near = np.concatenate([points, np.nextafter(points, -np.inf), np.nextafter(points, np.inf)])
    return np.concatenate([near, -near])


def random_fp32(count, seed=16):
    """Uniform over codes, so over exponents: subnormals, infinities and NaNs included."""
    return np.random.default_rng(seed).integers(2**32, size=count, dtype=np.uint32).view(np.float32)


def test_each_mode_on_one_tie():
    tie = 1 + 2.0**-11  # half-way between 1 and 1 + 2^-10
    rounded = {mode: float(round_to([tie, -tie], FP16, mode)[0]) - 1 for mode in DETERMINISTIC}
    assert rounded == {
        Rounding.NEAREST_EVEN: 0,
        Rounding.NEAREST_AWAY: 2**-10,
        Rounding.TOWARD_ZERO: 0,
        Rounding.TOWARD_POSITIVE: 2**-10,
        Rounding.TOWARD_NEGATIVE: 0,
    }
    assert round_to(-tie, FP16, Rounding.TOWARD_NEGATIVE) == -(1 + 2**-10)


def test_all_midpoints_and_their_neighbours_as_gfloat(gfloat_round, assert_same_bits):
    for format in (row for row in BELOW_FP32 if row.signed):
        values = midpoints_and_neighbours(format)[:: 13 if format.bits > 16 else 1]
        for rounding, overflow in product(DETERMINISTIC, Overflow):
            saturate = overflow is Overflow.SATURATE or format.specials is Specials.NONE
            wanted = gfloat_round(values, format, rounding, saturate)
            assert_same_bits(round_to(values, format, rounding, overflow), wanted, values, format, rounding, overflow)


def test_any_format_a_learner_makes_as_gfloat(gfloat_row, gfloat_round, assert_same_bits):
    """Every shape of up to nine bits that has at least one stored significand bit."""
    for exponent_bits, significand_bits, specials in product(range(2, 6), range(1, 4), Specials):
        format = Format("mine", exponent_bits, significand_bits, specials)
        codes, values = np.arange(format.codes), midpoints_and_neighbours(format)
        assert_same_bits(decode(codes, format), gfloat.decode_ndarray(gfloat_row(format), codes), codes, format)
        for rounding in DETERMINISTIC:
            wanted = gfloat_round(values, format, rounding, specials is Specials.NONE)
            assert_same_bits(round_to(values, format, rounding), wanted, values, format, rounding)


def test_with_one_significant_bit_ties_go_up():
    powers = Format("powers", exponent_bits=4, significand_bits=0, specials=Specials.FN)
    assert round_to([1.5, 3.0, -6.0], powers).tolist() == [2, 4, -8]  # neither neighbour is even: IEEE 754-2019, 4.3.1


def test_random_midpoints_of_wide_formats_as_gfloat(gfloat_round, assert_same_bits):
    for format, rounding in product((FP32, FP64), DETERMINISTIC):
        codes = np.random.default_rng(64).integers(format.max_code, size=100_000, dtype=np.uint64)
        middles = decode(codes, format) + ulp(decode(codes, format), format) / 2  # in FP64 the half is lost again
        values = np.concatenate([middles, -np.nextafter(middles, 0), np.nextafter(middles, np.inf)])
        wanted = gfloat_round(values, format, rounding)
        assert_same_bits(round_to(values, format, rounding), wanted, values, format, rounding)


def test_a_million_float64_to_fp16_as_numpy(assert_same_bits):
    rng = np.random.default_rng(11)
    values = np.ldexp(rng.uniform(-2, 2, 1_000_000), rng.integers(-30, 18, 1_000_000))
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16).astype(np.float64)
    assert_same_bits(round_to(values, FP16), wanted, values)


def test_powers_of_two_as_ml_dtypes(dtype_of, assert_same_bits):
    special = np.float32([0, -0.0, -1, np.inf, np.nan, 1.5, 3, 2.0**-140])
    values = np.concatenate([np.abs(random_fp32(100_000)), special])
    # ml_dtypes 0.6 rounds everything strictly between 2^-127 and 2^-126 up, which is not to the nearest.
    values = values[(values <= 2.0**-127) | (values >= 2.0**-126) | np.isnan(values)]
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(dtype_of(E8M0)).astype(np.float32)
    assert_same_bits(round_to(values, E8M0), wanted, values)


def test_rounding_twice_changes_nothing_and_directed_roundings_enclose_the_value(assert_same_bits):
    values = np.nan_to_num(random_fp32(20_000), nan=1.0, posinf=1.0, neginf=1.0)
    for format in (*BELOW_FP32, FP32):
        once = round_to(values, format)
        if format.nan_code is not None or not np.isnan(once).any():
            assert_same_bits(round_to(once, format), once, values, format)
        within = np.abs(values)[(np.abs(values) >= format.smallest_normal) & (np.abs(values) <= format.max)]
        low, high = (round_to(within, format, mode) for mode in (Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE))
        assert (low <= within).all(), format
        assert (high >= within).all(), format
        assert ((low == high) == (low == within)).all(), format


# --- stochastic rounding -------------------------------------------------------------------------------------------


def test_stochastic_rounding_has_the_value_as_its_mean():
    draws = 200_000
    bits = np.random.default_rng(1).integers(2**32, size=draws)
    for format, value in product((FP16, BF16, E4M3, MINE), (1.0001, -1.0001, 0.3, 100.3, 2.0**-9 * 1.1, 1.5)):
        rounded = round_to(np.full(draws, value), format, Rounding.STOCHASTIC, random_bits=bits)
        low, high = (round_to(value, format, side) for side in (Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE))
        assert set(np.unique(rounded)) <= {float(low), float(high)}, (format, value)
        share = float((value - low) / (high - low)) if high > low else 0.0
        sigma = (high - low) * np.sqrt(share * (1 - share) / draws)  # of the mean of that many draws
        # 1e-12 is summing in float64
        assert abs(rounded.mean() - value) <= 4 * sigma + 1e-12 * abs(value), (format, value)


def test_stochastic_rounding_compares_the_random_number_with_the_fraction():
    quarter = 1 + 2.0**-12  # a quarter of the way from 1 to 1 + 2^-10
    up, down = [2**30 - 1, 0], [2**30, 2**32 - 1]
    rounded = round_to(np.full(4, quarter), FP16, Rounding.STOCHASTIC, random_bits=up + down)
    assert rounded.tolist() == [1 + 2**-10, 1 + 2**-10, 1, 1]
    values = decode(np.arange(FP16.max_code + 1), FP16)
    kept = round_to(values, FP16, Rounding.STOCHASTIC, random_bits=np.zeros(values.shape, int))
    assert np.array_equal(kept, values), "values of the format are left alone"


def test_random_bits_that_do_not_fit_are_refused():
    for bits in (None, [1], [0.5, 0.5], [-1, 0], [2**32, 0]):
        with pytest.raises(ValueError, match="random_bits"):
            round_to([1.0, 2.0], FP16, Rounding.STOCHASTIC, random_bits=bits)
    with pytest.raises(ValueError, match="random_bits"):
        round_to([1.0, 2.0], FP16, random_bits=[1, 2])


# --- types, shapes, bad input --------------------------------------------------------------------------------------


def test_types_and_shapes():
    for kind in (np.float16, np.float32, np.float64):
        assert round_to(np.ones(3, kind), E4M3).dtype == kind
        assert round_to(kind(1), E4M3).shape == ()
    assert round_to([1, 2049], FP16).tolist() == [1, 2048]
    assert round_to(2049, FP16).dtype == np.float64, "whole numbers become float64"
    assert round_to([], FP16).shape == (0,)
    assert round_to(np.ones((0, 3), np.float32), FP16).shape == (0, 3)


def test_a_view_is_read_in_place_and_never_written():
    grid = np.linspace(0, 1, 20, dtype=np.float32).reshape(4, 5)
    before = grid.copy()
    assert np.array_equal(round_to(grid.T[::2], E5M2), round_to(before, E5M2).T[::2])
    rounded = round_to(grid, FP32)
    rounded[:] = 7
    assert np.array_equal(grid, before)


def test_a_narrow_float_type_may_go_to_a_wider_format_but_not_to_a_mere_neighbour():
    small = np.array([1.5, 65504, -0.0], np.float16)
    assert np.array_equal(round_to(small, FP32), small)
    with pytest.raises(ValueError, match="BF16 has values that FP16 cannot hold"):
        round_to(small, BF16)


def test_what_is_no_number_is_refused():
    for values, explanation in (
        ("0.1", r"parse\(text, format\) reads text"),
        ([1j], "complex128"),
        ([True], "bool"),
        ([None], "object"),
        (np.ones(2, np.longdouble), "float128|float96|longdouble"),
        (np.ones(2, ml_dtypes.bfloat16), "bfloat16"),
    ):
        with pytest.raises(TypeError, match=explanation):
            round_to(values, FP16)
    with pytest.raises(ValueError, match="E3M2 has no NaN"):
        round_to([1.0, np.nan], E3M2)


def test_ulp_is_the_distance_to_the_next_value():
    values = decode(np.arange(FP16.max_code), FP16)
    above = decode(np.arange(1, FP16.max_code + 1), FP16)
    assert np.array_equal(ulp(values, FP16), above - values)
    assert ulp(np.inf, FP16) == ulp(65504, FP16) == 32
    assert np.isnan(ulp(np.nan, FP16))
    assert np.array_equal(ulp(values, FP64), np.spacing(values))
    assert ulp(1.0, TF32) == 2**-10
