"""Convolutions, as torch.conv1d to conv3d compute them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.formats import FormatLike, as_format
from labkit.formats.arguments import require_kind
from labkit.testing.bound import Floats
from labkit.testing.operation import Array, Operation, Places, operand
from labkit.testing.products import Products


def convolution(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    operands: FormatLike | None = None,
) -> Operation:
    """Return the convolution of x [batch, channels, ...] with weight, as torch.conv1d to conv3d.

    Winograd's and Fourier's methods add other terms; this bound is not theirs.

    Args:
        x: the image, [batch, channels, ...] with 1 to 3 dimensions more.
        weight: the filters, [out, channels / groups, ...].
        bias: one number for each filter.
        stride: a number, or one for each dimension.
        padding: as stride, or "valid" (none) or "same" (the result has the shape of the image;
            needs stride 1).
        dilation: as stride.
        groups: number of groups of channels.
        operands: as in `matmul`.

    Raises:
        TypeError: operands are not floats, or are FP64; a setting is not a number.
        ValueError: the shapes or the settings do not match.

    >>> convolution(torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3), padding=1).value[0, 0, 4, 4]
    np.float64(27.0)
    """
    if operands is not None:
        operands = as_format(operands, "operands")
    image, image_format = operand(x, "x", operands)
    filters, filter_format = operand(weight, "weight", operands)
    require_kind(groups, int, "groups")
    _require_shapes(image.shape, filters.shape, groups)
    dimensions = filters.ndim - 2
    window = _Window(
        stride=_numbers(stride, "stride", dimensions, 1),
        dilation=_numbers(dilation, "dilation", dimensions, 1),
        size=filters.shape[2:],
    )
    padded = np.pad(image, [(0, 0), (0, 0), *window.padding(padding)])
    window.require_fit(padded.shape[2:])
    convolve = (F.conv1d, F.conv2d, F.conv3d)[dimensions - 1]

    def multiply(left: Floats, right: Floats) -> Floats:
        result = convolve(
            torch.from_numpy(left),
            torch.from_numpy(right),
            None,
            window.stride,
            0,
            window.dilation,
            groups,
        )
        return np.asarray(result.numpy(), np.float64)

    shape = multiply(padded, filters).shape
    windows = window.over(padded, groups)
    filters_of_group = len(filters) // groups

    def pairs(places: Places) -> tuple[Floats, Floats]:
        sheet, channel, *place = np.unravel_index(places, shape)
        taken = windows[(sheet, channel // filters_of_group, *place)]
        terms = math.prod(filters.shape[1:])
        return taken.reshape(-1, terms).T, filters[channel].reshape(-1, terms).T

    products = Products(
        (padded, image_format),
        (filters, filter_format),
        multiply,
        pairs,
        shape,
        math.prod(filters.shape[1:]),
        bias=None if bias is None else _bias_of_filters(bias, len(filters), dimensions),
    )
    return products.operation(f"convolution {list(image.shape)} * {list(filters.shape)}", operands)


def _require_shapes(image: tuple[int, ...], filters: tuple[int, ...], groups: int) -> None:
    if (
        len(filters) not in (3, 4, 5)
        or len(image) != len(filters)
        or image[1] != filters[1] * groups
    ):
        raise ValueError(
            "expected x[batch, channels, ...] and weight[out, channels / groups, ...] with 1 to 3 "
            f"dimensions more, got {list(image)} and {list(filters)} with groups={groups}"
        )
    if groups < 1:
        raise ValueError(f"groups: expected 1 or more, got {groups}")
    if not filters[0] or not filters[1]:
        raise ValueError(
            f"expected one filter or more, of one channel or more, got {list(filters)}"
        )
    if filters[0] % groups:
        raise ValueError(
            f"expected a number of filters that groups divides, got {filters[0]} and "
            f"groups={groups}"
        )


def _bias_of_filters(bias: Array, filters: int, dimensions: int) -> Array:
    """Return a bias that broadcasts to [batch, filters, ...]."""
    require_kind(bias, (Tensor, np.ndarray), "bias")
    if tuple(bias.shape) != (filters,):
        raise ValueError(
            f"expected bias of shape {[filters]}, one number for each filter, "
            f"got {list(bias.shape)}"
        )
    return bias.reshape(-1, *[1] * dimensions)


@dataclass(frozen=True)
class _Window:
    """The window of a convolution, which moves over the image.

    Attributes:
        stride: steps between two places, by dimension.
        dilation: steps between two elements of the window.
        size: elements of the window.
    """

    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def reach(self) -> list[int]:
        """Elements of the image from the first to the last of the window, by dimension."""
        return [(size - 1) * step + 1 for size, step in zip(self.size, self.dilation, strict=True)]

    def padding(self, padding: int | Sequence[int] | str) -> list[tuple[int, int]]:
        """Return the widths before and behind each dimension of the image."""
        if not isinstance(padding, str):
            return [(width, width) for width in _numbers(padding, "padding", len(self.size), 0)]
        if padding == "valid":
            return [(0, 0) for _ in self.size]
        if padding != "same":
            raise ValueError(f"padding: expected numbers, 'same' or 'valid', got {padding!r}")
        if max(self.stride) > 1:
            raise ValueError(
                f"padding: expected numbers with stride {list(self.stride)}, got 'same', which "
                "needs stride 1"
            )
        # of an odd width, the larger part is behind, as torch has it
        return [((reach - 1) // 2, reach - 1 - (reach - 1) // 2) for reach in self.reach]

    def require_fit(self, image: tuple[int, ...]) -> None:
        """Raise a ValueError if the window is larger than the padded image, or empty."""
        reach = self.reach
        if min(reach) < 1 or any(wide > size for wide, size in zip(reach, image, strict=True)):
            raise ValueError(
                f"expected a window that fits the padded image, got {reach} for {list(image)}. "
                "Pass more padding, or less dilation."
            )

    def over(self, padded: Floats, groups: int) -> Floats:
        """Return what the window contains, [batch, groups, *places, channels / groups, *size]."""
        axes = tuple(range(2, padded.ndim))
        reached = np.lib.stride_tricks.sliding_window_view(padded, self.reach, axes)
        # of the shape [batch, channels, *places, *size] after this
        taken = (slice(None, None, step) for step in (*self.stride, *self.dilation))
        windows = reached[:, :, *taken]
        channels = padded.shape[1] // groups
        grouped = windows.reshape(len(padded), groups, channels, *windows.shape[2:])
        return np.moveaxis(grouped, 2, len(self.size) + 2)


def _numbers(value: int | Sequence[int], argument: str, count: int, least: int) -> tuple[int, ...]:
    """Return one number for each dimension of a convolution."""
    require_kind(value, (int, Sequence), argument, "Pass a number, or one for each dimension")
    if isinstance(value, Sequence):
        numbers = tuple(value)
    else:
        numbers = (value,) * count
    for number in numbers:
        require_kind(number, int, argument, "Pass a number, or one for each dimension")
    if len(numbers) == 1:
        numbers *= count
    if len(numbers) != count or min(numbers) < least:
        raise ValueError(
            f"{argument}: expected a number from {least} on, or {count} of them, got {value}"
        )
    return numbers
