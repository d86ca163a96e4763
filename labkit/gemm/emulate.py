"""What would a Tensor Core have computed, to the bit?

Idea: check and upcast the operands, carry out the model of `mma` for all elements of D, block after block (`blocks`),
and store what came of it.

Invariant: every bit of D is what the model says, for every input: subnormals, zeros of both signs, infinities, NaN.

What it does not do: say in which order cuBLAS adds blocks, or whether it splits K. Nobody promises one.

Source: as `mma`. No source tells the sign of a zero: here an exact 0 is +0, and what underflows keeps its sign.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.formats import FP16, FP32, TF32, Format, round_to
from labkit.gemm.blocks import Floats, blocks
from labkit.gemm.mma import MmaSpec
from labkit.interop import format_of

Matrix = TypeVar("Matrix", Tensor, NDArray[Any])
Real = TypeVar("Real", bound=np.floating[Any])

_TF32_BITS = np.int32(-1 << 13)  # of an FP32 number: all but the last 13
_NAN: dict[Format, np.signedinteger] = {FP32: np.int32(0x7FFFFFFF), FP16: np.int16(0x7FFF)}


def emulate(A: Matrix, B: Matrix, C: Matrix | None, spec: MmaSpec, out: Format | None = None) -> Matrix:
    """Return D[..., m, n] = A[..., m, k] @ B[..., k, n] + C[..., m, n] as the Tensor Core `spec` computes it.

    K may be longer than one block: blocks follow one another, and each takes the last D as its C. A last block that is
    not full is filled up with zeros, which change nothing.

    Args:
        A, B: torch tensors or numpy arrays with values of `spec.operands` and `spec.right`, in their dtypes or wider
            ones. For TF32, FP32 numbers whose last 13 bits are cut off, of a NaN too: the instruction ignores them.
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
    b: Floats = operand(B, spec.right, "B")
    check_shapes(a.shape, b.shape, None if C is None else tuple(C.shape))
    shape = (*a.shape[:-1], b.shape[-1])
    c: Floats = np.zeros(shape, np.float32) if C is None else operand(C, result, "C")
    d = blocks(sheets(a), sheets(b), sheets(c), spec, result)
    return like(A, _store(d, result).reshape(shape))


def operand(matrix: Tensor | NDArray[Any], format: Format, name: str) -> Floats:
    """Return a matrix as FP32 numbers if it holds values of `format` only; FP32 numbers for TF32 are cut to it.

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
            return (np.asarray(matrix).view(np.int32) & _TF32_BITS).view(np.float32)
    if stored == format:
        return matrix.float().numpy() if isinstance(matrix, Tensor) else np.asarray(matrix, np.float32)
    values: Floats = matrix.double().numpy() if isinstance(matrix, Tensor) else matrix.astype(np.float64)
    off = ~((round_to(values, format) == values) | np.isnan(values))
    if off.any():
        raise ValueError(
            f"{name} must hold {format.name} values, and {values[off].item(0)!r} is none. "
            f"Round it first: round_tensor({name}, {format.name}), or {name}.to(dtype) where torch has one."
        )
    return values.astype(np.float32)


def check_shapes(a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...] | None) -> None:
    """Raise ValueError unless A[..., m, k] @ B[..., k, n] + C[..., m, n] makes sense."""
    fits = len(a) == len(b) >= 2 and a[:-2] == b[:-2] and a[-1] == b[-2]
    if not fits or (c is not None and c != (*a[:-1], b[-1])):
        given = f"A{list(a)}, B{list(b)}" + (f", C{list(c)}" if c is not None else "")
        raise ValueError(f"D[m,n] = A[m,k] @ B[k,n] + C[m,n], with equal leading dimensions; it was given {given}.")


def like(given: Matrix, values: NDArray[Any]) -> Matrix:
    """Return values as a tensor on the device of `given` if that is one, else as they are."""
    return torch.from_numpy(values).to(given.device) if isinstance(given, Tensor) else values


def sheets(matrices: NDArray[Real]) -> NDArray[Real]:
    """View [..., rows, columns] as [g, rows, columns]."""
    return matrices.reshape(math.prod(matrices.shape[:-2]), *matrices.shape[-2:])


def _store(d: Floats, result: Format) -> NDArray[Any]:
    """Return values of the result format in its own type, NaN as Tensor Cores write it."""
    kind = np.float16 if result == FP16 else np.float32
    stored = np.ascontiguousarray(d, kind)
    stored.view(_NAN[result].dtype)[np.isnan(d)] = _NAN[result]
    return stored
