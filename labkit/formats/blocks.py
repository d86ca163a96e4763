"""Block formats: blocks of low-precision numbers that share one scale.

Idea: neighbouring numbers often have similar magnitudes. So a block shares one scale, and each
element has a few bits: value = scale * element. A block format is a row that combines two formats.

Invariant: `round_blocks` returns codes; `decode_blocks` returns their exact values.

Source: OCP Microscaling Formats (MX) 1.0, table 1 and 6.3; NVIDIA, Introducing NVFP4 (2025) for the
    NVFP4 scale rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.formats.arguments import as_row, require_kind
from labkit.formats.codes import CodeArray, decode, encode
from labkit.formats.format import E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, Format
from labkit.formats.rounding import Overflow, Rounding, deterministic, round_to, widen
from labkit.formats.rows import Rows


@dataclass(frozen=True)
class BlockFormat:
    """Block format: `size` elements in one format, with one scale in another.

    Attributes:
        name: for display.
        element: format of the elements.
        scale: format of the scale.
        size: number of elements in a block.
    """

    name: str
    element: Format
    scale: Format
    size: int

    @property
    def bits_per_value(self) -> float:
        """Bits of one value, including its share of the scale."""
        return self.element.bits + self.scale.bits / self.size


@dataclass(frozen=True)
class Blocks:
    """Values in a block format, as codes.

    Shapes: scales [..., n / size], elements [..., n / size, size].
    """

    format: BlockFormat
    scales: CodeArray
    elements: CodeArray


# MXFP8 and MXFP6 each have two element formats; the more common one has the short name
MXFP8 = BlockFormat("MXFP8", element=E4M3, scale=E8M0, size=32)
MXFP8_E5M2 = BlockFormat("MXFP8_E5M2", element=E5M2, scale=E8M0, size=32)
MXFP6 = BlockFormat("MXFP6", element=E2M3, scale=E8M0, size=32)
MXFP6_E3M2 = BlockFormat("MXFP6_E3M2", element=E3M2, scale=E8M0, size=32)
MXFP4 = BlockFormat("MXFP4", element=E2M1, scale=E8M0, size=32)
# the scales of blocks only; NVFP4 also has an FP32 scale for the tensor, which the caller applies
NVFP4 = BlockFormat("NVFP4", element=E2M1, scale=E4M3, size=16)

BLOCK_FORMATS: dict[str, BlockFormat] = Rows(
    {row.name: row for row in (MXFP8, MXFP8_E5M2, MXFP6, MXFP6_E3M2, MXFP4, NVFP4)}
)


def as_block_format(format: BlockFormat | str, argument: str = "format") -> BlockFormat:
    """Return the block format that an argument names: a `BlockFormat`, or its name in any case.

    Raises:
        TypeError: the argument is neither.
        ValueError: no block format has this name.

    >>> as_block_format("mxfp8").size
    32
    """
    remedy = ""
    if isinstance(format, Format):
        remedy = f"{format.name} is a format of single numbers; round_to rounds to it"
    return as_row(format, BlockFormat, BLOCK_FORMATS, argument, remedy)


def round_blocks(
    values: ArrayLike, format: BlockFormat | str, rounding: Rounding | str = Rounding.NEAREST_EVEN
) -> Blocks:
    """Split the last axis into blocks, choose a scale for each, and round the scaled values.

    Elements beyond the largest value saturate.

    A power-of-two scale (MX) is 2^(floor(log2 largest magnitude) - emax of the elements). So the
    largest value is scaled to the elements' last binade, and may saturate. Any other scale (NVFP4)
    is the largest magnitude / max of the elements, rounded to nearest. So the largest value is
    scaled to max or next to it, unless the scale is subnormal or at an end of its range: a scale
    never rounds to zero or beyond its own max.

    For values in float32, the division and the rounding have the result of one rounding. Values in
    float64 may be rounded twice with a scale like NVFP4's.

    Args:
        values: finite numbers [..., n], where n is a multiple of the block size.
        format: a block format, or its name.
        rounding: direction in which the elements are rounded.

    Raises:
        ValueError: the last axis is not a multiple of the block size; a value is infinity or NaN;
            or the rounding is stochastic.

    >>> blocks = round_blocks(np.arange(32.0), MXFP4)
    >>> float(decode(blocks.scales, E8M0)[0]), decode_blocks(blocks)[:10].tolist()
    (4.0, [0.0, 0.0, 2.0, 4.0, 4.0, 4.0, 6.0, 8.0, 8.0, 8.0])
    """
    format = as_block_format(format)
    rounding = deterministic(rounding, "Take NEAREST_EVEN, or another direction.")
    exact = widen(values)
    if exact.ndim == 0 or exact.shape[-1] % format.size:
        raise ValueError(
            f"expected a last axis that is a multiple of {format.size}, the block size of "
            f"{format.name}, got shape {exact.shape}. Pad it with zeros."
        )
    if not np.isfinite(exact).all():
        raise ValueError(
            f"expected finite values for {format.name} blocks, got an infinity or NaN. Replace it "
            "first."
        )
    blocks = exact.reshape(*exact.shape[:-1], exact.shape[-1] // format.size, format.size)
    is_power_of_two = format.scale.significand_bits == 0
    if is_power_of_two:
        # toward zero is floor(log2), so the largest value is in the elements' last binade
        target = 2.0**format.element.emax
        scale_rounding = Rounding.TOWARD_ZERO
    else:
        target = format.element.max
        scale_rounding = Rounding.NEAREST_EVEN
    largest = np.abs(blocks).max(axis=-1, initial=0.0)
    ratio = np.maximum(largest / target, format.scale.smallest_subnormal)
    scales = np.asarray(
        round_to(ratio, format.scale, scale_rounding, Overflow.SATURATE), np.float64
    )
    # a quotient beyond float64 saturates like any other
    with np.errstate(over="ignore"):
        scaled = blocks / scales[..., np.newaxis]
        elements = round_to(scaled, format.element, rounding, Overflow.SATURATE)
    return Blocks(
        format,
        scales=encode(scales, format.scale),
        elements=encode(elements, format.element),
    )


def decode_blocks(blocks: Blocks) -> NDArray[np.float64]:
    """Return the values of blocks, scale * element, with the blocks joined along the last axis."""
    require_kind(blocks, Blocks, "blocks", "Make them by round_blocks(values, format)")
    scales = decode(blocks.scales, blocks.format.scale)
    values = scales[..., np.newaxis] * decode(blocks.elements, blocks.format.element)
    return values.reshape(*values.shape[:-2], values.shape[-2] * values.shape[-1])
