"""Operations that can be judged: exact value, error bound, and the sum in several orders.

Idea: an operation holds what an answer needs, from the operands alone. That is its value in FP64,
the bound of the error before the final rounding for an arithmetic, and its replay in the orders of
`orders`.

Invariant: operands are used as they are stored; a float32 tensor is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from labkit.formats import BF16, FP16, FP32, FP64, TF32, Format, FormatLike, as_format, round_to
from labkit.formats.arguments import require_kind
from labkit.interop import format_of
from labkit.testing import orders
from labkit.testing.bound import Arithmetic, Floats, sum_error

Array: TypeAlias = "Tensor | NDArray[Any]"
Places: TypeAlias = NDArray[np.intp]  # indices into the flattened result
Pairs: TypeAlias = "Callable[[Places], tuple[Floats, Floats | None]]"

_NUMPY = {np.dtype(np.float16): FP16, np.dtype(np.float32): FP32, np.dtype(np.float64): FP64}


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation with its operands.

    Attributes:
        name: for display, with shapes.
        value: the exact result, in FP64 (its own error is part of the bound).
        terms: K, the number of terms of each sum.
        formats: formats of the operands.
        error: arithmetic -> bound of the error before the final rounding, shaped like `value`.
        replay: (arithmetic, places) -> results [orders, places] before the final rounding.
        pairs: places -> operands [K, places] of the sums; None where the result is not one sum.
        rounded: format that the kernel rounds operands to, if they are not values of it.
        others: places -> the results of known faults there before the final rounding, by name.
        noisy: (arithmetic, places) -> replays of faults whose errors depend on the order, by name.
    """

    name: str
    value: Floats
    terms: int
    formats: tuple[Format, ...]
    error: Callable[[Arithmetic], Floats]
    replay: Callable[[Arithmetic, Places], Floats]
    pairs: Pairs | None = None
    rounded: Format | None = None
    others: Callable[[Places], dict[str, Floats]] | None = None
    noisy: Callable[[Arithmetic, Places], dict[str, Floats]] | None = None


def values_of(array: Array, name: str) -> tuple[Floats, Format]:
    """Return the values of a tensor or an array of floats, exactly, and their format.

    Raises:
        TypeError: it is neither, or holds no floats.
    """
    if isinstance(array, Tensor):
        if not array.is_floating_point():
            raise TypeError(
                f"expected floats in {name}, got {array.dtype}. Cast to the dtype that the kernel "
                "reads."
            )
        format = format_of(array.dtype)
        array = array.detach().cpu()
        wide = array if format in (FP32, FP64) else array.float()
        return wide.double().numpy(), format
    if isinstance(array, np.ndarray | np.floating):
        if array.dtype not in _NUMPY:
            raise TypeError(
                f"expected float16, float32 or float64 in {name}, got {array.dtype}. Cast it first."
            )
        with np.errstate(invalid="ignore"):
            return np.asarray(array, np.float64), _NUMPY[array.dtype]
    raise TypeError(
        f"expected a torch tensor or a numpy array of floats for {name}, got {type(array).__name__}"
    )


def operand(array: Array, name: str, operands: Format | None = None) -> tuple[Floats, Format]:
    """Return values and their format: `operands` if it represents them all."""
    values, format = values_of(array, name)
    if format == FP64:
        raise TypeError(
            f"expected FP32 or narrower in {name}, got FP64, whose products FP64 cannot hold. Cast "
            "it."
        )
    if operands is not None and operands != format:
        rounded = round_to(values, operands)
        if not ((rounded == values) | np.isnan(values)).all():
            if operands not in (TF32, BF16):
                raise ValueError(
                    f"expected {operands.name} values in {name}, got others. Round it as the "
                    "kernel does."
                )
            return values, format
        format = operands
    return values, format


def matmul(
    a: Array,
    b: Array,
    *,
    bias: Array | None = None,
    scale: Array | float | None = None,
    operands: FormatLike | None = None,
) -> Operation:
    """Return the product a @ b by torch.matmul's rules for shapes, times `scale`, plus `bias`.

    Args:
        a: array [..., m, k].
        b: array [..., k, n].
        bias: added to the scaled product; it is broadcast to [..., m, n].
        scale: multiplies the sums; a number or an array that is broadcast.
        operands: format in which the kernel multiplies: that of FP8 values in FP32 tensors; or TF32
            or BF16, to which it rounds FP32 operands.

    Raises:
        TypeError: operands are not floats, or are FP64.
        ValueError: the shapes do not match; an operand is not a value of the format.

    >>> matmul(np.ones((2, 3), np.float16), np.ones((3, 4), np.float16)).terms
    3
    """
    if operands is not None:
        operands = as_format(operands, "operands")
    x, y = operand(a, "a", operands), operand(b, "b", operands)
    if not x[0].ndim or not y[0].ndim:
        raise ValueError("expected a and b with one dimension or more, got a single number")
    left = x[0][None] if x[0].ndim == 1 else x[0]
    right = y[0][:, None] if y[0].ndim == 1 else y[0]
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        if left.shape[-1] != right.shape[-2]:
            raise ValueError
    except ValueError:
        shapes = f"{list(x[0].shape)} and {list(y[0].shape)}"
        raise ValueError(
            f"expected a[..., m, k] and b[..., k, n] with one k, got {shapes}"
        ) from None
    shape = (*batch, left.shape[-2], right.shape[-1])
    rows = np.broadcast_to(left, (*batch, *left.shape[-2:]))
    columns = np.broadcast_to(right, (*batch, *right.shape[-2:])).swapaxes(-1, -2)

    def pairs(places: Places) -> tuple[Floats, Floats]:
        *sheet, i, j = np.unravel_index(places, shape)
        return rows[(*sheet, i)].T, columns[(*sheet, j)].T

    ends = [size for size, array in ((shape[-2], x[0]), (shape[-1], y[0])) if array.ndim > 1]
    name = f"matmul {list(x[0].shape)} @ {list(y[0].shape)}"
    both = (left, x[1]), (right, y[1])
    return _products(
        name, (*batch, *ends), left.shape[-1], both, _gemm, pairs, operands, bias, scale
    )


def dot(a: Array, b: Array) -> Operation:
    """Return the dot product of two vectors.

    Raises:
        ValueError: they are not vectors of one length.
    """
    for name, array in (("a", a), ("b", b)):
        require_kind(array, (Tensor, np.ndarray), name)
    if len(a.shape) != 1 or a.shape != b.shape:
        raise ValueError(
            f"expected two vectors of one length, got {list(a.shape)} and {list(b.shape)}"
        )
    return matmul(a, b)


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
    (image, of_x), (filters, of_w) = operand(x, "x", operands), operand(weight, "weight", operands)
    require_kind(groups, int, "groups")
    n = filters.ndim - 2
    if n not in (1, 2, 3) or image.ndim != n + 2 or image.shape[1] != filters.shape[1] * groups:
        raise ValueError(
            "expected x[batch, channels, ...] and weight[out, channels / groups, ...] with 1 to 3 "
            f"dimensions more, got {list(image.shape)} and {list(filters.shape)} with "
            f"groups={groups}"
        )
    if len(filters) % groups:
        raise ValueError(
            f"expected a number of filters that groups divides, got {len(filters)} and "
            f"groups={groups}"
        )
    steps = _numbers(stride, "stride", n, 1)
    holes = _numbers(dilation, "dilation", n, 1)
    reach = [(size - 1) * hole + 1 for size, hole in zip(filters.shape[2:], holes, strict=True)]
    around = _padding(padding, steps, reach)
    conv = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
    padded = np.pad(image, [(0, 0), (0, 0), *around])
    if min(reach) < 1 or any(
        wide > size for wide, size in zip(reach, padded.shape[2:], strict=True)
    ):
        raise ValueError(
            f"expected a window that fits the padded image, got {reach} for "
            f"{list(padded.shape[2:])}. Pass more padding, or less dilation."
        )
    # widths of torch.nn.functional.pad begin with the last dimension
    widths = [width for pair in reversed(around) for width in pair]

    def multiply(left: Floats, right: Floats) -> Floats:
        image = F.pad(torch.from_numpy(left), widths)
        filters = torch.from_numpy(right)
        return np.asarray(conv(image, filters, None, steps, 0, holes, groups).numpy(), np.float64)

    shape = multiply(image, filters).shape
    axes = tuple(range(2, n + 2))
    # the windows have the shape [batch, channels, *places, *reach]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axes)
    windows = windows[:, :, *(slice(None, None, each) for each in (*steps, *holes))]
    grouped = windows.reshape(len(image), groups, -1, *windows.shape[2:])

    def pairs(places: Places) -> tuple[Floats, Floats]:
        sheet, channel, *place = np.unravel_index(places, shape)
        taken = np.moveaxis(grouped, 2, n + 2)[(sheet, channel // (len(filters) // groups), *place)]
        return taken.reshape(len(places), -1).T, filters[channel].reshape(len(places), -1).T

    name = f"convolution {list(image.shape)} * {list(filters.shape)}"
    shaped = None
    if bias is not None:
        require_kind(bias, (Tensor, np.ndarray), "bias")
        if tuple(bias.shape) != (len(filters),):
            raise ValueError(
                f"expected bias of shape {[len(filters)]}, one number for each filter, "
                f"got {list(bias.shape)}"
            )
        shaped = bias.reshape(-1, *[1] * n)
    operands_of = (image, of_x), (filters, of_w)
    return _products(
        name,
        shape,
        math.prod(filters.shape[1:]),
        operands_of,
        multiply,
        pairs,
        operands,
        shaped,
        None,
    )


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


def _padding(
    padding: int | Sequence[int] | str, steps: tuple[int, ...], reach: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the widths before and behind each dimension of a convolution's image."""
    if not isinstance(padding, str):
        return [(width, width) for width in _numbers(padding, "padding", len(steps), 0)]
    if padding == "valid":
        return [(0, 0) for _ in steps]
    if padding != "same":
        raise ValueError(f"padding: expected numbers, 'same' or 'valid', got {padding!r}")
    if max(steps) > 1:
        raise ValueError(
            f"padding: expected numbers with stride {list(steps)}, got 'same', which needs stride 1"
        )
    # of an odd width, the larger part is behind, as torch has it
    return [((wide - 1) // 2, wide - 1 - (wide - 1) // 2) for wide in reach]


def _gemm(a: Floats, b: Floats) -> Floats:
    found: Floats = torch.matmul(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    return found


def _products(
    name: str,
    shape: tuple[int, ...],
    terms: int,
    both: tuple[tuple[Floats, Format], tuple[Floats, Format]],
    multiply: Callable[[Floats, Floats], Floats],
    pairs: Pairs,
    operands: Format | None,
    bias: Array | None,
    scale: Array | float | None,
) -> Operation:
    """Return sums of products, one for each element, times `scale`, plus `bias`.

    Args:
        name: name of the operation, for messages.
        shape: shape of the result.
        terms: number of terms of each sum.
        both: the operands and their formats.
        multiply: computes the sums in FP64.
        pairs: places -> operands [terms, places] of their sums.
        operands: as in `matmul`.
        bias: as in `matmul`.
        scale: as in `matmul`.
    """
    factor = np.ones(()) if scale is None else _epilogue(scale, "scale", shape)
    added = np.zeros(()) if bias is None else _epilogue(bias, "bias", shape)
    (a, of_a), (b, of_b) = both
    rounded = operands if operands not in (None, of_a, of_b) else None
    bare = multiply(a, b).reshape(shape)
    plain = scale is None and bias is None
    with np.errstate(invalid="ignore", over="ignore"):
        value = bare if plain else bare * factor + added

    def error(how: Arithmetic) -> Floats:
        aligned = (how.operands,) * 2 if how.spec is None else (how.spec.operands, how.spec.right)
        sizes = []
        for values, format in zip((a, b), aligned, strict=True):
            sizes.append(np.abs(values))
            if format is not None:  # subnormal numbers are aligned as normal ones
                np.maximum(sizes[-1], format.smallest_normal, out=sizes[-1], where=sizes[-1] > 0)
        size = multiply(*sizes).reshape(shape)
        grid = of_a.smallest_subnormal * of_b.smallest_subnormal
        extra = int(how.spec is None and of_a.precision + of_b.precision > how.format.precision)
        bound = sum_error(how, terms, size, extra=extra, grid=grid)
        if plain:
            return bound
        if scale is not None:
            extra = extra + 3
        gain = max(1.0, float(np.abs(factor).max(initial=0.0)))
        whole = size * np.abs(factor) + np.abs(added)
        # a bias is one term more
        count = terms if bias is None else terms + 1
        scaled = sum_error(how, count, whole, extra=extra, gain=gain)
        return np.where(np.isinf(bound), np.inf, scaled)

    def replay(how: Arithmetic, places: Places) -> Floats:
        times, plus = (np.broadcast_to(each, shape).reshape(-1)[places] for each in (factor, added))
        sums = np.stack(list(orders.sums(*pairs(places), how)))
        if plain:
            return sums
        # fused, or rounded between the scale and the bias
        rounded = orders.rounding_of(how)
        product = np.asarray(rounded(sums * times), np.float64)
        return np.concatenate(
            [sums * times + plus, np.asarray(rounded(product + plus), np.float64)]
        )

    def others(places: Places) -> dict[str, Floats]:
        sums = bare.reshape(-1)[places]
        times, plus = (np.broadcast_to(each, shape).reshape(-1)[places] for each in (factor, added))
        found = {}
        if bias is not None:
            found = {
                "the bias is missing": sums * times,
                "the bias was added twice": sums * times + 2 * plus,
            }
        if scale is not None:
            found |= {
                "the scale is missing": sums + plus,
                "the scale was applied twice": sums * times**2 + plus,
            }
        if (other := _other_dimension(factor, shape)) is not None:
            along = np.broadcast_to(other, shape).reshape(-1)[places]
            found["the scale is applied along the other dimension"] = sums * along + plus
        if (other := _other_dimension(added, shape)) is not None:
            along = np.broadcast_to(other, shape).reshape(-1)[places]
            found["the bias is added along the other dimension"] = sums * times + along
        if not plain:
            for format in (FP16, BF16):
                what = f"the product is rounded to {format.name} before the scale or the bias"
                found[what] = np.asarray(round_to(sums, format), np.float64) * times + plus
        return found

    return Operation(
        name, value, terms, (of_a, of_b), error, replay, pairs if plain else None, rounded, others
    )


def _other_dimension(values: Floats, shape: tuple[int, ...]) -> Floats | None:
    """Swap the last two dimensions of a scale or bias, if the result differs and still fits."""
    if not values.ndim or len(shape) < 2:
        return None
    swapped = np.atleast_2d(values).swapaxes(-1, -2)
    fits = all(size in (1, of) for size, of in zip(swapped.shape[-2:], shape[-2:], strict=True))
    if not fits or swapped.size == 1:
        return None
    return swapped


def _epilogue(array: Array | float, name: str, shape: tuple[int, ...]) -> Floats:
    if isinstance(array, Real) and not isinstance(array, bool):
        values = np.asarray(float(array))
    else:
        values = values_of(cast(Array, array), name)[0]
    try:
        fits = np.broadcast_shapes(values.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"expected {name} to broadcast to the result, {list(shape)}, got {list(values.shape)}"
        )
    return values


def sum_over(x: Array, dim: int | Sequence[int] | None = None) -> Operation:
    """Return the sum of x over some dimensions, by default over all.

    >>> float(sum_over(torch.ones(3, 4)).value)
    12.0
    """
    return _reduction("sum", x, dim, 1.0)


def mean(x: Array, dim: int | Sequence[int] | None = None) -> Operation:
    """Return the mean of x over some dimensions, by default all.

    It is the sum divided by K, or times 1 / K.
    """
    return _reduction("mean", x, dim, None)


def amax(x: Array, dim: int | Sequence[int] | None = None) -> Operation:
    """Return the largest number of x over some dimensions, by default over all.

    Nothing is rounded before the end.
    """
    rows, format = _rows(x, dim)
    if not rows.shape[-1]:
        raise ValueError("expected a number or more to take the largest of, got an empty dimension")
    value = rows.max(-1)
    return Operation(
        f"amax {list(x.shape)}",
        value,
        1,
        (format,),
        lambda how: np.zeros_like(value),
        lambda how, places: value.reshape(1, -1)[:, places],
    )


def _reduction(
    name: str, x: Array, dim: int | Sequence[int] | None, divisor: float | None
) -> Operation:
    rows, format = _rows(x, dim)
    terms = rows.shape[-1]
    count = float(terms) if divisor is None else divisor
    grid = format.smallest_subnormal if divisor else 0.0
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        value = np.asarray(rows.sum(-1) / count)

    def error(how: Arithmetic) -> Floats:
        with np.errstate(invalid="ignore"):
            size = np.abs(rows).sum(-1)
            extra = (0 if divisor else 2) + (format.precision > how.format.precision)
            return sum_error(how, terms, size, extra=extra, grid=grid, gain=max(1.0, count)) / max(
                1.0, count
            )

    def pairs(places: Places) -> tuple[Floats, None]:
        return rows.reshape(-1, terms)[places].T, None

    def replay(how: Arithmetic, places: Places) -> Floats:
        sums = np.stack(list(orders.sums(*pairs(places), how)))
        if divisor:
            return sums
        # divided, or times 1 / K, which is rounded twice
        rounded = orders.rounding_of(how)
        with np.errstate(all="ignore"):
            inverse = np.asarray(rounded(np.asarray(1 / count, np.float64)), np.float64)
            product = np.asarray(rounded(sums * inverse), np.float64)
            return np.concatenate([sums / count, product])

    def others(places: Places) -> dict[str, Floats]:
        if divisor:
            return {}
        sums = rows.reshape(-1, terms)[places].sum(-1)
        with np.errstate(all="ignore"):
            return {
                "the sum is not divided": sums,
                "the sum is divided by n - 1": sums / (count - 1),
            }

    return Operation(
        f"{name} {list(x.shape)}",
        value,
        terms,
        (format,),
        error,
        replay,
        pairs if divisor else None,
        others=others,
    )


def dimension_of(dim: int, dimensions: int, asked: object) -> int:
    """Return a dimension that is counted from the front.

    A number counts as one dimension, as in torch.

    Raises:
        TypeError: it is not a whole number.
        ValueError: there is no such dimension.
    """
    require_kind(dim, int, "dim", "Pass a dimension, or a tuple of them")
    most = max(dimensions, 1)
    if not -most <= dim < most:
        raise ValueError(f"expected dim within the {dimensions} dimensions of x, got {asked}")
    return int(dim) % most


def _rows(x: Array, dim: int | Sequence[int] | None) -> tuple[Floats, Format]:
    """Return x with the dimensions that are summed over moved to the end, as one."""
    values, format = operand(x, "x")
    require_kind(dim, (int, Sequence, type(None)), "dim", "Pass a dimension, or a tuple of them")
    if dim is None or (isinstance(dim, Sequence) and not dim):
        # no dimensions are all of them, as in torch
        dims = tuple(range(values.ndim))
    else:
        asked = tuple(dim) if isinstance(dim, Sequence) else (dim,)
        dims = tuple(dimension_of(each, values.ndim, dim) for each in asked)
    if len(set(dims)) < len(dims):
        raise ValueError(f"dim: expected each dimension once, got {dim}")
    if dims:
        values = values.reshape(values.shape or (1,))
    rest = [each for each in range(values.ndim) if each not in dims]
    moved = values.transpose(*rest, *dims)
    return moved.reshape(
        *moved.shape[: len(rest)], math.prod(values.shape[each] for each in dims)
    ), format
