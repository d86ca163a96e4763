"""Unscaling of gradients, with a check for inf and NaN.

Gradients are cast to FP32 *before* they are divided by the scale: dividing first would make small
gradients underflow in FP16 again. Gradients of one device and dtype go through one kernel, which
multiplies by the reciprocal and checks for inf and NaN in the same pass. The kernel leaves its
result on the device as a flag, so that a step waits for the device once, when it reads all of them
(`readings.read_scalars`).

Invariant: found_inf is False exactly when every gradient that is returned is finite.

Source: torch.amp.GradScaler.unscale_ (the kernel, the reciprocal in FP64, one flag for each
device).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.amp.loss_scaling.magnitudes import by_device_and_dtype
from labkit.amp.loss_scaling.readings import read_scalars
from labkit.amp.loss_scaling.scaler import FP32_MAX, FP32_SMALLEST_NORMAL
from labkit.formats.arguments import require_kind

# dtypes of gradients that may be unscaled in place
_WIDE = (torch.float32, torch.float64)


@torch.no_grad()
def unscale(
    gradients: Sequence[Tensor], scale: float, *, in_place: bool = False
) -> tuple[list[Tensor], bool]:
    """Return the gradients of the unscaled loss, and whether any of them holds inf or NaN.

    FP16 and BF16 gradients are returned in FP32, FP32 and FP64 ones in their dtype. Sparse
    gradients are returned coalesced, with duplicates added up in the dtype of the result. The host
    waits for the devices once, for any number of tensors.

    Args:
        gradients: tensors of any shapes, dtypes and devices.
        scale: the factor of the loss.
        in_place: True overwrites FP32 and FP64 gradients, which saves the copy; never FP16 and BF16
            ones. Sparse ones of FP32 and FP64 then keep their duplicates, which the optimizer adds
            as it does in a plain loop.

    Raises:
        ValueError: scale is outside FP32's normal range.
        TypeError: a gradient is not a tensor, is complex or an integer, or is sparse in another
            layout than COO.

    >>> unscale([torch.tensor([1024.0, 6e-8]).half()], scale=1024.0)
    ([tensor([1.0000e+00, 5.8208e-11])], False)
    """
    require_kind(gradients, Sequence, "gradients", "Pass a list of tensors.")
    for gradient in gradients:
        require_kind(gradient, Tensor, "gradients", "Leave out parameters without a gradient.")
    require_kind(scale, float, "scale")
    unscaled, flags = unscale_with_flags(gradients, scale, in_place=in_place)
    return unscaled, any(read_scalars(flags))


@torch.no_grad()
def unscale_with_flags(
    gradients: Sequence[Tensor], scale: float, *, in_place: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Unscale as `unscale` does, without waiting for the device.

    Returns:
        The gradients, and flags on their devices. Some gradient holds inf or NaN if one of the
        flags is not 0.
    """
    if not FP32_SMALLEST_NORMAL <= scale <= FP32_MAX:
        raise ValueError(f"expected a loss scale from 2^-126 to 3.4e38, got {scale!r}")
    unscaled = _wide(gradients, in_place)
    flags = [_multiply(group, scale) for group in by_device_and_dtype(unscaled)]
    # duplicates in a sparse gradient may be finite while their sum is not
    sums = [g.coalesce() for g in unscaled if g.is_sparse and not g.is_coalesced()]
    return unscaled, flags + non_finite_flags(sums)


@torch.no_grad()
def non_finite_flags(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return flags that are not 0 if some gradient holds inf or NaN.

    Each device and dtype of the gradients has one flag.
    """
    return [_check_and_multiply(group, 1.0) for group in by_device_and_dtype(gradients)]


def _wide(gradients: Sequence[Tensor], in_place: bool) -> list[Tensor]:
    """Return gradients in FP32 or FP64, as copies.

    With `in_place`, gradients that have such a dtype are not copied.
    """
    wide: list[Tensor] = []
    # dense gradients and the new tensors that one kernel copies them to
    sources: list[Tensor] = []
    targets: list[Tensor] = []
    for g in gradients:
        if in_place and g.dtype in _WIDE and g.layout is torch.strided:
            wide.append(g.detach() if g.requires_grad else g)
            continue
        if not g.is_floating_point() or g.layout not in (torch.strided, torch.sparse_coo):
            raise TypeError(
                f"expected a floating-point gradient, dense or sparse COO, got {g.dtype}, "
                f"{g.layout}"
            )
        if g.is_sparse and g.dtype in _WIDE and in_place:
            wide.append(g.detach())
        elif g.is_sparse:
            # FP32 before duplicates are added up; without any, coalesce() returns its argument
            own = (g.detach() if g.dtype in _WIDE else g.detach().float()).coalesce()
            wide.append(own.clone() if g.dtype in _WIDE else own)
        else:
            target = torch.empty_like(g, dtype=g.dtype if g.dtype in _WIDE else torch.float32)
            wide.append(target)
            targets.append(target)
            sources.append(g.detach())
    if targets:
        torch._foreach_copy_(targets, sources)
    return wide


def _multiply(group: list[Tensor], scale: float) -> Tensor:
    """Divide tensors of one device and dtype by the scale, in place.

    Returns:
        The flag found_inf, on the device of the tensors.
    """
    # a Python float, so in FP64
    reciprocal = 1.0 / scale
    if group[0].dtype == torch.float64:
        # The kernel's factor is FP32, too coarse for FP64. So the kernel only checks.
        flag = _check_and_multiply(group, 1.0)
        torch._foreach_mul_(group, reciprocal)
    else:
        flag = _check_and_multiply(group, reciprocal)
    # dividing by a scale below 1 may overflow, but the kernel checks before it multiplies
    if scale < 1:
        _check_and_multiply(group, 1.0, flag)
    return flag


def _check_and_multiply(group: list[Tensor], factor: float, flag: Tensor | None = None) -> Tensor:
    """Multiply tensors of one device and dtype in place; return a flag.

    The flag is not 0 if a tensor held inf or NaN before, or if `flag` was not 0.
    """
    if flag is None:
        flag = torch.zeros((), device=group[0].device)
    on_device = torch.full((), factor, device=group[0].device)
    torch._amp_foreach_non_finite_check_and_unscale_(group, flag, on_device)
    return flag
