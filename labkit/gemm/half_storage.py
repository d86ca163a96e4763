"""FP16 storage with FP32 accumulation on a CPU, at the speed of FP32.

Idea: upcast the operands (exact), let the FP32 kernel multiply and accumulate, round the result
once, as a Tensor Core does. Autograd then does the same in the backward pass: the gradient of
"round to FP16" rounds nothing, and the gradient of "upcast" rounds the FP32 result of each backward
GEMM to FP16, once.

Invariant: every result has the dtype in which a GPU would store it. Mixed operand dtypes raise
torch's error, as on a GPU.

Not reproduced: the summation order of cuBLAS, which is undocumented, and the bits that a Tensor
Core cuts off while it aligns a block's products (an `accumulator` does). An operation that consists
of several products, such as einsum of three tensors, rounds once at its end, where a GPU rounds
after each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from labkit.gemm.accumulators import AnyAccumulator, KnownAccumulator, as_accumulator
from labkit.gemm.product import run
from labkit.gemm.recurrent import RECURRENT, recurrent
from labkit.interop import as_device
from labkit.modes import (
    ATTRIBUTE,
    LabMode,
    body_in_graphs,
    break_graph,
    call_in_graph,
    call_unseen,
    calls_any,
    constant_in_graphs,
    is_composite,
    mapped,
    name_in_graphs,
    require_traceable,
    runs_graph,
    tensors_in,
)

# Matrix products under all their names. All floating-point operands must agree, as on a GPU.
GEMMS = frozenset(
    [
        "linear",
        "matmul",
        "__matmul__",
        "__rmatmul__",
        "linalg_matmul",
        "mm",
        "bmm",
        "mv",
        "addmm",
        "baddbmm",
        "addbmm",
        "addmv",
        "addr",
        "bilinear",
        "einsum",
        "tensordot",
        "inner",
        "dot",
        "vdot",
        "vecdot",
        "linalg_vecdot",
        "chain_matmul",
        "multi_dot",
        "linalg_multi_dot",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "convolution",
        "_convolution",
        "scaled_dot_product_attention",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
    ]
)
# Product that changes its first operand -> the function that returns the same in a new tensor.
IN_PLACE = {
    f"{name}_": getattr(torch, name) for name in ("addmm", "addbmm", "addmv", "addr", "baddbmm")
}
# Normalisation layers: a GPU kernel reads FP16, computes in FP32 with FP32 weights and writes FP16.
NORMS = frozenset(["batch_norm", "group_norm", "layer_norm", "instance_norm"])
# of these, those that update running statistics in place
STATEFUL = frozenset(["batch_norm", "instance_norm"])

# Operations with an FP16 kernel on CUDA and none on a CPU, by torch's OpInfo (a test compares).
# Fourier transforms use complex numbers of two FP16 numbers each, and do not exist in BF16.
ON_CUDA_ONLY = frozenset(
    [
        "avg_pool3d",
        "_upsample_bilinear2d_aa",
        "multi_margin_loss",
        "multilabel_margin_loss",
        "rrelu",
        "rrelu_",
        "round",
        "round_",
        "polygamma",
        "polygamma_",
        "special_polygamma",
    ]
)
# fft_fft, fft_ifft, fft_hfft, fft_rfft2, ...: inverse or not, of complex, Hermitian or real input
TRANSFORMS = frozenset(
    f"fft_{inverse}{kind}fft{n}"
    for inverse in ("", "i")
    for kind in ("", "h", "r")
    for n in ("", "2", "n")
)

IN_FP32 = GEMMS | NORMS | frozenset(RECURRENT)
HALVES = (torch.float16, torch.bfloat16)
UPCAST = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}


def _upcast(tensor: Tensor) -> Tensor:
    return tensor.to(UPCAST.get(tensor.dtype, tensor.dtype))


def rounds_once(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
) -> Any:
    """Run `func` in FP32 on upcast operands and round its results to `dtype`, forward and backward.

    >>> a, b = torch.full((1, 4096), 1.0).half(), torch.full((4096, 1), 1.0).half()
    >>> # an FP16 accumulator would have stopped at 2048
    >>> rounds_once(torch.matmul, (a, b), {}, torch.float16)
    tensor([[4096.]], dtype=torch.float16)
    """
    wide_args = mapped(args, _upcast)
    wide_kwargs = mapped(kwargs, _upcast)
    result = func(*wide_args, **wide_kwargs)
    name = getattr(func, "__name__", "")
    if name in STATEFUL:
        _write_back((args[1:], kwargs), (wide_args[1:], wide_kwargs))
    low = {torch.float32: dtype, torch.complex64: torch.complex32}

    def round_result(tensor: Tensor) -> Tensor:
        return tensor.to(low[tensor.dtype]) if tensor.dtype in low else tensor

    rounded = mapped(result, round_result)
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place:
        # the upcast copy was changed; its original is the result
        original: Tensor = args[0] if args else kwargs["input"]
        return original.copy_(rounded)
    return rounded


@torch.no_grad()
def _write_back(narrow_tree: Any, wide: Any) -> None:
    """Round changes of upcast tensors back into their FP16 originals.

    The running statistics of batch norm change this way.
    """
    for narrow, copy in zip(tree_leaves(narrow_tree), tree_leaves(wide), strict=True):
        # a tensor that was not upcast was changed itself
        if not isinstance(narrow, Tensor) or copy is narrow or narrow.requires_grad:
            continue
        if not torch.equal(copy, narrow.to(copy.dtype)):
            narrow.copy_(copy)


def writes_product(name: str, kwargs: dict[str, Any]) -> bool:
    """Return whether a call writes a matrix product into a tensor: in place, or into `out`."""
    return name in IN_PLACE or (name in GEMMS and kwargs.get("out") is not None)


def write_product(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Compute a product in a new tensor, and write it into its first operand or into `out`."""
    if func.__name__ in IN_PLACE:
        changed: Tensor = args[0]
        return changed.copy_(IN_PLACE[func.__name__](*args, **kwargs))
    without_out = {key: value for key, value in kwargs.items() if key != "out"}
    # unlike copy_, this gives `out` the shape of the product, and refuses operands with gradients
    return torch.mul(func(*args, **without_out), 1, out=kwargs["out"])


class HalfStorage(LabMode):
    """The mode behind `half_storage`."""

    def __init__(self, accumulator: KnownAccumulator | None = None) -> None:
        super().__init__()
        self.accumulator = accumulator

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
        if torch.compiler.is_dynamo_compiling():
            return self._in_graph(func, args, kwargs)
        if runs_graph():
            return call_unseen(func, args, kwargs)
        name = getattr(func, "__name__", "")
        if name in IN_FP32 or name in IN_PLACE:
            dtypes = _dtypes(args, kwargs, complex_too=False)
            dtype = dtypes[0] if dtypes else None
            agree = name in NORMS or all(other == dtype for other in dtypes)
            if dtype in HALVES and agree:
                return self._in_fp32(func, args, kwargs, dtype)
        elif is_composite(func):
            tensors = tensors_in((*args, *kwargs.values()))
            if func is Tensor.backward or any(tensor.dtype in UPCAST for tensor in tensors):
                return self.inside(func, args, kwargs)
        elif name in TRANSFORMS:
            # transforms exist in FP16, real or complex, but not in BF16
            dtypes = _dtypes(args, kwargs, complex_too=True)
            in_fp16 = all(dtype in (torch.float16, torch.complex32) for dtype in dtypes)
            if dtypes and in_fp16 and kwargs.get("out") is None:
                return rounds_once(func, args, kwargs, torch.float16)
        elif name in ON_CUDA_ONLY:
            dtypes = _dtypes(args, kwargs, complex_too=True)
            if len(set(dtypes)) == 1 and dtypes[0] in HALVES and kwargs.get("out") is None:
                return rounds_once(func, args, kwargs, dtypes[0])
        return func(*args, **kwargs)

    def _in_fp32(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dtype: torch.dtype,
    ) -> Any:
        """Compute an operation of `IN_FP32` or `IN_PLACE`, whose results have this dtype."""
        name = func.__name__
        if writes_product(name, kwargs):
            return self.call_inside(write_product, (func, args, kwargs), {})
        if self.accumulator is not None and name not in NORMS:
            return run(func, args, kwargs, self.accumulator)
        if name in RECURRENT:
            return recurrent(name, *args)
        return rounds_once(func, args, kwargs, dtype)

    def _in_graph(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Do the same while torch.compile traces; break the graph at what it cannot trace."""
        require_traceable(func)
        name = name_in_graphs(func)
        halves = False
        for tensor in tensors_in((*args, *kwargs.values())):
            halves = halves or tensor.dtype in UPCAST
        if not halves:
            return call_in_graph(func, args, kwargs)
        if writes_product(name, kwargs):
            if self.accumulator is not None:
                break_graph()
            return call_in_graph(func, args, kwargs)
        if name in IN_FP32:
            dtypes = _dtypes(args, kwargs, complex_too=False)
            dtype = dtypes[0] if dtypes else None
            agree = name in NORMS or all(other == dtype for other in dtypes)
            if dtype not in HALVES or not agree:
                return call_in_graph(func, args, kwargs)
            # running statistics that are not FP32 would have to be written back
            statistics = name in STATEFUL and any(other != torch.float32 for other in dtypes[1:])
            if self.accumulator is not None or name in RECURRENT or statistics:
                break_graph()
            result = func(*mapped(args, _upcast), **mapped(kwargs, _upcast))
            return mapped(result, lambda t: t.to(dtype) if t.dtype == torch.float32 else t)
        if _looks_inside(func):
            return self.call_inside(body_in_graphs(func), args, kwargs)
        if name in ON_CUDA_ONLY or name in TRANSFORMS:
            break_graph()
        return call_in_graph(func, args, kwargs)


@constant_in_graphs
def _looks_inside(func: Callable[..., Any]) -> bool:
    """Return whether a torch function is Python code that may call an operation with a rule."""
    return is_composite(func) and calls_any(func, IN_FP32 | ON_CUDA_ONLY | TRANSFORMS)


def _dtypes(args: Any, kwargs: Any, complex_too: bool) -> list[torch.dtype]:
    """Return the dtypes of a call's tensors that are floating-point (or complex), in order."""
    dtypes = [tensor.dtype for tensor in tensors_in((*args, *kwargs.values()))]
    return [
        dtype for dtype in dtypes if dtype.is_floating_point or (complex_too and dtype.is_complex)
    ]


def half_storage(
    device: torch.device | str, accumulator: AnyAccumulator | None = None
) -> AbstractContextManager[object]:
    """Return a context in which FP16 and BF16 operations on `device` compute as on a GPU.

    It changes GEMMs, convolutions and norms: torch's own CPU kernels for them are exact, but 5 to
    485 times slower than FP32, and its norms refuse FP16 input with FP32 weights. Element-wise
    operations are fast and remain torch's. An operation with a half kernel on a GPU and none on a
    CPU is computed in FP32 and rounded once. A Fourier transform accepts every size in FP16, where
    cuFFT accepts only powers of two.

    On a GPU without an accumulator, the context does nothing.

    Args:
        device: where the tensors are.
        accumulator: the accumulator of GEMMs, such as `SPECS["V100"]` or `SEQUENTIAL_FP16`, on any
            device; None for FP32.

    Raises:
        NotImplementedError: in the context with an accumulator, an operation is called that does
            not reduce to matrix products.

    >>> with half_storage("cpu"):
    ...     torch.ones(2, 3).half() @ torch.ones(3, 1).half()
    tensor([[3.],
            [3.]], dtype=torch.float16)
    """
    if accumulator is not None:
        accumulator = as_accumulator(accumulator)
    if as_device(device).type != "cpu" and accumulator is None:
        return nullcontext()
    return HalfStorage(accumulator)
