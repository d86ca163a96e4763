"""TF32 products of FP32 tensors: a GPU's own from Ampere on, elsewhere operands rounded to TF32.

Each operand of a matrix product or convolution is rounded to TF32 (to nearest, ties to even), forward and backward; the
products are added up in FP32, and results, biases and everything else stay FP32. The rounding of an operand passes its
gradient on unrounded, since a GPU stores that in FP32; the gradient that arrives at a product is rounded before the two
backward products read it. Recurrent layers run step by step, so that the products between two steps are rounded too.

Invariant: the operands are values of TF32, whose pairwise products are exact in FP32 (22 of 24 bits; underflow aside).
Each term of a sum is therefore the Tensor Core's to the bit, and where no partial sum needs more than 24 bits, the
result equals `emulate` with a TF32 spec. What remains is the order and the rounding of the additions: a CPU rounds each
to nearest, a Tensor Core truncates per block.

What it does not do: rounding of intermediate results inside einsum or multi_dot of three operands or more.

Source: NVIDIA A100 whitepaper, "TensorFloat-32" (FP32 input rounded to TF32, accumulated in FP32). How a library rounds
on the way in is not documented: a Tensor Core ignores the low 13 bits, so what was not rounded before is truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.formats import TF32
from labkit.gemm.fp32_precision import fp32_precision, has_tf32
from labkit.gemm.half_storage import GEMMS
from labkit.gemm.recurrent import RECURRENT
from labkit.interop import round_tensor
from labkit.modes import ATTRIBUTE, LabMode, break_graph, is_composite, mapped, tensors_in

# The operand that is added and not multiplied: its position and name. It is added after the product.
BIASES = {"bilinear": 3} | dict.fromkeys(("linear", "conv_tbc", "convolution", "_convolution"), 2)
BIASES |= {f"conv{kind}{n}d": 2 for kind in ("", "_transpose") for n in (1, 2, 3)}
ADDENDS = frozenset("addmm addbmm addmv addr baddbmm".split())  # input, and two operands; beta and alpha by name
CELLS = frozenset("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell".split())


def tf32_products(device: torch.device | str) -> AbstractContextManager[Any]:
    """Multiply FP32 tensors in TF32 on `device`: by torch's switch where `has_tf32`, else by rounding the operands.

    The switch decides about a backward pass only while the block is open; rounded operands are part of the graph.

    >>> with tf32_products("cpu"):  # 1 + 2^-11 is a tie between 1 and 1 + 2^-10
    ...     torch.full((1, 1), 1 + 2.0**-11) @ torch.full((1, 1), 3.0)
    tensor([[3.]])
    """
    return fp32_precision("tf32") if has_tf32(device) else Tf32Products()


class Tf32Products(LabMode):
    """The mode that rounds operands, on any device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if type(func) is ATTRIBUTE:
            return func(*args, **kwargs)
        break_graph()
        name = getattr(func, "__name__", "")
        if name not in GEMMS and name not in RECURRENT:
            return self.inside(func, args, kwargs) if is_composite(func) else func(*args, **kwargs)
        dtypes = {tensor.dtype for tensor in tensors_in((*args, *kwargs.values())) if tensor.is_floating_point()}
        if dtypes != {torch.float32} or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        if name in RECURRENT:
            with self:
                return _recurrent(name, *args)
        if name in CELLS:
            with self:
                return _cell(name, *args)
        if name == "scaled_dot_product_attention":
            from labkit.gemm.accumulated import run

            return run(func, args, kwargs, lambda a, b: _product(torch.matmul, (a, b), {}))
        if name in ADDENDS:
            return _with_addend(func, args, kwargs)
        return _with_bias(func, name, args, kwargs)


class _Rounded(torch.autograd.Function):
    """An operand rounded to TF32; its gradient as it comes."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return round_tensor(tensor, TF32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class _RoundedGradient(torch.autograd.Function):
    """A product as it is; its gradient rounded to TF32, as an operand of the two backward products."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        rounded: Tensor = _Rounded.apply(gradients[0])  # type: ignore[no-untyped-call]
        return rounded


def _round(tensor: Tensor) -> Tensor:
    rounded: Tensor = _Rounded.apply(tensor) if tensor.dtype == torch.float32 else tensor  # type: ignore[no-untyped-call]
    return rounded


def _product(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """Return a product of nothing but operands, all of them rounded."""
    result: Tensor = _RoundedGradient.apply(func(*mapped(tuple(args), _round), **mapped(kwargs, _round)))  # type: ignore[no-untyped-call]
    return result


def _with_bias(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return a product and its bias [out], along the channels of a convolution's result, else along its last axis."""
    at = BIASES.get(name)
    bias: Tensor | None = None if at is None else args[at] if len(args) > at else kwargs.get("bias")
    if at is None or bias is None:
        return _product(func, args, kwargs)
    none = torch.zeros_like(bias) if name == "conv_tbc" else None  # which has to have one
    if len(args) > at:
        product = _product(func, (*args[:at], none, *args[at + 1 :]), kwargs)
    else:
        product = _product(func, args, kwargs | {"bias": none})
    behind = int(name[-2]) if name[-2].isdigit() else product.dim() - 2 if name.endswith("convolution") else 0
    return product + bias.reshape(-1, *[1] * behind)


def _with_addend(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return beta * input + alpha * product; with beta 0 the input is not read, even if it is NaN."""
    input: Tensor = args[0] if args else kwargs["input"]
    beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
    operands = {key: value for key, value in kwargs.items() if key not in ("input", "beta", "alpha")}
    product: Tensor = alpha * _product(lambda *a, **k: func(input.new_zeros(()), *a, beta=0, **k), args[1:], operands)
    return product + beta * input if beta else product


def _cell(name: str, input: Tensor, hidden: Any, *weights: Any) -> Any:
    """Return a cell's new state, of tensors [batch, features], or [features]."""
    w_ih, w_hh, b_ih, b_hh = weights
    state = tuple(hidden) if isinstance(hidden, tuple | list) else (hidden,)
    new = _stepped(name.removesuffix("_cell"), F.linear(input, w_ih, b_ih), state, w_hh, b_hh, None)
    return new if len(new) > 1 else new[0]


def _stepped(
    name: str, x: Tensor, state: tuple[Tensor, ...], w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None
) -> tuple[Tensor, ...]:
    """Return a cell's state after a step; `x` is W_ih input + b_ih."""
    h = F.linear(state[0], w_hh, b_hh)
    if name == "lstm":
        i, f, g, o = (x + h).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        y = o.sigmoid() * c.tanh()
        return (y if w_hr is None else F.linear(y, w_hr)), c
    if name == "gru":
        (x_r, x_z, x_n), (h_r, h_z, h_n) = x.chunk(3, -1), h.chunk(3, -1)
        r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
        n = (x_n + r * h_n).tanh()
        return (n + z * (state[0] - n),)
    return ((x + h).tanh() if name == "rnn_tanh" else (x + h).relu(),)


def _recurrent(name: str, *args: Any) -> tuple[Tensor, ...]:
    """Run `torch.lstm`, `gru`, `rnn_tanh` or `rnn_relu` with its own arguments, step by step."""
    packed = isinstance(args[1], Tensor) and not args[1].is_floating_point()
    data, hx, weights, biased, layers, dropout, train, both_ways, *batch_first = (
        (args[0], *args[2:]) if packed else args
    )
    first = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
    if packed:
        sizes = args[1].tolist()
    else:
        data = data.transpose(0, 1) if batch_first[0] else data
        sizes, shape = [data.shape[1]] * data.shape[0], data.shape[:2]
        data = data.flatten(0, 1)
    projected = len(first) > 1 and first[0].shape != first[1].shape
    each = (4 if biased else 2) + projected
    last = list[tuple[Tensor, ...]]()
    for layer in range(layers):
        data = F.dropout(data, dropout) if layer and dropout and train else data
        outputs = []
        for backwards in (False, True) if both_ways else (False,):
            mine = list(weights[len(last) * each : (len(last) + 1) * each])
            w_hr = mine.pop() if projected else None
            begin = tuple(part[len(last)] for part in first)
            output, end = _over_time(name, data, sizes, begin, mine, w_hr, backwards=backwards)
            outputs.append(output)
            last.append(end)
        data = torch.cat(outputs, -1)
    if not packed:
        data = data.unflatten(0, shape)
        data = data.transpose(0, 1) if batch_first[0] else data
    return (data, *(torch.stack(parts) for parts in zip(*last, strict=True)))


def _over_time(
    name: str, data: Tensor, sizes: Sequence[int], begin: tuple[Tensor, ...], weights: Sequence[Tensor],
    w_hr: Tensor | None, *, backwards: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Run one layer in one direction over packed data [rows of all steps, features]; sizes do not grow with time."""
    (w_ih, w_hh), (b_ih, b_hh) = weights[:2], weights[2:] or (None, None)
    steps = list(F.linear(data, w_ih, b_ih).split(list(sizes)))
    state, outputs = begin, list[Tensor]()  # of every sequence, also of those that have ended or not begun
    for x in steps[::-1] if backwards else steps:
        rows = len(x)
        new = _stepped(name, x, tuple(part[:rows] for part in state), w_hh, b_hh, w_hr)
        outputs.append(new[0])
        state = tuple(torch.cat([now, old[rows:]]) for now, old in zip(new, state, strict=True))
    return torch.cat(outputs[::-1] if backwards else outputs), state
