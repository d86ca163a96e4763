"""In which dtypes does an operation run whose forward and backward somebody wrote?

Idea: `custom_fwd` notes which autocast regions are open when forward runs, and `custom_bwd` opens them again for
backward, which runs when they have closed. An operation that needs one dtype says so (`cast_inputs`): then its inputs
are cast to it, and autocast is off in forward and backward.

A Function that carries torch's own decorators (`torch.amp.custom_fwd`, the old `torch.cuda.amp.custom_fwd`) does the
same: torch's look at torch's flags, which our regions leave down, so such a Function is applied with ours around them.
A region acts on every device, so it counts as on for each `device_type`. Where a tensor lies on that device, only those
that do are cast, as torch casts them; where none does, a GPU's Function is rehearsed on a CPU, and all are.

Invariant: an operation inside backward is cast as it would have been in forward.

Source: torch.amp.custom_fwd and custom_bwd (meaning; ours need no device_type).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, TypeVar, overload

import torch
from torch import Tensor
from torch.amp import autocast_mode
from torch.autograd.function import _SingleLevelFunction

from labkit.amp.casting.autocast import CASTABLE, autocast, current
from labkit.formats import Format
from labkit.interop import dtype_of
from labkit.modes import mapped, open_modes, tensors_in, under

_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def custom_fwd(forward: _Function, *, cast_inputs: Format | torch.dtype | None = None) -> _Function: ...
@overload
def custom_fwd(*, cast_inputs: Format | torch.dtype | None = None) -> Callable[[_Function], _Function]: ...
def custom_fwd(forward: Any = None, *, cast_inputs: Format | torch.dtype | None = None) -> Any:
    """Decorate the `forward` of a `torch.autograd.Function`, below `@staticmethod`; `custom_bwd` decorates `backward`.

    Args:
        cast_inputs: inside a region, floating-point inputs (but FP64) are cast to this format, and forward runs with
            autocast off. None: operations inside are cast as everywhere in the region. Outside of one, nothing is done.

    >>> class Product(torch.autograd.Function):
    ...     @staticmethod
    ...     @custom_fwd(cast_inputs=torch.float32)
    ...     def forward(ctx, a, b):
    ...         return a @ b
    >>> with autocast():
    ...     Product.apply(torch.ones(2, 2).half(), torch.ones(2, 2).half()).dtype
    torch.float32
    """
    if forward is None:
        return partial(custom_fwd, cast_inputs=cast_inputs)
    return _forward(forward, dtype_of(cast_inputs) if isinstance(cast_inputs, Format) else cast_inputs)


def _forward(forward: Callable[..., Any], dtype: torch.dtype | None, device_type: str | None = None) -> Any:
    @wraps(forward)
    def decorated(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._modes = open_modes()
        if dtype is None or current(device_type) is None:
            return forward(ctx, *args, **kwargs)
        devices = {tensor.device.type for tensor in tensors_in((*args, *kwargs.values()))}
        cast = partial(mapped, change=partial(_to, dtype=dtype, devices=devices & {device_type} or devices))
        with autocast(enabled=False):
            ctx._modes = open_modes()
            return forward(ctx, *cast(args), **cast(kwargs))

    run_uncompiled(decorated, all_inside=True)
    return decorated


def custom_bwd(backward: _Function) -> _Function:
    """Decorate the `backward` of a `torch.autograd.Function`: it runs under the regions that forward ran under.

    Raises:
        RuntimeError: forward was not decorated with `custom_fwd`.
    """

    @wraps(backward)
    def decorated(ctx: Any, *gradients: Any) -> Any:
        if not hasattr(ctx, "_modes"):
            raise RuntimeError("backward has custom_bwd, but forward has no custom_fwd: decorate both.")
        if current() is not None and not any(isinstance(mode, autocast) for mode in ctx._modes):
            with autocast(enabled=False):  # backward was called inside a region that forward knew nothing of
                return backward(ctx, *gradients)
        return under(ctx._modes, backward, ctx, *gradients)

    return decorated  # type: ignore[return-value]


def _to(tensor: Tensor, dtype: torch.dtype, devices: set[str]) -> Tensor:
    return tensor.to(dtype) if tensor.dtype in CASTABLE and tensor.device.type in devices else tensor


def follow_torchs_decorators() -> None:
    """Let Functions with torch's decorators follow our regions, however `apply` was looked up; twice is as once."""
    if "apply" not in vars(_SingleLevelFunction):  # every Function's own `apply` calls what stands here

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            followed = _following(cls) if torch._C._len_torch_function_stack() and open_modes() else cls
            return super(_SingleLevelFunction, followed).apply(*args, **kwargs)

        run_uncompiled(apply)
        run_uncompiled(_following)
        _SingleLevelFunction.apply = classmethod(apply)  # type: ignore[attr-defined]


def run_uncompiled(function: Any, *, all_inside: bool = False) -> None:
    """Let torch.compile run a function, or all that it calls too, without a look at what it does this time.

    So do torch._dynamo.eval_frame.skip_code and torch.compiler.disable, after an import that takes seconds.
    """
    frames: Any = torch._C._dynamo.eval_frame
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    strategy = frames._FrameExecStrategy(skip, skip if all_inside else default)
    frames.set_code_exec_strategy(function.__code__, strategy)


def _following(function: Any) -> Any:
    """Return a Function, or where torch's decorator is on its forward, a subclass of it with ours around torch's."""
    forward, backward, twin = vars(function).get("_labkit_following", (None, None, None))
    if forward is function.forward and backward is function.backward:
        return twin
    forward, backward, twin = function.forward, function.backward, function
    decorated = _decorated(forward, _codes()[0])
    if decorated is not None:
        known = inspect.getclosurevars(decorated).nonlocals
        own = {"forward": staticmethod(_forward(forward, known["cast_inputs"], known["device_type"]))}
        if _decorated(backward, _codes()[1]) is not None:
            own["backward"] = staticmethod(custom_bwd(backward))
        names = {name: getattr(function, name) for name in ("__module__", "__qualname__", "__doc__")}
        twin = type(function)(function.__name__, (function,), {**names, **own})
    function._labkit_following = forward, backward, twin
    return twin


def _decorated(function: Any, code: Any) -> Any:
    """Return the decorated function among those that a method wraps; None where there is none."""
    while function is not None and getattr(function, "__code__", None) is not code:
        function = getattr(function, "__wrapped__", None)
    return function


@cache
def _codes() -> tuple[Any, Any]:
    """Return the code that torch's two decorators put around a method."""
    decorators: Any = (autocast_mode.custom_fwd, autocast_mode.custom_bwd)
    forward, backward = (decorate(lambda ctx: None, device_type="cpu") for decorate in decorators)
    return forward.__code__, backward.__code__
