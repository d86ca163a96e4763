"""Block sums of Tensor Cores compiled by numba: the algorithm of `blocks`, several times faster.

Idea: the same sums as loops over blocks, rows and columns, so that terms stay in a core's cache.
`blocks` explains what is summed in FP32 and what in FP64, and why either is exact. An exponent is
stored as its power of two, 0 for a zero operand, so exponents are added by multiplication.

Invariant: equal to `blocks` bit for bit.

Threads are started by `blocks`; the compiled functions release the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from labkit.formats import FP16, FP32
from labkit.gemm.mma import ZERO_EXPONENT

Singles: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int32]

# Columns of D in one block of work.
COLUMNS = 512
# fields of FP64 and FP32: the width of the significand, the bias, the mask of the exponent
POINT_64 = 52
BIAS_64 = 1023
EXPONENT_64 = 0x7FF << POINT_64
POINT_32 = 23
BIAS_32 = 127
EXPONENT_32 = 0xFF << POINT_32
# the power of two as which a C of zero is aligned
ZERO_POWER = np.float32(2.0**ZERO_EXPONENT)
# below all products of `blocks.NARROW`, so that 2^F over it is finite
SMALLEST_POWER = np.float32(2.0**-75)
# see `blocks.to_half`
HALF_ANCHOR = ((POINT_64 - FP16.significand_bits) << POINT_64) + (1 << (POINT_64 - 1))
HALF_SMALLEST_NORMAL = (FP16.emin + BIAS_64) << POINT_64
HALF_MAX = FP16.max
FP32_SMALLEST_NORMAL = FP32.smallest_normal
FP32_SPACING = FP32.smallest_subnormal
SPACINGS_PER_ONE = 1 / FP32.smallest_subnormal


def _jit(function: Callable[..., None]) -> Callable[..., None]:
    try:
        # cached beside this file, or in the user's cache folder
        compiled: Callable[..., None] = njit(nogil=True, cache=True)(function)
    except RuntimeError:
        # neither is writable
        compiled = njit(nogil=True)(function)
    return compiled


@_jit
def power_of_c(row: Singles, power: Singles, subnormal_power: float) -> None:
    """Write C's powers of two: of a subnormal `subnormal_power`, of a zero `ZERO_POWER`."""
    row_bits = row.view(np.int32)
    power_bits = power.view(np.int32)
    for j in range(len(row)):
        power_bits[j] = row_bits[j] & np.int32(EXPONENT_32)
    for j in range(len(row)):
        larger = max(power[j], np.float32(subnormal_power))
        power[j] = ZERO_POWER if row[j] == 0 else larger


@_jit
def raise_to_largest(a: Singles, b: Singles, power: Singles, n: int) -> None:
    """Raise powers to the largest of a block's products.

    a[k] and b[k, n] are those of their operands. Four products at a time, here and below: every
    block has a multiple of four.
    """
    for k in range(0, len(a), 4):
        p0 = a[k]
        p1 = a[k + 1]
        p2 = a[k + 2]
        p3 = a[k + 3]
        q0 = b[k]
        q1 = b[k + 1]
        q2 = b[k + 2]
        q3 = b[k + 3]
        for j in range(n):
            one = p0 * q0[j]
            two = p1 * q1[j]
            three = p2 * q2[j]
            four = p3 * q3[j]
            # unlike `max`, which looks for NaN, these comparisons become vector instructions
            low = one if one > two else two
            high = three if three > four else four
            top = low if low > high else high
            power[j] = power[j] if power[j] > top else top


@_jit
def add_narrow(
    a: Singles, b: Singles, power: Singles, total: Whole, n: int, fraction_bits: int
) -> None:
    """Add up a block's products, scaled by 2^(F-E) in FP32 and cut by the cast.

    `power`, 2^E, is overwritten.
    """
    # 2^(F-E) takes the place of 2^E: its exponent field is that of 2^(2 bias + F) less that of 2^E
    scale = power
    scale_bits = power.view(np.int32)
    for j in range(n):
        scale[j] = power[j] if power[j] > SMALLEST_POWER else SMALLEST_POWER
        total[j] = 0
    for j in range(n):
        scale_bits[j] = np.int32((2 * BIAS_32 + fraction_bits) << POINT_32) - scale_bits[j]
    for k in range(0, len(a), 4):
        p0 = a[k]
        p1 = a[k + 1]
        p2 = a[k + 2]
        p3 = a[k + 3]
        q0 = b[k]
        q1 = b[k + 1]
        q2 = b[k + 2]
        q3 = b[k + 3]
        for j in range(n):
            s = scale[j]
            one = np.int32(p0 * q0[j] * s)
            two = np.int32(p1 * q1[j] * s)
            total[j] += one + two + (np.int32(p2 * q2[j] * s) + np.int32(p3 * q3[j] * s))


@_jit
def add_wide(a: Singles, b: Doubles, scale: Doubles, total: Doubles, n: int) -> None:
    """Add up a block's products, scaled by 2^(F-E) and cut; in FP64."""
    for j in range(n):
        total[j] = 0.0
    for k in range(0, len(a), 4):
        p0 = a[k]
        p1 = a[k + 1]
        p2 = a[k + 2]
        p3 = a[k + 3]
        q0 = b[k]
        q1 = b[k + 1]
        q2 = b[k + 2]
        q3 = b[k + 3]
        for j in range(n):
            s = scale[j]
            one = np.trunc(p0 * q0[j] * s)
            two = np.trunc(p1 * q1[j] * s)
            total[j] += one + two + (np.trunc(p2 * q2[j] * s) + np.trunc(p3 * q3[j] * s))


@_jit
def units(power: Doubles, scale: Doubles, n: int, fraction_bits: int) -> None:
    """Turn 2^E into 2^(E-F), the value of a term's last place, and write its inverse."""
    power_bits = power.view(np.int64)
    scale_bits = scale.view(np.int64)
    for j in range(n):
        power_bits[j] -= np.int64(fraction_bits) << POINT_64
        # the inverse of a power of two: its exponent is the negative one
        scale_bits[j] = ((2 * BIAS_64) << POINT_64) - power_bits[j]


@_jit
def add_row(
    row: Singles,
    a: Singles,
    a_powers: Singles,
    b: Singles,
    b_powers: Singles,
    wide: Doubles,
    wide_powers: Doubles,
    buffers: tuple[Singles, Whole, Doubles, Doubles, Doubles],
    narrow: bool,
    fraction_bits: int,
    subnormal_power: float,
) -> None:
    """Write the exact sum of C and a block's cut products to the last of `buffers`.

    Args:
        row: a row of C.
        a: the operands of the row of A.
        a_powers: their powers of two.
        b: the operands of B.
        b_powers: their powers of two.
        wide: `b` in FP64.
        wide_powers: `b_powers` in FP64.
        buffers: for each column, the power of two in FP32, the sum as a whole number, and in FP64
            the power of two, the scale and the sum.
        narrow: see `add_blocks`.
        fraction_bits: see `add_blocks`.
        subnormal_power: see `add_blocks`.
    """
    power_32, whole_sum, power, scale, total = buffers
    n = len(row)
    power_of_c(row, power_32, subnormal_power)
    if narrow:
        raise_to_largest(a_powers, b_powers, power_32, n)
    for j in range(n):
        power[j] = power_32[j]
    if narrow:
        units(power, scale, n, fraction_bits)
        add_narrow(a, b, power_32, whole_sum, n, fraction_bits)
        for j in range(n):
            total[j] = whole_sum[j]
    else:
        raise_to_largest(a_powers, wide_powers, power, n)
        units(power, scale, n, fraction_bits)
        add_wide(a, wide, scale, total, n)
    for j in range(n):
        total[j] = (total[j] + np.trunc(row[j] * scale[j])) * power[j]


@_jit
def round_sum(
    row: Doubles, buffer: Doubles, n: int, kept: int, half: bool, subnormals: bool
) -> None:
    """Round n exact sums to FP16, as `blocks.to_half` does, or to FP32 by the mask `kept`."""
    row_bits = row.view(np.int64)
    anchor_bits = buffer.view(np.int64)
    if half:
        # adding a number far above and taking it away again rounds to the last bit that remains
        for j in range(n):
            exponent = max(row_bits[j] & EXPONENT_64, HALF_SMALLEST_NORMAL)
            anchor_bits[j] = exponent + HALF_ANCHOR
        for j in range(n):
            size = abs((row[j] + buffer[j]) - buffer[j])
            row[j] = np.copysign(np.inf if size > HALF_MAX else size, row[j])
        return
    if subnormals:
        for j in range(n):
            if abs(row[j]) < FP32_SMALLEST_NORMAL:
                row[j] = np.trunc(row[j] * SPACINGS_PER_ONE) * FP32_SPACING
    for j in range(n):
        row_bits[j] &= kept


@_jit
def add_blocks(
    a: Singles,
    a_powers: Singles,
    b: Singles,
    b_powers: Singles,
    d: Singles,
    tile: tuple[int, int, int, int, int, int],
    narrow: bool,
    length: int,
    fraction_bits: int,
    subnormal_power: float,
    kept: int,
    half: bool,
    subnormals: bool,
) -> None:
    """Add A[g,m,k] @ B[g,k,n] to one tile of D[g,m,n], block after block.

    Args:
        a: A[g,m,k].
        a_powers: the power of two of each element of A.
        b: B[g,k,n].
        b_powers: the power of two of each element of B.
        d: C on entry, D on return.
        tile: first and end index along g, m and n.
        narrow: whether products are computed in FP32 and summed in 32 bits.
        length: products of one block; K is a multiple of it.
        fraction_bits: bits after the point that are kept of each aligned term.
        subnormal_power: the power of two of C's subnormals.
        kept: mask of the bits of an FP64 number that remain in an FP32 result.
        half: whether the result is FP16.
        subnormals: whether a sum may be finer than FP32's subnormals.
    """
    scale = np.empty(COLUMNS)
    total = np.empty(COLUMNS)
    buffers = (
        np.empty(COLUMNS, np.float32),
        np.empty(COLUMNS, np.int32),
        np.empty(COLUMNS),
        scale,
        total,
    )
    first_g, end_g, first_m, end_m, first_n, end_n = tile
    for g in range(first_g, end_g):
        for first in range(first_n, end_n, COLUMNS):
            last = min(first + COLUMNS, end_n)
            for k in range(0, a.shape[2], length):
                end = k + length
                terms = b[g, k:end, first:last].copy()
                powers = b_powers[g, k:end, first:last].copy()
                wide = terms.astype(np.float64)
                wide_powers = powers.astype(np.float64)
                for i in range(first_m, end_m):
                    row = d[g, i, first:last]
                    left = a[g, i, k:end]
                    left_powers = a_powers[g, i, k:end]
                    add_row(
                        row,
                        left,
                        left_powers,
                        terms,
                        powers,
                        wide,
                        wide_powers,
                        buffers,
                        narrow,
                        fraction_bits,
                        subnormal_power,
                    )
                    # the scales have been used, so their memory is free for `round_sum`
                    round_sum(total, scale, last - first, kept, half, subnormals)
                    for j in range(last - first):
                        row[j] = total[j]
