"""torch.amp with the lab's engine: a script that is written for it changes one import.

    from torch.amp import autocast, GradScaler
    from labkit.frameworks.torch_amp import autocast, GradScaler

Idea: torch's signature, checks and messages on top of `labkit.amp.autocast`, which uses the CUDA lists on any device.
On a CPU, `half_storage` emulates the FP16 products of a Tensor Core. So the casts on a laptop are those on a GPU,
including softmax and norms in FP32, which torch.autocast("cpu") computes in FP16. `GradScaler` is in `torch_scaler`.

Functions that torch composes in C++ from listed operations (`COMPOSITES`) are implemented in Python: CUDA's autocast
casts at each of those operations, and a Python mode sees only the whole. For most the result is the same; two differ:

- `cross_entropy` calls `log_softmax` with the dtype of the logits. Autocast respects a dtype that is named, so FP16
  logits get an FP16 `log_softmax`, although torch's documentation lists `cross_entropy` among the operations that run
  in FP32. The loss is FP32, made of log-probabilities that were rounded to FP16. `labkit.amp.autocast` keeps FP32.
- `pairwise_distance` subtracts in the dtype of its inputs, and takes the norm of the difference in FP32.

Invariant: outputs have the dtypes of torch.autocast("cuda"), and on a GPU its values; operations without a tensor on
`device_type` are not cast. torch's own is_autocast_enabled() reports torch's regions only.

Source: torch.amp.autocast_mode, 2.13 (signature, checks, messages); ATen/native, torch 2.13: LossNLL.cpp, Distance.cpp,
BinaryOps.cpp, UnaryOps.cpp.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import ContextDecorator, ExitStack
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.amp import is_autocast_available
from torch.nn import functional as F

from labkit import amp
from labkit.amp import POLICY
from labkit.amp.casting.autocast import current
from labkit.amp.casting.lists import FEW_HALF_KERNELS, Entry, Rule
from labkit.formats import FP16, Format
from labkit.frameworks.torch_scaler import GradScaler, from_state_dict, state_dict
from labkit.gemm import half_storage
from labkit.interop import format_of
from labkit.modes import body_of

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

_NONE, _MEAN, _SUM = 0, 1, 2  # torch's at::Reduction
_nn: Any = torch._C._nn  # its stubs name a reduction by a string


def cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """Return the cross entropy of logits and classes, or of logits and probabilities where the shapes are equal."""
    dim = 0 if input.dim() == 1 else 1
    soft = input.shape == target.shape
    if label_smoothing > 1 or (soft and (not target.is_floating_point() or ignore_index >= 0)):
        with torch._C.DisableTorchFunction():  # torch refuses these, in its own words
            return _nn.cross_entropy_loss(
                input, target, weight, reduction, ignore_index, label_smoothing
            )
    log_probabilities = torch.log_softmax(input, dim, dtype=input.dtype)
    classes = input.shape[dim]
    per_class = (
        None
        if weight is None
        else weight.view([-1 if axis == dim else 1 for axis in range(input.dim())])
    )
    if soft:
        if label_smoothing > 0:
            target = target * (1 - label_smoothing) + label_smoothing / classes
        terms = log_probabilities * target
        terms = terms if per_class is None else terms * per_class
        if reduction == _NONE:
            return -terms.sum(dim)
        return -terms.sum() / (terms.numel() // classes) if reduction == _MEAN else -terms.sum()
    nll = _nn.nll_loss_nd(log_probabilities, target, weight, reduction, ignore_index)
    if label_smoothing == 0:
        return nll
    ignored = target == ignore_index  # every class counts alike, but for these targets
    weighted = log_probabilities if per_class is None else log_probabilities * per_class
    smooth = (-weighted.sum(dim)).masked_fill(ignored, 0.0)
    if reduction == _MEAN:
        kept = target.masked_select(~ignored).flatten()
        smooth = smooth.sum() / (
            (~ignored).sum() if weight is None else weight.gather(0, kept).sum()
        )
    elif reduction == _SUM:
        smooth = smooth.sum()
    return (1 - label_smoothing) * nll + smooth * (label_smoothing / classes)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Return the norm of the differences of two batches of vectors."""
    distance: Tensor = torch.norm(
        x1 - x2 + eps, p, dim=max(x1.dim(), x2.dim()) - 1, keepdim=keepdim
    )
    return distance


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """Return `input * 2 ** other`."""
    return input * torch.pow(2.0, other)


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """Return the logarithm of the multivariate gamma function of dimension p."""
    halves = torch.arange(-p / 2 + 0.5, 0.5, 0.5, dtype=input.dtype, device=input.device)
    return (halves + input.unsqueeze(-1)).lgamma().sum(-1).add(p * (p - 1) * math.log(math.pi) / 4)


COMPOSITES: dict[str, Callable[..., Any]] = {
    "cross_entropy": lambda *args, **kwargs: body_of(F.cross_entropy)(*args, **kwargs),
    "cross_entropy_loss": cross_entropy_loss,
    "pairwise_distance": pairwise_distance,
    "ldexp": ldexp,
    "mvlgamma": mvlgamma,
    "special_multigammaln": mvlgamma,
}


_Function = TypeVar("_Function", bound=Callable[..., Any])
_LOW = (torch.bfloat16, torch.float16)
_KEPT = Entry(Rule.KEEP, "CUDA has it in half, for powers of two")
# .open: this thread's open regions and what closes them, the innermost last
_thread = threading.local()


class autocast(ContextDecorator):
    """Run the operations of a block, or of a function, in the dtypes that torch.autocast("cuda") gives them.

    Args:
        device_type: "cpu", "cuda", ...; operations on tensors of other devices are left alone.
        dtype: torch.float16 or torch.bfloat16; None for torch's default on that device, BF16 on a CPU.
        enabled: False suspends an outer region inside the block.
        cache_enabled: keep the casts of weights until the outermost region closes; None for torch's setting.

    Raises:
        ValueError: device_type is no string.
        RuntimeError: torch has no autocast for that device, or a banned operation is called in the block.
        TypeError: what it decorates cannot be called.

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
                f"User specified an unsupported autocast device_type '{device_type}'. Try 'cpu' or 'cuda'."
            )
        self.device = device_type
        self._enabled = enabled and _can_run(device_type, self.fast_dtype)
        self._cache_enabled = (
            torch.is_autocast_cache_enabled() if cache_enabled is None else cache_enabled
        )

    def __enter__(self) -> autocast:
        with ExitStack() as entered:
            if self._enabled:
                entered.enter_context(half_storage(self.device))
            low = format_of(self.fast_dtype) if self._enabled else FP16
            entered.enter_context(
                _OnDevice(self.device, low, enabled=self._enabled, cache=self._cache_enabled)
            )
            _thread.open = [*_regions(), (self, entered.pop_all())]
        return self

    def __exit__(self, *exception: Any) -> None:
        *_thread.open, (_, entered) = _regions()
        entered.__exit__(*exception)

    def __call__(self, func: _Function) -> _Function:
        if inspect.isgeneratorfunction(func) or inspect.iscoroutinefunction(func):
            raise TypeError(
                f"{func.__name__} runs after its call has returned, when the region has closed. "
                "Write `with autocast(...):` inside it."
            )
        if not callable(func):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(func).__name__}. Did you mean to use autocast as "
                "a context manager? For example:\n    with autocast(device_type=...):\n        output = model(input)"
            )
        return super().__call__(func)


def is_autocast_enabled(device_type: str) -> bool:
    """Return whether operations on a device are cast here: the innermost region for that device decides.

    >>> with autocast("cpu"):
    ...     is_autocast_enabled("cpu"), is_autocast_enabled("cuda")
    (True, False)
    """
    return next(
        (region._enabled for region, _ in reversed(_regions()) if region.device == device_type),
        False,
    )


def custom_fwd(fwd: Any = None, *, device_type: str, cast_inputs: torch.dtype | None = None) -> Any:
    """Decorate the `forward` of a `torch.autograd.Function`: labkit.amp.custom_fwd, with torch's arguments.

    Raises:
        ValueError: device_type is no string.

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
    casting, plain = amp.custom_fwd(fwd, cast_inputs=cast_inputs), amp.custom_fwd(fwd)

    @functools.wraps(fwd)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return (casting if is_autocast_enabled(device_type) else plain)(*args, **kwargs)

    return decorated


def custom_bwd(bwd: Any = None, *, device_type: str) -> Any:
    """Decorate the `backward` that belongs to a `custom_fwd`: it runs under the regions that forward ran under.

    Raises:
        ValueError: device_type is no string.
    """
    _require_device(device_type)
    return (
        functools.partial(custom_bwd, device_type=device_type)
        if bwd is None
        else amp.custom_bwd(bwd)
    )


class _OnDevice(amp.autocast):
    """labkit's autocast for one kind of device."""

    def __init__(self, device_type: str, format: Format, *, enabled: bool, cache: bool) -> None:
        super().__init__(format, enabled=enabled, cache=cache)
        self.device_type = device_type

    def acts_on(self, device_type: str) -> bool:
        return device_type == self.device_type

    def entry_for(self, func: Callable[..., Any], name: str) -> Entry:
        entry = super().entry_for(func, name)
        return _KEPT if name in FEW_HALF_KERNELS and entry is POLICY[name] else entry

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not (_any_on(self.device_type, args) or _any_on(self.device_type, kwargs.values())):
            return func(*args, **kwargs)
        composite = self._composite(func) if kwargs.get("out") is None else None
        if composite is not None and current() is self:
            return self.call_inside(composite, args, kwargs)
        return super().__torch_function__(func, types, args, kwargs)

    def _composite(self, func: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return an operation written out in Python, unless somebody registered a rule for it."""
        name = getattr(func, "__name__", "").partition(".")[0]
        composite = COMPOSITES.get(name)
        return (
            composite
            if composite is not None and self.entry_for(func, name) is POLICY[name]
            else None
        )


def _require_device(device_type: object) -> None:
    if not isinstance(device_type, str):
        raise ValueError(
            f"Expected `device_type` of type `str`, got: `{type(device_type)}`. Of a tensor, take tensor.device.type."
        )


def _any_on(device_type: str, values: Iterable[Any]) -> bool:
    return any(
        value.device.type == device_type
        if isinstance(value, Tensor)
        else isinstance(value, list | tuple) and _any_on(device_type, value)
        for value in values
    )


def _regions() -> list[tuple[autocast, ExitStack]]:
    regions: list[tuple[autocast, ExitStack]] = getattr(_thread, "open", [])
    return regions


def _can_run(device_type: str, dtype: torch.dtype) -> bool:
    """Return whether autocast can be enabled; warn where torch warns and disables it."""
    if device_type == "cuda" and torch.cuda.amp.common.amp_definitely_not_available():
        warnings.warn(
            "CUDA is not available or torch_xla is imported. Disabling autocast. On a CPU, say autocast('cpu').",
            stacklevel=3,
        )
        return False
    if dtype not in _LOW:
        name = device_type.upper()
        warnings.warn(
            f"In {name} autocast, but the target dtype is not supported. Disabling autocast.\n"
            f"{name} Autocast only supports dtypes of {', '.join(map(str, _LOW))} currently. Got {dtype}.",
            stacklevel=3,
        )
        return False
    if device_type == "cuda" and dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise RuntimeError(
            "Current CUDA Device does not support bfloat16. Please switch dtype to float16."
        )
    return True
