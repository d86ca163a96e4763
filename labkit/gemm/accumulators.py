"""In what are the products of a GEMM added up?

Idea: a GEMM is K additions, and how they round decides its error: after each one (FP16 stops counting, FP32 rarely
does), along a tree, or once at the end. These are values like the rows of `mma`, so whoever takes an accumulator takes
any of them.

Invariant: `EXACT` is the sum of all products and C rounded once, to the bit; the others round where they say, and
nowhere else.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 4.2 (orders of summation); Ozaki, Ogita, Oishi
and Rump 2012 (exact products by splitting); Boldo and Melquiond 2008 (round to odd).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from math import fsum, log2
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.formats import E4M3, E5M2, FP16, FP32, FP64, Format, round_to
from labkit.gemm.blocks import check_shapes, emulate, operand, sheets, tiles, to_half
from labkit.gemm.mma import MmaSpec
from labkit.interop import dtype_of, format_of

Floats: TypeAlias = NDArray[np.float64]
TILE = 2**18  # elements of D, or of a tree's first layer, that are worked on at a time


class Order(Enum):
    """In which order products are added."""

    SEQUENTIAL = "one after another onto C, each by a fused multiply-add: one rounding"
    PAIRWISE = "products are rounded, then neighbours are added, then neighbours of those; C comes last"
    EXACT = "all at once; the only rounding is the last"


@dataclass(frozen=True)
class Accumulator:
    """A plain accumulator: the order of its additions and the format of its partial sums (None: they are exact)."""

    name: str
    order: Order
    format: Format | None


SEQUENTIAL_FP16 = Accumulator("sequential FP16", Order.SEQUENTIAL, FP16)
SEQUENTIAL_FP32 = Accumulator("sequential FP32", Order.SEQUENTIAL, FP32)
PAIRWISE_FP32 = Accumulator("pairwise FP32", Order.PAIRWISE, FP32)
EXACT = Accumulator("exact", Order.EXACT, None)
ACCUMULATORS: dict[str, Accumulator] = {
    row.name: row for row in (SEQUENTIAL_FP16, SEQUENTIAL_FP32, PAIRWISE_FP32, EXACT)
}
AnyAccumulator: TypeAlias = Accumulator | MmaSpec | Callable[[Tensor, Tensor], Tensor]  # or a product of its own


def accumulate(
    A: Tensor, B: Tensor, C: Tensor | None = None, accumulator: AnyAccumulator = EXACT, out: Format = FP32,
    operands: tuple[Format, Format] | None = None,
) -> Tensor:  # fmt: skip
    """Return D[..., m, n] = A[..., m, k] @ B[..., k, n] + C[..., m, n], added up as `accumulator` does it.

    The accumulator's result is rounded to `out`, nearest even, as a kernel does when it stores; `EXACT` rounds only
    then. A row of `SPECS` stands for its GPU: FP16 operands take its FP16 instruction, BF16 ones its BF16 instruction.

    Args:
        A, B: tensors of one dtype, FP32 or narrower, or of the two FP8 dtypes. FP32 tensors hold values of the operands
            that an `MmaSpec` names.
        C: values that the accumulator's format holds, or None for zeros.
        operands: the formats whose values A and B hold; those of their dtypes unless given.

    Raises:
        TypeError, ValueError: no such accumulator; dtypes, shapes or values do not fit (see `emulate`).

    >>> ones = torch.ones(1, 4096).half()
    >>> [accumulate(ones, ones.T, accumulator=by).item() for by in (SEQUENTIAL_FP16, SEQUENTIAL_FP32)]
    [2048.0, 4096.0]
    """
    formats = operands or (format_of(A.dtype), format_of(B.dtype))
    if isinstance(accumulator, MmaSpec):
        return _stored(emulate(A, B, C, instruction_for(accumulator, *formats)), out)
    if not isinstance(accumulator, Accumulator):
        names = ", ".join(f'"{name}"' for name in ACCUMULATORS)
        raise TypeError(f"an accumulator is a row of SPECS or of ACCUMULATORS ({names}); it was given {accumulator!r}.")
    if FP64 in formats or (formats[0] != formats[1] and {*formats} != {E4M3, E5M2}):
        raise ValueError(f"A and B are of one dtype, FP32 or narrower; they were {A.dtype} and {B.dtype}.")
    a, b = operand(A, formats[0], "A").astype(np.float64), operand(B, formats[1], "B").astype(np.float64)
    check_shapes(a.shape, b.shape, None if C is None else tuple(C.shape))
    shape = (*a.shape[:-1], b.shape[-1])
    c: Floats = np.zeros(shape) if C is None else operand(C, accumulator.format or FP32, "C").astype(np.float64)
    add = _sum(accumulator, exact_products=formats[0].precision + formats[1].precision <= FP32.precision)
    with np.errstate(over="ignore", invalid="ignore"):
        d = add(sheets(a), sheets(b), sheets(c), out).reshape(shape)
    return _stored(torch.from_numpy(d), out).to(A.device)


def instruction_for(spec: MmaSpec, a: Format, b: Format | None = None) -> MmaSpec:
    """Return the instruction of the same GPU for operands of these formats; FP32 may hold any, so that is `spec`.

    Raises:
        ValueError: this GPU has none.

    >>> from labkit.formats import BF16
    >>> from labkit.gemm.mma import SPECS
    >>> instruction_for(SPECS["A100"], BF16).operands.name
    'BF16'
    """
    b = a if b in (None, FP32, FP64) else b
    if a in (FP32, FP64) or (a, b) == (spec.operands, spec.right):
        return spec
    row = spec.for_operands(a, b)
    return replace(row, result=spec.result) if spec.result in row.results else row


def _stored(values: Tensor, out: Format) -> Tensor:
    """Round to `out` once, and store in its dtype."""
    if values.dtype == torch.float64:  # which torch's own casts would round twice
        values = torch.from_numpy(round_to(values.numpy(), out))
    return values.to(dtype_of(out))


def _sum(accumulator: Accumulator, exact_products: bool) -> Callable[[Floats, Floats, Floats, Format], Floats]:
    """The function (A[g,m,k], B[g,k,n], C[g,m,n], out) -> D[g,m,n] of an accumulator."""
    if accumulator.order is Order.EXACT:
        return exact
    work = _sequential if accumulator.order is Order.SEQUENTIAL else _pairwise
    half = accumulator.format == FP16
    round_sum = to_half if half else lambda values: values.astype(np.float32).astype(np.float64)

    def tile_by_tile(a: Floats, b: Floats, c: Floats, _out: Format) -> Floats:
        d = np.empty(c.shape)
        size = TILE // (max(1, b.shape[1]) if work is _pairwise else 8)
        for g, i, j in tiles(c.shape, size):
            d[g, i, j] = work(a[g, i], b[g, :, j], c[g, i, j], round_sum, exact_products)
        return d

    return tile_by_tile


def _sequential(a: Floats, b: Floats, c: Floats, round_sum: Callable[[Floats], Floats], exact_products: bool) -> Floats:
    """D = round(D + a * b) for each k in turn.

    FP64 holds each product exactly (twice 24 bits are 48), but may round its sum with D. That is harmless while
    products have no more than FP32's 24 bits (`exact_products`): FP64 rounds only if one number's last bit lies more
    than 52 places below the other's first, so the smaller one is below 1/16 of the larger one's last place. If the
    larger one is a value of the format, both roundings return it; if not, it is a product beyond 2^28 and D is FP16,
    and both overflow. Otherwise the FP64 sum is rounded to odd, and then it is a tie of no narrower format.
    """
    d = c.copy()
    for k in range(a.shape[-1]):
        term = a[:, :, k, None] * b[:, None, k, :]
        d = round_sum(np.add(term, d, out=term) if exact_products else _add_odd(term, d))
    return d


def _two_sum(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """FP64's x + y and what it missed, exactly (Knuth); the latter is NaN where the sum is infinite."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _add_odd(x: Floats, y: Floats) -> Floats:
    """Add in FP64; if that is inexact, return the neighbour of the exact sum whose last bit is 1."""
    total, missed = _two_sum(x, y)
    bits = np.asarray(total).view(np.int64)
    to_odd = (missed != 0) & np.isfinite(total) & (bits & 1 == 0)
    away = np.signbit(missed) == np.signbit(total)
    return (bits + np.where(to_odd, np.where(away, 1, -1), 0)).view(np.float64)


def _pairwise(a: Floats, b: Floats, c: Floats, _round_sum: Callable[[Floats], Floats], _exact: bool) -> Floats:
    """Round each product, add neighbours until one is left, then C; numpy's own FP32 does the rounding."""
    a, b = a.transpose(2, 0, 1), b.transpose(1, 0, 2)
    layer = a.astype(np.float32)[..., None] * b.astype(np.float32)[:, :, None]
    while len(layer) > 1:
        pairs = layer[0 : len(layer) // 2 * 2 : 2] + layer[1::2]
        layer = np.concatenate([pairs, layer[len(pairs) * 2 :]])
    total = layer[0] if len(layer) else np.zeros(c.shape, np.float32)
    return np.asarray(total + c.astype(np.float32), np.float64)


def exact(a: Floats, b: Floats, c: Floats, out: Format) -> Floats:
    """Return A[g,m,k] @ B[g,k,n] + C[g,m,n], rounded once to `out`, nearest even; the values stay in FP64.

    Split A's rows and B's columns into slices of so few bits that FP64 multiplies slices, and adds up all K products,
    without rounding: whole numbers below 2^53 times one power of two. What is left is a sum of a few FP64 numbers for
    each element.
    """
    plain = _gemm(a, b) + c  # what infinities and NaN make of it
    a, b, c = (np.where(np.isfinite(array), array, 0.0) for array in (a, b, c))
    bits = int((53 - log2(max(1, a.shape[2]))) // 2)
    left, right = _slices(a, 2, bits), _slices(b, 1, bits)
    d = np.empty(c.shape)
    for g, i, j in tiles(c.shape, TILE):
        terms = np.stack([_gemm(x[g, i], y[g, :, j]) for x in left for y in right] + [c[g, i, j]])
        d[g, i, j] = _round_sum(terms, out)
    return np.where(np.isfinite(plain), d, plain)


def _gemm(a: Floats, b: Floats) -> Floats:
    """Multiply in FP64 by torch, which keeps to the number of threads it was given."""
    product: Floats = (torch.from_numpy(a) @ torch.from_numpy(b)).numpy()
    return product


def _slices(values: Floats, axis: int, bits: int) -> list[Floats]:
    """Split into arrays that add up to `values`, each whole numbers below 2^bits times a power of two per row."""
    slices, rest = [], values
    while rest.any():
        _, top = np.frexp(np.abs(rest).max(axis=axis, keepdims=True, initial=0.0))
        grid = np.ldexp(1.0, top - bits)
        slices.append(np.trunc(rest / grid) * grid)
        rest = rest - slices[-1]
    return slices


def _round_sum(terms: Floats, out: Format) -> Floats:
    """Round the exact sum over the first dimension to `out`.

    The sum is `total`, what its T - 1 additions missed, and what adding that up missed again: less than T * 2^-53 of
    its size. Where twice as much more or less rounds to the same number, that is it; the few others go to `fsum`.
    """
    total, missed, size = terms[0], np.zeros(terms.shape[1:]), np.zeros(terms.shape[1:])
    for term in terms[1:]:
        total, error = _two_sum(total, term)
        missed += error
        size += np.abs(error)
    slack = len(terms) * 2.0**-52 * size
    low, high = (np.asarray(round_to(_add_odd(total, missed + way), out), np.float64) for way in (-slack, slack))
    for at in np.argwhere(low != high):
        few: list[float] = terms[(slice(None), *at)].tolist()
        rounded = fsum(few)  # then to odd, by what it missed
        low[tuple(at)] = round_to(_add_odd(np.array(rounded), np.array(fsum([*few, -rounded]))), out)
    return low
