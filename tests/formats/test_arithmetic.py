"""Arithmetic in formats, against exact fractions and the machine's own arithmetic."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from labkit.formats import (
    BF16,
    E2M1,
    E4M3,
    E5M2,
    FP16,
    FP32,
    FP64,
    Align,
    Format,
    Normalise,
    Overflow,
    Rounding,
    add,
    decode,
    fused_multiply_add,
    multiply,
    round_to,
    sum_compensated,
    sum_pairwise,
    sum_sequential,
)

MINE = Format("mine", exponent_bits=4, significand_bits=7)
DETERMINISTIC = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


def random_values(format, count, seed):
    """Return values uniform over codes: of all exponents, with infinities and NaNs."""
    return decode(
        np.random.default_rng(seed).integers(format.codes, size=count, dtype=np.uint64), format
    )


def close_pairs(format, count, seed):
    """Return pairs of nearly opposite numbers, whose sum cancels, and of numbers binades apart."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(format.max_code, size=count)
    near = np.clip(codes + rng.integers(-20, 20, size=count), 0, format.max_code)
    far = np.clip(
        codes - (rng.integers(0, 16, size=count) << format.significand_bits), 0, format.max_code
    )
    a, b, c = (decode(side, format) for side in (codes, near, far))
    return np.concatenate([a, a]), np.concatenate([-b, c])


def reference_rounding(exact, format, rounding=Rounding.NEAREST_EVEN):
    """Round a fraction by the definition; no code is shared with labkit."""
    if exact == 0:
        return 0.0
    bias = 2 ** (format.exponent_bits - 1) - 1
    exponent = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    # After this step, 2^exponent <= |exact| < 2^(exponent + 1).
    if Fraction(2) ** exponent > abs(exact):
        exponent -= 1
    spacing = Fraction(2) ** (max(exponent, 1 - bias) - format.significand_bits)
    down = exact // spacing
    # Python's round takes halves to even.
    multiple = {
        Rounding.NEAREST_EVEN: round(exact / spacing),
        Rounding.TOWARD_NEGATIVE: down,
        Rounding.TOWARD_POSITIVE: down + (exact != down * spacing),
    }[rounding]
    rounded = multiple * spacing
    largest = (2 - Fraction(2) ** -format.significand_bits) * Fraction(2) ** bias
    if rounded > largest:
        return float(largest) if rounding is Rounding.TOWARD_NEGATIVE else np.inf
    if rounded < -largest:
        return -float(largest) if rounding is Rounding.TOWARD_POSITIVE else -np.inf
    return float(rounded)


def test_worked_example_of_an_update_that_is_lost():
    small = round_to(0.0001, FP16)
    sum = add(1.0, small, FP16)
    align, plus, cut, decision = sum.steps
    # 1.0 = 1024 * 2^-10, and 0.0001 = 1678 * 2^-24 in FP16.
    assert align.a.significand == 0b10000000000
    assert align.b.significand == 0b11010001110
    assert align.b.exponent == -24
    assert align.shift == 14
    # Three more places: guard, round, sticky.
    assert align.aligned_a.significand == 0b10000000000_000
    # All bits of b are shifted out, and set the sticky bit.
    assert (align.aligned_b.significand, align.cut) == (0b1, True)
    assert plus.total.significand == 0b10000000000_001
    assert (cut.guard, cut.round, cut.sticky) == (False, False, True)
    assert not decision.up
    assert sum.value == 1.0


def test_a_carry_through_all_ones():
    # The sum is a tie between 2 - 2^-10 and the even 2.
    sum = add(2 - 2.0**-10, 2.0**-11, FP16)
    assert (sum.steps[-1].up, sum.steps[-1].carried, sum.value) == (True, True, 2.0)


def test_a_significand_of_56_ones_is_exact():
    # As a float64, the significand 2^56 - 1 would round to 2^56.
    sum = add(2 - 2.0**-52, 7 * 2.0**-55, FP64, Rounding.TOWARD_ZERO)
    assert sum.steps[1].total.significand == 2**56 - 1
    assert sum.value == 2 - 2.0**-52


def test_a_product_has_twice_the_bits_before_rounding():
    x = 1 + 2.0**-10
    product, cut, decision = multiply(x, x, FP16).steps
    assert product.product.significand == 1025**2
    assert cut.kept.significand == 1026
    assert cut.dropped == 10
    assert cut.rest == 1
    assert (cut.guard, cut.sticky, decision.up) == (False, True, False)


def test_steps_of_a_sum_are_consistent():
    a, b = (np.nan_to_num(random_values(FP16, 2000, seed), posinf=1, neginf=1) for seed in (1, 2))
    sum = add(a, b, FP16)
    align, plus, cut, _ = sum.steps
    assert isinstance(align, Align)
    assert isinstance(cut, Normalise)
    exact = ~align.cut
    magnitude = np.ldexp(plus.total.significand.astype(float), plus.total.exponent)
    total = np.where(plus.total.negative, -magnitude, magnitude)
    # The sum of two FP16 numbers is exact in float64.
    assert np.array_equal(total[exact], (a + b)[exact])
    cut_off = cut.dropped >= 0
    rejoined = (cut.kept.significand << np.maximum(cut.dropped, 0)) + cut.rest
    assert np.array_equal(rejoined[cut_off], plus.total.significand[cut_off])
    assert (np.abs(cut.kept.significand) < 2**FP16.precision).all()


def test_all_pairs_of_fp8_numbers(gfloat_round, assert_same_bits):
    for format, rounding in product((E4M3, E5M2), DETERMINISTIC):
        values = decode(np.arange(256), format)
        a, b = (side.ravel() for side in np.meshgrid(values, values))
        with np.errstate(invalid="ignore"):
            # Exact in float64: 34 and 32 bits at most.
            exact_sum = a + b
            exact_product = a * b
        zero = (
            (exact_sum == 0)
            & (np.signbit(a) != np.signbit(b))
            & (rounding is Rounding.TOWARD_NEGATIVE)
        )
        # float64 adds to nearest-even, which gives +0 where rounding toward negative gives -0.
        exact_sum = np.where(zero, -0.0, exact_sum)
        for operation, exact in ((add, exact_sum), (multiply, exact_product)):
            wanted = gfloat_round(exact, format, rounding)
            assert_same_bits(
                operation(a, b, format, rounding).value, wanted, a, operation, format, rounding
            )


# Python integers add FP64, which is slow, so it has fewer cases than FP16 and FP32.
@pytest.mark.parametrize(
    ("format", "native", "count"),
    [
        (FP16, np.float16, 300_000),
        (FP32, np.float32, 50_000),
        (FP64, np.float64, 5_000),
    ],
)
def test_sums_and_products_equal_numpy_s(assert_same_bits, format, native, count):
    near, far = close_pairs(format, count, 5)
    a = np.concatenate([random_values(format, count, 3), near]).astype(native)
    b = np.concatenate([random_values(format, count, 4), far]).astype(native)
    with np.errstate(all="ignore"):
        sums = (a + b).astype(np.float64)
        products = (a * b).astype(np.float64)
    assert_same_bits(add(a, b, format).value, sums, a, format)
    assert_same_bits(multiply(a, b, format).value, products, a, format)


def assert_equals_reference(results, exact, format, rounding):
    wanted = np.array([reference_rounding(number, format, rounding) for number in exact])
    first = np.flatnonzero(results != wanted)[:3]
    assert not len(first), (
        format,
        rounding,
        [exact[i] for i in first],
        results[first],
        wanted[first],
    )


def test_fused_multiply_add_and_directed_sums_against_fractions():
    modes = (Rounding.NEAREST_EVEN, Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE)
    for format, rounding in product((FP16, BF16, FP32, FP64, MINE), modes):
        a, b, c = (random_values(format, 800, seed) for seed in (5, 6, 7))
        with np.errstate(over="ignore"):
            # In half of the sums, c cancels all but about 2^-9 of the product.
            c[::2] = round_to(-a[::2] * b[::2] * (1 + 2.0**-9), format)
        known = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
        a = a[known]
        b = b[known]
        c = c[known]
        exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in zip(a, b, c, strict=True)]
        assert_equals_reference(
            fused_multiply_add(a, b, c, format, rounding).value, exact, format, rounding
        )
        a, b = close_pairs(format, 400, 8)
        exact = [Fraction(x) + Fraction(y) for x, y in zip(a, b, strict=True)]
        assert_equals_reference(add(a, b, format, rounding).value, exact, format, rounding)


def test_special_operands_follow_the_table_of_ieee_754(assert_same_bits):
    specials = np.array([0.0, -0.0, 1.0, -1.0, 65504.0, np.inf, -np.inf, np.nan])
    a, b = (side.ravel() for side in np.meshgrid(specials, specials))
    with np.errstate(all="ignore"):
        assert_same_bits(add(a, b, FP16).value, (a + b).astype(np.float16).astype(float), a)
        assert_same_bits(multiply(a, b, FP16).value, (a * b).astype(np.float16).astype(float), a)
    assert np.isnan(fused_multiply_add(np.inf, 0.0, 1.0, FP16).value)
    huge = FP64.max
    # The exact product is large, but finite.
    assert fused_multiply_add(huge, huge, -np.inf, FP64).value == -np.inf


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_infinities_and_nans_need_no_choice_at_random(special):
    bits = [5, 5]
    sum = add([special, 1.0], [1.0, 1.0], FP16, Rounding.STOCHASTIC, random_bits=bits).value
    assert np.array_equal(sum, [special, 2.0], equal_nan=True)
    product = multiply([special, 1.0], 1.0, FP16, Rounding.STOCHASTIC, random_bits=bits).value
    assert np.array_equal(product, [special, 1.0], equal_nan=True)


@pytest.mark.parametrize("sum", [sum_sequential, sum_pairwise, sum_compensated])
@pytest.mark.parametrize("terms", [[], [1.0], [1.0, 2.0]])
def test_stochastic_sums_are_refused(sum, terms):
    with pytest.raises(ValueError, match="Add in a loop"):
        sum(terms, FP16, Rounding.STOCHASTIC)


# From 65520 on, numbers round to infinity.
@pytest.mark.parametrize(("b", "expected"), [(8.0, 65504), (16.0, np.inf), (65504.0, np.inf)])
def test_a_sum_overflows_as_rounding_does(b, expected):
    assert add(65504.0, b, FP16).value == expected


def test_a_sum_can_saturate():
    assert add(65504.0, 65504.0, FP16, overflow=Overflow.SATURATE).value == 65504


def test_a_product_beyond_a_format_without_infinity_is_nan():
    assert np.isnan(multiply(448.0, 2.0, E4M3).value)


def test_a_product_beyond_a_format_of_numbers_only_saturates():
    assert multiply(6.0, 6.0, E2M1).value == 6


def test_operands_that_are_not_values_of_the_format_are_refused():
    with pytest.raises(ValueError, match=r"0\.0001 is not a value of FP16"):
        add(1.0, 0.0001, FP16)
    with pytest.raises(ValueError, match="random_bits"):
        add(1.0, 1.0, FP16, Rounding.STOCHASTIC)


def test_operands_are_broadcast():
    assert add(np.ones((3, 1)), np.ones(4), FP16).value.shape == (3, 4)


def test_operands_may_be_empty():
    assert multiply([], [], FP16).value.shape == (0,)
    assert fused_multiply_add([], 1.0, 1.0, FP64).value.shape == (0,)


def test_a_sequential_sum_equals_numpy_s_cumulative_sum():
    values = round_to(np.random.default_rng(10).uniform(0, 1, 500), FP16)
    summed = sum_sequential(values, FP16)
    assert np.array_equal(
        summed.totals, np.cumsum(values.astype(np.float16), dtype=np.float16)[1:].astype(float)
    )
    assert len(summed.additions) == 499


def test_compensated_and_pairwise_sums_keep_small_updates():
    # Each update is a quarter of the spacing at 1.
    updates = np.concatenate([[1.0], np.full(200, 2.0**-12)])
    exact = updates.sum()
    assert sum_sequential(updates, FP16).value == 1.0
    assert abs(sum_compensated(updates, FP16).value - exact) <= 2**-10
    assert abs(sum_pairwise(updates, FP16).value - exact) <= 2 * 2**-10


def test_worked_example_of_a_pairwise_sum():
    rounds = sum_pairwise([1.0, 2.0, 3.0, 4.0, 5.0], FP16).totals
    assert [totals.tolist() for totals in rounds] == [[3, 7, 5], [10, 5], [15]]


def test_compensated_sum_equals_kahan_s_loop_in_float32():
    values = np.random.default_rng(12).uniform(0, 1, 300).astype(np.float32)
    total = values[0]
    compensation = np.float32(0)
    for value in values[1:]:
        corrected = value - compensation
        next_total = total + corrected
        compensation = (next_total - total) - corrected
        total = next_total
    assert sum_compensated(values, FP32).value == float(total)


each_summation = pytest.mark.parametrize(
    "summation", [sum_sequential, sum_pairwise, sum_compensated]
)


@each_summation
def test_sums_run_along_the_last_axis(summation):
    grid = np.arange(12.0).reshape(3, 4)
    assert summation(grid, FP16).value.tolist() == grid.sum(-1).tolist()


@each_summation
def test_a_sum_of_nothing_is_zero(summation):
    assert summation([], FP16).value == 0


@each_summation
def test_a_sum_of_one_number_is_that_number(summation):
    assert summation([2.5], FP16).value == 2.5


@each_summation
def test_a_number_without_an_axis_has_no_sum(summation):
    with pytest.raises(ValueError, match="an array with an axis to sum along"):
        summation(1.0, FP16)
