"""Half layers and FP32 tensors in one model.

A model in FP16 keeps its own buffers in FP32, since masks, angles and positions lose their meaning
in FP16. Sums and products with an FP32 buffer are FP32, as torch promotes; the next matrix product
rounds to FP16 again. Operations that do not promote raise an error for operands of two dtypes. This
mode casts such operands by the lists of autocast, but only if their dtypes differ.

An operation that has no half kernel (an inverse, a Fourier transform) runs in FP32 and returns it.

Invariant: any other call whose tensors have one dtype is unchanged. A mask keeps its meaning:
FP32's lowest number would be -inf in FP16, and a fully masked row NaN, so attention with such a
mask runs in FP32.

Limit: attention with such a mask is slow; on a GPU, let masks be boolean.

Source: torch.amp.autocast's lists (allow, promote); torch's type promotion (elementwise operations;
a tensor without dimensions counts for nothing); aten layer_norm_kernel.cu and group_norm_kernel.cu
(weights of the input's dtype).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from labkit.amp.casting.autocast import FLAGGED_DEVICE
from labkit.amp.casting.in_graphs import rule_in_graphs
from labkit.amp.casting.lists import FEW_HALF_KERNELS, LISTS, NO_HALF_KERNEL, Rule, rule_for
from labkit.amp.ranges import RangeMemory
from labkit.gemm.half_storage import HALVES, NORMS
from labkit.modes import (
    ATTRIBUTE,
    LabMode,
    are_plain,
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

# Like the operations on the promote list, these raise an error for two dtypes, but autocast does
# not list them.
REFUSE_TOO = frozenset(
    ["lerp", "index_add", "index_copy", "scatter", "scatter_reduce", "masked_scatter", "complex"]
)
# operations that write into their first operand
WRITES = frozenset(["__setitem__", "index_put_", "scatter_add_", "addcmul_", "addcdiv_"]) | {
    f"{name}_" for name in REFUSE_TOO
}
# operation -> position and name of its operand that is a mask
MASKS = {"scaled_dot_product_attention": (3, "attn_mask"), "baddbmm": (0, "input")}
# CUDA's kernels read weights of the input's dtype only: those of half input beside FP32 weights run
# in FP32 there.
NORMS_OF_ONE_DTYPE = frozenset(("layer_norm", "group_norm"))
_MUST_AGREE = (Rule.ALLOW, Rule.PROMOTE, Rule.DENY, Rule.BANNED)
_MUST_AGREE_TOO = NORMS | WRITES | REFUSE_TOO


class mixed_dtype_ops(LabMode):
    """Cast half and FP32 operands to one dtype in a block, where torch would raise an error.

    Matrix products, convolutions, attention and recurrent layers run in the half format if any
    operand has it. Normalisation casts its input to the dtype of its weights. Losses and operations
    that require one dtype run in FP32. A value written into a tensor is cast to the tensor's dtype.

    Args:
        wide_masks: False rounds a mask's numbers to the half format's range, for emulated
            accumulators, which FP32 would bypass.
        ranges: the record of earlier masks; None reads each mask.

    >>> with mixed_dtype_ops():
    ...     (torch.ones(1, 2) @ torch.ones(2, 1).half()).dtype
    torch.float16
    """

    def __init__(self, *, wide_masks: bool = True, ranges: RangeMemory | None = None) -> None:
        super().__init__()
        self.wide_masks = wide_masks
        self.ranges = ranges or RangeMemory()
        # torch's flag before each open block of this mode
        self._flags: list[bool] = []

    def __enter__(self) -> Any:
        entered = super().__enter__()
        self._flags.append(torch.is_autocast_enabled(FLAGGED_DEVICE))
        # nn.LSTM, GRU and RNN refuse FP32 input for half weights unless torch's autocast is on
        torch.set_autocast_enabled(FLAGGED_DEVICE, True)
        return entered

    def __exit__(self, *exception: Any) -> None:
        try:
            super().__exit__(*exception)
        finally:
            torch.set_autocast_enabled(FLAGGED_DEVICE, self._flags.pop())

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        if type(func) is ATTRIBUTE:
            return self.call_below(func, types, args, kwargs)
        if torch.compiler.is_dynamo_compiling():
            return self._in_graph(func, types, args, kwargs)
        if runs_graph():
            return call_unseen(func, args, kwargs)
        name = getattr(func, "__name__", "")
        rule = rule_for(name).rule
        if name in NORMS_OF_ONE_DTYPE and _is_norm_in_fp32(args, kwargs):
            dtype = _operand(args, kwargs, 0, "input").dtype
            return self.call_below(func, types, *mapped((args, kwargs), _widened)).to(dtype)
        if rule in _MUST_AGREE or name in _MUST_AGREE_TOO:
            # the casts are not operations of the user, so no mode intercepts them
            with torch._C.DisableTorchFunction() if are_plain(types) else nullcontext():
                args, kwargs = self._agreeing(name, rule, args, kwargs)
        elif is_composite(func) and calls_any(func, _looked_for(LISTS.names)):
            return self.inside(func, args, kwargs)
        return self.call_below(func, types, args, kwargs)

    def _in_graph(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Do the same while torch.compile traces.

        A mask of numbers, which is read, breaks the graph.
        """
        require_traceable(func)
        name = name_in_graphs(func)
        rule = Rule(rule_in_graphs(func, LISTS.edition))
        if name in NORMS_OF_ONE_DTYPE and _is_norm_in_fp32(args, kwargs):
            dtype = _operand(args, kwargs, 0, "input").dtype
            args, kwargs = mapped((args, kwargs), _widened)
            return func(*args, **kwargs).to(dtype)
        if rule in _MUST_AGREE or name in _MUST_AGREE_TOO:
            mask = _operand(args, kwargs, *MASKS[name]) if name in MASKS else None
            if not are_plain(types) or (isinstance(mask, Tensor) and mask.dtype == torch.float32):
                break_graph()
            with torch._C.DisableTorchFunction():
                args, kwargs = self._agreeing(name, rule, args, kwargs)
        elif _looks_inside(func, LISTS.edition):
            return self.call_inside(body_in_graphs(func), args, kwargs)
        return call_in_graph(func, args, kwargs)

    def _agreeing(self, name: str, rule: Rule, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return a call's arguments in one dtype, if they hold FP32 and a half format.

        A tensor `out` is never cast, since the call would write into the copy.
        """
        out = kwargs.get("out")
        if rule is Rule.DENY and (name in NO_HALF_KERNEL or name in FEW_HALF_KERNELS):
            args, widened = mapped((args, kwargs), _widened)
            return args, {**widened, "out": out} if "out" in kwargs else widened
        tensors = tensors_in((*args, *kwargs.values()))
        # torch promotes a tensor without dimensions, so it counts only where nothing is promoted
        dtypes = [t.dtype for t in tensors if rule is Rule.ALLOW or t.dim()]
        half = next((dtype for dtype in dtypes if dtype in HALVES), None)
        if half is None or torch.float32 not in dtypes:
            return args, kwargs
        if name in NORMS:
            # A CPU's kernels, and batch norm's everywhere, take FP32 weights beside a half input.
            # So only an FP32 input beside half weights is cast.
            if args and dtypes[0] is torch.float32:
                args = (_cast(args[0], half), *args[1:])
            return args, kwargs
        if name in WRITES:
            to = args[0].dtype
        elif isinstance(out, Tensor):
            to = out.dtype
        elif rule is Rule.ALLOW:
            to = half
        else:
            to = torch.float32
        mask = _operand(args, kwargs, *MASKS[name]) if name in MASKS else None
        if isinstance(mask, Tensor) and self.ranges.reaches((name, mask.dim()), mask, half):
            if self.wide_masks:
                to = torch.float32
            else:
                args, kwargs = mapped((args, kwargs), partial(_clamped, dtype=half))
        return mapped((args, kwargs), partial(_cast, dtype=to))  # type: ignore[no-any-return]


@constant_in_graphs
def _looks_inside(func: Callable[..., Any], edition: int) -> bool:
    """Return whether a torch function is Python code that may call an operation of one dtype."""
    return is_composite(func) and calls_any(func, _looked_for(LISTS.names))


def _is_norm_in_fp32(args: Any, kwargs: Any) -> bool:
    """Return whether a norm has a half input and FP32 operands, on a device other than a CPU."""
    input = _operand(args, kwargs, 0, "input")
    if not isinstance(input, Tensor) or input.dtype not in HALVES or input.device.type == "cpu":
        return False
    return any(tensor.dtype == torch.float32 for tensor in tensors_in((*args, *kwargs.values())))


@cache
def _looked_for(listed: frozenset[str]) -> frozenset[str]:
    return listed | _MUST_AGREE_TOO


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype is torch.float32 or tensor.dtype in HALVES:
        return tensor.to(dtype)
    return tensor


_widened = partial(_cast, dtype=torch.float32)


def _clamped(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an FP32 tensor with its finite numbers in the range of a half dtype."""
    if tensor.dtype is not torch.float32:
        return tensor
    info = torch.finfo(dtype)
    return torch.where(tensor.isinf(), tensor, tensor.clamp(info.min, info.max))


def _operand(args: Any, kwargs: Any, position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)
