"""Widget of numbers in a block format: draggable bars, their rounded values, and the scales.

A block has one scale, so its largest number decides how many of the others become 0. 32 numbers are
one block of MXFP8 or MXFP4, and two of NVFP4. The page computes all numbers (blocks.js), and
`round_row` computes the same ones in Python.

Invariant: every number is an FP16 number, so that FP64 sums of a rotation are exact.

Source: labkit.formats.blocks; labkit.amp.low_bit.operands for scales rounded up and for the
rotation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import traitlets
from numpy.typing import NDArray

from labkit.amp import rotate
from labkit.formats import (
    E8M0,
    FP16,
    MXFP4,
    MXFP8,
    NVFP4,
    Overflow,
    Rounding,
    decode,
    round_blocks,
    round_to,
)
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.number_words import brief
from labkit.widgets.base.widget import LabWidget, limited
from labkit.widgets.exact.rows import format_row

COUNT = 32
# The number of sets of random numbers for stochastic rounding.
DRAWS = 20
FORMATS = {row.name: row for row in (MXFP8, MXFP4, NVFP4)}
OUTLIER_INDEX = 11
OUTLIER_VALUE = 13.0
HOW = "to drag the bars, or go on in code: board.format = 'NVFP4'; print(board.rounded)"


@dataclass(frozen=True)
class RoundedRow:
    """Numbers in a block format, with a scale for each block.

    Attributes:
        tensor_scale: the number that the whole tensor is multiplied by before it is rounded; 1
            except for NVFP4.
        scales: the scale of each block, after the multiplication by `tensor_scale`.
        values: the rounded numbers, divided by `tensor_scale` again.
    """

    tensor_scale: float
    scales: tuple[float, ...]
    values: tuple[float, ...]


@cache
def rotation() -> NDArray[np.float64]:
    """Return the matrix of `labkit.amp.rotate`, [16, 16]."""
    return rotate(torch.eye(16), -2).double().numpy()


def random_draws() -> NDArray[np.int64]:
    """Return the random numbers of each draw, [draw, number]: whole numbers below 2^32."""
    return np.random.default_rng(0).integers(2**32, size=(DRAWS, COUNT))


def round_row(
    values: Sequence[float],
    name: str,
    *,
    scale_up: bool = False,
    random_bits: NDArray[np.int64] | None = None,
    rotated: bool = False,
) -> RoundedRow:
    """Round a tensor of numbers to a block format.

    Args:
        values: FP16 numbers, as many as fill blocks.
        name: the name of the block format, a key of `FORMATS`.
        scale_up: choose the least power-of-two scale at which nothing saturates
            (arXiv:2506.08027), instead of that of the OCP specification; ignored for NVFP4, whose
            scales are not powers of two.
        random_bits: whole numbers below 2^32, one for each value, for stochastic rounding.
        rotated: multiply by a Hadamard matrix before the rounding, and by its inverse after it.

    >>> block = [13.0, 7.5, -3.0, 0.25] + 28 * [0.0]
    >>> round_row(block, "MXFP4").values[:4], round_row(block, "MXFP4", scale_up=True).values[:4]
    ((12.0, 8.0, -3.0, 0.0), (12.0, 8.0, -4.0, 0.0))
    """
    format = FORMATS[name]
    numbers = np.asarray(values, np.float64)
    if rotated:
        # Exact: all FP16 numbers are multiples of 2^-24 below 2^16, so their sums fit FP64.
        numbers = (numbers.reshape(-1, 16) @ rotation().T).ravel()
    # The tensor and its scale are FP32, and so is their product, as in blocks.js.
    numbers = numbers.astype(np.float32)
    largest = np.abs(numbers).max()
    tensor_scale = np.float32(1)
    if format is NVFP4 and largest:
        # The largest number becomes the largest element times the largest scale of a block.
        tensor_scale = np.float32(format.scale.max * format.element.max / largest)
    scaled = (numbers * tensor_scale).astype(np.float64)
    scales = np.asarray(decode(round_blocks(scaled, format).scales, format.scale))
    blocks = scaled.reshape(-1, format.size)
    if scale_up and format is not NVFP4:
        least_scales = np.abs(blocks).max(axis=1) / format.element.max
        least_scales = np.maximum(least_scales, E8M0.smallest_normal)
        scales = np.asarray(
            round_to(least_scales, E8M0, Rounding.TOWARD_POSITIVE, Overflow.SATURATE)
        )
    rounding = Rounding.NEAREST_EVEN if random_bits is None else Rounding.STOCHASTIC
    random = None if random_bits is None else np.reshape(random_bits, blocks.shape)
    elements = round_to(
        blocks / scales[:, None], format.element, rounding, Overflow.SATURATE, random
    )
    stored = np.asarray(elements * scales[:, None])
    if rotated:
        stored = stored.reshape(-1, 16) @ rotation()
    return RoundedRow(
        float(tensor_scale),
        tuple(scales.tolist()),
        tuple((stored.ravel() / float(tensor_scale)).tolist()),
    )


def values_with_outlier() -> list[float]:
    """Return normally distributed multiples of 1/16, and one number that is far larger."""
    values = np.round(16 * np.random.default_rng(0).standard_normal(COUNT)) / 16
    values[OUTLIER_INDEX] = OUTLIER_VALUE
    return [float(value) for value in values]


def night() -> list[float]:
    """Return a picture of 32 x 32 pixels, row by row: hills, a moon, and four brighter lamps."""
    y, x = np.mgrid[:COUNT, :COUNT] / (COUNT - 1)
    picture = np.where(y > 0.62 + 0.14 * np.sin(7 * x), 0.3 + 0.5 * (y - 0.6), 1.9 - 1.6 * y)
    picture[np.hypot(x - 0.74, y - 0.22) < 0.12] = 4
    picture[[10, 19, 24, 28], [6, 13, 25, 9]] = (13, 26, 52, 26)
    return [float(value) for value in np.round(64 * picture.ravel()) / 64]


def choices(values: Sequence[float]) -> dict[str, Any]:
    """Return what the page needs beside the traits, as JSON.

    These are formats, the rotation, random numbers, a picture, the first numbers, and the end of
    the axis.
    """
    formats = [
        {
            "name": row.name,
            "size": row.size,
            "element": format_row(row.element),
            "scale": format_row(row.scale),
            # Only NVFP4 has a scale for the whole tensor.
            "tensor_top": row.scale.max * row.element.max if row is NVFP4 else None,
        }
        for row in FORMATS.values()
    ]
    largest = max(map(abs, values))
    if largest == 0:
        largest = 1.0
    return {
        "formats": formats,
        "rotation": rotation().tolist(),
        "random": random_draws().tolist(),
        "picture": night(),
        "first": list(values),
        "top": 2.0 ** min(math.frexp(largest)[1] + 2, FP16.emax),
    }


class BlockScales(LabWidget, folder="block_scales"):
    """32 numbers in a block format as bars: one is dragged up, and its neighbours become 0.

    Args:
        values: 32 numbers, which are rounded to FP16; None for small numbers and an outlier.
        format: "MXFP8" (its elements are E4M3), "MXFP4" or "NVFP4".
        scale_up: Whether MX scales are rounded up, so that nothing saturates. Otherwise they are
            rounded down, as in the OCP specification.
        stochastic: Whether elements are rounded stochastically.
        rotated: Whether the numbers are multiplied by a 16 x 16 Hadamard matrix before they are
            rounded, and by its inverse afterwards.

    Traits to read and set: all of these, `draw` (the index of the random numbers) and `selected`
    (the index of the bar that keys move). To read: `rounded`, and `sentence`, which the page sets
    when it shows the widget.

    Raises:
        TraitError: The format, draw or bar does not exist; there are not 32 numbers, or one is
            beyond FP16.

    >>> board = BlockScales()
    >>> board.rounded.scales, sum(value == 0 for value in board.rounded.values)
    ((2.0,), 13)
    >>> board.format = "NVFP4"
    >>> board.rounded.scales, sum(value == 0 for value in board.rounded.values)
    ((448.0, 48.0), 5)
    """

    values = traitlets.List(traitlets.Float()).tag(sync=True)
    format = traitlets.Unicode("MXFP4").tag(sync=True)
    scale_up = traitlets.Bool(False).tag(sync=True)
    stochastic = traitlets.Bool(False).tag(sync=True)
    draw = traitlets.Int(0).tag(sync=True)
    rotated = traitlets.Bool(False).tag(sync=True)
    selected = traitlets.Int(OUTLIER_INDEX).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _choices = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        values: Sequence[float] | None = None,
        format: str = "MXFP4",
        *,
        scale_up: bool = False,
        stochastic: bool = False,
        rotated: bool = False,
    ) -> None:
        first = values_with_outlier() if values is None else [float(value) for value in values]
        super().__init__(
            values=first, format=format, scale_up=scale_up, stochastic=stochastic, rotated=rotated
        )
        self.selected = int(np.argmax(np.abs(self.values)))
        self._choices = choices(self.values)

    @property
    def rounded(self) -> RoundedRow:
        """The rounded numbers, and the scales of their blocks."""
        random = random_draws()[self.draw] if self.stochastic else None
        return round_row(
            self.values,
            self.format,
            scale_up=self.scale_up,
            random_bits=random,
            rotated=self.rotated,
        )

    @limited("format", "draw", "selected")
    def _names(self) -> Mapping[str, Collection[Any]]:
        return {"format": FORMATS, "draw": range(DRAWS), "selected": range(COUNT)}

    @traitlets.validate("values")
    def _valid_values(self, proposal: dict[str, Any]) -> list[float]:
        values = np.asarray(proposal["value"], np.float64)
        if len(values) != COUNT:
            raise traitlets.TraitError(f"values: expected {COUNT} numbers, got {len(values)}")
        beyond = values[~(np.abs(values) <= FP16.max)]
        if len(beyond):
            raise traitlets.TraitError(
                f"values: expected magnitudes of at most {FP16.max:g}, got {beyond[0]:g}"
            )
        return [float(value) for value in np.asarray(round_to(values, FP16))]

    def still(self) -> dict[str, Any]:
        rounded = self.rounded
        pairs = enumerate(zip(self.values, rounded.values, strict=True))
        rows = [f"x[{i}]  {brief(x)} -> {brief(y)}" for i, (x, y) in pairs]
        scales = ", ".join(brief(scale) for scale in rounded.scales)
        return still(
            "\n".join([f"{self.format}, scale {scales}", *rows, ""]),
            why_still(HOW, "These numbers stand"),
        )
