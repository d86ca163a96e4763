"""Which products shall a Tensor Core add? Four situations, each with one number to turn.

Idea: what a block does to its terms shows best where one term is large and the others are small, so each situation has
a knob that moves how small. All have up to 16 products: one block of the newest Tensor Cores, several of the older.

Invariant: every operand is an FP16 number, and C is one too, so it may stand in an FP16 or an FP32 accumulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkit.formats import FP16, round_to

Terms = tuple[list[float], list[float], float]
PRODUCTS = 16


@dataclass(frozen=True)
class Preset:
    """Operands that follow from one whole number.

    knob              what the number means
    low, high, start  its range, and where it begins
    result            name of the format of C and D that suits
    make              number -> (a, b, c)
    told              number -> how it is written
    """

    name: str
    knob: str
    low: int
    high: int
    start: int
    result: str
    make: Callable[[int], Terms]
    told: Callable[[int], str]


def _power(exponent: int) -> tuple[float, float]:
    """Return two FP16 numbers whose product is 2^exponent."""
    half = exponent // 2
    return 2.0**half, 2.0 ** (exponent - half)


def small_terms(exponent: int) -> Terms:
    """Return 1 as C, and 16 products of 2^exponent each.

    >>> a, b, c = small_terms(-24)
    >>> c + sum(x * y for x, y in zip(a, b)) == 1 + 2.0**-20
    True
    """
    a, b = _power(exponent)
    return [a] * PRODUCTS, [b] * PRODUCTS, 1.0


def cancelled(exponent: int) -> Terms:
    """Return 2^16 and 2^exponent and -2^16 as products, and C = 0.

    >>> a, b, c = cancelled(-8)
    >>> sum(x * y for x, y in zip(a, b))
    0.00390625
    """
    a, b = _power(exponent)
    return [256.0, a, -256.0], [256.0, b, 256.0], 0.0


def ones(exponent: int) -> Terms:
    """Return 2^exponent as C, what has been counted so far, and 16 products 1 * 1."""
    return [1.0] * PRODUCTS, [1.0] * PRODUCTS, 2.0**exponent


def drawn(seed: int) -> Terms:
    """Return 16 products and C of normally distributed FP16 numbers."""
    values = np.asarray(round_to(np.random.default_rng(seed).standard_normal(2 * PRODUCTS + 1), FP16))
    return values[:PRODUCTS].tolist(), values[PRODUCTS:-1].tolist(), float(values[-1])


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("1 and small terms", "each product", -30, -12, -24, "FP32", small_terms, "2^{}".format),
        Preset("large, small, minus large", "the small one", -16, 0, -8, "FP32", cancelled, "2^{}".format),
        Preset("ones", "counted so far", 0, 15, 13, "FP16", ones, "2^{}".format),
        Preset("random", "draw", 1, 30, 1, "FP32", drawn, "{}".format),
    )
}
