"""What is a cast to a format that the machine may not have?

Idea: FP16 and BF16 are torch dtypes, and a cast to them is torch's. Any other format is emulated: the tensor stays
FP32, its values are rounded to the format, and on the way back its gradient is rounded to a format as well. That is
what storage in the format would have done to both.

Invariant: equal to `round_tensor` written out, but that an infinity stays one: masks are made of them.
A gradient passes through a cast unchanged but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from labkit.amp.casting.cast_cache import CastCache, keeps
from labkit.formats import FP32, Format
from labkit.interop import format_of, round_keeping_infinity

# Stored as what they are (an FP8 tensor has no kernels but the scaled GEMM's), and their casts: Tensor.half takes half
# the time of Tensor.to, which has to find out first what it is asked.
NATIVE = {torch.float16: Tensor.half, torch.bfloat16: Tensor.bfloat16, torch.float32: Tensor.float}


@dataclass(frozen=True)
class Cast:
    """To round tensors to a format, and their gradients to one.

    format           what values are rounded to
    gradient_format  what gradients are rounded to; None for `format`

    Raises:
        ValueError: FP32 cannot hold the format's numbers, or the format has no zero or no sign.

    >>> from labkit.formats import E4M3
    >>> x = torch.tensor([1.0, 1.06], requires_grad=True)
    >>> y = Cast(E4M3)(x)
    >>> (y * torch.tensor([1.06, 1.0])).sum().backward()
    >>> y.detach(), x.grad
    (tensor([1., 1.]), tensor([1., 1.]))
    """

    format: Format
    gradient_format: Format | None = None

    def __post_init__(self) -> None:
        for format in (self.format, self.gradient_format or self.format):
            if not (format.signed and format.has_zero):
                raise ValueError(f"{format.name} has no zero or no sign: it stores scales. Take E4M3 or E5M2.")
            if not FP32.holds(format):
                raise ValueError(f"{format.name} has numbers that FP32 cannot hold; autocast starts from FP32 or less.")

    @cached_property
    def dtype(self) -> torch.dtype | None:
        """The torch dtype of the format, or None where it is emulated in FP32."""
        same = self.gradient_format is None or self.gradient_format == self.format
        return next((dtype for dtype in NATIVE if same and format_of(dtype) == self.format), None)

    def __call__(self, tensor: Tensor, cache: CastCache | None = None) -> Tensor:
        """Return the cast of a tensor, differentiable; a weight's values come from the cache, if there is one."""
        dtype = self.dtype
        if tensor.dtype is dtype:
            return tensor
        if cache is None or not keeps(tensor):
            return self._emulated(tensor) if dtype is None else NATIVE[dtype](tensor)
        kept_as = dtype or self.format  # the same format may be stored in one region and emulated in another
        values = cache.find(tensor, kept_as)
        if values is not None:
            return self.linked(tensor, values)
        cast = self._emulated(tensor) if dtype is None else NATIVE[dtype](tensor)
        cache.keep(tensor, kept_as, cast)
        return cast

    def _emulated(self, tensor: Tensor) -> Tensor:
        wide = tensor.float()
        return self.linked(wide, round_keeping_infinity(wide.detach(), self.format))

    def linked(self, tensor: Tensor, values: Tensor) -> Tensor:
        """Return values that were computed without history as the cast of a tensor."""
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return values
        transformed = torch._C._are_functorch_transforms_active()
        function = _LinkedInTransforms if transformed else _Linked
        linked: Tensor = function.apply(tensor, values, self)  # type: ignore[no-untyped-call]
        return linked

    def of_gradient(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the tensor that was cast, for that of its cast."""
        if self.dtype is not None:
            return gradient
        with torch._C.DisableTorchFunction():  # no rule of autocast's holds for how a rounding is computed
            return Cast(self.gradient_format or self.format, self.format)(gradient)


class _Linked(torch.autograd.Function):
    """Values as the cast of a tensor: forward has no work left, backward rounds as the cast would have."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, values: Tensor, cast: Cast) -> Tensor:
        ctx.cast, ctx.dtype = cast, tensor.dtype
        return values.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.cast.of_gradient(gradients[0]).to(ctx.dtype), None, None


class _LinkedInTransforms(_Linked):
    """The same for torch.func, which wants context and forward apart, and takes longer to call it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, values: Tensor, cast: Cast) -> Tensor:  # type: ignore[override]
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.cast, ctx.dtype = inputs[2], inputs[0].dtype
