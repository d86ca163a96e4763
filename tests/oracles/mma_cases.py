"""Dot products on which the generations of Tensor Cores differ.

They are of gaussian numbers, and of numbers that are chosen so that the alignment of their products
changes the result.

Each maker returns A[count, k], B[count, k] and C[count]; `cases` rounds them to the formats of an
instruction. labkit's formats are used to make the numbers; the expected sums come from
`mma_reference`, which uses none of labkit.
"""

import math

import numpy as np

from labkit.formats import E4M3, FP16, Format, decode, round_to
from labkit.gemm import MmaSpec

Cases = tuple[np.ndarray, np.ndarray, np.ndarray]


def cases(row: MmaSpec, result: Format, count: int, seed: int) -> Cases:
    """Return `count` dot products of two blocks and three terms each.

    The kinds of MAKERS come one after another. Only `specials` has infinities and NaN.
    """
    rng = np.random.default_rng(seed)
    shape = -(-count // len(MAKERS)), 2 * row.block_length + 3
    parts = [maker(row, result, rng, shape) for maker in MAKERS]
    a, b, c = (np.concatenate(side)[:count] for side in zip(*parts, strict=True))
    return round_to(a, row.operands), round_to(b, row.right), round_to(c, result)


def values_of(format: Format) -> np.ndarray:
    """Return all finite values of a format up to 16 bits; of a wider one, some of each exponent."""
    if format.bits <= 16:
        values = decode(np.arange(format.codes, dtype=format.code_dtype), format)
    else:
        exponents = np.arange(format.emin - format.significand_bits, format.emax + 1).astype(
            np.intc
        )
        significands = np.random.default_rng(0).uniform(1, 2, (64, len(exponents)))
        values = round_to(np.ldexp(significands, exponents), format).ravel()
        values = np.concatenate([values, -values, [0.0, -0.0]])
    return values[np.isfinite(values)]


def gaussian(
    row: MmaSpec, result: Format, rng: np.random.Generator, shape: tuple[int, int]
) -> Cases:
    return rng.normal(size=shape), rng.normal(size=shape), rng.normal(size=shape[0])


def any_code(
    row: MmaSpec, result: Format, rng: np.random.Generator, shape: tuple[int, int]
) -> Cases:
    every = values_of(row.operands)
    count = shape[0]
    c = (
        rng.choice(values_of(FP16), count)
        if result == FP16
        else np.ldexp(1.5, rng.integers(-160, 127, count))
    )
    return rng.choice(every, shape), rng.choice(every, shape), c * rng.choice([-1, 0, 1], count)


def around_the_cut(
    row: MmaSpec, result: Format, rng: np.random.Generator, shape: tuple[int, int]
) -> Cases:
    """One large term; the others are near the last bit that is kept beside it."""
    count = shape[0]
    format = row.operands
    # the exponent of each product: F bits below the large term's, up to 12 more or 3 fewer; half of
    # it belongs to each factor, as far as the format goes
    power = -(row.fraction_bits + rng.integers(-12, 4, shape))
    low = np.maximum(power // 2, format.emin - format.significand_bits)
    a = np.ldexp(rng.choice([1.0, -1.0, 1.25, -1.5], shape), low)
    b = np.ldexp(rng.choice([1.0, 1.5, 1.75], shape), np.maximum(power - low, format.emin - 1))
    a[np.arange(count), rng.integers(0, shape[1], count)] = rng.choice([1.0, 1.5, -1.75], count)
    # half of the sums have no C
    has_c = np.where(rng.random(count) < 0.5, 1.0, 0.0)
    return a, b, has_c * rng.choice([1, -1, 1.9999999], count)


def cancelled_at_the_cut(
    row: MmaSpec, result: Format, rng: np.random.Generator, shape: tuple[int, int]
) -> Cases:
    """A large pair that cancels, and in its block a small term at the edge of what is kept.

    The result shows which bits of the small term alignment cut off.
    """
    count = shape[0]
    format = row.operands
    a = np.zeros(shape)
    b = np.zeros(shape)
    every = np.arange(count)
    # three different places in the second block of each sum
    shuffled = rng.permuted(np.tile(np.arange(row.block_length), (count, 1)), axis=1)
    plus, minus, tiny = (shuffled + row.block_length).T[:3]
    # the small term must not be below the smallest product of the format, nor the large one above
    # the largest
    smallest = max(2 * format.emin + row.fraction_bits - 8, -100)
    largest = min(2 * format.emax - 1, 100)
    large_power = rng.integers(smallest, largest, count)
    tiny_power = large_power - row.fraction_bits + rng.integers(-3, 12, count)
    x, y = _factors(large_power, format, rng)
    a[every, plus] = x
    a[every, minus] = -x
    b[every, plus] = y
    b[every, minus] = y
    a[every, tiny], b[every, tiny] = _factors(tiny_power, format, rng)
    return a, b, np.zeros(count)


def _factors(power: np.ndarray, format: Format, rng: np.random.Generator) -> list[np.ndarray]:
    """Two values of a format whose exponents add up to a power, as far as the format goes."""
    high = np.clip(power // 2, format.emin, format.emax)
    low = np.clip(power - high, format.emin, format.emax)
    return [
        round_to(np.ldexp(rng.uniform(1, 2, len(power)), exponent), format)
        for exponent in (high, low)
    ]


def unnormalised(
    row: MmaSpec, result: Format, rng: np.random.Generator, shape: tuple[int, int]
) -> Cases:
    """Significands near 2, beside terms at the edge of what is kept.

    Their products are near 4, and are not normalised before they are aligned.
    """
    a = rng.uniform(1.5, 2, shape)
    b = rng.uniform(1.5, 2, shape)
    small = rng.random(shape) < 0.5
    down = -(row.fraction_bits // 2)
    return (
        np.where(small, np.ldexp(a, down), a),
        np.where(small, np.ldexp(b, down), -b),
        np.ones(shape[0]),
    )


def ends(row: MmaSpec, result: Format, rng: np.random.Generator, shape: tuple[int, int]) -> Cases:
    """The largest and smallest numbers there are, and zeros of both signs."""
    format = row.operands
    far = [
        format.max,
        -format.max,
        format.smallest_normal,
        format.smallest_subnormal,
        -format.smallest_subnormal,
    ]
    near = [result.max, -result.max, result.smallest_subnormal, -result.smallest_normal, 0.0, -0.0]
    a = rng.choice([*far, 1.0, 0.0, -0.0], shape)
    b = rng.choice([*far, 1.0, -1.0, 0.5, -0.0], shape)
    return a, b, rng.choice(near, shape[0])


def subnormal_results(
    row: MmaSpec, result: Format, rng: np.random.Generator, shape: tuple[int, int]
) -> Cases:
    smallest = max(np.log2(row.operands.smallest_subnormal), np.log2(result.smallest_subnormal)) / 2
    a, b = (np.exp2(rng.uniform(smallest - 4, smallest + 8, shape)) for _ in range(2))
    return (
        a * rng.choice([-1, 1], shape),
        b,
        rng.choice([0, 1, -3, 5], shape[0]) * result.smallest_subnormal,
    )


def specials(
    row: MmaSpec, result: Format, rng: np.random.Generator, shape: tuple[int, int]
) -> Cases:
    """Now and then an infinity or a NaN, sometimes beside a zero."""
    a, b, c = gaussian(row, result, rng, shape)
    found = [math.nan] if row.operands == E4M3 else [math.inf, -math.inf, math.nan]
    at = rng.random(shape) < 0.03
    return (
        np.where(at, rng.choice(found, shape), a),
        np.where(at & (rng.random(shape) < 0.3), 0.0, b),
        c,
    )


MAKERS = (
    gaussian,
    any_code,
    around_the_cut,
    cancelled_at_the_cut,
    unnormalised,
    ends,
    subnormal_results,
    specials,
)
