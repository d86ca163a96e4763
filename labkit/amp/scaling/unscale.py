"""What were the gradients before the loss was scaled, and are they all finite?

Idea: cast to FP32 *before* dividing. The other way round, the division would push every small gradient off FP16's
bottom again, and all the scaling was for nothing. Gradients of one device and dtype go through one kernel, which
multiplies by the reciprocal and looks for inf and NaN in the same pass, and leaves its answer on the device.

Invariant: found_inf is False exactly when every gradient that is returned is finite.

Source: torch.amp.GradScaler.unscale_ (the kernel, the reciprocal in FP64, one flag for each device).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from labkit.amp.scaling.scaler import FP32_MAX, FP32_SMALLEST_NORMAL

_WIDE = (torch.float32, torch.float64)  # what may be unscaled where it lies


@overload
def unscale(
    gradients: Sequence[Tensor], scale: float, names: None = None, *, in_place: bool = False
) -> tuple[list[Tensor], bool]: ...


@overload
def unscale(
    gradients: Sequence[Tensor], scale: float, names: Sequence[str], *, in_place: bool = False
) -> tuple[list[Tensor], bool, tuple[str, ...]]: ...


@torch.no_grad()
def unscale(
    gradients: Sequence[Tensor], scale: float, names: Sequence[str] | None = None, *, in_place: bool = False
) -> tuple[list[Tensor], bool] | tuple[list[Tensor], bool, tuple[str, ...]]:
    """Return the gradients of the unscaled loss, whether any of them holds inf or NaN, and which, if `names` are given.

    FP16 and BF16 come back in FP32; FP32 and FP64 stay what they are. Sparse gradients come back coalesced, their
    duplicates added up in FP32. The host waits for the devices once, however many tensors there are.

    Args:
        gradients: of any shapes, dtypes and devices.
        scale: what the loss was multiplied by.
        names: one for each gradient; those with inf or NaN are returned as a third value.
        in_place: True overwrites FP32 and FP64 gradients, which saves the copy; FP16 and BF16 never are.

    Raises:
        ValueError: scale is outside FP32's normal range, or there are not as many names as gradients.
        TypeError: a gradient is complex or an integer, or sparse in another layout than COO.

    >>> unscale([torch.tensor([1024.0, 6e-8]).half()], scale=1024.0)
    ([tensor([1.0000e+00, 5.8208e-11])], False)
    >>> unscale([torch.ones(2), torch.tensor(math.nan)], 8.0, names=["weight", "bias"])[1:]
    (True, ('bias',))
    """
    if not FP32_SMALLEST_NORMAL <= scale <= FP32_MAX:
        raise ValueError(f"a loss scale is a positive finite number, 2^-126 to 3.4e38; it was given {scale!r}")
    if names is not None and len(names) != len(gradients):
        raise ValueError(f"names has one name for each gradient; it was given {len(names)} for {len(gradients)}")
    unscaled = [
        g if in_place and g.dtype in _WIDE and g.layout is torch.strided else _copied(g, in_place) for g in gradients
    ]
    values = [g if g.layout is torch.strided else g._values() for g in unscaled]
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in values:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    flags = [_multiply(group, scale) for group in groups.values()]
    if names is None:
        return unscaled, any(_read(flags))
    bad = _which(values, flags)
    return unscaled, any(bad), tuple(name for name, is_bad in zip(names, bad, strict=True) if is_bad)


def _copied(gradient: Tensor, in_place: bool) -> Tensor:
    if not gradient.is_floating_point() or gradient.layout not in (torch.strided, torch.sparse_coo):
        given = f"{gradient.dtype}, {gradient.layout}"
        raise TypeError(f"a gradient holds floating-point numbers, dense or sparse COO; it was given {given}")
    wide = gradient.detach() if gradient.dtype in _WIDE else gradient.detach().float()  # before duplicates are added
    ours = wide.coalesce() if wide.is_sparse else wide
    return ours.clone() if wide.dtype == gradient.dtype and not in_place else ours


def _multiply(group: list[Tensor], scale: float) -> Tensor:
    """Divide tensors of one device and dtype by the scale, in place; return a flag, on their device: found_inf."""
    device = group[0].device
    reciprocal = 1.0 / scale  # in FP64
    apart = group[0].dtype == torch.float64  # the kernel takes an FP32 reciprocal: let it look, and multiply apart
    found, by = torch.zeros((), device=device), torch.full((), 1.0 if apart else reciprocal, device=device)
    torch._amp_foreach_non_finite_check_and_unscale_(group, found, by)
    if apart:
        torch._foreach_mul_(group, reciprocal)
    if scale < 1:  # then dividing may overflow, and the kernel looked before
        torch._amp_foreach_non_finite_check_and_unscale_(group, found, torch.ones((), device=device))
    return found


def _read(flags: Sequence[Tensor]) -> list[float]:
    """Bring scalars, each on its device, to the host: one wait for all."""
    if len(flags) < 2:
        return [flag.item() for flag in flags]
    home = max((flag.device for flag in flags), key=lambda device: device.type != "cpu")
    return torch.stack([flag.to(home, non_blocking=True) for flag in flags]).tolist()


def _which(values: Sequence[Tensor], flags: Sequence[Tensor]) -> list[bool]:
    """Return for each tensor whether it holds inf or NaN.

    On the CPU a second look costs no wait, so most steps go without it. On an accelerator it would: there every tensor
    has its own answer from the start.
    """
    if all(flag.device.type == "cpu" for flag in flags) and not any(_read(flags)):
        return [False] * len(values)
    looked_at = [index for index, tensor in enumerate(values) if tensor.numel() > 0]  # nothing has no largest element
    largest = _read(torch._foreach_norm([values[index] for index in looked_at], math.inf))
    bad = {index for index, norm in zip(looked_at, largest, strict=True) if not math.isfinite(norm)}
    return [index in bad for index in range(len(values))]
