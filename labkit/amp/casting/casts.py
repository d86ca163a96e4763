"""Differentiable casts to any format, emulated where torch has no dtype for it.

Idea: FP16 and BF16 are torch dtypes, and a cast to them is torch's. Any other format is emulated:
the tensor stays FP32, its values are rounded to the format, and in the backward pass its gradient
is rounded to a format as well. This equals the effect of storage in the format.

Invariant: the values are those of `round_tensor`, except that infinities, of which masks consist,
stay infinite. A cast changes a gradient only by rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from labkit.amp.casting.cast_cache import CastCache, keeps
from labkit.formats import FP32, Format
from labkit.instrument.events import CastBegins, CastEnded
from labkit.instrument.stream import STREAM
from labkit.interop import format_of, round_keeping_infinity

# Formats that are stored in their dtype, with their casts (an FP8 tensor has no kernels but the
# scaled GEMM's). Tensor.half takes half the time of Tensor.to, which has to parse its arguments.
NATIVE = {torch.float16: Tensor.half, torch.bfloat16: Tensor.bfloat16, torch.float32: Tensor.float}


@dataclass(frozen=True)
class Cast:
    """A cast that rounds tensors to one format, and their gradients to the same or another one.

    Attributes:
        format: the format of values.
        gradient_format: the format of gradients; None for `format`.

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
        for format in (self.format, self.gradient_format):
            if format is None:
                continue
            if not (format.signed and format.has_zero):
                raise ValueError(
                    f"{format.name} has no zero or no sign: it stores scales. Take E4M3 or E5M2."
                )
            if not FP32.contains(format):
                raise ValueError(
                    f"{format.name} has numbers that FP32 cannot hold; autocast starts from FP32 "
                    "or less."
                )

    @cached_property
    def dtype(self) -> torch.dtype | None:
        """The torch dtype of the format, or None if it is emulated in FP32."""
        # torch's casts round a gradient to the format of the value
        if self.gradient_format is not None and self.gradient_format != self.format:
            return None
        for dtype in NATIVE:
            if format_of(dtype) == self.format:
                return dtype
        return None

    def __call__(self, tensor: Tensor, cache: CastCache | None = None) -> Tensor:
        """Return the differentiable cast of a tensor.

        A weight's values come from the cache, if there is one.
        """
        dtype = self.dtype
        if tensor.dtype is dtype:
            return tensor
        if cache is None or not keeps(tensor):
            return self._cast(tensor)
        # the same format may be stored in one region and emulated in another
        identity = dtype or self.format
        values = cache.find(tensor, identity)
        if values is not None:
            return self.linked(tensor, values)
        cast = self._cast(tensor)
        cache.keep(tensor, identity, cast)
        return cast

    def _cast(self, tensor: Tensor) -> Tensor:
        if not (STREAM.listeners and STREAM.observes(CastBegins)):
            return self._cast_unobserved(tensor)
        STREAM.emit(CastBegins())
        try:
            return self._cast_unobserved(tensor)
        finally:
            STREAM.emit(CastEnded())

    def _cast_unobserved(self, tensor: Tensor) -> Tensor:
        dtype = self.dtype
        if dtype is not None:
            return NATIVE[dtype](tensor)
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
        """Return the gradient of the original tensor, from that of its cast."""
        if self.dtype is not None:
            return gradient
        # autocast does not apply to the operations of a rounding
        with torch._C.DisableTorchFunction():
            return Cast(self.gradient_format or self.format, self.format)(gradient)


class _Linked(torch.autograd.Function):
    """Use given values as the cast of a tensor.

    Forward returns the values, backward rounds the gradient as the cast does.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, values: Tensor, cast: Cast) -> Tensor:
        ctx.cast = cast
        ctx.dtype = tensor.dtype
        return values.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.cast.of_gradient(gradients[0]).to(ctx.dtype), None, None


class _LinkedInTransforms(_Linked):
    """`_Linked` for torch.func, which requires a separate `setup_context` and is slower."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, values: Tensor, cast: Cast) -> Tensor:  # type: ignore[override]
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.cast = inputs[2]
        ctx.dtype = inputs[0].dtype
