"""How is a whole tensor rounded to 8 or 4 bits, block by block, at the speed of training?

Idea: beside 1.5 * 2^(e + 23 - s), FP32 counts in steps of 2^(e - s): what a format with s significand bits has at
exponent e. Adding that number rounds, subtracting it is exact. Exponents are read off the bits, so a block's
power-of-two scale is whole-number arithmetic.

Invariant: the values of `round_to(..., Overflow.SATURATE)` and of `round_blocks` for every finite FP32 number; a zero
is +0. Where a block's scale is itself in FP32, the quotient is rounded to FP32 first, as a GPU divides.

Source: OCP Microscaling Formats 1.0, 6.3; arXiv:2506.08027, 3.1 (a scale that is rounded up).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.formats import BlockFormat, Format

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
    bits = limited.view(torch.int32) & _EXPONENT
    bits.clamp_(min=(format.emin + _BIAS) << _POINT)
    if generator is None:
        bits += ((_POINT - format.significand_bits) << _POINT) + (1 << (_POINT - 1))  # 2^e becomes 1.5 * 2^(e + 23 - s)
        anchor = bits.view(torch.float32)
        return limited.add_(anchor).sub_(anchor)
    bits -= format.significand_bits << _POINT
    spacing = bits.view(torch.float32)
    random = torch.rand(values.shape, generator=generator, device=values.device)
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
    tiles: Tensor, largest: Tensor, format: BlockFormat, *, scale_up: bool, generator: torch.Generator | None = None
) -> Tensor:
    """Round tiles, whose largest magnitudes are given, each at its own scale; a generator: stochastically."""
    if not bool(largest.all()):  # zeros at scale 1: subnormal scales are slow
        largest = largest.masked_fill(largest == 0, format.element.max)
    if format.scale.significand_bits:
        scale = (largest / format.element.max).clamp_(min=format.scale.smallest_subnormal)
        scale = scale if format.scale.significand_bits == _POINT else round_saturating(scale, format.scale)
    else:
        scale = _power_of_two(largest, format, scale_up)
    return round_saturating(tiles / scale, format.element, generator).mul_(scale)


def _power_of_two(largest: Tensor, format: BlockFormat, up: bool) -> Tensor:
    """Return scales in E8M0, whole-number arithmetic on the bits of FP32 numbers above 0."""
    bits = largest.view(torch.int32)
    if up:  # one exponent higher where the significand is above that of the largest element
        bits = bits + int((2 - 2 * math.frexp(format.element.max)[0]) * (_FRACTION + 1)) - 1
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
    sizes = tiles.abs()
    for axis in (-3, -1):  # one after the other is fast
        sizes = sizes if tiles.shape[axis] == 1 else sizes.amax(axis, keepdim=True)
    return sizes
