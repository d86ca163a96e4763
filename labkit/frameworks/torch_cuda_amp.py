"""torch.cuda.amp, the earlier, deprecated names of torch.amp that many scripts still import.

    from labkit.frameworks.torch_cuda_amp import GradScaler, autocast

These names take no device. They use the GPU if one is available and the CPU otherwise; without a
GPU, torch's own warn and do nothing. Everything else is as in `torch_amp`.

Source: torch.cuda.amp, 2.13 (signatures).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from labkit.frameworks import torch_amp

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


class autocast(torch_amp.autocast):
    """Run a block or function in the dtypes that torch.cuda.amp.autocast gives its operations.

    >>> with autocast():
    ...     (torch.ones(2, 3, device=_device()) @ torch.ones(3, 2, device=_device())).dtype
    torch.float16
    """

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype = torch.float16,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__(_device(), dtype, enabled, cache_enabled)


class GradScaler(torch_amp.GradScaler):
    """Scale losses, unscale gradients and skip steps with inf or NaN.

    It has the methods and arguments of torch.cuda.amp.GradScaler.
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            _device(), init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None
) -> Callable[..., Any]:
    """Decorate the `forward` of a `torch.autograd.Function`.

    Args:
        fwd: the function; None returns a decorator.
        cast_inputs: the dtype to which inputs are cast in an enabled region; None: they are not.
    """
    if fwd is None:
        return functools.partial(custom_fwd, cast_inputs=cast_inputs)
    return torch_amp.custom_fwd(fwd, device_type=_device(), cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the `backward` of a function whose `forward` has `custom_fwd`.

    It runs under the autocast regions that forward ran under.
    """
    return torch_amp.custom_bwd(bwd, device_type=_device())
