"""Accumulators of matrix products: the order and the format in which products are added.

Idea: a GEMM is K additions, and their rounding determines its error: after each one (FP16
stagnates, FP32 rarely), along a tree, or once at the end. An argument `accumulator` takes one of
these values, a row of `mma.SPECS`, or a function.

Invariant: `EXACT` is the sum of all products and C rounded once, to the bit; the others round where
they say, and nowhere else.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 4.2 (orders of summation);
Ozaki, Ogita, Oishi and Rump 2012 (exact products by splitting); Boldo and Melquiond 2008 (round to
odd).
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

from labkit.formats import E4M3, E5M2, FP16, FP32, FP64, Format, FormatLike, as_format, round_to
from labkit.formats.arguments import as_row, require_kind
from labkit.formats.rows import Rows
from labkit.gemm.blocks import check_shapes, emulate, operand, sheets, tiles, to_half
from labkit.gemm.mma import SPECS, MmaSpec
from labkit.interop import dtype_of, format_of

Floats: TypeAlias = NDArray[np.float64]
# Elements of D, or of a tree's first layer, in one block of work.
TILE = 2**18


class SumOrder(Enum):
    """Order in which products are added."""

    SEQUENTIAL = "sequential onto C, by fused multiply-adds with one rounding each"
    PAIRWISE = "products are rounded and added pairwise, along a tree; C is added last"
    EXACT = "exact, rounded once at the end"


# order -> formats of its partial sums
SUM_FORMATS: dict[SumOrder, tuple[Format | None, ...]] = {
    SumOrder.SEQUENTIAL: (FP16, FP32),
    SumOrder.PAIRWISE: (FP32,),
    SumOrder.EXACT: (None,),
}


@dataclass(frozen=True)
class Accumulator:
    """Accumulator with an order of additions and a format of its partial sums.

    The format is FP16 or FP32 for sequential sums, FP32 for pairwise ones, None for exact ones.

    Raises:
        ValueError: sums of this order are not computed in this format.
    """

    name: str
    order: SumOrder
    format: Format | None

    def __post_init__(self) -> None:
        formats = SUM_FORMATS[self.order]
        if self.format not in formats:
            names = " or ".join(format.name if format else "None" for format in formats)
            got = self.format.name if self.format else "None"
            raise ValueError(
                f"accumulator {self.name!r}: expected format {names} for {self.order.name} sums, "
                f"got {got}"
            )


SEQUENTIAL_FP16 = Accumulator("sequential FP16", SumOrder.SEQUENTIAL, FP16)
SEQUENTIAL_FP32 = Accumulator("sequential FP32", SumOrder.SEQUENTIAL, FP32)
PAIRWISE_FP32 = Accumulator("pairwise FP32", SumOrder.PAIRWISE, FP32)
EXACT = Accumulator("exact", SumOrder.EXACT, None)
ACCUMULATORS: dict[str, Accumulator] = Rows(
    {row.name: row for row in (SEQUENTIAL_FP16, SEQUENTIAL_FP32, PAIRWISE_FP32, EXACT)}
)
# a row or its name, or a function that multiplies
AnyAccumulator: TypeAlias = Accumulator | MmaSpec | str | Callable[[Tensor, Tensor], Tensor]
KnownAccumulator: TypeAlias = Accumulator | MmaSpec | Callable[[Tensor, Tensor], Tensor]


def as_accumulator(accumulator: AnyAccumulator, argument: str = "accumulator") -> KnownAccumulator:
    """Return the accumulator that an argument names.

    Args:
        accumulator: a row of `ACCUMULATORS` or of `SPECS`, the name of one, or a function that
            multiplies two matrices.
        argument: the argument's name, for the message.

    Raises:
        TypeError: the argument is none of these.
        ValueError: no row has this name.

    >>> as_accumulator("sequential FP16").order.name, as_accumulator("A100").block_length
    ('SEQUENTIAL', 8)
    """
    if isinstance(accumulator, Accumulator | MmaSpec) or callable(accumulator):
        return accumulator
    remedy = ""
    if type(accumulator).__name__ in ("Format", "dtype"):
        remedy = 'For sums in FP16: "sequential FP16"'
    rows: dict[str, Accumulator | MmaSpec] = {**ACCUMULATORS, **SPECS}
    return as_row(accumulator, Accumulator, rows, argument, remedy)


def accumulate(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    accumulator: AnyAccumulator = EXACT,
    out: FormatLike = FP32,
    operands: tuple[FormatLike, FormatLike] | None = None,
) -> Tensor:
    """Return D[..., m, n] = A[..., m, k] @ B[..., k, n] + C[..., m, n], computed by an accumulator.

    The accumulator's result is rounded to `out`, nearest even, as by a kernel that stores it;
    `EXACT` rounds only then. A row of `SPECS` represents its GPU: FP16 operands use its FP16
    instruction, BF16 ones its BF16 instruction.

    Args:
        A: tensor [..., m, k] of FP32 or narrower, or of an FP8 dtype. FP32 tensors hold values of
            the operands that an `MmaSpec` names.
        B: tensor [..., k, n] of the dtype of A, or of the other FP8 dtype.
        C: values that the accumulator's format holds, or None for zeros.
        accumulator: format or method of the sum.
        out: format that the sum is rounded to.
        operands: the formats of the values in A and B; by default those of their dtypes.

    Raises:
        TypeError, ValueError: the accumulator, dtypes, shapes or values are invalid (see
            `emulate`).

    >>> ones = torch.ones(1, 4096).half()
    >>> sequential = (SEQUENTIAL_FP16, SEQUENTIAL_FP32)
    >>> [accumulate(ones, ones.T, accumulator=by).item() for by in sequential]
    [2048.0, 4096.0]
    """
    require_kind(A, Tensor, "A")
    require_kind(B, Tensor, "B")
    if C is not None:
        require_kind(C, Tensor, "C", "Pass None for zeros")
    out = as_format(out, "out")
    formats = (format_of(A.dtype), format_of(B.dtype))
    if operands is not None:
        of_a, of_b = operands
        formats = (as_format(of_a, "operands"), as_format(of_b, "operands"))
    accumulator = as_accumulator(accumulator)
    if isinstance(accumulator, MmaSpec):
        return _store(emulate(A, B, C, instruction_for(accumulator, *formats)), out)
    if not isinstance(accumulator, Accumulator):
        raise TypeError(
            "accumulator: expected a row of SPECS or of ACCUMULATORS, or its name, got a function; "
            "call it on the operands"
        )
    if FP64 in formats or (formats[0] != formats[1] and {*formats} != {E4M3, E5M2}):
        raise ValueError(
            f"expected A and B of one dtype, FP32 or narrower, got {A.dtype} and {B.dtype}"
        )
    a = operand(A, formats[0], "A").astype(np.float64)
    b = operand(B, formats[1], "B").astype(np.float64)
    check_shapes(a.shape, b.shape, None if C is None else tuple(C.shape))
    shape = (*a.shape[:-1], b.shape[-1])
    c: Floats = np.zeros(shape)
    if C is not None:
        c = operand(C, accumulator.format or FP32, "C").astype(np.float64)
    exact_products = formats[0].precision + formats[1].precision <= FP32.precision
    add = _sum(accumulator, exact_products)
    with np.errstate(over="ignore", invalid="ignore"):
        d = add(sheets(a), sheets(b), sheets(c), out).reshape(shape)
    return _store(torch.from_numpy(d), out).to(A.device)


def instruction_for(spec: MmaSpec, a: Format, b: Format | None = None) -> MmaSpec:
    """Return the instruction of the same GPU for operands of these formats.

    For FP32, which contains any format, it is `spec`.

    Raises:
        ValueError: this GPU has no such instruction.

    >>> from labkit.formats import BF16
    >>> from labkit.gemm.mma import SPECS
    >>> instruction_for(SPECS["A100"], BF16).operands.name
    'BF16'
    """
    if b in (None, FP32, FP64):
        b = a
    if a in (FP32, FP64) or (a, b) == (spec.operands, spec.right):
        return spec
    row = spec.for_operands(a, b)
    if spec.result in row.results:
        return replace(row, result=spec.result)
    return row


def _store(values: Tensor, out: Format) -> Tensor:
    # torch casts FP64 to narrow formats by way of FP32, which rounds twice
    if values.dtype == torch.float64:
        values = torch.from_numpy(round_to(values.numpy(), out))
    return values.to(dtype_of(out))


def _sum(
    accumulator: Accumulator, exact_products: bool
) -> Callable[[Floats, Floats, Floats, Format], Floats]:
    """Return the function (A[g,m,k], B[g,k,n], C[g,m,n], out) -> D[g,m,n] of an accumulator."""
    if accumulator.order is SumOrder.EXACT:
        return exact
    work = _sequential if accumulator.order is SumOrder.SEQUENTIAL else _pairwise
    round_sum = to_half if accumulator.format == FP16 else _to_single

    def tile_by_tile(a: Floats, b: Floats, c: Floats, _out: Format) -> Floats:
        d = np.empty(c.shape)
        size = TILE // 8
        if work is _pairwise:
            # the tree's first layer has K products for each element of D
            size = TILE // max(1, b.shape[1])
        for g, i, j in tiles(c.shape, size):
            d[g, i, j] = work(a[g, i], b[g, :, j], c[g, i, j], round_sum, exact_products)
        return d

    return tile_by_tile


def _to_single(values: Floats) -> Floats:
    """Round to FP32, nearest even; the result is in FP64."""
    return values.astype(np.float32).astype(np.float64)


def _sequential(
    a: Floats, b: Floats, c: Floats, round_sum: Callable[[Floats], Floats], exact_products: bool
) -> Floats:
    """Compute D = round(D + a * b) for each k in turn.

    FP64 represents each product exactly (twice 24 bits are 48), but may round its sum with D.
    Double rounding is harmless for products of at most FP32's 24 bits (`exact_products`). FP64
    rounds only if one number's last bit is more than 52 places below the other's first bit. Then
    the smaller number is below 1/16 of the larger one's last place. If the larger one is a value of
    the format, both roundings return it; if not, it is a product beyond 2^28 and D is FP16, and
    both overflow. Other sums are rounded to odd in FP64, so that none is a tie of a narrower
    format.
    """
    d = c.copy()
    for k in range(a.shape[-1]):
        term = a[:, :, k, None] * b[:, None, k, :]
        total = np.add(term, d, out=term) if exact_products else _add_odd(term, d)
        d = round_sum(total)
    return d


def _two_sum(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return FP64's x + y and its exact error (Knuth), which is NaN where the sum is infinite."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _add_odd(x: Floats, y: Floats) -> Floats:
    """Add in FP64 and round an inexact sum to odd: to the neighbour whose last bit is 1."""
    total, missed = _two_sum(x, y)
    bits = np.asarray(total).view(np.int64)
    to_odd = (missed != 0) & np.isfinite(total) & (bits & 1 == 0)
    away = np.signbit(missed) == np.signbit(total)
    return (bits + np.where(to_odd, np.where(away, 1, -1), 0)).view(np.float64)


def _pairwise(
    a: Floats, b: Floats, c: Floats, _round_sum: Callable[[Floats], Floats], _exact: bool
) -> Floats:
    """Round each product, add pairwise until one sum remains, then add C.

    numpy's FP32 arithmetic rounds.
    """
    a = a.transpose(2, 0, 1)
    b = b.transpose(1, 0, 2)
    layer = a.astype(np.float32)[..., None] * b.astype(np.float32)[:, :, None]
    while len(layer) > 1:
        pairs = layer[0 : len(layer) // 2 * 2 : 2] + layer[1::2]
        layer = np.concatenate([pairs, layer[len(pairs) * 2 :]])
    total = layer[0] if len(layer) else np.zeros(c.shape, np.float32)
    return np.asarray(total + c.astype(np.float32), np.float64)


def exact(a: Floats, b: Floats, c: Floats, out: Format) -> Floats:
    """Return A[g,m,k] @ B[g,k,n] + C[g,m,n], rounded once to `out`, nearest even.

    The values stay in FP64. A's rows and B's columns are split into slices of so few bits that FP64
    multiplies slices and sums all K products without rounding, as integers below 2^53 times one
    power of two. A sum of a few FP64 numbers remains for each element.
    """
    # The result where it is infinite or NaN.
    plain = _gemm(a, b) + c
    a, b, c = (np.where(np.isfinite(array), array, 0.0) for array in (a, b, c))
    bits = int((53 - log2(max(1, a.shape[2]))) // 2)
    left = _slices(a, 2, bits)
    right = _slices(b, 1, bits)
    d = np.empty(c.shape)
    for g, i, j in tiles(c.shape, TILE):
        terms = np.stack([_gemm(x[g, i], y[g, :, j]) for x in left for y in right] + [c[g, i, j]])
        d[g, i, j] = _round_sum(terms, out)
    zeros = (d == 0) & np.signbit(c)
    if zeros.any():
        # a sum of zeros is -0 only if each of its terms is; factors of two signs make such a term
        negative_a = np.signbit(a).astype(np.float64)
        negative_b = np.signbit(b).astype(np.float64)
        negative_products = _gemm(negative_a, 1 - negative_b) + _gemm(1 - negative_a, negative_b)
        d[zeros & (negative_products == a.shape[2])] = -0.0
    return np.where(np.isfinite(plain), d, plain)


def _gemm(a: Floats, b: Floats) -> Floats:
    """Multiply in FP64 by torch, which respects its number of threads."""
    product: Floats = (torch.from_numpy(a) @ torch.from_numpy(b)).numpy()
    return product


def _slices(values: Floats, axis: int, bits: int) -> list[Floats]:
    """Split `values` into arrays that add up to it.

    Each array holds integers below 2^bits times one power of two per row.
    """
    slices = []
    rest = values
    while rest.any():
        _, top = np.frexp(np.abs(rest).max(axis=axis, keepdims=True, initial=0.0))
        grid = np.ldexp(1.0, top - bits)
        slices.append(np.trunc(rest / grid) * grid)
        rest = rest - slices[-1]
    return slices


def _round_sum(terms: Floats, out: Format) -> Floats:
    """Round the exact sum over the first dimension to `out`.

    The sum is `total` plus the errors of its T - 1 additions, `missed`, whose own sum has an error
    below T * 2^-53 of its size. Where the sum rounds to one number for twice this error up and
    down, that is the result; others use `fsum`.
    """
    total = terms[0]
    missed = np.zeros(terms.shape[1:])
    size = np.zeros(terms.shape[1:])
    for term in terms[1:]:
        total, error = _two_sum(total, term)
        missed += error
        size += np.abs(error)
    slack = len(terms) * 2.0**-52 * size
    # where both ends of the exact sum's interval round alike, so does the sum
    low = np.asarray(round_to(_add_odd(total, missed - slack), out), np.float64)
    high = np.asarray(round_to(_add_odd(total, missed + slack), out), np.float64)
    for at in np.argwhere(low != high):
        few: list[float] = terms[(slice(None), *at)].tolist()
        rounded = fsum(few)
        # rounding to odd by the rest of the sum, so that `round_to` does not round twice
        rest = fsum([*few, -rounded])
        low[tuple(at)] = round_to(_add_odd(np.array(rounded), np.array(rest)), out)
    return low
