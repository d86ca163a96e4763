"""Automatic casts of the operations in a region, by the lists of the autocast policy.

Idea: a torch function mode intercepts every call, looks the operation up in the lists, casts its tensors and calls it
again. It sits above autograd, so casts are differentiated like any operation, the backward pass runs in the dtypes of
the forward pass, and names are those in the learner's code.

Invariant: values change only by rounding; integers, booleans and FP64 are never changed, nor is a call with `out=`.

Inside a region, the Python code of a backward pass (a custom Function, a hook) is cast, too, as under torch's autocast.
nn.LSTM and GRU check torch's autocast flag. We set it for an unused device type, so that they accept FP16 input.

Source: torch.amp.autocast (behaviour). Limits: functions that torch implements in C++ are one operation. The gradient
formulas of torch's operations run in the dtypes of the forward pass, inside a region as outside. Models of torch.jit
are not cast inside. A compiled model computes the same, but each decision breaks the graph: to gain from compiling,
convert the model (`to_model_format`) or use torch.autocast.
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
from labkit.amp.casting.lists import LISTS, Entry, Rule, rule_for
from labkit.formats import FP16, Format, FormatLike, as_format
from labkit.gemm import GEMMS, as_accumulator
from labkit.gemm.product import Emulated, run
from labkit.modes import (
    ATTRIBUTE,
    LabMode,
    are_plain,
    break_graph,
    calls_any,
    is_composite,
    mapped,
    open_modes,
    tensors_in,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Change = Callable[[Tensor], Tensor]

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
_UNSEEN = torch._C.DisableTorchFunction  # our own casts are not operations of the user
CASTABLE = frozenset((torch.float16, torch.bfloat16, torch.float32, *EIGHT_BITS))
# nn.LSTM, GRU and RNN take FP16 input for FP32 weights only if torch's autocast is on for some device. Torch has no
# kernels for this one, so its flag changes no operation of a device that is in use.
FLAGGED_DEVICE = "ipu"


@dataclass(frozen=True)
class CastEvent:
    """One decision of autocast.

    op            name of the operation
    rule          its list
    why           the reason
    input_dtypes  dtypes of its floating-point tensors, in order
    to            the dtype they were cast to, the format they were rounded to, or None if they were not cast
    elements      number of elements that were cast or rounded
    cached        how many of its casts came from the weight cache
    """

    op: str
    rule: Rule
    why: str
    input_dtypes: tuple[torch.dtype, ...]
    to: torch.dtype | Format | None
    elements: int
    cached: int = 0


class _Open(threading.local):
    """A thread's active regions, outermost first, of which the last decides; and the cache they share."""

    regions: tuple[autocast, ...] = ()
    cache = CastCache()


_open = _Open()


def current(device_type: str | None = None) -> autocast | None:
    """Return the region that decides in this thread now; None outside of one, or if it is not enabled.

    device_type  "cpu", "cuda", ...: the innermost region that acts on such devices decides; None: the innermost.
    """
    regions = _open.regions or _regions_of_torch()
    if device_type is not None:
        regions = tuple(region for region in regions if region.acts_on(device_type))
    return regions[-1] if regions and regions[-1].enabled else None


def _regions_of_torch() -> tuple[autocast, ...]:
    """Return the regions that torch entered in this thread: those of the thread that called a GPU's backward pass."""
    return tuple(mode for mode in open_modes() if isinstance(mode, autocast))


class autocast(LabMode, ContextDecorator):
    """Run the operations inside a `with` block, or of a function, in the dtypes that the lists name, on any device.

    A rule applies to the name that was called, and to everything that the call computes inside. So `F.cross_entropy` of
    FP16 logits runs entirely in FP32, as torch's list of FP32 operations says. torch.autocast("cuda") casts the parts,
    and leaves the `log_softmax` of that call in FP16, as does `labkit.frameworks.torch_amp`.

    Args:
        format: the low-precision format. FP16 and BF16 are stored as such; any other `Format` is emulated: tensors stay
            FP32, and the inputs and outputs of operations on the allow list are rounded to the format.
        enabled: False suspends an outer autocast inside the block; the innermost region decides.
        listen: called with a `CastEvent` for each decision.
        cache: keep the casts of weights until the outermost region closes; `region.cache` counts hits and misses.
        gradient_format: the format of gradients in the backward pass of such a rounding; None for `format`.
            FP16 and BF16 with gradients of another format are emulated, too.
        accumulator: the accumulator of matrix products, from `labkit.gemm`; None for the device's.

    Raises:
        RuntimeError: a banned operation is called; the message names the safe form.
        ValueError: FP32 cannot hold the format's numbers, or the format has no zero or no sign.
        TypeError: the decorated function is a generator or a coroutine, which runs after its call has returned.

    >>> with autocast():
    ...     y = torch.ones(2, 3) @ torch.ones(3, 2)
    ...     y.dtype, torch.nn.functional.mse_loss(y, y).dtype
    (torch.float16, torch.float32)
    """

    sees_all = False  # True: stay active inside functions that call no operation of the lists, too

    def __init__(
        self,
        format: FormatLike = FP16,
        *,
        enabled: bool = True,
        listen: Callable[[CastEvent], None] | None = None,
        cache: bool = True,
        gradient_format: FormatLike | None = None,
        accumulator: Any = None,
    ) -> None:
        super().__init__()
        format = as_format(format)
        if gradient_format is not None:
            gradient_format = as_format(gradient_format, "gradient_format")
        if accumulator is not None:
            accumulator = as_accumulator(accumulator)
        self.lower = Cast(format, gradient_format)
        self.enabled = enabled
        self.listen = listen
        self.uses_cache = cache
        if accumulator is not None and self.lower.dtype is None:
            accumulator = Emulated(accumulator, format, gradient_format or format)
        self.accumulator = accumulator
        self.cache = CastCache()
        self._origin = self

    def entry_for(self, func: Callable[..., Any], name: str) -> Entry:
        """Return the rule of an operation and its reason; subclasses may override it."""
        return rule_for(name)

    def acts_on(self, device_type: str) -> bool:
        """Return whether operations on a kind of device are cast; subclasses may override it."""
        return True

    def __enter__(self) -> Self:
        if not _open.regions:
            _open.cache = CastCache()
        self.cache = _open.cache
        mode = _get_current_function_mode()
        # else it is the innermost already
        if not (isinstance(mode, autocast) and mode._origin is self._origin):
            # a mode that is entered twice would act twice
            mode = copy.copy(self) if self in _open.regions else self
            super(autocast, mode).__enter__()
        _open.regions = (*_open.regions, mode)
        _set_flag()
        return self

    def __exit__(self, *exception: Any) -> None:
        *outer, last = _open.regions
        _open.regions = tuple(outer)
        if not outer or outer[-1] is not last:
            super().__exit__(*exception)  # type: ignore[no-untyped-call]
        if not outer:
            _open.cache.clear()
        _set_flag()

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function: each call runs in a region."""
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise TypeError(
                f"{function.__name__} runs after its call has returned, when the region has closed. "
                "Write `with autocast():` inside it."
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
        if type(func) is ATTRIBUTE:
            return self.call_below(func, types, args, kwargs)
        break_graph()
        # torch has entered the modes of another thread, which this one has not recorded
        if not _open.regions:
            # torch pops a mode while it handles a call
            _open.regions = (*_regions_of_torch(), self)
            try:
                return self.__torch_function__(func, types, args, kwargs)
            finally:
                _open.regions = ()
        if not self.enabled or self is not _open.regions[-1]:
            return self.call_below(func, types, args, kwargs)
        name = getattr(func, "__name__", "")
        entry = self.entry_for(func, name)
        if entry.rule is Rule.KEEP or (kwargs and kwargs.get("out") is not None):
            if is_composite(func) and (self.sees_all or calls_any(func, LISTS.names)):
                return self.inside(func, args, kwargs)
            return self.call_below(func, types, args, kwargs)
        args, kwargs = self._cast(name, entry, args, kwargs, types)
        if self.accumulator is not None and name in GEMMS and entry.rule is Rule.ALLOW:
            return self._finished(entry, run(func, args, kwargs, self.accumulator))
        return self._finished(entry, self.call_below(func, types, args, kwargs))

    def call(
        self, function: Callable[..., Any], name: str, entry: Entry, args: Any, kwargs: Any
    ) -> Any:
        """Call a function that is not an operation of torch by a rule; the lists apply to the operations inside."""
        args, kwargs = self._cast(name, entry, args, kwargs)
        return self._finished(entry, function(*args, **kwargs))

    def _cast(
        self, name: str, entry: Entry, args: Any, kwargs: Any, types: Iterable[type] = ()
    ) -> tuple[Any, Any]:
        """Return the arguments, cast by the rule."""
        rule = entry.rule
        if rule is Rule.BANNED:
            raise RuntimeError(
                f"{name} is not safe under autocast: {entry.why}, or autocast(enabled=False) around it."
            )
        with _UNSEEN() if are_plain(types) else nullcontext():
            to, change = self._decide(rule, args, kwargs)
            if self.listen is None:
                return _changed(args, kwargs, change)
            floats, hits = _floats(args, kwargs), _open.cache.hits
            input_dtypes, elements = (
                tuple(t.dtype for t in floats),
                sum(t.numel() for t in floats if t.dtype != to),
            )
            args, kwargs = _changed(args, kwargs, change)
            cached = _open.cache.hits - hits
        elements = 0 if change is None else elements
        self.listen(
            CastEvent(name, rule, entry.why, input_dtypes, to if floats else None, elements, cached)
        )
        return args, kwargs

    def _decide(
        self, rule: Rule, args: Any, kwargs: Any
    ) -> tuple[torch.dtype | Format | None, _Change | None]:
        """Return the format that a rule casts to, and the cast; None for a cast if there is nothing to do."""
        if rule is Rule.ALLOW:
            return self.lower.dtype or self.lower.format, self._lowered
        if rule is Rule.PROMOTE:
            floats = _floats(args, kwargs)
            dtype = floats[0].dtype if floats else None
            if all(tensor.dtype is dtype for tensor in floats):
                return dtype, None
        elif rule is not Rule.DENY and (
            kwargs.get("dtype") is not None or torch.dtype in map(type, args)
        ):
            # the call specifies a dtype, by name or by position: x.softmax(-1, torch.float16)
            return (None, None)
        # FP16 and BF16 together need FP32, too: neither contains the other
        return (torch.float32, _widened)

    def _lowered(self, tensor: Tensor) -> Tensor:
        if tensor.dtype not in CASTABLE:
            return tensor
        return self.lower(tensor, _open.cache if self.uses_cache else None)

    def _finished(self, entry: Entry, out: Any) -> Any:
        """Return the result of an operation; rounded, if its format is emulated."""
        if self.lower.dtype is not None or entry.rule is not Rule.ALLOW:
            return out
        with _UNSEEN():
            return mapped(
                out, lambda tensor: self.lower(tensor) if tensor.dtype is torch.float32 else tensor
            )


def _set_flag() -> None:
    """Set torch's autocast flag of this thread, which some of its modules (RNNBase) check."""
    torch.set_autocast_enabled(FLAGGED_DEVICE, current() is not None)


def _widened(tensor: Tensor) -> Tensor:
    return (
        tensor if tensor.dtype is torch.float32 or tensor.dtype not in CASTABLE else tensor.float()
    )


def _changed(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: _Change | None
) -> tuple[Any, dict[str, Any]]:
    """Return arguments with their tensors changed; a fast path, since this runs for each call."""
    if change is None:
        return args, kwargs
    changed = tuple(
        [change(value) if isinstance(value, Tensor) else mapped(value, change) for value in args]
    )
    return changed, {
        key: mapped(value, change) for key, value in kwargs.items()
    } if kwargs else kwargs


def _floats(args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that a rule applies to, in order."""
    return [tensor for tensor in tensors_in((*args, *kwargs.values())) if tensor.dtype in CASTABLE]
