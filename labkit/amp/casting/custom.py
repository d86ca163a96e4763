"""In which dtypes does an operation run whose forward and backward somebody wrote?

Idea: `custom_fwd` notes which autocast regions are open when forward runs, and `custom_bwd` opens them again for
backward, which runs when they have closed. An operation that needs one dtype says so (`cast_inputs`): then its inputs
are cast to it, and autocast is off in forward and backward.

Invariant: an operation inside backward is cast as it would have been in forward.

Source: torch.amp.custom_fwd and custom_bwd (meaning; ours need no device_type).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from labkit.amp.casting.autocast import CASTABLE, autocast, current
from labkit.formats import Format
from labkit.interop import dtype_of
from labkit.modes import mapped, open_modes, under

_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def custom_fwd(forward: _Function, *, cast_inputs: Format | torch.dtype | None = None) -> _Function: ...
@overload
def custom_fwd(*, cast_inputs: Format | torch.dtype | None = None) -> Callable[[_Function], _Function]: ...
def custom_fwd(forward: Any = None, *, cast_inputs: Format | torch.dtype | None = None) -> Any:
    """Decorate the `forward` of a `torch.autograd.Function`, below `@staticmethod`; `custom_bwd` decorates `backward`.

    Args:
        cast_inputs: inside a region, floating-point inputs (but FP64) are cast to this format, and forward runs with
            autocast off. None: operations inside are cast as everywhere in the region. Outside of one, nothing is done.

    >>> class Product(torch.autograd.Function):
    ...     @staticmethod
    ...     @custom_fwd(cast_inputs=torch.float32)
    ...     def forward(ctx, a, b):
    ...         return a @ b
    >>> with autocast():
    ...     Product.apply(torch.ones(2, 2).half(), torch.ones(2, 2).half()).dtype
    torch.float32
    """
    if forward is None:
        return partial(custom_fwd, cast_inputs=cast_inputs)
    dtype = dtype_of(cast_inputs) if isinstance(cast_inputs, Format) else cast_inputs

    @wraps(forward)
    def decorated(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._modes = open_modes()
        if dtype is None or current() is None:
            return forward(ctx, *args, **kwargs)
        with autocast(enabled=False):
            ctx._modes = open_modes()
            cast = partial(mapped, change=lambda tensor: _to(tensor, dtype))
            return forward(ctx, *cast(args), **cast(kwargs))

    return decorated


def custom_bwd(backward: _Function) -> _Function:
    """Decorate the `backward` of a `torch.autograd.Function`: it runs under the regions that forward ran under.

    Raises:
        RuntimeError: forward was not decorated with `custom_fwd`.
    """

    @wraps(backward)
    def decorated(ctx: Any, *gradients: Any) -> Any:
        if not hasattr(ctx, "_modes"):
            raise RuntimeError("backward has custom_bwd, but forward has no custom_fwd: decorate both.")
        if current() is not None and not any(isinstance(mode, autocast) for mode in ctx._modes):
            with autocast(enabled=False):  # backward was called inside a region that forward knew nothing of
                return backward(ctx, *gradients)
        return under(ctx._modes, backward, ctx, *gradients)

    return decorated  # type: ignore[return-value]


def _to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.dtype in CASTABLE else tensor
