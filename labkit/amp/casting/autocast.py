"""Automatic casts of the operations in a region, by the lists of the autocast policy.

Idea: a torch function mode intercepts every call, looks the operation up in the lists, casts its
tensors and calls it again. It sits above autograd, so casts are differentiated like any operation,
the backward pass runs in the dtypes of the forward pass, and names are those in the learner's code.

Invariant: values change only by rounding; integers, booleans and FP64 are never changed, nor is a
call with `out=`.

Inside a region, the Python code of a backward pass (a custom Function, a hook) is cast, too, as
under torch's autocast. nn.LSTM and GRU check torch's autocast flag. We set it for an unused device
type, so that they accept FP16 input.

Source: torch.amp.autocast (behaviour). Limits: functions that torch implements in C++ are one
operation. The gradient formulas of torch's operations run in the dtypes of the forward pass, inside
a region as outside. Models of torch.jit are not cast inside. In a compiled model the casts are part
of the graph (`in_graphs`). What Python has to see breaks it: an emulated format, an accumulator, a
listener, a custom Function, a checkpoint.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterable
from contextlib import ContextDecorator, nullcontext
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode

from labkit.amp.casting.cast_cache import CastCache
from labkit.amp.casting.casts import Cast
from labkit.amp.casting.in_graphs import (
    CASTABLE,
    cast_in_graph,
    changed_in,
    floats_in,
    looks_inside,
    rule_in_graphs,
)
from labkit.amp.casting.lists import LISTS, Entry, Rule, rule_for
from labkit.formats import FP16, Format, FormatLike, as_format
from labkit.gemm import GEMMS, as_accumulator
from labkit.gemm.accumulators import AnyAccumulator
from labkit.gemm.product import Emulated, run
from labkit.modes import (
    ATTRIBUTE,
    LabMode,
    are_plain,
    body_in_graphs,
    break_graph,
    call_in_graph,
    call_unseen,
    calls_any,
    is_composite,
    mapped,
    open_modes,
    require_traceable,
    runs_graph,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Change = Callable[[Tensor], Tensor]

# our own casts are not operations of the user
_UNSEEN = torch._C.DisableTorchFunction
# nn.LSTM, GRU and RNN take FP16 input for FP32 weights only if torch's autocast is on for some
# device. Torch has no kernels for this one, so its flag changes no operation of a device that is in
# use.
FLAGGED_DEVICE = "ipu"


@dataclass(frozen=True)
class CastEvent:
    """One decision of autocast.

    Attributes:
        op: name of the operation.
        rule: its list.
        why: the reason.
        input_dtypes: dtypes of its floating-point tensors, in order.
        to: the dtype or the emulated format in which the operation got them, also if they had it
            before; None without such tensors, or if the call specifies its dtype.
        elements: number of elements that were cast or rounded.
        cached: how many of its casts came from the weight cache.
    """

    op: str
    rule: Rule
    why: str
    input_dtypes: tuple[torch.dtype, ...]
    to: torch.dtype | Format | None
    elements: int
    cached: int = 0


class _Open(threading.local):
    """A thread's active regions, outermost first, and the cache that they share.

    The last region decides.
    """

    regions: tuple[autocast, ...] = ()

    def __init__(self) -> None:
        # `threading.local` calls this in each thread, which so has a cache of its own
        self.cache = CastCache()


_open = _Open()


def current(device_type: str | None = None) -> autocast | None:
    """Return the region that casts in this thread now.

    It is None outside of all regions, or if the innermost one is not enabled.

    Args:
        device_type: "cpu", "cuda", ...: only regions that act on such devices count; None: all.
    """
    regions = _open.regions or _regions_of_torch()
    if device_type is not None:
        regions = tuple(region for region in regions if region.acts_on(device_type))
    return regions[-1] if regions and regions[-1].enabled else None


def _regions_of_torch() -> tuple[autocast, ...]:
    """Return the regions that torch entered in this thread.

    They are those of the thread that called a GPU's backward pass.
    """
    return tuple(mode for mode in open_modes() if isinstance(mode, autocast))


class autocast(LabMode, ContextDecorator):
    """Run the operations of a block or function in the dtypes that the lists name.

    It works on any device.

    A rule applies to the name that was called, and to everything that the call computes inside. So
    `F.cross_entropy` of FP16 logits runs entirely in FP32, as torch's list of FP32 operations says.
    torch.autocast("cuda") casts the parts, and leaves the `log_softmax` of that call in FP16, as
    does `labkit.frameworks.torch_amp`.

    Args:
        format: the low-precision format. FP16 and BF16 are stored as such; any other `Format` is
            emulated: tensors stay FP32, and the inputs and outputs of operations on the allow list
            are rounded to the format.
        enabled: False suspends an outer autocast inside the block; the innermost region decides.
        listen: called with a `CastEvent` for each decision.
        cache: keep the casts of weights until the outermost region closes; `region.cache` counts
            hits and misses.
        gradient_format: the format of gradients in the backward pass of such a rounding; None for
            `format`. FP16 and BF16 with gradients of another format are emulated, too.
        accumulator: the accumulator of matrix products, from `labkit.gemm`; None for the device's.

    Raises:
        RuntimeError: a banned operation is called; the message names the safe form.
        ValueError: FP32 cannot hold the format's numbers, or the format has no zero or no sign.
        TypeError: `listen` is not callable, or the decorated function is a generator or a
            coroutine, which runs after its call has returned.

    >>> with autocast():
    ...     y = torch.ones(2, 3) @ torch.ones(3, 2)
    ...     y.dtype, torch.nn.functional.mse_loss(y, y).dtype
    (torch.float16, torch.float32)
    """

    # True: stay active inside functions that call no operation of the lists, too
    sees_all = False
    # whether it is its thread's innermost region; None where torch.compile enters it, which does
    # not call `__enter__`
    innermost: bool | None = None
    # False for a subclass with an `entry_for` and no `rule_in_graphs`
    rules_in_graphs = True

    def __init__(
        self,
        format: FormatLike = FP16,
        *,
        enabled: bool = True,
        listen: Callable[[CastEvent], None] | None = None,
        cache: bool = True,
        gradient_format: FormatLike | None = None,
        accumulator: AnyAccumulator | None = None,
    ) -> None:
        super().__init__()
        format = as_format(format)
        if gradient_format is not None:
            gradient_format = as_format(gradient_format, "gradient_format")
        if listen is not None and not callable(listen):
            raise TypeError(f"listen: expected a function CastEvent -> None, got {listen!r}")
        self.lower = Cast(format, gradient_format)
        self.enabled = enabled
        self.listen = listen
        self.uses_cache = cache
        self.accumulator: Any = None
        if accumulator is not None:
            self.accumulator = as_accumulator(accumulator)
            if self.lower.dtype is None:
                self.accumulator = Emulated(self.accumulator, format, gradient_format or format)
        self.cache = CastCache()
        self._origin = self
        # Has one element until the region is entered. `pop` takes it in one atomic step, so two
        # threads cannot both enter this object.
        self._unused = [True]
        self._stored = self.lower.dtype if accumulator is None else None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "entry_for" in vars(cls) and "rule_in_graphs" not in vars(cls):
            cls.rules_in_graphs = False

    def entry_for(self, func: Callable[..., Any], name: str) -> Entry:
        """Return the rule of an operation and its reason; subclasses may override it."""
        return rule_for(name)

    def rule_in_graphs(self, func: Callable[..., Any]) -> str:
        """Return the rule's value while torch.compile traces.

        A subclass that overrides `entry_for` may override this method, too.
        """
        return rule_in_graphs(func, LISTS.edition)

    def acts_on(self, device_type: str) -> bool:
        """Return whether operations on a kind of device are cast; subclasses may override it."""
        return True

    def __enter__(self) -> Self:
        if not _open.regions:
            _open.cache = CastCache()
        self.cache = _open.cache
        mode = _get_current_function_mode()
        # a region that is the innermost already is not pushed again
        if not (isinstance(mode, autocast) and mode._origin is self._origin):
            mode = self._alone()
            super(autocast, mode).__enter__()
        if _open.regions:
            _open.regions[-1].innermost = False
        mode.innermost = True
        _open.regions = (*_open.regions, mode)
        _set_flag()
        return self

    def _alone(self) -> autocast:
        """Return this region, or a copy if it is already entered in any thread.

        A mode object may be on one stack only, once.
        """
        try:
            self._unused.pop()
            return self
        except IndexError:
            mode = copy.copy(self)
            mode._unused = []
            return mode

    def __exit__(self, *exception: Any) -> None:
        *outer, last = _open.regions
        _open.regions = tuple(outer)
        if not outer or outer[-1] is not last:
            super().__exit__(*exception)
            last.innermost = None
            last._unused.append(True)
        if outer:
            outer[-1].innermost = True
        else:
            _open.cache.clear()
        _set_flag()

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function: each call runs in a region."""
        if runs_after_its_call(function):
            name = getattr(function, "__name__", repr(function))
            raise TypeError(
                f"{name} runs after its call has returned, when the region has "
                "closed. Write `with autocast():` inside it."
            )
        return super().__call__(function)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        # x.shape and the like arrive here, too, and are the most frequent calls
        if type(func) is ATTRIBUTE:
            return self.call_below(func, types, args, kwargs)
        if torch.compiler.is_dynamo_compiling():
            return self._in_graph(func, types, args, kwargs)
        if runs_graph():
            return call_unseen(func, args, kwargs)
        # only the innermost region casts; the outer ones pass the call on
        regions = _open.regions
        if not regions or self is not regions[-1]:
            return self._not_last(func, types, args, kwargs)
        if not self.enabled:
            return self.call_below(func, types, args, kwargs)
        name = getattr(func, "__name__", "")
        entry = self.entry_for(func, name)
        # as in torch, a call with out= is not cast: its result has a dtype already
        if entry.rule is Rule.KEEP or (kwargs and kwargs.get("out") is not None):
            # a composite function may call operations that are on the lists
            if is_composite(func) and (self.sees_all or calls_any(func, LISTS.names)):
                return self.inside(func, args, kwargs)
            return self.call_below(func, types, args, kwargs)
        args, kwargs = self._cast(name, entry, args, kwargs, types)
        if self.accumulator is not None and name in GEMMS and entry.rule is Rule.ALLOW:
            return self._finished(entry, run(func, args, kwargs, self.accumulator))
        return self._finished(entry, self.call_below(func, types, args, kwargs))

    def _not_last(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Handle a call if this region is not the one recorded as the innermost of this thread."""
        regions = _open.regions
        below = _regions_of_torch()
        if self in regions or (regions and regions[-1] not in below):
            return self.call_below(func, types, args, kwargs)
        # torch entered this region without `__enter__`: in the thread that runs the backward pass
        # of another thread, or in a compiled function. The regions on torch's stack are the outer
        # ones, since torch pops a mode while it handles a call.
        _open.regions = (*below, self)
        try:
            return self.__torch_function__(func, types, args, kwargs)
        finally:
            _open.regions = regions
            # such a region has no `__exit__` that would clear the cache
            if not regions:
                _open.cache.clear()

    def _in_graph(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Handle a call while torch.compile traces.

        The casts are the same, by what the compiler can trace, without the weight cache.
        """
        require_traceable(func)
        if self.innermost is False:
            return call_in_graph(func, args, kwargs)
        for index in range(torch._C._len_torch_function_stack()):
            mode: Any = torch._C._get_function_stack_at(index)
            # which of two regions is the inner one is known only if `__enter__` entered both
            if isinstance(mode, autocast) and (self.innermost is None or mode.innermost is None):
                break_graph()
        if not self.enabled:
            return call_in_graph(func, args, kwargs)
        low = self._stored
        if not self.rules_in_graphs or self.listen is not None or not are_plain(types):
            break_graph()
        rule = self.rule_in_graphs(func)
        if rule == "keep" or kwargs.get("out") is not None:
            if looks_inside(func, LISTS.edition):
                return self.call_inside(body_in_graphs(func), args, kwargs)
            return call_in_graph(func, args, kwargs)
        if rule == "banned" or low is None:
            break_graph()
        assert low is not None
        with _UNSEEN():
            args, kwargs = cast_in_graph(rule, low, args, kwargs)
        return call_in_graph(func, args, kwargs)

    def call(
        self, function: Callable[..., Any], name: str, entry: Entry, args: Any, kwargs: Any
    ) -> Any:
        """Call a function that is not an operation of torch, with its arguments cast by a rule.

        The lists apply to the operations inside.
        """
        args, kwargs = self._cast(name, entry, args, kwargs)
        return self._finished(entry, function(*args, **kwargs))

    def _cast(
        self, name: str, entry: Entry, args: Any, kwargs: Any, types: Iterable[type] = ()
    ) -> tuple[Any, Any]:
        """Return the arguments, cast by the rule."""
        rule = entry.rule
        if rule is Rule.BANNED:
            raise RuntimeError(
                f"{name} is not safe under autocast: {entry.why}, or autocast(enabled=False) "
                "around it."
            )
        with _UNSEEN() if are_plain(types) else nullcontext():
            to, change = self._decide(rule, args, kwargs)
            if self.listen is None:
                return changed_in(args, kwargs, change)
            floats = floats_in(args, kwargs)
            hits = _open.cache.hits
            input_dtypes = tuple(t.dtype for t in floats)
            elements = sum(t.numel() for t in floats if t.dtype != to)
            args, kwargs = changed_in(args, kwargs, change)
            cached = _open.cache.hits - hits
        if change is None:
            elements = 0
        self.listen(
            CastEvent(name, rule, entry.why, input_dtypes, to if floats else None, elements, cached)
        )
        return args, kwargs

    def _decide(
        self, rule: Rule, args: Any, kwargs: Any
    ) -> tuple[torch.dtype | Format | None, _Change | None]:
        """Return the format that a rule casts to, and the cast.

        The cast is None if there is nothing to do.
        """
        if rule is Rule.ALLOW:
            return self.lower.dtype or self.lower.format, self._lowered
        if rule is Rule.PROMOTE:
            floats = floats_in(args, kwargs)
            dtype = floats[0].dtype if floats else None
            if all(tensor.dtype is dtype for tensor in floats):
                return dtype, None
        elif rule is not Rule.DENY and (
            kwargs.get("dtype") is not None or torch.dtype in map(type, args)
        ):
            # the call specifies a dtype, by name or by position: x.softmax(-1, torch.float16)
            return None, None
        # FP16 and BF16 operands are promoted to FP32, too: neither format contains the other
        return torch.float32, _widened

    def _lowered(self, tensor: Tensor) -> Tensor:
        if tensor.dtype not in CASTABLE:
            return tensor
        return self.lower(tensor, _open.cache if self.uses_cache else None)

    def _finished(self, entry: Entry, out: Any) -> Any:
        """Return the result of an operation, rounded if its format is emulated."""
        if self.lower.dtype is not None or entry.rule is not Rule.ALLOW:
            return out

        def rounded(tensor: Tensor) -> Tensor:
            return self.lower(tensor) if tensor.dtype is torch.float32 else tensor

        with _UNSEEN():
            return mapped(out, rounded)


def runs_after_its_call(function: object) -> bool:
    """Return whether a call returns before the body runs: that of a generator or a coroutine."""
    return (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    )


def _set_flag() -> None:
    """Set torch's autocast flag of this thread, which some of its modules (RNNBase) check."""
    torch.set_autocast_enabled(FLAGGED_DEVICE, current() is not None)


def _widened(tensor: Tensor) -> Tensor:
    if tensor.dtype is torch.float32 or tensor.dtype not in CASTABLE:
        return tensor
    return tensor.float()
