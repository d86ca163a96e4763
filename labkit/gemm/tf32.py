"""Matrix products, convolutions and recurrent layers in TF32, also on devices without it.

On a device with Tensor Cores for TF32, torch's setting does it (`labkit.gemm.precision`). On others
each operand is rounded to TF32 (to nearest, ties to even), forward and backward; sums, results and
biases stay FP32. The rounding of an operand passes its gradient on unrounded, since a GPU stores
that in FP32; the incoming gradient of a product is rounded before the two backward products.
Recurrent layers run step by step, so that the products between two steps are rounded too.

Pairwise products of rounded operands are exact in FP32 (22 of 24 bits; underflow aside). So each
term of a sum is the Tensor Core's to the bit, and where no partial sum needs more than 24 bits, the
result equals `emulate` with a TF32 spec. What remains is the order and the rounding of the
additions: a CPU rounds each to nearest, a Tensor Core truncates per block.

Not supported: rounding of intermediate results inside einsum or multi_dot of three operands or
more.

How a library rounds operands is not documented. A Tensor Core ignores the low 13 bits, so operands
that a library does not round are truncated.

Source: PyTorch, "Numerical accuracy"; NVIDIA A100 whitepaper, "TensorFloat-32" (FP32 input rounded
    to TF32, accumulated in FP32).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.formats import TF32
from labkit.gemm.half_storage import GEMMS, IN_PLACE, write_product, writes_product
from labkit.gemm.precision import fp32_precision, has_tf32
from labkit.gemm.product import run
from labkit.gemm.recurrent import RECURRENT, over_layers
from labkit.interop import round_tensor
from labkit.modes import ATTRIBUTE, LabMode, break_graph, is_composite, mapped, tensors_in

# Function -> position of its argument `bias`, which is added after the product.
BIASES = {"bilinear": 3} | dict.fromkeys(("linear", "conv_tbc", "convolution", "_convolution"), 2)
BIASES |= {f"conv{kind}{n}d": 2 for kind in ("", "_transpose") for n in (1, 2, 3)}
# Functions of an addend `input` and two operands, with `beta` and `alpha` by name.
ADDENDS = frozenset(["addmm", "addbmm", "addmv", "addr", "baddbmm"])
CELLS = frozenset(["lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"])


def tf32_products(device: torch.device | str) -> AbstractContextManager[object]:
    """Return a context in which FP32 tensors on `device` are multiplied in TF32.

    If `has_tf32`, it sets torch's switch, which affects a backward pass only inside the context.
    On other devices it rounds the operands; the rounding is part of the graph, so a backward pass
    outside the context rounds, too.

    >>> with tf32_products("cpu"):  # 1 + 2^-11 is a tie between 1 and 1 + 2^-10
    ...     torch.full((1, 1), 1 + 2.0**-11) @ torch.full((1, 1), 3.0)
    tensor([[3.]])
    """
    if has_tf32(device):
        return fp32_precision("tf32")
    return Tf32Products()


class Tf32Products(LabMode):
    """The mode that rounds operands, on any device."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        if type(func) is ATTRIBUTE:
            return func(*args, **kwargs)
        break_graph()
        name = getattr(func, "__name__", "")
        if name not in GEMMS and name not in IN_PLACE and name not in RECURRENT:
            if is_composite(func):
                return self.inside(func, args, kwargs)
            return func(*args, **kwargs)
        dtypes = {
            tensor.dtype
            for tensor in tensors_in((*args, *kwargs.values()))
            if tensor.is_floating_point()
        }
        if dtypes != {torch.float32}:
            return func(*args, **kwargs)
        if writes_product(name, kwargs):
            return self.call_inside(write_product, (func, args, kwargs), {})
        if name in RECURRENT:
            with self:
                return over_layers(partial(_over_time, name), *args)
        if name in CELLS:
            with self:
                return _cell(name.removesuffix("_cell"), *args, **kwargs)
        if name == "scaled_dot_product_attention":
            return run(func, args, kwargs, lambda a, b: _product(torch.matmul, (a, b), {}))
        if name in ADDENDS:
            return _with_addend(func, args, kwargs)
        return _with_bias(func, name, args, kwargs)


def _cell(
    name: str,
    input: Tensor,
    hx: Tensor | Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Return the new state of a recurrent cell; the arguments are those of torch's cells."""
    state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    new = _stepped(name, F.linear(input, w_ih, b_ih), state, w_hh, b_hh, None)
    # only an LSTM cell returns a tuple
    return new if len(new) > 1 else new[0]


class _Rounded(torch.autograd.Function):
    """Rounding of an operand to TF32; its gradient is passed on unrounded."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return round_tensor(tensor, TF32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class _RoundedGradient(torch.autograd.Function):
    """Identity whose gradient is rounded to TF32, as an operand of the two backward products."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        rounded: Tensor = _Rounded.apply(gradients[0])  # type: ignore[no-untyped-call]
        return rounded


def _round(tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.float32:
        return tensor
    rounded: Tensor = _Rounded.apply(tensor)  # type: ignore[no-untyped-call]
    return rounded


def _product(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """Return a product of rounded operands; every tensor argument is an operand."""
    product = func(*mapped(tuple(args), _round), **mapped(kwargs, _round))
    result: Tensor = _RoundedGradient.apply(product)  # type: ignore[no-untyped-call]
    return result


def _with_addend(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return beta * input + alpha * product, as addmm and its kin.

    With beta 0 the input is not read, even if it is NaN.
    """
    input: Tensor = args[0] if args else kwargs["input"]
    beta = kwargs.get("beta", 1)
    alpha = kwargs.get("alpha", 1)
    operands = {
        key: value for key, value in kwargs.items() if key not in ("input", "beta", "alpha")
    }

    def without_addend(*args: Any, **kwargs: Any) -> Any:
        return func(input.new_zeros(()), *args, beta=0, **kwargs)

    product: Tensor = alpha * _product(without_addend, args[1:], operands)
    return product + beta * input if beta else product


def _with_bias(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Add the bias [out] to a product: along a convolution's channels, else along the last axis."""
    at = BIASES.get(name)
    if at is None:
        return _product(func, args, kwargs)
    bias: Tensor | None = args[at] if len(args) > at else kwargs.get("bias")
    if bias is None:
        return _product(func, args, kwargs)
    # conv_tbc requires a bias; the others are called without one
    no_bias = torch.zeros_like(bias) if name == "conv_tbc" else None
    if len(args) > at:
        product = _product(func, (*args[:at], no_bias, *args[at + 1 :]), kwargs)
    else:
        product = _product(func, args, kwargs | {"bias": no_bias})
    # number of dimensions after the channels: 2 for conv2d, 0 for a linear layer
    behind = 0
    if name[-2].isdigit():
        behind = int(name[-2])
    elif name.endswith("convolution"):
        behind = product.dim() - 2
    return product + bias.reshape(-1, *[1] * behind)


def _stepped(
    name: str,
    x: Tensor,
    state: tuple[Tensor, ...],
    w_hh: Tensor,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
) -> tuple[Tensor, ...]:
    """Return a cell's state after a step.

    Args:
        name: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        x: W_ih input + b_ih.
        state: (h,), or (h, c) of an LSTM.
        w_hh: weights of h.
        b_hh: bias of the product with h, or None.
        w_hr: projection of an LSTM's output, or None.
    """
    h = F.linear(state[0], w_hh, b_hh)
    if name == "lstm":
        i, f, g, o = (x + h).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        y = o.sigmoid() * c.tanh()
        if w_hr is not None:
            y = F.linear(y, w_hr)
        return y, c
    if name == "gru":
        x_r, x_z, x_n = x.chunk(3, -1)
        h_r, h_z, h_n = h.chunk(3, -1)
        r = (x_r + h_r).sigmoid()
        z = (x_z + h_z).sigmoid()
        n = (x_n + r * h_n).tanh()
        return (n + z * (state[0] - n),)
    if name == "rnn_tanh":
        return ((x + h).tanh(),)
    return ((x + h).relu(),)


def _over_time(
    name: str,
    data: Tensor,
    sizes: list[int],
    backwards: bool,
    weights: list[Tensor],
    begin: Iterable[Tensor],
) -> tuple[Tensor, ...]:
    """Run one layer in one direction over packed data [rows of all steps, features].

    Sequences are sorted by length, so the sizes of the steps do not grow with time.
    """
    # an odd number of weights: the last one is the projection
    w_hr = weights.pop() if len(weights) % 2 else None
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:] or (None, None)
    steps = list(F.linear(data, w_ih, b_ih).split(sizes))
    if backwards:
        steps.reverse()
    # the state of every sequence, also of those that have ended or not begun
    state = tuple(begin)
    outputs = list[Tensor]()
    for x in steps:
        rows = len(x)
        new = _stepped(name, x, tuple(part[:rows] for part in state), w_hh, b_hh, w_hr)
        outputs.append(new[0])
        state = tuple(torch.cat([now, old[rows:]]) for now, old in zip(new, state, strict=True))
    if backwards:
        outputs.reverse()
    return torch.cat(outputs), *state
