"""Differentiable matrix products with a chosen accumulator, and the layers that reduce to them.

The backward pass of D = A @ B has two more products, dA = dD @ B^T and dB = A^T @ dD. All three
multiply numbers of a format and use the same accumulator. The format is that of torch's dtype or,
where FP32 tensors emulate it (FP8, TF32), that of `Emulated`. Linear layers, convolutions and
attention are reduced to such products (`run`), which puts a V100 or an FP16 accumulator under any
model.

Invariant: every operand is rounded to its format before it is multiplied, and every result once, to
the dtype that a GPU would have stored; between two GEMMs nothing is rounded but what is stored.

Not supported: recurrent layers, `einsum` and others, which raise an error with their name; second
derivatives. In a transposed convolution, as in the gradient of a convolution's input, the products
over channels go through the accumulator, and those of overlapping windows are summed in FP32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from labkit.formats import BF16, FP16, FP32, Format
from labkit.formats.arguments import require_kind
from labkit.gemm.accumulators import AnyAccumulator, accumulate, as_accumulator, instruction_for
from labkit.gemm.mma import MmaSpec
from labkit.interop import format_of, round_tensor


def matmul(
    a: Tensor, b: Tensor, accumulator: AnyAccumulator, dtype: torch.dtype | None = None
) -> Tensor:
    """Return a @ b added up by `accumulator`, forward and backward.

    Shapes follow the rules of torch.matmul.

    The two GEMMs of the backward pass, dA = dD @ B^T and dB = A^T @ dD, use the accumulator as
    well. The incoming gradient is rounded to the operands' dtype before these products, and their
    results once.

    Args:
        a: tensor [..., m, k].
        b: tensor [..., k, n], of the dtype of `a`.
        accumulator: format or method of the sum.
        dtype: dtype of the result, which is rounded once; by default that of `a`.

    Raises:
        RuntimeError: the operands' dtypes differ.
        TypeError, ValueError: an operand is a scalar, or see `accumulate`.

    >>> from labkit.gemm.accumulators import SEQUENTIAL_FP16
    >>> w = torch.ones(4096).half().requires_grad_()
    >>> y = matmul(torch.ones(1, 4096).half(), w, SEQUENTIAL_FP16); y.backward(torch.ones(1).half())
    >>> y.item(), w.grad.dtype
    (2048.0, torch.float16)
    """
    require_kind(a, Tensor, "a")
    require_kind(b, Tensor, "b")
    accumulator = as_accumulator(accumulator)
    if a.dim() == 0 or b.dim() == 0:
        raise ValueError(
            f"expected vectors or matrices, got shapes {tuple(a.shape)} and {tuple(b.shape)}; "
            "multiply by a number with *"
        )
    if a.dtype != b.dtype:
        raise RuntimeError(
            f"expected operands of one dtype, as hardware multiplies; got {a.dtype} and {b.dtype}"
        )
    left = a[None] if a.dim() == 1 else a
    right = b[:, None] if b.dim() == 1 else b
    shape = (*left.shape[:-1], right.shape[-1])
    result = dtype or a.dtype
    if right.dim() == 2:
        # one matrix on the right: the leading dimensions of the left one are further rows
        rows = left.reshape(math.prod(left.shape[:-1]), left.shape[-1])
        d = product(rows, right, accumulator, a.dtype, result).reshape(shape)
    else:
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left, right = (part.expand(*batch, *part.shape[-2:]) for part in (left, right))
        d = product(left, right, accumulator, a.dtype, result)
    if a.dim() == 1:
        d = d.squeeze(-2)
    return d.squeeze(-1) if b.dim() == 1 else d


@dataclass(frozen=True)
class Emulated:
    """Accumulator for FP32 tensors that emulate a narrower format.

    Attributes:
        accumulator: what the products are added up in.
        format: what operands are rounded to.
        gradient_format: what a gradient is, before it is multiplied.

    Raises:
        ValueError: the accumulator is a GPU's, which has no instruction for these operands.
    """

    accumulator: AnyAccumulator
    format: Format
    gradient_format: Format

    def __post_init__(self) -> None:
        accumulator = as_accumulator(self.accumulator)
        if isinstance(accumulator, MmaSpec):
            instruction_for(accumulator, self.format)
            instruction_for(accumulator, self.gradient_format, self.format)

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Return A[..., m, k] @ B[..., k, n] in FP32, differentiable."""
        d: Tensor = _Product.apply(
            a, b, self.accumulator, self.format, self.gradient_format, torch.float32
        )  # type: ignore[no-untyped-call]
        return d


def product(
    a: Tensor, b: Tensor, accumulator: AnyAccumulator, operands: torch.dtype, result: torch.dtype
) -> Tensor:
    """Return A[..., m, k] @ B[..., k, n] of operands cast to a dtype, in the dtype `result`.

    It is differentiable.
    """
    # a product of its own: `Emulated`, or those of `labkit.amp.low_bit`
    if callable(accumulator):
        return accumulator(a, b)
    format = format_of(operands)
    d: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
        a, b, accumulator, format, format, result
    )
    return d


class _Product(torch.autograd.Function):
    """D = A @ B of operands in `format`, and its two backward products.

    The backward products take gradients in `of_gradient`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        accumulator: AnyAccumulator,
        format: Format,
        of_gradient: Format,
        result: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.accumulator = accumulator
        ctx.formats = (format, of_gradient)
        return accumulate(
            _in(a, format), _in(b, format), None, accumulator, format_of(result), (format, format)
        )

    @staticmethod
    # these products are not recorded, so a second derivative is refused rather than wrong
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        format, of_gradient = ctx.formats
        d = _in(gradients[0], of_gradient)
        need_a, need_b = ctx.needs_input_grad[:2]
        gradient_a = None
        gradient_b = None
        if need_a:
            gradient_a = accumulate(
                d,
                _in(b.mT, format),
                accumulator=ctx.accumulator,
                out=format_of(a.dtype),
                operands=(of_gradient, format),
            )
        if need_b:
            gradient_b = accumulate(
                _in(a.mT, format),
                d,
                accumulator=ctx.accumulator,
                out=format_of(b.dtype),
                operands=(format, of_gradient),
            )
        # the other four arguments of `forward` have no gradients
        return gradient_a, gradient_b, None, None, None, None


def _in(tensor: Tensor, format: Format) -> Tensor:
    """Round to a format: in its dtype, or in FP32 where torch does not compute in it."""
    if format_of(tensor.dtype) == format:
        return tensor
    dtype = {FP16: torch.float16, BF16: torch.bfloat16, FP32: torch.float32}.get(format)
    if dtype is None:
        return round_tensor(tensor.detach().float(), format)
    return tensor.to(dtype)


def run(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    accumulator: AnyAccumulator,
) -> Tensor:
    """Run torch's function `func(*args, **kwargs)` with its products summed by `accumulator`.

    Biases, `alpha` and `beta`, softmax and masks are computed in FP32, and the result is rounded to
    the operands' dtype once.

    Args:
        func: one of the functions of torch that `REDUCTIONS` names.
        args: its positional arguments.
        kwargs: its keyword arguments.
        accumulator: format or method of the sums, or a function (A[g, m, k], B[g, k, n]) -> A @ B
            that computes the products itself.

    Raises:
        NotImplementedError: this function is not reduced to matrix products here.

    >>> from labkit.gemm.mma import SPECS
    >>> run(F.linear, (torch.ones(2, 3).half(), torch.ones(1, 3).half()), {}, SPECS["V100"])
    tensor([[3.],
            [3.]], dtype=torch.float16)
    """
    name = getattr(func, "__name__", str(func))
    if name not in REDUCTIONS:
        raise NotImplementedError(
            f"expected an operation that reduces to matrix products, got {name}, which has no "
            f"accumulator. These do: {', '.join(REDUCTIONS)}. Leave the accumulator out (None) for "
            "a model that needs it."
        )
    spelled = OPERANDS.get(name, {})
    named = {
        spelled.get(key, key): value
        for key, value in kwargs.items()
        if (key, value) != ("out", None)
    }
    return REDUCTIONS[name](accumulator, *args, **named)


def _linear(
    accumulator: AnyAccumulator, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    # a vector of weights has one output, without a dimension; t() leaves it as it is
    result = matmul(input, weight.t(), accumulator, torch.float32)
    if bias is not None:
        result = result + bias.float().expand(result.shape)
    return result.to(input.dtype)


def _require_dimensions(name: str, a: Tensor, b: Tensor) -> None:
    """Raise a RuntimeError for operands that `matmul` accepts and a narrower function does not."""
    first, second = DIMENSIONS[name]
    shapes = f"got shapes {tuple(a.shape)} and {tuple(b.shape)}"
    if (a.dim(), b.dim()) != (first, second):
        raise RuntimeError(
            f"{name}: expected operands of {first} and {second} dimensions, {shapes}"
        )
    if first == 3 and a.shape[0] != b.shape[0]:
        raise RuntimeError(f"{name}: expected operands of one batch size, {shapes}")


def _added(
    name: str,
    accumulator: AnyAccumulator,
    input: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    """Return beta * input + alpha * (a @ b), as addmm, addmv and baddbmm.

    With beta 0 the input is not read, even if it is NaN.
    """
    _require_dimensions(name, a, b)
    result = alpha * matmul(a, b, accumulator, torch.float32)
    input = input.expand(result.shape)
    if beta:
        result = result + beta * input.float()
    return result.to(a.dtype)


def _convolution(
    dimensions: int,
    accumulator: AnyAccumulator,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Compute conv1d, 2d or 3d as one product per group.

    Shapes: weights [out, in*window] @ patches [in*window, batch*places].

    Patches are FP32 copies of the image, so their gradients meet again in FP32 and are rounded as
    one.
    """
    image = _image(input, weight, dimensions)
    steps = _each(stride, dimensions, "stride", least=1)
    holes = _each(dilation, dimensions, "dilation", least=1)
    _require_fitting_bias(bias, weight.shape[0])
    out, _, *window = weight.shape
    if padding == "same" and set(steps) != {1}:
        raise RuntimeError(
            f"expected stride 1 with padding='same', got {stride}; pass padding as numbers"
        )
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(window, holes, strict=True)]
        around = [(n // 2, n - n // 2) for n in total]
    else:
        if isinstance(padding, str) and padding != "valid":
            raise RuntimeError(f'padding: expected numbers, "same" or "valid", got {padding!r}')
        numbers = 0 if padding == "valid" else padding
        around = [(n, n) for n in _each(numbers, dimensions, "padding", least=0)]
    # torch expects before and after of the last dimension first
    image = F.pad(image, list(itertools.chain.from_iterable(reversed(around))))
    batch, channels = image.shape[:2]
    if groups < 1 or channels != weight.shape[1] * groups or out % groups:
        raise RuntimeError(
            f"weight {list(weight.shape)} in {groups} groups does not fit input {list(image.shape)}"
        )
    image = image.float()
    # a strided view of all windows: [batch, channels, *places, *window]
    n = dimensions
    for axis, (width, step, hole) in enumerate(zip(window, steps, holes, strict=True), 2):
        image = image.unfold(axis, hole * (width - 1) + 1, step)[..., ::hole]
    places = image.shape[2 : 2 + n]
    # channels and window elements first, then batch and places
    patches = image.permute(1, *range(2 + n, 2 + 2 * n), 0, *range(2, 2 + n))
    patches = patches.reshape(
        groups, channels // groups * math.prod(window), batch * math.prod(places)
    )
    y = product(
        weight.reshape(groups, out // groups, -1), patches, accumulator, input.dtype, torch.float32
    )
    return _finished(y.reshape(out, batch, *places).transpose(0, 1), input, bias)


def _transposed_convolution(
    dimensions: int,
    accumulator: AnyAccumulator,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Compute conv_transpose1d, 2d or 3d as one product per group.

    Shapes: weights^T [out*window, in] @ image [in, batch*places].

    Each product is then added, in FP32, to the place in the result that its window reaches.
    """
    image = _image(input, weight, dimensions)
    steps = _each(stride, dimensions, "stride", least=1)
    holes = _each(dilation, dimensions, "dilation", least=1)
    cut = _each(padding, dimensions, "padding", least=0)
    more = _each(output_padding, dimensions, "output_padding", least=0)
    batch, channels, *places = image.shape
    _, out, *window = weight.shape
    if groups < 1 or channels != weight.shape[0] or channels % groups:
        raise RuntimeError(
            f"weight {list(weight.shape)} in {groups} groups does not fit input {list(input.shape)}"
        )
    if any(m >= max(s, d) for m, s, d in zip(more, steps, holes, strict=True)):
        raise RuntimeError(
            f"output_padding {output_padding} must be smaller than stride {steps} or dilation "
            f"{holes}"
        )
    _require_fitting_bias(bias, groups * out)
    weights = weight.reshape(groups, channels // groups, -1).mT
    columns = image.reshape(batch, groups, channels // groups, math.prod(places))
    columns = columns.permute(1, 2, 0, 3).flatten(2)
    d = product(weights, columns, accumulator, input.dtype, torch.float32)
    d = d.reshape(groups * out, math.prod(window), batch, *places).transpose(0, 2)
    reach = zip(places, steps, holes, window, more, strict=True)
    size = [(n - 1) * s + d * (k - 1) + 1 + m for n, s, d, k, m in reach]
    if any(n <= 2 * c for n, c in zip(size, cut, strict=True)):
        raise RuntimeError(
            f"padding: expected less than half of the result, {size} without it, got {padding}"
        )
    y = d.new_zeros(batch, groups * out, *size)
    # within one tap no two products reach the same place, so the sum needs no scatter
    for tap, reached in enumerate(_taps(places, window, steps, holes)):
        y[:, :, *reached] += d[:, tap]
    # padding of a transposed convolution is cut off
    inside = [slice(c, n - c) for c, n in zip(cut, size, strict=True)]
    return _finished(y[:, :, *inside], input, bias)


def _image(input: Tensor, weight: Tensor, dimensions: int) -> Tensor:
    """Return the input with a batch, [batch, channels, *size].

    Raises:
        RuntimeError: input and weight have other dimensions or two dtypes.
    """
    least = dimensions + 1
    if input.dim() not in (least, least + 1) or weight.dim() != least + 1:
        raise RuntimeError(
            f"expected an input of {least} or {least + 1} dimensions and a weight of {least + 1}, "
            f"got shapes {tuple(input.shape)} and {tuple(weight.shape)}"
        )
    if input.dtype != weight.dtype:
        raise RuntimeError(
            f"expected input and weight of one dtype; got {input.dtype} and {weight.dtype}"
        )
    return input if input.dim() > dimensions + 1 else input[None]


def _require_fitting_bias(bias: Tensor | None, channels: int) -> None:
    if bias is not None and bias.shape != (channels,):
        raise RuntimeError(
            f"bias: expected shape ({channels},), one number per channel of the result, got "
            f"{tuple(bias.shape)}"
        )


def _finished(y: Tensor, input: Tensor, bias: Tensor | None) -> Tensor:
    """Add the bias [channels] to y [batch, channels, ...] and round to the input's dtype.

    The batch dimension is removed if the input has none.
    """
    if bias is not None:
        y = y + bias.float().reshape(-1, *[1] * (y.dim() - 2))
    y = y.to(input.dtype)
    return y if input.dim() == y.dim() else y[0]


def _taps(
    places: Sequence[int], window: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Iterator[tuple[slice, ...]]:
    """Yield the positions of each window element in the image, over all positions of the window.

    >>> list(_taps([3], [2], [2], [1]))  # a window of two numbers, at 0, 2 and 4
    [(slice(0, 5, 2),), (slice(1, 6, 2),)]
    """
    for tap in itertools.product(*map(range, window)):
        begins = [k * d for k, d in zip(tap, dilation, strict=True)]
        yield tuple(
            slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(begins, places, stride, strict=True)
        )


def _bilinear(
    accumulator: AnyAccumulator,
    input1: Tensor,
    input2: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute y[..., o] = sum of input1[..., i] weight[o,i,j] input2[..., j] as two products.

    The result of the first is rounded to the operands' dtype.
    """
    out, first, second = weight.shape
    leading = input1.shape[:-1]
    if (input1.shape, input2.shape) != ((*leading, first), (*leading, second)):
        raise RuntimeError(
            f"expected inputs of shapes [..., {first}] and [..., {second}] for a weight of shape "
            f"{tuple(weight.shape)}, got {tuple(input1.shape)} and {tuple(input2.shape)}"
        )
    between = matmul(
        input1.reshape(-1, 1, first), weight.transpose(0, 1).reshape(first, -1), accumulator
    )
    y = matmul(
        between.reshape(-1, out, second), input2.reshape(-1, second, 1), accumulator, torch.float32
    )[..., 0]
    if bias is not None:
        y = y + bias.float()
    return y.to(input1.dtype).reshape(*input1.shape[:-1], out)


def _each(value: Any, dimensions: int, argument: str, least: int) -> tuple[int, ...]:
    """Return one number for each dimension, from one number for all or a sequence.

    Raises:
        RuntimeError: there is another number of them, or one is below `least`.
    """
    # torch takes numbers of numpy, too
    sizes = (int(value),) if isinstance(value, Integral) else tuple(value)
    if len(sizes) == 1:
        sizes *= dimensions
    if len(sizes) != dimensions or min(sizes) < least:
        raise RuntimeError(
            f"{argument}: expected one number or {dimensions}, each {least} or more, got {value}"
        )
    return sizes


def _attention(
    accumulator: AnyAccumulator,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention, softmax(scale * Q K^T + mask) V, as two products.

    The scores and their softmax stay in FP32 until V.
    """
    if enable_gqa:
        share = query.shape[-3] // key.shape[-3]
        key, value = (part.repeat_interleave(share, -3) for part in (key, value))
    multiplier = scale
    if multiplier is None:
        features = query.shape[-1]
        # without features, all scores are 0
        multiplier = features**-0.5 if features else 1.0
    scores = matmul(query, key.mT, accumulator, torch.float32) * multiplier
    if is_causal and attn_mask is not None:
        raise RuntimeError("expected is_causal or attn_mask, got both")
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask.float()
    # as in torch, a row that is masked whole has weights of 0, not NaN
    weights = torch._safe_softmax(scores, -1)
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    return matmul(weights.to(value.dtype), value, accumulator)


# torch's function -> the dimensions of its two operands; `matmul` takes any
DIMENSIONS = {
    "mm": (2, 2),
    "bmm": (3, 3),
    "mv": (2, 1),
    "addmm": (2, 2),
    "addmv": (2, 1),
    "baddbmm": (3, 3),
}
# Function -> torch's name of an operand -> its name here.
OPERANDS: dict[str, dict[str, str]] = {
    "mm": {"mat2": "other"},
    "bmm": {"mat2": "other"},
    "mv": {"vec": "other"},
    "addmm": {"mat1": "a", "mat2": "b"},
    "addmv": {"mat": "a", "vec": "b"},
    "baddbmm": {"batch1": "a", "batch2": "b"},
}


def _multiplied(accumulator: AnyAccumulator, input: Tensor, other: Tensor) -> Tensor:
    return matmul(input, other, accumulator)


def _multiplied_reversed(accumulator: AnyAccumulator, other: Tensor, input: Tensor) -> Tensor:
    return matmul(input, other, accumulator)


def _product_of(name: str, accumulator: AnyAccumulator, input: Tensor, other: Tensor) -> Tensor:
    _require_dimensions(name, input, other)
    return matmul(input, other, accumulator)


# Name of torch's function -> its reduction, which takes the accumulator and torch's arguments.
REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "linear": _linear,
    "matmul": _multiplied,
    "__matmul__": _multiplied,
    "mm": partial(_product_of, "mm"),
    "bmm": partial(_product_of, "bmm"),
    "mv": partial(_product_of, "mv"),
    "__rmatmul__": _multiplied_reversed,
    "addmm": partial(_added, "addmm"),
    "addmv": partial(_added, "addmv"),
    "baddbmm": partial(_added, "baddbmm"),
    "conv1d": partial(_convolution, 1),
    "conv2d": partial(_convolution, 2),
    "conv3d": partial(_convolution, 3),
    "conv_transpose1d": partial(_transposed_convolution, 1),
    "conv_transpose2d": partial(_transposed_convolution, 2),
    "conv_transpose3d": partial(_transposed_convolution, 3),
    "bilinear": _bilinear,
    "scaled_dot_product_attention": _attention,
}
