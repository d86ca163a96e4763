"""What would a Tensor Core have computed, to the bit?

Idea: carry out the model of `mma` for all elements of D at once, block after block, in FP64. That is exact, by the
argument below; the two roundings of the model (cutting each aligned term, rounding the sum) are the only ones.

Invariant: every bit of D is what the model says, for every input: subnormals, zeros of both signs, infinities, NaN.

Why FP64 loses nothing. Let E be the block's largest exponent, F the fraction bits, L the block length.
1. A product of two operands has at most 22 significant bits and lies between 2^-266 and 2^256: FP64 holds it.
2. -126 <= E <= 254, so 2^(F-E) is a normal FP64 number and scaling by it is exact: 2^-266 * 2^(13-254) is still normal.
3. A scaled product is below 4 * 2^F (significands below 2, not normalised), a scaled C below 2 * 2^F; both are cut to
   whole numbers. Their sum, in any order, is a whole number below (4L + 2) * 2^F <= 2^33 (`MmaSpec.sum_limit`, held
   by a test): far below 2^53, so no addition rounds.
4. Scaling back by 2^(E-F) is exact. FP32 results are cut by clearing the last bits of the FP64 number, and the cast to
   FP32 then has nothing left to round, only to overflow; FP16 results are rounded by one FP64 addition (`to_half`).
Infinities and NaN follow IEEE 754 through the same additions, since truncation and scaling keep both.

What it does not do: say in which order cuBLAS adds blocks, or whether it splits K. Nobody promises one.

Source: as `mma`. No source tells the sign of a zero: here an exact 0 is +0, and what underflows keeps its sign.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.formats import FP16, FP32, TF32, Format, round_to
from labkit.gemm.mma import ZERO_EXPONENT, MmaSpec
from labkit.interop import format_of

Floats: TypeAlias = NDArray[np.float64]
Matrix = TypeVar("Matrix", Tensor, NDArray[Any])

TILE = 2**17  # aligned terms that are worked on at a time: 1 MiB, what a core has to itself
ABSENT = -2000  # exponent of a zero operand: below that of any product, so a zero product aligns nothing
_BIAS, _POINT = 1023, 52  # of FP64: its exponent field begins at bit 52 and holds the exponent plus 1023
_EXPONENT = 0x7FF << _POINT
_TF32_BITS = np.int32(-1 << 13)  # of an FP32 number: all but the last 13
_NAN: dict[Format, np.signedinteger] = {FP32: np.int32(0x7FFFFFFF), FP16: np.int16(0x7FFF)}


def emulate(A: Matrix, B: Matrix, C: Matrix | None, spec: MmaSpec, out: Format | None = None) -> Matrix:
    """Return D[..., m, n] = A[..., m, k] @ B[..., k, n] + C[..., m, n] as the Tensor Core `spec` computes it.

    K may be longer than one block: blocks follow one another, and each takes the last D as its C. A last block that is
    not full is filled up with zeros, which change nothing.

    Args:
        A, B: torch tensors or numpy arrays with values of `spec.operands`, in its dtype or a wider one. For TF32, FP32
            numbers whose last 13 bits are cut off, of a NaN too: the instruction ignores them.
            Leading dimensions must agree.
        C: values of the result format, or None for zeros.
        out: FP32 or FP16, the format of C and D; `spec.result` unless given.

    Raises:
        TypeError: A is neither a tensor nor an array of floats.
        ValueError: the shapes do not fit; values that the operands' or the result's format does not hold; a result
            format that this instruction does not have.

    Source: arXiv:2511.10909.

    >>> from labkit.gemm.mma import SPECS
    >>> ones, tiny = torch.ones(1, 16).half(), torch.full((16, 1), 2.0**-24).half()
    >>> [(emulate(ones, tiny, torch.ones(1, 1), SPECS[gpu]) - 1).item() * 2**24 for gpu in ("V100", "A100", "H100")]
    [0.0, 16.0, 16.0]
    """
    result = spec.result if out is None else out
    if result not in spec.results:
        raise ValueError(
            f"{spec.name} with {spec.operands.name} operands writes {' or '.join(row.name for row in spec.results)}; "
            f"it was asked for {result.name}. Round its FP32 result, as a kernel's last lines do."
        )
    a: Floats = operand(A, spec.operands, "A")
    b: Floats = operand(B, spec.operands, "B")
    check_shapes(a.shape, b.shape, None if C is None else tuple(C.shape))
    shape = (*a.shape[:-1], b.shape[-1])
    c: Floats = np.zeros(shape) if C is None else operand(C, result, "C")
    d = _blocks(sheets(a), sheets(b), sheets(c), spec, result)
    return like(A, _store(d, result).reshape(shape))


def operand(matrix: Tensor | NDArray[Any], format: Format, name: str) -> Floats:
    """Return a matrix as FP64 if it holds values of `format` only; FP32 numbers for TF32 are cut to it.

    Raises:
        TypeError, ValueError: see `emulate`.
    """
    if isinstance(matrix, Tensor):
        stored: object = format_of(matrix.dtype) if matrix.is_floating_point() else None
        matrix = matrix.detach().cpu()
    elif isinstance(matrix, np.ndarray) and matrix.dtype.kind == "f":
        stored = FP16 if matrix.dtype == np.float16 else FP32 if matrix.dtype == np.float32 else None
    else:
        raise TypeError(f"{name} must be a torch tensor or a numpy array of floats; it was given {type(matrix)}.")
    if (format, stored) == (TF32, FP32):  # by bits: a NaN whose only ones are among the last 13 becomes an infinity
        with np.errstate(invalid="ignore"):  # a signalling NaN stays one
            return np.asarray((np.asarray(matrix).view(np.int32) & _TF32_BITS).view(np.float32), np.float64)
    values: Floats = matrix.double().numpy() if isinstance(matrix, Tensor) else matrix.astype(np.float64)
    if stored == format:
        return values
    off = ~((round_to(values, format) == values) | np.isnan(values))
    if off.any():
        raise ValueError(
            f"{name} must hold {format.name} values, and {values[off].item(0)!r} is none. "
            f"Round it first: round_tensor({name}, {format.name}), or {name}.to(dtype) where torch has one."
        )
    return values


def check_shapes(a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...] | None) -> None:
    """Raise ValueError unless A[..., m, k] @ B[..., k, n] + C[..., m, n] makes sense."""
    fits = len(a) == len(b) >= 2 and a[:-2] == b[:-2] and a[-1] == b[-2]
    if not fits or (c is not None and c != (*a[:-1], b[-1])):
        given = f"A{list(a)}, B{list(b)}" + (f", C{list(c)}" if c is not None else "")
        raise ValueError(f"D[m,n] = A[m,k] @ B[k,n] + C[m,n], with equal leading dimensions; it was given {given}.")


def like(given: Matrix, values: NDArray[Any]) -> Matrix:
    """Return values as a tensor on the device of `given` if that is one, else as they are."""
    return torch.from_numpy(values).to(given.device) if isinstance(given, Tensor) else values


def sheets(matrices: Floats) -> Floats:
    """View [..., rows, columns] as [g, rows, columns]."""
    return matrices.reshape(math.prod(matrices.shape[:-2]), *matrices.shape[-2:])


def tiles(shape: tuple[int, ...], elements: int) -> Iterator[tuple[slice, slice, slice]]:
    """Cut a shape (g, m, n) into pieces of at most `elements`, whole rows where they fit.

    >>> [(rows.start, rows.stop) for _, rows, _ in tiles((1, 4, 10), 20)]
    [(0, 2), (2, 4)]
    """
    batch, m, n = shape
    columns = max(1, min(n, elements))
    rows = max(1, min(m, elements // columns))
    sheets = max(1, min(batch, elements // (columns * rows)))
    starts = itertools.product(range(0, batch, sheets), range(0, m, rows), range(0, n, columns))
    for i, j, k in starts:
        yield slice(i, i + sheets), slice(j, j + rows), slice(k, k + columns)


def _blocks(a: Floats, b: Floats, c: Floats, spec: MmaSpec, result: Format) -> Floats:
    """D[g,m,n] for A[g,m,k], B[g,k,n] and C[g,m,n]: tile by tile, in as many threads as torch may use."""
    if a.shape[1] > b.shape[2]:  # the last dimension is walked along fastest, so let it be the longer one
        return _blocks(b.swapaxes(1, 2), a.swapaxes(1, 2), c.swapaxes(1, 2), spec, result).swapaxes(1, 2)
    a = np.ascontiguousarray(a.transpose(2, 0, 1))[..., None]  # [k, g, m, 1]
    b = np.ascontiguousarray(b.transpose(1, 0, 2))[:, :, None]  # [k, g, 1, n]
    exponents_a, exponents_b = _exponents(a, spec.operands), _exponents(b, spec.operands)
    d = np.empty(c.shape)

    def work(tile: tuple[slice, slice, slice]) -> None:
        g, i, j = tile
        left, right = (slice(None), g, i), (slice(None), g, slice(None), j)
        rows, columns = (a[left], exponents_a[left]), (b[right], exponents_b[right])
        with np.errstate(invalid="ignore", over="ignore"):
            d[tile] = _tile(rows, columns, c[tile], spec, result)

    pieces = list(tiles(c.shape, TILE // spec.block_length))
    threads = min(torch.get_num_threads(), len(pieces))
    if threads <= 1:
        for piece in pieces:
            work(piece)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, pieces))
    return d


def _exponents(values: Floats, format: Format) -> NDArray[np.int16]:
    """Exponents of operands: a subnormal's is emin, as its significand has no leading one; a zero's is ABSENT."""
    field = ((values.view(np.int64) & _EXPONENT) >> _POINT) - _BIAS
    return np.where(values == 0, ABSENT, np.clip(field, format.emin, format.emax)).astype(np.int16)


def _tile(rows: tuple[Any, Any], columns: tuple[Any, Any], c: Floats, spec: MmaSpec, result: Format) -> Floats:
    """Take C through all blocks: rows are A's values and exponents [k, g, m, 1], columns those of B [k, g, 1, n]."""
    (a, exponents_a), (b, exponents_b) = rows, columns
    length, d = spec.block_length, c
    buffer, exponents = np.empty((length, *c.shape)), np.empty((length, *c.shape), np.int16)
    for k in range(0, len(a), length):
        block = slice(k, k + length)
        size = len(a[block])
        np.add(exponents_a[block], exponents_b[block], out=exponents[:size])
        largest = _largest(exponents[:size].max(axis=0), d, result)
        terms = np.multiply(a[block], b[block], out=buffer[:size])
        d = _round(_aligned_sum(terms, d, largest, spec.fraction_bits), spec, result)
    return d


def _largest(products: NDArray[np.int16], c: Floats, result: Format) -> NDArray[np.int64]:
    """The block's largest exponent, of the products, of C, and at least -126; shifted to where FP64 has its own."""
    field = np.maximum(products, ZERO_EXPONENT).astype(np.int64)
    field <<= _POINT
    of_c = c.view(np.int64) & _EXPONENT
    of_c -= _BIAS << _POINT
    if result.emin > ZERO_EXPONENT:  # a subnormal FP16 C has no leading one: its exponent is emin
        np.maximum(of_c, result.emin << _POINT, out=of_c, where=c != 0)
    np.minimum(of_c, FP32.emax << _POINT, out=of_c)  # an infinite C stays so, whatever it is scaled by
    return np.asarray(np.maximum(field, of_c, out=field))


def _aligned_sum(terms: Floats, c: Floats, largest: NDArray[np.int64], fraction_bits: int) -> Floats:
    """Cut the terms [L, ...] and C to multiples of 2^(largest - fraction_bits) and add them; `terms` is overwritten."""
    scale = (((_BIAS + fraction_bits) << _POINT) - largest).view(np.float64)  # 2^(fraction_bits - largest)
    unscale = (((_BIAS - fraction_bits) << _POINT) + largest).view(np.float64)
    terms *= scale
    total: Floats = _cut(terms).sum(axis=0)
    total += _cut(c * scale)
    total *= unscale
    return total


def _cut(terms: Floats) -> Floats:
    return np.trunc(terms, out=terms)


def _round(total: Floats, spec: MmaSpec, result: Format) -> Floats:
    """Round a block's exact sum to the result format; it stays in FP64."""
    if result == FP16:
        return to_half(total)
    if _reaches_subnormals(spec):
        small = np.abs(total) < FP32.smallest_normal
        if small.any():
            spacing = FP32.smallest_subnormal
            total[small] = np.copysign(np.trunc(total[small] / spacing) * spacing, total[small])
    bits = total.view(np.int64)
    bits &= -1 << (_POINT - spec.result_significand_bits)
    return total.astype(np.float32).astype(np.float64)


def to_half(values: Floats) -> Floats:
    """Round to FP16, nearest even, in FP64: what numpy's cast returns, several times faster.

    Beside 1.5 * 2^(e + 42), FP64 counts in steps of 2^(e - 10), FP16's own for a number with exponent e; so adding that
    rounds, and subtracting it is exact.
    """
    field = values.view(np.int64) & _EXPONENT
    np.maximum(field, (FP16.emin + _BIAS) << _POINT, out=field)
    field += (_POINT - FP16.significand_bits << _POINT) + (1 << (_POINT - 1))  # 2^e becomes 1.5 * 2^(e + 42)
    anchor = field.view(np.float64)
    rounded = values + anchor
    rounded -= anchor
    rounded[np.abs(rounded) > FP16.max] = np.inf
    return np.copysign(rounded, values)


def _reaches_subnormals(spec: MmaSpec) -> bool:
    """Whether a block's sum may be finer than FP32's subnormals: a term's last bit lies below theirs."""
    return 2 * spec.operands.emin < FP32.emin


def _store(d: Floats, result: Format) -> NDArray[Any]:
    """Return FP64 values of the result format in its own type, NaN as Tensor Cores write it."""
    kind = np.float16 if result == FP16 else np.float32
    stored = np.ascontiguousarray(d.astype(kind))
    stored.view(_NAN[result].dtype)[np.isnan(d)] = _NAN[result]
    return stored
