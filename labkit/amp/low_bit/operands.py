"""Operands of matrix products in 8 or 4 bits: their formats, scales and rounding.

A layer has three products: its output, the gradient of its input, the gradient of its weight. Only
their operands are 8 or 4 bits wide; sums, weights, optimizer and activations between layers stay
FP32. The published recipes differ in a few values, so each is a row of `PRODUCTS`.

torch casts to E4M3 and E5M2. Values in other formats are rounded by an addition and a subtraction.
A format with s significand bits has the spacing 2^(e - s) at exponent e, and FP32 has this spacing
near 1.5 * 2^(e + 23 - s). Adding that number rounds, and subtracting it is exact. Exponents are
read from the bits, so a block's power-of-two scale is computed by integer arithmetic. A rotation,
of 16 random signs and an orthogonal Hadamard matrix, distributes a number that is far larger than
its neighbours over 16 numbers.

Invariant: results equal those of `round_to(..., Overflow.SATURATE)` and of `round_blocks` for every
finite FP32 number, except for the sign of zero. If a block's scale is in FP32, the quotient is
rounded to FP32 first, as a GPU divides. If both operands of a product are rotated along the summed
axis, the product is unchanged.

Source: arXiv:2209.05433 (FP8); NVIDIA Transformer Engine (delayed and current scaling, margin,
`common/recipe`); arXiv:2303.11257 (unit scaling); OCP Microscaling Formats 1.0, 6.3.
arXiv:2506.08027, 3.1 (MXFP8; scales rounded up); arXiv:2509.25149 (NVFP4, its rotation),
arXiv:2404.00456 (QuaRot), arXiv:2412.19437 (blocks of 128).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from numbers import Integral

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.amp.loss_scaling.magnitudes import largest_magnitude
from labkit.formats import (
    BLOCK_FORMATS,
    E4M3,
    E5M2,
    FP16,
    MXFP8,
    NVFP4,
    BlockFormat,
    Format,
    FormatLike,
    as_block_format,
    as_format,
    as_member,
)
from labkit.formats.arguments import require_kind
from labkit.interop import casts_to_8_bits, dtype_of


class TensorScale(Enum):
    """The source of the scale of a whole tensor, in addition to the scales of blocks."""

    # always 1
    NONE = "none"
    # the scale that brings the tensor's largest magnitude to the format's largest number
    CURRENT = "current"
    # the same from the largest magnitude of earlier steps; 1 in the first step
    DELAYED = "delayed"
    # a power of two from the layer's shape, which brings operands to size 1 when training begins
    UNIT = "unit"


@dataclass(frozen=True)
class ProductFormat:
    """The formats and scales of the operands of a layer's products.

    Operands saturate, but inf and NaN stay non-finite. A format or a scale may also be passed by
    its name.

    Attributes:
        forward: format of activations and weights, of numbers or of blocks.
        gradient: format of gradients.
        scale: the source of the scale of a whole tensor.
        history: number of steps that determine a delayed scale.
        margin: a delayed scale is divided by 2^margin, for magnitudes that grow from step to step.
        scale_up: whether a block's power-of-two scale is rounded up, so that nothing saturates
            (arXiv:2506.08027), or down, as in OCP's specification.
        square_weights: whether a weight's blocks are square, so that it is rounded to the same
            numbers in the forward and the backward pass.
        stochastic_gradients: whether gradients are rounded stochastically.
        hadamard: whether both operands of a weight's gradient are rotated first, by a random
            Hadamard matrix of 16.
        last_in_fp32: whether the model's last layer stays FP32.

    Raises:
        TypeError: a value is of another type.
        ValueError: a format has an unknown name, history or margin is not a whole number in its
            range, or the parts contradict each other.

    >>> ProductFormat(E4M3, E5M2, hadamard=True)
    Traceback (most recent call last):
    ...
    ValueError: square weights and a Hadamard matrix are for formats of blocks; forward is E4M3...
    """

    forward: Format | BlockFormat
    gradient: Format | BlockFormat
    scale: TensorScale = TensorScale.CURRENT
    history: int = 16
    margin: int = 0
    scale_up: bool = True
    square_weights: bool = False
    stochastic_gradients: bool = False
    hadamard: bool = False
    last_in_fp32: bool = False

    def __post_init__(self) -> None:
        self._resolve_values()
        if self.margin and self.scale is not TensorScale.DELAYED:
            raise ValueError(
                f"margin={self.margin}: expected scale=TensorScale.DELAYED, which alone leaves "
                f"room for what grows, got {self.scale}. Take margin=0."
            )
        for format in (self.forward, self.gradient):
            element = format.element if isinstance(format, BlockFormat) else format
            # ldexp returns 0 for a margin of any size, where 2**margin may be beyond a float
            if math.ldexp(float(element.max), -self.margin) < element.smallest_subnormal:
                raise ValueError(
                    f"margin: expected less than the powers of two that {element.name} spans, got "
                    f"{self.margin}, with which every number is written as 0. Take margin=0."
                )
            # FP16, BF16 and wider formats are multiplied without a scale
            if (
                not (element.signed and element.has_zero)
                or element.significand_bits > 8
                or element.exponent_bits > 5
            ):
                raise ValueError(
                    f"operands have a sign, a zero and about 8 bits; {format.name} does not. Take "
                    "E4M3."
                )
        if isinstance(self.forward, BlockFormat) != isinstance(self.gradient, BlockFormat):
            raise ValueError(
                f"forward={self.forward.name} and gradient={self.gradient.name}: one is of blocks, "
                "the other is not."
            )
        if (self.square_weights or self.hadamard) and not isinstance(self.forward, BlockFormat):
            raise ValueError(
                "square weights and a Hadamard matrix are for formats of blocks; "
                f"forward is {self.forward.name}. Take forward=NVFP4."
            )

    def _resolve_values(self) -> None:
        """Replace names of formats and scales by the objects; check all types."""
        for field in ("forward", "gradient"):
            format = getattr(self, field)
            if isinstance(format, str) and format.upper() in BLOCK_FORMATS:
                format = as_block_format(format, field)
            elif not isinstance(format, BlockFormat):
                format = as_format(format, field)
            object.__setattr__(self, field, format)
        object.__setattr__(self, "scale", as_member(TensorScale, self.scale, "scale"))
        for field in (
            "scale_up",
            "square_weights",
            "stochastic_gradients",
            "hadamard",
            "last_in_fp32",
        ):
            require_kind(getattr(self, field), bool, field, "Pass True or False.")
            object.__setattr__(self, field, bool(getattr(self, field)))
        for field, least, default in (("margin", 0, 0), ("history", 1, 16)):
            value = getattr(self, field)
            if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
                raise ValueError(
                    f"{field}: expected a whole number of {least} or more, got {value!r}. Take "
                    f"{field}={default}."
                )
            object.__setattr__(self, field, int(value))

    @property
    def remembers(self) -> bool:
        """Whether a scale follows from earlier steps."""
        return self.scale in (TensorScale.DELAYED, TensorScale.UNIT)

    @property
    def needs_names(self) -> bool:
        """Whether weights need stable names.

        They do if state is stored for each, or if one of them is treated differently.
        """
        return self.scale is TensorScale.DELAYED or self.last_in_fp32

    @property
    def blocks(self) -> bool:
        """Whether blocks have scales of their own, along the axis that a product sums over."""
        return isinstance(self.forward, BlockFormat)


_NVFP4 = ProductFormat(
    NVFP4, NVFP4, square_weights=True, stochastic_gradients=True, hadamard=True, last_in_fp32=True
)
PRODUCTS: dict[str, ProductFormat] = {
    "FP8 current": ProductFormat(E4M3, E5M2),
    "FP8 delayed": ProductFormat(E4M3, E5M2, TensorScale.DELAYED),
    "MXFP8": ProductFormat(MXFP8, MXFP8, TensorScale.NONE),
    "NVFP4": _NVFP4,
    "unit scaled": ProductFormat(E4M3, E4M3, TensorScale.UNIT),
}


# FP32's number of significand bits, which is the first bit of its exponent field, and its bias
_POINT = 23
_BIAS = 127
# masks of its exponent field and its significand field
_EXPONENT = 0xFF << _POINT
_FRACTION = (1 << _POINT) - 1
# the bits of 2^-127, the smallest number of E8M0, which is subnormal in FP32
_SMALLEST_SCALE = 1 << (_POINT - 1)


def round_saturating(
    values: Tensor, format: FormatLike, generator: torch.Generator | None = None
) -> Tensor:
    """Round finite FP32 values to a format of about 8 bits; larger ones become its largest number.

    Args:
        values: FP32 numbers of any shape.
        format: the format, with a sign, a zero and at most the bits of FP16.
        generator: the source of random bits for stochastic rounding; None rounds to nearest.

    Returns:
        A new FP32 tensor of the same shape.

    Raises:
        TypeError: the values are not in FP32.
        ValueError: the format has no sign or no zero, or more bits than FP16.

    >>> from labkit.formats import E4M3
    >>> round_saturating(torch.tensor([1.06, 17.0, 500.0]), E4M3)
    tensor([  1.,  16., 448.])
    """
    _require_fp32(values, "values")
    format = as_format(format)
    # the sum that rounds would be beyond FP32's range or bits
    if (
        not (format.signed and format.has_zero)
        or format.exponent_bits > FP16.exponent_bits
        or format.significand_bits > FP16.significand_bits
    ):
        raise ValueError(
            "format: expected one with a sign, a zero and at most the bits of FP16, got "
            f"{format.name}. labkit.interop.round_tensor rounds to any format."
        )
    return _saturated(values, format, generator)


def _saturated(values: Tensor, format: Format, generator: torch.Generator | None = None) -> Tensor:
    """Round as `round_saturating` does, without a check of the arguments."""
    limited = values.clamp(-format.max, format.max)
    return round_within(limited, format, generator)


def _require_fp32(tensor: Tensor, argument: str) -> None:
    """Raise a TypeError unless a tensor is in FP32, whose bits the rounding reads."""
    require_kind(tensor, Tensor, argument)
    if tensor.dtype != torch.float32:
        raise TypeError(
            f"{argument}: expected a tensor in torch.float32, got {tensor.dtype}. Pass "
            f"{argument}.float()."
        )


def _require_matrices(tensor: Tensor, argument: str) -> None:
    """Raise an error unless a tensor holds matrices in FP32."""
    _require_fp32(tensor, argument)
    if tensor.dim() < 2:
        raise ValueError(
            f"{argument}: expected matrices, got shape {tuple(tensor.shape)}. Pass "
            f"{argument}[None], a matrix of one row."
        )


def round_within(
    limited: Tensor, format: Format, generator: torch.Generator | None = None
) -> Tensor:
    """Round FP32 values that are within a format's range.

    Args:
        limited: the values, which may be overwritten.
        format: the format.
        generator: the source of random bits for stochastic rounding; None rounds to nearest.

    Returns:
        FP32 numbers, in the memory of `limited` or in a new tensor.
    """
    if generator is None and format in (E4M3, E5M2) and casts_to_8_bits(limited):
        return limited.to(dtype_of(format)).to(torch.float32)
    bits = limited.view(torch.int32) & _EXPONENT
    bits.clamp_(min=(format.emin + _BIAS) << _POINT)
    if generator is None:
        power = bits.view(torch.float32)
        factor = 1.5 * 2.0 ** (_POINT - format.significand_bits)
        return limited.add_(power, alpha=factor).sub_(power, alpha=factor)
    bits -= format.significand_bits << _POINT
    spacing = bits.view(torch.float32)
    random = torch.rand(limited.shape, generator=generator, device=limited.device)
    below = limited.div_(spacing).floor()
    goes_up = random.lt_(limited.sub_(below))
    return below.add_(goes_up).mul_(spacing)


def round_to_blocks(
    values: Tensor,
    format: BlockFormat | str,
    tile: tuple[int, int] | None = None,
    *,
    scale_up: bool = False,
) -> Tensor:
    """Round finite FP32 matrices to a block format, with a scale for each tile.

    Args:
        values: finite FP32 matrices [..., rows, columns].
        format: the block format.
        tile: rows and columns of a block; None for 1 row and `format.size` columns. A tile that
            extends beyond an edge is padded with zeros.
        scale_up: True takes the smallest power of two at which no number of the block saturates as
            its scale; False takes the scale of `round_blocks`.

    Returns:
        The rounded numbers in FP32, a new tensor of the same shape.

    Raises:
        TypeError: the values are not in FP32.
        ValueError: the values have less than two dimensions, or the tile is not a pair of whole
            numbers of 1 or more.

    >>> from labkit.formats import MXFP4
    >>> # a scale of 4: beyond 6 * 4 they saturate
    >>> round_to_blocks(torch.arange(32.0)[None], MXFP4)[0, 26:]
    tensor([24., 24., 24., 24., 24., 24.])
    >>> round_to_blocks(torch.arange(32.0)[None], MXFP4, scale_up=True)[0, 26:]
    tensor([24., 24., 32., 32., 32., 32.])
    """
    _require_matrices(values, "values")
    format = as_block_format(format)
    if tile is None:
        tile = (1, format.size)
    is_pair = isinstance(tile, Sequence) and len(tile) == 2
    if not is_pair or not all(isinstance(size, Integral) and size >= 1 for size in tile):
        raise ValueError(f"tile: expected 1 row and 1 column or more, got {tile}.")
    tiles = tiled(values, tile)
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
    """Round tiles, each with a scale that follows from its largest magnitude.

    Args:
        tiles: FP32 numbers, as `tiled` returns them.
        largest: the largest magnitude of each tile, as `largest_in` returns it.
        format: the block format of the result.
        scale_up: as in `round_to_blocks`.
        scales_fit: whether no scale can exceed the range of the scales' format.
        generator: the source of random bits for stochastic rounding; None rounds to nearest.
    """
    # A tile of zeros gets the scale 1, since a CPU is slow with subnormal scales.
    if largest.device.type == "cpu" and not bool(largest.all()):
        largest = largest.masked_fill(largest == 0, format.element.max)
    if format.scale.significand_bits:
        scale = (largest / format.element.max).clamp_(min=format.scale.smallest_subnormal)
        if format.scale.significand_bits != _POINT:
            if scales_fit:
                scale = round_within(scale, format.scale)
            else:
                scale = _saturated(scale, format.scale)
        return _saturated(tiles / scale, format.element, generator).mul_(scale)
    # a scale in E8M0 is integer arithmetic on the bits of a positive FP32 number
    bits = largest.view(torch.int32)
    # Adding this number carries into the exponent where the significand is above that of the
    # format's largest element.
    if scale_up:
        significand, _ = math.frexp(format.element.max)
        bits = bits + (int((2 - 2 * significand) * (_FRACTION + 1)) - 1)
    bits = (bits & _EXPONENT).sub_(format.element.emax << _POINT).clamp_(min=_SMALLEST_SCALE)
    scale = bits.view(torch.float32)
    scaled = tiles / scale
    if scale_up:
        # no tile is beyond its format
        return round_within(scaled, format.element, generator).mul_(scale)
    return _saturated(scaled, format.element, generator).mul_(scale)


def untiled(tiles: Tensor, shape: torch.Size) -> Tensor:
    """Return the matrices that `tiled` cut into tiles, without the zeros that it added.

    Args:
        tiles: the tiles.
        shape: the shape of the matrices.
    """
    rows = tiles.shape[-4] * tiles.shape[-3]
    columns = tiles.shape[-2] * tiles.shape[-1]
    whole = tiles.reshape(*shape[:-2], rows, columns)
    # without padding, no view has to be made
    if whole.shape == shape:
        return whole
    return whole[..., : shape[-2], : shape[-1]]


def tiled(values: Tensor, tile: tuple[int, int]) -> Tensor:
    """Return matrices cut into tiles; those at an edge are padded with zeros.

    Args:
        values: matrices [..., m, n].
        tile: rows and columns of a tile.

    Returns:
        The tiles [..., ceil(m / rows), rows, ceil(n / columns), columns].
    """
    m, n = values.shape[-2:]
    rows, columns = tile
    # number of zeros to the left, right, top and bottom
    padding = (0, -n % columns, 0, -m % rows)
    full = F.pad(values, padding) if any(padding) else values.contiguous()
    m, n = full.shape[-2:]
    return full.view(*full.shape[:-2], m // rows, rows, n // columns, columns)


def largest_in(tiles: Tensor) -> Tensor:
    """Return the largest magnitude of each tile.

    Args:
        tiles: [..., m, rows, n, columns], as `tiled` returns them.

    Returns:
        The magnitudes [..., m, 1, n, 1].
    """
    axes = [axis for axis in (-3, -1) if tiles.shape[axis] != 1]
    return largest_magnitude(tiles, axes) if axes else tiles.abs()


# numbers that a Hadamard matrix rotates at a time
ROTATED = 16
# 16 random signs, drawn once (torch.manual_seed(0))
_SIGNS = (-1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 1.0, -1.0, 1.0)


def rotate(tensor: Tensor, axis: int) -> Tensor:
    """Multiply each 16 numbers along an axis by signs and an orthogonal Hadamard matrix.

    Args:
        tensor: FP32 matrices [..., rows, columns].
        axis: -1 to rotate along each row, -2 along each column.

    Returns:
        The rotated matrices. The rotated axis is padded with zeros to a multiple of 16.

    Raises:
        TypeError: the tensor is not in FP32.
        ValueError: the tensor has less than two dimensions, or the axis is neither -1 nor -2.

    >>> one, two = torch.randn(2, 20), torch.randn(20, 3)
    >>> torch.allclose(rotate(one, -1) @ rotate(two, -2), one @ two, atol=1e-5)
    True
    """
    _require_matrices(tensor, "tensor")
    require_kind(axis, int, "axis")
    if axis not in (-1, -2):
        raise ValueError(f"axis: expected -1 or -2, one of a matrix, got {axis}.")
    if axis == -1:
        return rotate(tensor.mT, -2).mT
    missing_rows = -tensor.shape[-2] % ROTATED
    full = F.pad(tensor, (0, 0, 0, missing_rows)) if missing_rows else tensor
    cut = full.unflatten(-2, (-1, ROTATED))
    rotated: Tensor = _rotation(tensor.device) @ cut
    return rotated.flatten(-3, -2)


@cache
def _rotation(device: torch.device) -> Tensor:
    # Sylvester's construction of a Hadamard matrix: H -> [[H, H], [H, -H]]
    matrix = torch.ones(1, 1, device=device)
    while len(matrix) < ROTATED:
        top = torch.cat([matrix, matrix], 1)
        bottom = torch.cat([matrix, -matrix], 1)
        matrix = torch.cat([top, bottom])
    return matrix.mul(torch.tensor(_SIGNS, device=device)).div(math.sqrt(ROTATED))
