"""Bit-exact emulation of Tensor Core products, vectorised over all elements of D.

Operands are validated and upcast, and the model of `mma` is computed block by block. A block's
terms are scaled so that their last kept place is 1. Then cutting is truncation, the sum is one of
integers, and scaling back is exact. The two roundings of the model (cutting each aligned term,
rounding the sum) are the only ones. This module uses numpy; where numba is installed, `compiled` is
faster.

Invariant: every bit of D is what the model says, for every input: subnormals, zeros of both signs,
infinities, NaN.

Why FP64 is exact. Let E be the block's largest exponent, F the fraction bits, L the block length.
1. A product of two operands has at most 22 significant bits and is between 2^-266 and 2^256: FP64
represents it.
2. -126 <= E <= 254, so 2^(F-E) is a normal FP64 number and scaling by it is exact: 2^-266 *
2^(13-254) is still normal.
3. A scaled product is below 4 * 2^F (significands below 2, not normalised), a scaled C below 2 *
   2^F; both are cut to integers. Their sum, in any order, is an integer below (4L + 2) * 2^F <=
   2^33 (`MmaSpec.sum_limit`, tested): far below 2^53, so no addition rounds.
4. Scaling back by 2^(E-F) is exact. FP32 results are cut by clearing the last bits of the FP64
   number. The cast to FP32 then does not round, and may only overflow. FP16 results are rounded by
   one FP64 addition (`to_half`).
Infinities and NaN follow IEEE 754 through the same additions, since truncation and scaling keep
both.

Why FP32 is exact, in half the time, for finite FP16 or FP8 operands and C of 0 or at least 2^-48. A
product is a multiple of 2^-48 below 2^32, so FP32 represents it. Scaled, it is exact or below 1,
and is cut to an integer below 2^27. The sum of L of them has 32 bits (`width_for` checks it); C is
added in FP64.

Not reproduced: cuBLAS's order of blocks and its splits of K, which are undocumented.

Source: as `mma`. No source states the sign of a zero: this model returns +0 for an exact 0, and
keeps the sign of an underflow.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.formats import FP16, FP32, TF32, Format, FormatLike, as_format, round_to
from labkit.formats.arguments import require_kind
from labkit.gemm.mma import ZERO_EXPONENT, MmaSpec, as_spec
from labkit.interop import format_of

Floats: TypeAlias = NDArray[np.floating[Any]]

VARIABLE = "LABKIT_EMULATOR"
# The smallest number of elements of D for each thread.
PIECE = 2**12
# Aligned terms in one block of work, which fit into a core's cache.
TILE = 2**16
# FP64's exponent field begins at bit 52 and holds the exponent plus 1023.
_POINT = 52
_BIAS = 1023


@dataclass(frozen=True)
class Width:
    """Types in which terms are computed.

    Attributes:
        floats, whole: type of the terms, and of the cut terms.
        bits: integers of the same size; the exponent field begins at bit `point` and is shifted by
            `bias`.
        least: power of two of a block whose terms are all zero.
    """

    floats: type
    whole: type
    bits: type
    point: int
    bias: int
    least: float


WIDE = Width(np.float64, np.float64, np.int64, _POINT, _BIAS, 2.0**ZERO_EXPONENT)
NARROW = Width(np.float32, np.int32, np.int32, 23, 127, 2.0**-64)


def emulator() -> str:
    """Return the backend of the emulation: "numba" and its version, or "numpy".

    The environment variable LABKIT_EMULATOR ("numba" or "numpy") selects one.

    Raises:
        ValueError: LABKIT_EMULATOR is neither.
        RuntimeError: LABKIT_EMULATOR is "numba", which cannot be imported.

    >>> emulator().split()[0] in ("numba", "numpy")
    True
    """
    backend = os.environ.get(VARIABLE, "")
    if backend not in ("", "numba", "numpy"):
        raise ValueError(f'expected "numba", "numpy" or nothing in {VARIABLE}, got {backend!r}')
    if backend == "numpy":
        return backend
    try:
        return f"numba {import_module('numba').__version__}"
    except ImportError as error:
        # Numba is not installed, or does not fit this numpy.
        if backend:
            raise RuntimeError(
                f'{VARIABLE} is numba: {error}. `pip install "fp16-lab[fast]"` installs it.'
            ) from error
        return "numpy"


def blocks(a: Floats, b: Floats, c: Floats, spec: MmaSpec, result: Format) -> Floats:
    """Return D[g,m,n] for A[g,m,k], B[g,k,n] and C[g,m,n], tile by tile.

    It runs in torch's number of threads.
    """
    # the last dimension, which is the fastest, should be the longer one
    if a.shape[1] > b.shape[2]:
        return blocks(
            b.swapaxes(1, 2), a.swapaxes(1, 2), c.swapaxes(1, 2), spec.transposed(), result
        ).swapaxes(1, 2)
    # The compiled loop runs along columns, and adds four products at a time; numpy is faster for
    # many single elements.
    if emulator() != "numpy" and spec.block_length % 4 == 0 and b.shape[2] > 1:
        return _compiled(a, b, c, spec, result)
    width = width_for(a, b, c, spec)
    # their shapes are now [k, g, m, 1] and [k, g, 1, n]
    a = a.transpose(2, 0, 1)[..., None]
    b = b.transpose(1, 0, 2)[:, :, None]
    a, b, c = (np.ascontiguousarray(each, width.floats) for each in (a, b, c))
    powers_a = _powers(a, spec.operands, width)
    powers_b = _powers(b, spec.right, width)
    d = np.empty(c.shape, np.float32)

    def work(tile: tuple[slice, slice, slice]) -> None:
        g, i, j = tile
        left = (slice(None), g, i)
        right = (slice(None), g, slice(None), j)
        powers = powers_a[left], powers_b[right]
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            d[tile] = _tile(a[left], b[right], powers, c[tile], spec, result, width)

    in_threads(work, list(tiles(c.shape, TILE // spec.block_length)))
    return d


def _compiled(a: Floats, b: Floats, c: Floats, spec: MmaSpec, result: Format) -> Floats:
    # This module requires numba.
    from labkit.gemm.compiled import add_blocks

    # zeros complete the last block, and do not change its sum
    more = -a.shape[2] % spec.block_length
    if more:
        a = np.pad(a, ((0, 0), (0, 0), (0, more)))
        b = np.pad(b, ((0, 0), (0, more), (0, 0)))
    # the compiled functions take contiguous, writable FP32 arrays
    a, b = (np.require(each, np.float32, ("C", "W")) for each in (a, b))
    operands = a, _powers(a, spec.operands, NARROW), b, _powers(b, spec.right, NARROW)
    d = np.array(c, np.float32, order="C")
    kept = -1 << (_POINT - spec.result_significand_bits)
    narrow = width_for(a, b, None, spec) is NARROW
    how = (
        spec.block_length,
        spec.fraction_bits,
        2.0**result.emin,
        kept,
        result == FP16,
        spec.reaches_subnormals,
    )

    def work(tile: tuple[slice, slice, slice]) -> None:
        ends = tuple(
            end for part, size in zip(tile, d.shape, strict=True) for end in part.indices(size)[:2]
        )
        add_blocks(*operands, d, ends, narrow, *how)

    in_threads(work, list(tiles(d.shape, max(PIECE, -(-d.size // torch.get_num_threads())))))
    return d


def _powers(values: Floats, format: Format, width: Width) -> Floats:
    """Return each operand's power of two: emin for a subnormal, emax for infinity, 0 for zero."""
    bits = values.view(width.bits) & width.bits(2 * width.bias + 1 << width.point)
    np.clip(
        bits,
        format.emin + width.bias << width.point,
        format.emax + width.bias << width.point,
        out=bits,
    )
    bits *= values != 0
    return np.asarray(bits.view(width.floats))


Piece = TypeVar("Piece")


def in_threads(work: Callable[[Piece], object], pieces: Sequence[Piece]) -> None:
    """Call `work` with each piece, in torch's number of threads."""
    threads = min(torch.get_num_threads(), len(pieces))
    if threads <= 1:
        for piece in pieces:
            work(piece)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, pieces))


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


def width_for(a: Floats, b: Floats, c: Floats | None, spec: MmaSpec) -> Width:
    """Return the narrowest exact width, see the module; c is None if C is added in FP64."""
    formats = spec.operands, spec.right
    # the largest product of two significands
    largest = math.prod(2 - 2.0**-format.significand_bits for format in formats)
    if (
        not all(map(FP16.contains, formats))
        or spec.block_length * largest * 2**spec.fraction_bits >= 2**31
    ):
        return WIDE
    finite = np.isfinite(a).all() and np.isfinite(b).all()
    small = c is not None and bool(((np.abs(c) < 2.0**-48) & (c != 0)).any())
    return NARROW if finite and not small else WIDE


def _tile(
    a: Floats,
    b: Floats,
    powers: tuple[Floats, Floats],
    c: Floats,
    spec: MmaSpec,
    result: Format,
    width: Width,
) -> Floats:
    """Add all blocks to C: A and its powers are [k, g, m, 1], B and its powers [k, g, 1, n]."""
    length, d = spec.block_length, c
    terms = np.empty((length, *c.shape), width.floats)
    whole = terms if width.whole is width.floats else np.empty(terms.shape, width.whole)
    for k in range(0, len(a), length):
        block = slice(k, k + length)
        size = len(a[block])
        # exponents are added by multiplication
        np.multiply(powers[0][block], powers[1][block], out=terms[:size])
        unit = _unit(terms[:size].max(axis=0), d, spec, result, width)
        scale = (width.bits(2 * width.bias << width.point) - unit).view(width.floats)
        np.multiply(a[block], b[block], out=terms[:size])
        terms[:size] *= scale
        _cut(terms[:size], whole[:size])
        total = whole[:size].sum(axis=0, dtype=width.whole).astype(np.float64, copy=False)
        scale *= d
        _cut(scale, scale)
        total += scale
        total *= unit.view(width.floats)
        d = _round(total, spec, result).astype(np.float32).astype(width.floats, copy=False)
    return d


def _unit(power: Floats, c: Floats, spec: MmaSpec, result: Format, width: Width) -> NDArray[Any]:
    """Return the bits of a kept term's last place, 2^(E-F).

    2^E is the largest power, of the products or of C.
    """
    field = np.maximum(power, width.floats(width.least)).view(width.bits)
    of_c = c.view(width.bits) & width.bits(2 * width.bias + 1 << width.point)
    # a subnormal FP16 C has no leading one: its exponent is emin
    if result.emin > ZERO_EXPONENT:
        np.maximum(of_c, result.emin + width.bias << width.point, out=of_c, where=c != 0)
    np.maximum(field, of_c, out=field)
    field -= width.bits(spec.fraction_bits << width.point)
    return np.asarray(field)


def _cut(terms: Floats, out: NDArray[Any]) -> None:
    """Truncate into `out`; for integers, the cast does."""
    if out.dtype.kind == "i":
        np.copyto(out, terms, casting="unsafe")
    else:
        np.trunc(terms, out=out)


def _round(total: NDArray[np.float64], spec: MmaSpec, result: Format) -> NDArray[np.float64]:
    """Round a block's exact sum to the result format; it stays in FP64."""
    if result == FP16:
        return to_half(total)
    if spec.reaches_subnormals:
        small = np.abs(total) < FP32.smallest_normal
        if small.any():
            spacing = FP32.smallest_subnormal
            total[small] = np.copysign(np.trunc(total[small] / spacing) * spacing, total[small])
    bits = total.view(np.int64)
    bits &= -1 << (_POINT - spec.result_significand_bits)
    return total


def to_half(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to FP16, nearest even, in FP64: equal to numpy's cast, several times faster.

    At 1.5 * 2^(e + 42), the spacing of FP64 is 2^(e - 10), that of FP16 for exponent e. So adding
    that number rounds, and subtracting it is exact.
    """
    # numpy makes scalars of arrays without dimensions; they cannot be written to
    field = np.asarray(values.view(np.int64) & (0x7FF << _POINT))
    np.maximum(field, (FP16.emin + _BIAS) << _POINT, out=field)
    # 2^e becomes 1.5 * 2^(e + 42)
    field += (_POINT - FP16.significand_bits << _POINT) + (1 << (_POINT - 1))
    anchor = field.view(np.float64)
    rounded = np.asarray(values + anchor)
    rounded -= anchor
    rounded[np.abs(rounded) > FP16.max] = np.inf
    return np.copysign(rounded, values)


Matrix = TypeVar("Matrix", Tensor, NDArray[Any])
Real = TypeVar("Real", bound=np.floating[Any])

# The bits of an FP32 number that TF32 keeps: all but the last 13.
_TF32_BITS = np.int32(-1 << 13)
_NAN: dict[Format, np.signedinteger] = {FP32: np.int32(0x7FFFFFFF), FP16: np.int16(0x7FFF)}


def emulate(
    A: Matrix, B: Matrix, C: Matrix | None, spec: MmaSpec | str, out: FormatLike | None = None
) -> Matrix:
    """Return D = A @ B + C as the Tensor Core `spec` computes it.

    Shapes: D[..., m, n], A[..., m, k], B[..., k, n], C[..., m, n].

    K may be longer than one block: each block adds to the D of the block before. The last one is
    padded with zeros, which do not change the result.

    Args:
        A: torch tensor or numpy array [..., m, k] with values of `spec.operands`, in their dtype or
            a wider one. Of TF32, FP32 numbers whose last 13 bits are cut off, of a NaN too: the
            instruction ignores them.
        B: the same [..., k, n], with values of `spec.right`. Leading dimensions must agree.
        C: values of the result format, or None for zeros.
        spec: the instruction: a row of `SPECS`.
        out: FP32 or FP16, the format of C and D; by default `spec.result`.

    Raises:
        TypeError: an operand is neither a tensor nor an array of floats.
        ValueError: the shapes do not match; the formats do not represent the values; the
            instruction has no such result format.

    Source: arXiv:2511.10909.

    >>> from labkit.gemm.mma import SPECS
    >>> ones, tiny = torch.ones(1, 16).half(), torch.full((16, 1), 2.0**-24).half()
    >>> specs = [SPECS[gpu] for gpu in ("V100", "A100", "H100")]
    >>> [(emulate(ones, tiny, torch.ones(1, 1), spec) - 1).item() * 2**24 for spec in specs]
    [0.0, 16.0, 16.0]
    """
    spec = as_spec(spec)
    if out is not None:
        out = as_format(out, "out")
    result = spec.result if out is None else out
    if result not in spec.results:
        raise ValueError(
            f"{spec.name} with {spec.operands.name} operands: expected out to be "
            f"{' or '.join(row.name for row in spec.results)}, got {result.name}. Round its FP32 "
            "result instead."
        )
    a: Floats = operand(A, spec.operands, "A")
    b: Floats = operand(B, spec.right, "B")
    if C is not None:
        require_kind(C, (torch.Tensor, np.ndarray), "C", "Pass None for zeros")
    check_shapes(a.shape, b.shape, None if C is None else tuple(C.shape))
    shape = (*a.shape[:-1], b.shape[-1])
    c: Floats = np.zeros(shape, np.float32) if C is None else operand(C, result, "C")
    d = blocks(sheets(a), sheets(b), sheets(c), spec, result)
    stored = np.ascontiguousarray(d, np.float16 if result == FP16 else np.float32)
    # the NaN of Tensor Cores
    stored.view(_NAN[result].dtype)[np.isnan(d)] = _NAN[result]
    stored = stored.reshape(shape)
    if isinstance(A, Tensor):
        return torch.from_numpy(stored).to(A.device)
    return stored


def operand(matrix: Tensor | NDArray[Any], format: Format, name: str) -> Floats:
    """Return a matrix as FP32 numbers after a check that `format` represents them.

    FP32 numbers for TF32 are cut.

    Raises:
        TypeError, ValueError: see `emulate`.
    """
    if isinstance(matrix, Tensor) and matrix.is_floating_point():
        stored: object = format_of(matrix.dtype)
        matrix = matrix.detach().cpu()
    elif isinstance(matrix, np.ndarray) and matrix.dtype.kind == "f":
        stored = {"float16": FP16, "float32": FP32}.get(matrix.dtype.name)
    else:
        raise TypeError(
            f"expected a torch tensor or a numpy array of floats for {name}, got "
            f"{getattr(matrix, 'dtype', type(matrix))}"
        )
    # by bits: a NaN whose only ones are among the last 13 becomes an infinity
    if (format, stored) == (TF32, FP32):
        # A signalling NaN stays one.
        with np.errstate(invalid="ignore"):
            return (np.asarray(matrix).view(np.int32) & _TF32_BITS).view(np.float32)
    if stored == format:
        if isinstance(matrix, Tensor):
            return matrix.float().numpy()
        return np.asarray(matrix, np.float32)
    values: Floats
    if isinstance(matrix, Tensor):
        values = matrix.double().numpy()
    else:
        values = matrix.astype(np.float64)
    off = ~((round_to(values, format) == values) | np.isnan(values))
    if off.any():
        raise ValueError(
            f"expected {format.name} values in {name}, got {values[off].item(0)!r}. Round it "
            f"first: round_tensor({name}, {format.name}), or {name}.to(dtype) where torch has one."
        )
    return values.astype(np.float32)


def check_shapes(a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...] | None) -> None:
    """Raise ValueError unless A[..., m, k] @ B[..., k, n] + C[..., m, n] has matching shapes."""
    fits = len(a) == len(b) >= 2 and a[:-2] == b[:-2] and a[-1] == b[-2]
    if not fits or (c is not None and c != (*a[:-1], b[-1])):
        shapes = f"A{list(a)}, B{list(b)}" + (f", C{list(c)}" if c is not None else "")
        raise ValueError(
            "expected D[m,n] = A[m,k] @ B[k,n] + C[m,n] with equal leading dimensions, got "
            f"{shapes}"
        )


def sheets(matrices: NDArray[Real]) -> NDArray[Real]:
    """View [..., rows, columns] as [g, rows, columns]."""
    return matrices.reshape(math.prod(matrices.shape[:-2]), *matrices.shape[-2:])
