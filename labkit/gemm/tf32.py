"""Precision of FP32 products: torch's settings for TF32, and its emulation on other devices.

torch's `fp32_precision` settings are global to the process, and trainings run in threads. Blocks
with the same precision overlap freely; a block with another one waits until those end, in order of
arrival. Nested blocks may differ: the outer one is suspended meanwhile.

For emulation, each operand of a matrix product or convolution is rounded to TF32 (to nearest, ties
to even), forward and backward; sums, results and biases stay FP32. The rounding of an operand
passes its gradient on unrounded, since a GPU stores that in FP32; the incoming gradient of a
product is rounded before the two backward products. Recurrent layers run step by step, so that the
products between two steps are rounded too.

Invariant: when the last of overlapping blocks ends, every setting is restored to its value before
the first one, except for those that the user changed meanwhile. Pairwise products of rounded
operands are exact in FP32 (22 of 24 bits; underflow aside). So each term of a sum is the Tensor
Core's to the bit, and where no partial sum needs more than 24 bits, the result equals `emulate`
with a TF32 spec. What remains is the order and the rounding of the additions: a CPU rounds each to
nearest, a Tensor Core truncates per block.

Not supported: rounding of intermediate results inside einsum or multi_dot of three operands or
more.

Source: PyTorch, "CUDA semantics", "TensorFloat-32 (TF32) on Ampere (and later) devices", and
    "Numerical accuracy".

Also aten/src/ATen/Context.cpp (an operation without a precision inherits that of its backend, which
inherits the generic one; reading a legacy flag raises where the two APIs disagree). NVIDIA A100
whitepaper, "TensorFloat-32" (FP32 input rounded to TF32, accumulated in FP32).

How a library rounds operands is not documented: a Tensor Core ignores the low 13
bits, so unrounded operands are truncated.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.formats import TF32
from labkit.formats.arguments import require_kind
from labkit.gemm.half_storage import GEMMS
from labkit.gemm.product import run
from labkit.gemm.recurrent import RECURRENT, over_layers
from labkit.interop import as_device, round_tensor
from labkit.modes import ATTRIBUTE, LabMode, break_graph, is_composite, mapped, tensors_in

Precision = Literal["ieee", "tf32"]
BACKENDS = ("cuda", "mkldnn")  # cuBLAS and cuDNN; oneDNN, which a CPU computes with
OPERATIONS = ("matmul", "conv", "rnn")
_GENERIC = ("generic", "all")
# torch's older API keeps values of its own
_LEGACY_MATMUL, _LEGACY_CUDNN = (("legacy", "matmul"), ("legacy", "cudnn"))
_Switches = dict[tuple[str, str], str]

_condition = threading.Condition()
_waiting: deque[object] = deque()
# one entry for each block that is open and not suspended; all are equal
_open: list[Precision] = []
_found: _Switches = {}
_set: _Switches = {}
# .precision: what the innermost block of this thread asks for
_thread = threading.local()


@contextmanager
def fp32_precision(precision: Precision) -> Iterator[None]:
    """Multiply FP32 operands as they are ("ieee"), or rounded to TF32 if supported ("tf32").

    Applies to matrix products, convolutions and recurrent layers on CUDA devices. Those of oneDNN,
    on a CPU, are kept at "ieee" in both cases; elsewhere they may use BF16
    (`torch.set_float32_matmul_precision("medium")`).

    >>> with fp32_precision("tf32"):
    ...     torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    ('tf32', 'ieee')
    """
    require_kind(precision, str, "precision", '"ieee" or "tf32"')
    outer: Precision | None = getattr(_thread, "precision", None)
    if outer == precision:
        yield
        return
    if outer is not None:
        _release()
    try:
        _acquire(precision)
        try:
            _thread.precision = precision
            yield
        finally:
            _thread.precision = outer
            _release()
    finally:
        if outer is not None:
            _acquire(outer)


def is_ieee_on_cpu() -> bool:
    """Return whether the CPU multiplies FP32 operands unrounded and no open block changes that."""
    with _condition:
        return (
            not _open
            and not _waiting
            and all(_get(("mkldnn", op)) in ("none", "ieee") for op in OPERATIONS)
        )


def has_tf32(device: torch.device | str) -> bool:
    """Return whether a device has Tensor Cores for TF32.

    NVIDIA's have, from Ampere (compute capability 8.0) on.
    """
    device = as_device(device)
    return (
        device.type == "cuda"
        and not torch.version.hip
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def _acquire(precision: Precision) -> None:
    ticket = object()
    with _condition:
        _waiting.append(ticket)
        try:
            _condition.wait_for(
                lambda: _waiting[0] is ticket and (not _open or _open[0] == precision)
            )
            if not _open:
                # those of the legacy API agree, so that reading them does not raise
                _found.update(_read())
                _set.update({_LEGACY_MATMUL: "high" if precision == "tf32" else "highest"})
                _set.update({_LEGACY_CUDNN: str(precision == "tf32")})
                _set.update(
                    {("cuda", op): precision for op in OPERATIONS}
                    | {("mkldnn", op): "ieee" for op in OPERATIONS}
                )
                _write(_set)
            _open.append(precision)
        finally:
            _waiting.remove(ticket)
            _condition.notify_all()


def _release() -> None:
    with _condition:
        _open.pop()
        if not _open:
            now = _read()
            _write({key: _found[key] if now[key] == _set[key] else now[key] for key in _found})
        _condition.notify_all()


def _get(key: tuple[str, str]) -> str:
    return str(torch._C._get_fp32_precision_getter(*key))


def _put(key: tuple[str, str], value: str) -> None:
    torch._C._set_fp32_precision_setter(*key, value)


def _read() -> _Switches:
    """Return every switch as it was set.

    "none" is an operation that uses its backend's precision.
    """
    own = {_GENERIC: _get(_GENERIC)}
    for backend in BACKENDS:
        own[backend, "all"] = _own((backend, "all"), _GENERIC, own)
        for operation in OPERATIONS:
            own[backend, operation] = _own((backend, operation), (backend, "all"), own)
    found = {key: value for key, value in own.items() if key[1] != "all"}
    products = [(backend, "matmul") for backend in BACKENDS]
    rest = [("cuda", "conv"), ("cuda", "rnn")]
    matmul = _legacy(torch.get_float32_matmul_precision, products, "ieee", found)
    return {
        _LEGACY_MATMUL: matmul,
        _LEGACY_CUDNN: _legacy(torch._C._get_cudnn_allow_tf32, rest, "tf32", found),
    } | found


def _own(key: tuple[str, str], parent: tuple[str, str], own: _Switches) -> str:
    """Return the value that was set for a switch itself.

    torch returns the inherited value, so the parent is changed for a moment.
    """
    value = _get(key)
    if value == "none" or value != _get(parent):
        return value
    other = "tf32" if value == "ieee" else "ieee"
    _put(parent, other)
    inherited = _get(key) == other
    _put(parent, own[parent])
    return "none" if inherited else value


def _legacy(
    read: Callable[[], object], keys: Sequence[tuple[str, str]], agreeing: str, found: _Switches
) -> str:
    """Return a legacy flag, also where reading it raises because the new API says otherwise.

    With `agreeing` for those switches, it is read; where it still raises, it is what the new API
    does not say.
    """
    try:
        return str(read())
    except RuntimeError:
        for key in keys:
            _put(key, agreeing)
        try:
            return str(read())
        except RuntimeError:
            return "False"
        finally:
            for key in keys:
                _put(key, found[key])


def _write(switches: _Switches) -> None:
    """Set every switch, those of the legacy API first: they set some of the others."""
    torch.set_float32_matmul_precision(switches[_LEGACY_MATMUL])
    torch._C._set_cudnn_allow_tf32(switches[_LEGACY_CUDNN] == "True")
    for key, value in switches.items():
        if key[0] != "legacy":
            _put(key, value)


# The operand that is added and not multiplied: its position and name. It is added after the
# product.
BIASES = {"bilinear": 3} | dict.fromkeys(("linear", "conv_tbc", "convolution", "_convolution"), 2)
BIASES |= {f"conv{kind}{n}d": 2 for kind in ("", "_transpose") for n in (1, 2, 3)}
# input, and two operands; beta and alpha by name
ADDENDS = frozenset(["addmm", "addbmm", "addmv", "addr", "baddbmm"])
CELLS = frozenset(["lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"])


def tf32_products(device: torch.device | str) -> AbstractContextManager[Any]:
    """Multiply FP32 tensors in TF32 on `device`.

    torch's switch does it if `has_tf32`; otherwise the operands are rounded.

    The switch decides about a backward pass only while the block is open; rounded operands are part
    of the graph.

    >>> with tf32_products("cpu"):  # 1 + 2^-11 is a tie between 1 and 1 + 2^-10
    ...     torch.full((1, 1), 1 + 2.0**-11) @ torch.full((1, 1), 3.0)
    tensor([[3.]])
    """
    return fp32_precision("tf32") if has_tf32(device) else Tf32Products()


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
        if name not in GEMMS and name not in RECURRENT:
            return self.inside(func, args, kwargs) if is_composite(func) else func(*args, **kwargs)
        dtypes = {
            tensor.dtype
            for tensor in tensors_in((*args, *kwargs.values()))
            if tensor.is_floating_point()
        }
        if dtypes != {torch.float32} or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        if name in RECURRENT:
            with self:
                return over_layers(partial(_over_time, name), *args)
        if name in CELLS:
            data, hidden, w_ih, w_hh, b_ih, b_hh = args
            state = tuple(hidden) if isinstance(hidden, tuple | list) else (hidden,)
            with self:
                new = _stepped(
                    name.removesuffix("_cell"), F.linear(data, w_ih, b_ih), state, w_hh, b_hh, None
                )
            return new if len(new) > 1 else new[0]
        if name == "scaled_dot_product_attention":
            return run(func, args, kwargs, lambda a, b: _product(torch.matmul, (a, b), {}))
        # beta * input + alpha * product; with beta 0 the input is not read, even if it is NaN
        if name in ADDENDS:
            input: Tensor = args[0] if args else kwargs["input"]
            beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
            rest = {
                key: value for key, value in kwargs.items() if key not in ("input", "beta", "alpha")
            }
            product = alpha * _product(
                lambda *a, **k: func(input.new_zeros(()), *a, beta=0, **k), args[1:], rest
            )
            return product + beta * input if beta else product
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
    """Return a product whose arguments are all operands, rounded."""
    result: Tensor = _RoundedGradient.apply(
        func(*mapped(tuple(args), _round), **mapped(kwargs, _round))
    )  # type: ignore[no-untyped-call]
    return result


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
    # conv_tbc requires a bias
    none = torch.zeros_like(bias) if name == "conv_tbc" else None
    if len(args) > at:
        product = _product(func, (*args[:at], none, *args[at + 1 :]), kwargs)
    else:
        product = _product(func, args, kwargs | {"bias": none})
    # dimensions after the channels: conv2d has 2, a linear layer none
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


def _over_time(
    name: str,
    data: Tensor,
    sizes: list[int],
    backwards: bool,
    weights: list[Tensor],
    begin: Iterable[Tensor],
) -> tuple[Tensor, ...]:
    """Run one layer in one direction over packed data [rows of all steps, features].

    Sizes do not grow with time.
    """
    w_hr = weights.pop() if len(weights) % 2 else None
    (w_ih, w_hh) = weights[:2]
    (b_ih, b_hh) = weights[2:] or (None, None)
    steps = list(F.linear(data, w_ih, b_ih).split(sizes))
    # of every sequence, also of those that have ended or not begun
    state = tuple(begin)
    outputs = list[Tensor]()
    for x in steps[::-1] if backwards else steps:
        rows = len(x)
        new = _stepped(name, x, tuple(part[:rows] for part in state), w_hh, b_hh, w_hr)
        outputs.append(new[0])
        state = tuple(torch.cat([now, old[rows:]]) for now, old in zip(new, state, strict=True))
    return torch.cat(outputs[::-1] if backwards else outputs), *state
