"""Rounding of whole tensors to 8 or 4 bits, block by block, at the speed of training.

To E4M3 and E5M2 torch casts. For the other formats: beside 1.5 * 2^(e + 23 - s), FP32 counts in steps of 2^(e - s),
what a format with s significand bits has at exponent e; adding that number rounds, subtracting it is exact. Exponents
are read off the bits, so a block's power-of-two scale is whole-number arithmetic.

Invariant: the values of `round_to(..., Overflow.SATURATE)` and of `round_blocks` for every finite FP32 number; the sign
of zero is not kept. Where a block's scale is itself in FP32, the quotient is rounded to FP32 first, as a GPU divides.

Source: OCP Microscaling Formats 1.0, 6.3; arXiv:2506.08027, 3.1 (a scale that is rounded up).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.amp.scaling.unscale import largest_magnitude
from labkit.formats import E4M3, E5M2, BlockFormat, Format
from labkit.interop import casts_to_8_bits, dtype_of

_POINT, _BIAS = 23, 127  # of FP32: where its exponent field begins, and what is added to the exponent there
_EXPONENT, _FRACTION = 0xFF << _POINT, (1 << _POINT) - 1
_SMALLEST_SCALE = 1 << (_POINT - 1)  # the bits of 2^-127, the smallest number of E8M0


def round_saturating(values: Tensor, format: Format, generator: torch.Generator | None = None) -> Tensor:
    """Round finite FP32 values to a format of 8 bits or so; a new tensor. A generator: stochastically.

    >>> from labkit.formats import E4M3
    >>> round_saturating(torch.tensor([1.06, 17.0, 500.0]), E4M3)
    tensor([  1.,  16., 448.])
    """
    limited = values.clamp(-format.max, format.max)
    return round_within(limited, format, generator)


def round_within(limited: Tensor, format: Format, generator: torch.Generator | None = None) -> Tensor:
    """Round FP32 values whose rounding is within a format's range; they may be overwritten."""
    if generator is None and format in (E4M3, E5M2) and casts_to_8_bits(limited):
        return limited.to(dtype_of(format)).to(torch.float32)
    bits = limited.view(torch.int32) & _EXPONENT
    bits.clamp_(min=(format.emin + _BIAS) << _POINT)
    if generator is None:
        power, factor = bits.view(torch.float32), 1.5 * 2.0 ** (_POINT - format.significand_bits)
        return limited.add_(power, alpha=factor).sub_(power, alpha=factor)
    bits -= format.significand_bits << _POINT
    spacing = bits.view(torch.float32)
    random = torch.rand(limited.shape, generator=generator, device=limited.device)
    below = limited.div_(spacing).floor()
    goes_up = random.lt_(limited.sub_(below))
    return below.add_(goes_up).mul_(spacing)


def round_to_blocks(
    values: Tensor, format: BlockFormat, tile: tuple[int, int] | None = None, *, scale_up: bool = False
) -> Tensor:
    """Round finite FP32 matrices [..., rows, columns], each tile of them at a scale of its own; return their values.

    Args:
        tile: rows and columns of a block; None: along a row. What is missing at an edge counts as zeros.
        scale_up: a power-of-two scale is the least at which nothing saturates; False: as `round_blocks` has it.

    >>> from labkit.formats import MXFP4
    >>> round_to_blocks(torch.arange(32.0)[None], MXFP4)[0, 26:]  # a scale of 4: beyond 6 * 4 they saturate
    tensor([24., 24., 24., 24., 24., 24.])
    >>> round_to_blocks(torch.arange(32.0)[None], MXFP4, scale_up=True)[0, 26:]
    tensor([24., 24., 32., 32., 32., 32.])
    """
    tiles = tiled(values, tile or (1, format.size))
    rounded = round_tiles(tiles, largest_in(tiles), format, scale_up=scale_up)
    return untiled(rounded, values.shape)


def round_tiles(
    tiles: Tensor,
    largest: Tensor,
    format: BlockFormat,
    *,
    scale_up: bool,
    scales_fit: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Round tiles, whose largest magnitudes are given, each at its own scale.

    Args:
        scale_up: as in `round_to_blocks`.
        scales_fit: no magnitude is so large that its scale would be beyond the scales' format.
        generator: for stochastic rounding.
    """
    if largest.device.type == "cpu" and not bool(largest.all()):  # zeros at scale 1: subnormal scales are slow there
        largest = largest.masked_fill(largest == 0, format.element.max)
    if format.scale.significand_bits:
        scale = (largest / format.element.max).clamp_(min=format.scale.smallest_subnormal)
        if format.scale.significand_bits != _POINT:
            scale = (round_within if scales_fit else round_saturating)(scale, format.scale)
        return round_saturating(tiles / scale, format.element, generator).mul_(scale)
    scaled = tiles / (scale := _power_of_two(largest, format, scale_up))
    if scale_up:  # then no tile is beyond its format
        return round_within(scaled, format.element, generator).mul_(scale)
    return round_saturating(scaled, format.element, generator).mul_(scale)


def _power_of_two(largest: Tensor, format: BlockFormat, up: bool) -> Tensor:
    """Return scales in E8M0, whole-number arithmetic on the bits of FP32 numbers above 0."""
    bits = largest.view(torch.int32)
    if up:  # one exponent higher where the significand is above that of the largest element
        bits = bits + (int((2 - 2 * math.frexp(format.element.max)[0]) * (_FRACTION + 1)) - 1)
    bits = (bits & _EXPONENT).sub_(format.element.emax << _POINT).clamp_(min=_SMALLEST_SCALE)
    return bits.view(torch.float32)


def untiled(tiles: Tensor, shape: torch.Size) -> Tensor:
    """Join tiles to matrices of a shape again."""
    rows, columns = tiles.shape[-4] * tiles.shape[-3], tiles.shape[-2] * tiles.shape[-1]
    whole = tiles.reshape(*shape[:-2], rows, columns)
    return whole if whole.shape == shape else whole[..., : shape[-2], : shape[-1]]


def tiled(values: Tensor, tile: tuple[int, int]) -> Tensor:
    """Cut matrices [..., m, n] into tiles [..., m / rows, rows, n / columns, columns], filled up with zeros."""
    (m, n), (rows, columns) = values.shape[-2:], tile
    more = (0, -n % columns, 0, -m % rows)
    full = F.pad(values, more) if any(more) else values.contiguous()
    return full.view(*full.shape[:-2], full.shape[-2] // rows, rows, full.shape[-1] // columns, columns)


def largest_in(tiles: Tensor) -> Tensor:
    """Return the largest magnitude of each tile, [..., m / rows, 1, n / columns, 1]."""
    axes = [axis for axis in (-3, -1) if tiles.shape[axis] != 1]
    return largest_magnitude(tiles, axes) if axes else tiles.abs()
