"""FP16 storage with FP32 accumulation on a CPU, at the speed of FP32.

Idea: upcast the operands (exact), let the FP32 kernel multiply and accumulate, round the result
once, as a Tensor Core does. Autograd gives the backward pass the same shape. The gradient of "round
to FP16" rounds nothing; the gradient of "upcast" rounds the FP32 result of each backward GEMM to
FP16, once.

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

from labkit.gemm.accumulators import AnyAccumulator, as_accumulator
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
TRANSFORMS = frozenset(
    f"fft_{i}{kind}fft{n}" for i in ("", "i") for kind in ("", "h", "r") for n in ("", "2", "n")
)

IN_FP32 = GEMMS | NORMS | frozenset(RECURRENT)
HALVES = (torch.float16, torch.bfloat16)
UPCAST = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}


def _upcast(tensor: Tensor) -> Tensor:
    wide = torch.float32 if tensor.dtype in HALVES else UPCAST.get(tensor.dtype, tensor.dtype)
    return tensor.to(wide)


def rounds_once(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
) -> Any:
    """Run `func` in FP32 on upcast operands and round its results to `dtype`, forward and backward.

    >>> a, b = torch.full((1, 4096), 1.0).half(), torch.full((4096, 1), 1.0).half()
    >>> # an FP16 accumulator would have stopped at 2048
    >>> rounds_once(torch.matmul, (a, b), {}, torch.float16)
    tensor([[4096.]], dtype=torch.float16)
    """
    wide_args, wide_kwargs = mapped(args, _upcast), mapped(kwargs, _upcast)
    result = func(*wide_args, **wide_kwargs)
    name = getattr(func, "__name__", "")
    if name in STATEFUL:
        _write_back((args[1:], kwargs), (wide_args[1:], wide_kwargs))
    low = {torch.float32: dtype, torch.complex64: torch.complex32}
    rounded = mapped(result, lambda t: t.to(low[t.dtype]) if t.dtype in low else t)
    return args[0].copy_(rounded) if name.endswith("_") and not name.endswith("__") else rounded


@torch.no_grad()
def _write_back(narrow_tree: Any, wide: Any) -> None:
    """Round changes of upcast tensors back into their FP16 originals.

    The running statistics of batch norm change this way.
    """
    for narrow, copy in zip(tree_leaves(narrow_tree), tree_leaves(wide), strict=True):
        if not isinstance(narrow, Tensor) or copy is narrow or narrow.requires_grad:
            continue  # what was not upcast was changed itself
        if not torch.equal(copy, narrow.to(copy.dtype)):
            narrow.copy_(copy)


class HalfStorage(LabMode):
    """The mode behind `half_storage`."""

    def __init__(self, accumulator: Any = None) -> None:
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
        if name in IN_FP32:
            dtypes = _dtypes(args, kwargs, complex_too=False)
            dtype = dtypes[0] if dtypes else None
            agree = name in NORMS or all(other == dtype for other in dtypes)
            if dtype in HALVES and agree and kwargs.get("out") is None:
                if self.accumulator is not None and name not in NORMS:
                    return run(func, args, kwargs, self.accumulator)
                if name in RECURRENT:
                    return recurrent(name, *args)
                return rounds_once(func, args, kwargs, dtype)
        elif is_composite(func):
            halves = [
                tensor for tensor in tensors_in((*args, *kwargs.values())) if tensor.dtype in UPCAST
            ]
            return (
                self.inside(func, args, kwargs)
                if halves or func is Tensor.backward
                else func(*args, **kwargs)
            )
        elif name in ON_CUDA_ONLY or name in TRANSFORMS:
            found = {*_dtypes(args, kwargs, complex_too=True)}
            # of FP16 numbers; BF16 has none
            pairs = name in TRANSFORMS and found <= {torch.float16, torch.complex32}
            alone = name not in TRANSFORMS and len(found) == 1 and found <= {*HALVES}
            if found and (pairs or alone) and kwargs.get("out") is None:
                return rounds_once(func, args, kwargs, torch.float16 if pairs else found.pop())
        return func(*args, **kwargs)

    def _in_graph(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Do the same while torch.compile traces, by what it can trace.

        What remains breaks the graph.
        """
        require_traceable(func)
        name, halves = name_in_graphs(func), False
        for tensor in tensors_in((*args, *kwargs.values())):
            halves = halves or tensor.dtype in UPCAST
        if not halves:
            return call_in_graph(func, args, kwargs)
        if name in IN_FP32:
            dtypes = _dtypes(args, kwargs, complex_too=False)
            dtype = dtypes[0] if dtypes else None
            agree = name in NORMS or all(other == dtype for other in dtypes)
            if dtype not in HALVES or not agree or kwargs.get("out") is not None:
                return call_in_graph(func, args, kwargs)
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
    """Compute FP16 and BF16 GEMMs, convolutions and norms on `device` as a GPU does.

    On a GPU it does nothing.

    torch's own CPU half kernels are exact but 5 to 485 times slower than FP32, and refuse FP16
    input with FP32 norm weights; element-wise operations, which are neither, stay theirs. What has
    a half kernel on a GPU and none here is computed in FP32 and rounded once, too (sizes that cuFFT
    refuses in FP16, all but powers of two, are not refused).

    Args:
        device: where the tensors are.
        accumulator: what GEMMs add up in, such as `SPECS["V100"]` or `SEQUENTIAL_FP16`, on any
            device; None for FP32.

    Raises:
        NotImplementedError: with an accumulator, an operation is called that is not reduced to
            matrix products.

    >>> with half_storage("cpu"):
    ...     torch.ones(2, 3).half() @ torch.ones(3, 1).half()
    tensor([[3.],
            [3.]], dtype=torch.float16)
    """
    if accumulator is not None:
        accumulator = as_accumulator(accumulator)
    helps = as_device(device).type == "cpu" or accumulator is not None
    return HalfStorage(accumulator) if helps else nullcontext()
