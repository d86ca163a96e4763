"""Half layers and FP32 tensors in one model.

A model in FP16 keeps its own buffers in FP32, since masks, angles and positions lose their meaning in FP16. Sums and
products with an FP32 buffer are FP32, as torch promotes; the next matrix product rounds to FP16 again. Operations that
do not promote raise an error for operands of two dtypes. This mode casts such operands by the lists of autocast, but
only if their dtypes differ.

An operation that has no half kernel (an inverse, a Fourier transform) runs in FP32 and returns it.

Invariant: any other call whose tensors have one dtype is unchanged. A mask keeps its meaning: FP32's lowest number
would be -inf in FP16, and a fully masked row NaN, so attention with such a mask runs in FP32.

Limit: attention with such a mask is slow; on a GPU, let masks be boolean.

Source: torch.amp.autocast's lists (allow, promote); torch's type promotion (elementwise operations; a tensor without
dimensions counts for nothing); aten layer_norm_kernel.cu and group_norm_kernel.cu (weights of the input's dtype).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from labkit.amp.casting.autocast import FLAGGED_DEVICE
from labkit.amp.casting.in_graphs import rule_in_graphs
from labkit.amp.casting.lists import FEW_HALF_KERNELS, LISTS, NO_HALF_KERNEL, Rule, rule_for
from labkit.amp.loss_scaling.unscale import largest_magnitude, read, stored
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

# Like the operations on the promote list, these raise an error for two dtypes, but autocast does not list them.
REFUSE_TOO = frozenset(
    ["lerp", "index_add", "index_copy", "scatter", "scatter_reduce", "masked_scatter", "complex"]
)
WRITES = frozenset(["__setitem__", "index_put_", "scatter_add_", "addcmul_", "addcdiv_"]) | {
    f"{n}_" for n in REFUSE_TOO
}
# which operand is one
MASKS = {"scaled_dot_product_attention": (3, "attn_mask"), "baddbmm": (0, "input")}
# CUDA's kernels read weights of the input's dtype only: those of half input beside FP32 weights run in FP32 there.
NORMS_OF_ONE_DTYPE = frozenset(("layer_norm", "group_norm"))
MOST_PENDING = 256
_MUST_AGREE = (Rule.ALLOW, Rule.PROMOTE, Rule.DENY, Rule.BANNED)
_MUST_AGREE_TOO = NORMS | WRITES | REFUSE_TOO


class RangeMemory:
    """A record of the kinds of FP32 tensors with finite numbers that a half format makes infinite.

    On a CPU, and while no gradients are recorded, each tensor is read. On another device the host waits for the first
    tensor of a kind. If it is within range, later ones are assumed to be, and their largest magnitudes stay on the
    device for the step to read (`pending`, `learn`). A kind beyond the range stays so. The magnitudes of a call of the
    model count only after a gradient has reached its outputs (`counts_with`), since some forward passes have no step.

    Args:
        look_always: wait for each tensor, on any device.
    """

    def __init__(self, *, look_always: bool = False) -> None:
        self.look_always = look_always
        self._beyond: dict[Hashable, bool] = {}
        self._pending: list[tuple[Hashable, torch.dtype, Tensor]] = []
        self._learnt = False  # a tensor beyond the range was found before `learn`

    def reaches(self, kind: Hashable, tensor: Any, dtype: torch.dtype) -> bool:
        """Return whether a tensor of a kind, such as the first argument of a model, reaches beyond a half format."""
        if not isinstance(tensor, Tensor) or tensor.dtype is not torch.float32 or tensor.is_meta:
            return False
        if self.look_always or tensor.device.type == "cpu" or not torch.is_grad_enabled():
            return reaches_beyond(tensor, dtype)
        known = self._beyond.get(kind)
        if known is None:
            known = self._beyond[kind] = reaches_beyond(tensor, dtype)
        elif not known and stored(tensor).numel():
            if len(self._pending) >= MOST_PENDING:  # forward passes that no step follows
                self._learnt = self.learn(read(self.pending))
            self._pending.append((kind, dtype, _largest_finite(tensor)))
        return known

    def counts_with(self, outputs: Iterable[Tensor], since: int) -> None:
        """Hold back the magnitudes after the first `since` until a gradient reaches one of the outputs."""
        differentiable = [tensor for tensor in outputs if tensor.requires_grad]
        if len(self._pending) <= since or not differentiable:
            return
        held_back = self._pending[since:]
        del self._pending[since:]

        def count(_: Tensor) -> None:
            self._pending += held_back
            held_back.clear()

        for tensor in differentiable:
            tensor.register_hook(count)

    def forget(self) -> None:
        """Discard the magnitudes of a step whose gradients were cleared."""
        self._pending, self._learnt = [], False

    @property
    def pending(self) -> list[Tensor]:
        """The magnitudes, scalars on their devices, of tensors that were assumed to be within range."""
        return [magnitude for _, _, magnitude in self._pending]

    def learn(self, magnitudes: Sequence[float]) -> bool:
        """Record the values of `pending` and clear it; return whether one of the tensors was beyond the range."""
        if not self._pending:
            any_beyond, self._learnt = self._learnt, False
            return any_beyond
        both = zip(self._pending, magnitudes, strict=True)
        kinds = [kind for (kind, dtype, _), magnitude in both if magnitude >= infinite_from(dtype)]
        self._beyond.update(dict.fromkeys(kinds, True))
        any_beyond, self._pending, self._learnt = bool(kinds) or self._learnt, [], False
        return any_beyond


class mixed_dtype_ops(LabMode):
    """Cast FP16 or BF16 and FP32 operands to one dtype inside a `with` block, where torch would raise an error.

    Matrix products, convolutions, attention and recurrent layers run in the half format if any operand has it.
    Normalisation casts its input to the dtype of its weights. Losses and operations that require one dtype run in FP32.
    A value written into a tensor is cast to the tensor's dtype.

    Args:
        wide_masks: False rounds a mask's numbers to the half format's range, for emulated accumulators, which FP32
            would bypass.
        ranges: the record of earlier masks; None reads each mask.

    >>> with mixed_dtype_ops():
    ...     (torch.ones(1, 2) @ torch.ones(2, 1).half()).dtype
    torch.float16
    """

    def __init__(self, *, wide_masks: bool = True, ranges: RangeMemory | None = None) -> None:
        super().__init__()
        self.wide_masks, self.ranges = wide_masks, ranges or RangeMemory()

    def __enter__(self) -> Any:
        self._flag = torch.is_autocast_enabled(FLAGGED_DEVICE)
        # so that nn.LSTM and its kin let FP32 input pass to us
        torch.set_autocast_enabled(FLAGGED_DEVICE, True)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        torch.set_autocast_enabled(FLAGGED_DEVICE, self._flag)

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
            # no mode looks at the casts
            with torch._C.DisableTorchFunction() if are_plain(types) else nullcontext():
                args, kwargs = self._agreeing(name, rule, args, kwargs)
        elif is_composite(func) and calls_any(func, _looked_for(LISTS.names)):
            return self.inside(func, args, kwargs)
        return self.call_below(func, types, args, kwargs)

    def _in_graph(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Do the same while torch.compile traces, except that a mask of numbers, which is read, breaks the graph."""
        require_traceable(func)
        name, rule = name_in_graphs(func), Rule(rule_in_graphs(func, LISTS.edition))
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
        """Return a call's arguments in one dtype, if they hold FP32 and a half format."""
        if rule is Rule.DENY and (name in NO_HALF_KERNEL or name in FEW_HALF_KERNELS):
            return mapped((args, kwargs), _widened)  # type: ignore[no-any-return]
        tensors = tensors_in((*args, *kwargs.values()))
        found = [t.dtype for t in tensors if rule is Rule.ALLOW or t.dim()]
        half = next((dtype for dtype in found if dtype in HALVES), None)
        if half is None or torch.float32 not in found:
            return args, kwargs
        # a CPU's kernels, and batch norm's everywhere, take FP32 weights beside a half input
        if name in NORMS:
            return (
                (_cast(args[0], half), *args[1:]) if args and found[0] is torch.float32 else args
            ), kwargs
        to = args[0].dtype if name in WRITES else half if rule is Rule.ALLOW else torch.float32
        mask = _operand(args, kwargs, *MASKS[name]) if name in MASKS else None
        if isinstance(mask, Tensor) and self.ranges.reaches((name, mask.dim()), mask, half):
            if self.wide_masks:
                to = torch.float32
            else:
                ends = torch.finfo(half)
                wide = torch.float32
                args, kwargs = mapped(
                    (args, kwargs),
                    lambda t: (
                        torch.where(t.isinf(), t, t.clamp(ends.min, ends.max))
                        if t.dtype is wide
                        else t
                    ),
                )
        return mapped((args, kwargs), partial(_cast, dtype=to))  # type: ignore[no-any-return]


@constant_in_graphs
def _looks_inside(func: Callable[..., Any], edition: int) -> bool:
    """Return whether a function of torch is Python code that may call an operation which needs one dtype."""
    return is_composite(func) and calls_any(func, _looked_for(LISTS.names))


def _is_norm_in_fp32(args: Any, kwargs: Any) -> bool:
    """Return whether a norm's input is half and other operands are FP32, on another device than a CPU."""
    input = _operand(args, kwargs, 0, "input")
    off_cpu = isinstance(input, Tensor) and input.dtype in HALVES and input.device.type != "cpu"
    return off_cpu and any(
        tensor.dtype == torch.float32 for tensor in tensors_in((*args, *kwargs.values()))
    )


@cache
def _looked_for(listed: frozenset[str]) -> frozenset[str]:
    return listed | _MUST_AGREE_TOO


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.dtype is torch.float32 or tensor.dtype in HALVES else tensor


_widened = partial(_cast, dtype=torch.float32)


def _operand(args: Any, kwargs: Any, position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def reaches_beyond(mask: Any, dtype: torch.dtype) -> bool:
    """Whether an FP32 mask holds finite numbers that are infinite in a half format.

    >>> reaches_beyond(torch.tensor([0.0, torch.finfo(torch.float32).min]), torch.float16)
    True
    """
    if (
        not isinstance(mask, Tensor)
        or mask.dtype is not torch.float32
        or mask.is_meta
        or not stored(mask).numel()
    ):
        return False
    size = float(largest_magnitude(stored(mask.detach())))
    if not math.isfinite(size):
        size = float(_largest_finite(mask))
    return size >= infinite_from(dtype)


@cache
def infinite_from(dtype: torch.dtype) -> float:
    """Return the least number that becomes infinite in a half format.

    >>> infinite_from(torch.float16)
    65520.0
    """
    largest = torch.finfo(dtype).max
    # half an ulp: a tie goes to even
    return largest + math.ldexp(torch.finfo(dtype).eps, math.frexp(largest)[1] - 2)


@torch.no_grad()
def _largest_finite(tensor: Tensor) -> Tensor:
    """Return the largest magnitude among a tensor's finite numbers, a scalar on its device."""
    return largest_magnitude(stored(tensor.detach()).nan_to_num(0.0, 0.0, 0.0))
