"""What is a matrix product that adds up as told, forward and backward?

Idea: the backward pass of D = A @ B is two products more, dA = dD @ B^T and dB = A^T @ dD. All three multiply numbers
of a format and add them up in the same accumulator. Where torch stores that format, its dtype says so; where
it is emulated in FP32 tensors (FP8, TF32), `Emulated` does.

Invariant: every operand is rounded to its format before it is multiplied, and every result once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from labkit.formats import BF16, FP16, FP32, Format
from labkit.gemm.accumulators import AnyAccumulator, accumulate, instruction_for
from labkit.gemm.mma import MmaSpec
from labkit.interop import format_of, round_tensor


def matmul(a: Tensor, b: Tensor, accumulator: AnyAccumulator, dtype: torch.dtype | None = None) -> Tensor:
    """Return a @ b with torch.matmul's rules for shapes, added up by `accumulator`, forward and backward.

    The two GEMMs of the backward pass, dA = dD @ B^T and dB = A^T @ dD, go through the accumulator as well; the
    gradient that comes in is rounded to the operands' dtype first, as they are multiplied by it, and theirs are
    rounded to it once.

    Args:
        dtype: of the result, rounded once; that of `a` unless given.

    Raises:
        RuntimeError: the operands' dtypes differ.
        TypeError, ValueError: see `accumulate`.

    >>> from labkit.gemm.accumulators import SEQUENTIAL_FP16
    >>> w = torch.ones(4096).half().requires_grad_()
    >>> y = matmul(torch.ones(1, 4096).half(), w, SEQUENTIAL_FP16); y.backward(torch.ones(1).half())
    >>> y.item(), w.grad.dtype
    (2048.0, torch.float16)
    """
    if a.dtype != b.dtype:
        raise RuntimeError(f"expected operands of one dtype, as hardware multiplies; got {a.dtype} and {b.dtype}")
    left, right = (a[None] if a.dim() == 1 else a), (b[:, None] if b.dim() == 1 else b)
    product = _batched(left, right, accumulator, dtype or a.dtype)
    product = product.squeeze(-2) if a.dim() == 1 else product
    return product.squeeze(-1) if b.dim() == 1 else product


@dataclass(frozen=True)
class Emulated:
    """An accumulator for FP32 tensors that stand for a narrower format, as under an autocast that emulates it.

    accumulator      what the products are added up in
    format           what operands are rounded to
    gradient_format  what a gradient is, before it is multiplied

    Raises:
        ValueError: the accumulator is a GPU's, which has no instruction for these operands.
    """

    accumulator: AnyAccumulator
    format: Format
    gradient_format: Format

    def __post_init__(self) -> None:
        if isinstance(self.accumulator, MmaSpec):
            instruction_for(self.accumulator, self.format)
            instruction_for(self.accumulator, self.gradient_format, self.format)

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Return A[..., m, k] @ B[..., k, n] in FP32, differentiable."""
        d: Tensor = _Product.apply(a, b, self.accumulator, self.format, self.gradient_format, torch.float32)  # type: ignore[no-untyped-call]
        return d


def product(a: Tensor, b: Tensor, accumulator: AnyAccumulator, operands: torch.dtype, result: torch.dtype) -> Tensor:
    """Return A[..., m, k] @ B[..., k, n] of operands cast to a dtype, in the dtype `result`; differentiable."""
    if callable(accumulator):  # a product of its own: `Emulated`, or those of `labkit.amp.scales`
        return accumulator(a, b)
    format = format_of(operands)
    d: Tensor = _Product.apply(a, b, accumulator, format, format, result)  # type: ignore[no-untyped-call]
    return d


class _Product(torch.autograd.Function):
    """D = A @ B of operands in `format`, and its two backward products, which take gradients in `of_gradient`."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, accumulator: AnyAccumulator, format: Format, of_gradient: Format,
        result: torch.dtype,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(a, b)
        ctx.accumulator, ctx.formats = accumulator, (format, of_gradient)
        return accumulate(_in(a, format), _in(b, format), None, accumulator, format_of(result), (format, format))

    @staticmethod
    @once_differentiable  # these products are not recorded, so a second derivative is refused rather than wrong
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (a, b), (format, of_gradient) = ctx.saved_tensors, ctx.formats
        d = _in(gradients[0], of_gradient)
        need_a, need_b = ctx.needs_input_grad[:2]
        left, right = (of_gradient, format), (format, of_gradient)
        of_a = accumulate(d, _in(b.mT, format), None, ctx.accumulator, format_of(a.dtype), left) if need_a else None
        of_b = accumulate(_in(a.mT, format), d, None, ctx.accumulator, format_of(b.dtype), right) if need_b else None
        return of_a, of_b, None, None, None, None


def _in(tensor: Tensor, format: Format) -> Tensor:
    """Round to a format: in its dtype, or in FP32 where torch does not compute in it."""
    if format_of(tensor.dtype) == format:
        return tensor
    dtype = {FP16: torch.float16, BF16: torch.bfloat16, FP32: torch.float32}.get(format)
    return round_tensor(tensor.detach().float(), format) if dtype is None else tensor.to(dtype)


def _batched(a: Tensor, b: Tensor, accumulator: AnyAccumulator, result: torch.dtype) -> Tensor:
    """a[..., m, k] @ b[..., k, n] with broadcast leading dimensions; those of `a` are rows if `b` has none."""
    if b.dim() == 2:
        flat = product(a.reshape(-1, a.shape[-1]), b, accumulator, a.dtype, result)
        return flat.reshape(*a.shape[:-1], b.shape[-1])
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (part.expand(*batch, *part.shape[-2:]) for part in (a, b))
    return product(a, b, accumulator, a.dtype, result)
