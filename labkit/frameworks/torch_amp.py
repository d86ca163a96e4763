"""torch.amp with the lab's engine: a script that is written for it changes one import.

    from torch.amp import autocast, GradScaler
    from labkit.frameworks.torch_amp import autocast, GradScaler

Idea: torch's signature, checks and messages on top of `labkit.amp.autocast`, which uses the CUDA
lists on any device. On a CPU, `half_storage` emulates the FP16 products of a Tensor Core. So the
casts on a laptop are those on a GPU, including softmax and norms in FP32, which
torch.autocast("cpu") computes in FP16. `GradScaler` is in `torch_scaler`.

Functions that torch composes in C++ from listed operations are in `composites`, written in Python:
CUDA's autocast casts at each of those operations, and a Python mode sees only the whole.

Invariant: outputs have the dtypes of torch.autocast("cuda"), and on a GPU its values; operations
without a tensor on `device_type` are not cast. torch's own is_autocast_enabled() reports torch's
regions only.

Source: torch.amp.autocast_mode, 2.13 (signature, checks, messages).
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import ContextDecorator, ExitStack
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.amp import is_autocast_available

from labkit import amp
from labkit.amp import POLICY
from labkit.amp.casting.autocast import current, runs_after_its_call
from labkit.amp.casting.lists import FEW_HALF_KERNELS, LISTS, Entry, Rule, rule_for
from labkit.formats import FP16, Format
from labkit.frameworks.composites import COMPOSITES
from labkit.frameworks.torch_scaler import GradScaler, from_state_dict, state_dict
from labkit.gemm import half_storage
from labkit.interop import format_of
from labkit.modes import (
    body_in_graphs,
    break_graph,
    call_in_graph,
    call_unseen,
    constant_in_graphs,
    is_composite,
    require_traceable,
    runs_graph,
    tensors_in,
)

__all__ = [
    "GradScaler",
    "autocast",
    "custom_bwd",
    "custom_fwd",
    "from_state_dict",
    "is_autocast_available",
    "is_autocast_enabled",
    "state_dict",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LOW = (torch.bfloat16, torch.float16)
_KEPT = Entry(Rule.KEEP, "CUDA has it in half, for powers of two")
# attribute `open`: the regions that are open in this thread, each with the stack that closes it;
# the innermost is the last
_thread = threading.local()


class autocast(ContextDecorator):
    """Run a block or function in the dtypes that torch.autocast("cuda") gives its operations.

    Args:
        device_type: "cpu", "cuda", ...; operations on tensors of other devices are left alone.
        dtype: torch.float16 or torch.bfloat16; None for torch's default on that device, BF16 on a
            CPU.
        enabled: False suspends an outer region inside the block.
        cache_enabled: keep the casts of weights until the outermost region closes; None for torch's
            setting.

    Raises:
        ValueError: device_type is not a string.
        RuntimeError: torch has no autocast for that device, the GPU has no BF16, or a banned
            operation is called in the block.
        TypeError: it decorates something that cannot be called, or a generator or coroutine
            function.

    >>> with autocast("cpu", dtype=torch.float16):
    ...     y = torch.ones(2, 3) @ torch.ones(3, 2)
    ...     y.dtype, torch.softmax(y, dim=1).dtype
    (torch.float16, torch.float32)
    """

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        _require_device(device_type)
        self.fast_dtype = torch.get_autocast_dtype(device_type) if dtype is None else dtype
        if not torch.amp.is_autocast_available(device_type):
            raise RuntimeError(
                f"User specified an unsupported autocast device_type '{device_type}'. Try 'cpu' or "
                "'cuda'."
            )
        self.device = device_type
        # a disabled region neither warns nor raises
        self._enabled = enabled and _can_run(device_type, self.fast_dtype)
        self._cache_enabled = (
            torch.is_autocast_cache_enabled() if cache_enabled is None else cache_enabled
        )

    def __enter__(self) -> autocast:
        # a disabled region casts nothing, whatever its format is
        low = FP16
        with ExitStack() as entered:
            if self._enabled:
                entered.enter_context(half_storage(self.device))
                low = format_of(self.fast_dtype)
            entered.enter_context(
                _OnDevice(self.device, low, enabled=self._enabled, cache=self._cache_enabled)
            )
            # all contexts were entered; from now on __exit__ closes them
            _thread.open = [*_regions(), (self, entered.pop_all())]
        return self

    def __exit__(self, *exception: Any) -> None:
        regions = _regions()
        _, entered = regions[-1]
        _thread.open = regions[:-1]
        entered.__exit__(*exception)

    def __call__(self, func: _Function) -> _Function:
        if runs_after_its_call(func):
            name = getattr(func, "__name__", repr(func))
            raise TypeError(
                f"{name} runs after its call has returned, when the region has closed. "
                "Write `with autocast(...):` inside it."
            )
        if not callable(func):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(func).__name__}. Did you "
                "mean to use autocast as a context manager? For example:\n    with "
                "autocast(device_type=...):\n        output = model(input)"
            )
        return super().__call__(func)


def is_autocast_enabled(device_type: str) -> bool:
    """Return whether operations on a device are cast here, as its innermost region decides.

    >>> with autocast("cpu"):
    ...     is_autocast_enabled("cpu"), is_autocast_enabled("cuda")
    (True, False)
    """
    for region, _ in reversed(_regions()):
        if region.device == device_type:
            return region._enabled
    return False


def custom_fwd(
    fwd: Callable[..., Any] | None = None,
    *,
    device_type: str,
    cast_inputs: torch.dtype | None = None,
) -> Callable[..., Any]:
    """Decorate the `forward` of a `torch.autograd.Function`.

    Args:
        fwd: the function; None returns a decorator.
        device_type: "cpu", "cuda", ...
        cast_inputs: the dtype to which inputs are cast in an enabled region; the function then runs
            with autocast off. None: inputs are not cast, and autocast is as the region has it.

    Raises:
        ValueError: device_type is not a string.

    >>> class Product(torch.autograd.Function):
    ...     @staticmethod
    ...     @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    ...     def forward(ctx, a, b):
    ...         return a @ b
    >>> with autocast("cpu"):
    ...     Product.apply(torch.ones(2, 2).half(), torch.ones(2, 2).half()).dtype
    torch.float32
    """
    _require_device(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    casting = amp.custom_fwd(fwd, cast_inputs=cast_inputs)
    plain = amp.custom_fwd(fwd)

    @functools.wraps(fwd)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        if is_autocast_enabled(device_type):
            return casting(*args, **kwargs)
        return plain(*args, **kwargs)

    return decorated


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Callable[..., Any]:
    """Decorate the `backward` of a function whose `forward` has `custom_fwd`.

    It runs under the autocast regions that forward ran under.

    Args:
        bwd: the function; None returns a decorator.
        device_type: "cpu", "cuda", ...

    Raises:
        ValueError: device_type is not a string.
    """
    _require_device(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)
    return amp.custom_bwd(bwd)


class _OnDevice(amp.autocast):
    """labkit's autocast for one kind of device."""

    def __init__(self, device_type: str, format: Format, *, enabled: bool, cache: bool) -> None:
        super().__init__(format, enabled=enabled, cache=cache)
        self.device_type = device_type

    def acts_on(self, device_type: str) -> bool:
        return device_type == self.device_type

    def entry_for(self, func: Callable[..., Any], name: str) -> Entry:
        entry = super().entry_for(func, name)
        # only the lab's own entry is replaced, not a rule that somebody registered
        if name in FEW_HALF_KERNELS and entry is POLICY[name]:
            return _KEPT
        return entry

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():
            return self._on_device_in_graph(func, types, args, kwargs)
        if not (_any_on(self.device_type, args) or _any_on(self.device_type, kwargs.values())):
            return func(*args, **kwargs)
        composite = None
        # with out=, torch does not autocast
        if kwargs.get("out") is None:
            composite = self._composite(func)
        # `current` is the innermost region of all devices
        if composite is not None and current() is self:
            if runs_graph():
                return call_unseen(func, args, kwargs)
            return self.call_inside(composite, args, kwargs)
        return super().__torch_function__(func, types, args, kwargs)

    def rule_in_graphs(self, func: Callable[..., Any]) -> str:
        # the edition changes with each registration, so that no stale constant is in a graph
        if _is_kept(func, LISTS.edition):
            return "keep"
        return super().rule_in_graphs(func)

    def _on_device_in_graph(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Do what `__torch_function__` does, in code that torch.compile can trace."""
        require_traceable(func)
        on_device = False
        for tensor in tensors_in((*args, *kwargs.values())):
            on_device = on_device or tensor.device.type == self.device_type
        if not on_device:
            return call_in_graph(func, args, kwargs)
        acts = self.enabled and self.innermost is not False
        if acts and kwargs.get("out") is None and _is_composed(func, LISTS.edition):
            if self.innermost is None:
                break_graph()
            return self.call_inside(_composed(func), args, kwargs)
        return super().__torch_function__(func, types, args, kwargs)

    def _composite(self, func: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return the operation in Python, or None if it has none, or a registered rule."""
        name = getattr(func, "__name__", "").partition(".")[0]
        entry = self.entry_for(func, name)
        listed = POLICY.get(name)
        if listed is None:
            registered = entry.rule is not Rule.KEEP
        else:
            registered = entry is not listed
        if registered:
            return None
        return COMPOSITES.get(name)


@constant_in_graphs
def _is_kept(func: Callable[..., Any], edition: int) -> bool:
    """Return whether CUDA has a half kernel of an operation that the lists run in FP32.

    `edition` is unused; it makes a new constant after each change of the lists.
    """
    name = getattr(func, "__name__", "").partition(".")[0]
    return name in FEW_HALF_KERNELS and rule_for(name) is POLICY[name]


@constant_in_graphs
def _is_composed(func: Callable[..., Any], edition: int) -> bool:
    """Return whether an operation is in `COMPOSITES`, and no rule is registered for it.

    `edition` is unused; it makes a new constant after each change of the lists.
    """
    name = getattr(func, "__name__", "").partition(".")[0]
    return name in COMPOSITES and LISTS.table.get(name) is POLICY.get(name)


def _composed(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Python function of an operation that torch composes."""
    if _has_body(func):
        return body_in_graphs(func)
    return COMPOSITES[_short_name(func)]


@constant_in_graphs
def _has_body(func: Callable[..., Any]) -> bool:
    return is_composite(func)


@constant_in_graphs
def _short_name(func: Callable[..., Any]) -> str:
    return func.__name__.partition(".")[0]


def _require_device(device_type: object) -> None:
    if not isinstance(device_type, str):
        raise ValueError(
            f"Expected `device_type` of type `str`, got: `{type(device_type)}`. "
            "For the device of a tensor, use tensor.device.type."
        )


def _any_on(device_type: str, values: Iterable[Any]) -> bool:
    """Return whether a tensor in nested lists and tuples is on a kind of device."""
    for value in values:
        if isinstance(value, Tensor):
            if value.device.type == device_type:
                return True
        elif isinstance(value, list | tuple) and _any_on(device_type, value):
            return True
    return False


def _regions() -> list[tuple[autocast, ExitStack]]:
    regions: list[tuple[autocast, ExitStack]] = getattr(_thread, "open", [])
    return regions


def _can_run(device_type: str, dtype: torch.dtype) -> bool:
    """Return whether autocast can be enabled; warn where torch warns and disables it."""
    if device_type == "cuda" and torch.cuda.amp.common.amp_definitely_not_available():
        warnings.warn(
            "CUDA is not available or torch_xla is imported. Disabling autocast. On a CPU, use "
            "autocast('cpu').",
            stacklevel=3,
        )
        return False
    if dtype not in _LOW:
        name = device_type.upper()
        warnings.warn(
            f"In {name} autocast, but the target dtype is not supported. Disabling autocast.\n"
            f"{name} Autocast only supports dtypes of {', '.join(map(str, _LOW))} currently. Got "
            f"{dtype}.",
            stacklevel=3,
        )
        return False
    if device_type == "cuda" and dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise RuntimeError(
            "Current CUDA Device does not support bfloat16. Please switch dtype to float16."
        )
    return True
