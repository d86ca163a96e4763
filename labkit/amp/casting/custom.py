"""Rules for registered operations and functions, and for autograd Functions of the user.

A registered operation of torch changes list by name, however it is called. A registered Python
function has its arguments cast, and the lists apply to the operations inside. (That is apex's
meaning; torch's `custom_fwd` disables autocast inside instead.) For an autograd Function,
`custom_fwd` records the regions that are active in forward, and `custom_bwd` enters them again for
backward, which runs after they have closed.

A Function with torch's own decorators (`torch.amp.custom_fwd`, the old `torch.cuda.amp.custom_fwd`)
works the same. Torch's decorators check torch's flags, which our regions do not set, so ours are
applied around them. A region acts on every device, so autocast is on for each `device_type`. If
some tensors are on that device, only these are cast, as in torch; if none is, a GPU's Function is
being tried on a CPU, and all are cast.

Invariant: undoing a registration leaves no trace, in any order; all threads see the same lists. An
operation inside backward is cast as it would have been in forward.

Source: apex.amp.half_function, float_function, promote_function, register_half_function (names and
meaning); torch.amp.custom_fwd and custom_bwd (meaning; ours need no device_type).
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Hashable
from functools import cache, partial, update_wrapper, wraps
from types import MethodType
from typing import Any, Self, TypeVar, overload

import torch
from torch import Tensor
from torch.amp import autocast_mode
from torch.autograd.function import _SingleLevelFunction
from torch.overrides import resolve_name

from labkit.amp.casting.autocast import autocast, current
from labkit.amp.casting.in_graphs import CASTABLE
from labkit.amp.casting.lists import LISTS, Entry, Rule
from labkit.formats import FormatLike, as_format
from labkit.formats.arguments import describe_value
from labkit.interop import dtype_of
from labkit.modes import LabMode, mapped, open_modes, run_uncompiled, tensors_in, under
from labkit.modes.replacing import Replacement

WHY = "you registered it"
# operators whose methods reach torch under another name than their own without its underscores
_OPERATORS = {
    "radd": "add",
    "rmul": "mul",
    "truediv": "div",
    "rtruediv": "rdiv",
    "mod": "remainder",
    "pos": "positive",
    "iadd": "add_",
    "isub": "sub_",
    "imul": "mul_",
    "idiv": "div_",
    "itruediv": "div_",
    "ifloordiv": "floor_divide_",
    "imod": "remainder_",
    "ipow": "pow_",
}


class Registered:
    """A registered rule with its function, which can still be called.

    In a `with` statement the rule is undone at the end of the block. It has no effect outside of
    autocast.
    """

    def __init__(self, target: str | Callable[..., Any], entry: Entry) -> None:
        function = None if isinstance(target, str) else target
        if function is not None:
            # This comes first: the function may have attributes with the names of those below.
            update_wrapper(self, function)
        self.function = function
        self.entry = entry
        if isinstance(target, str):
            name = target
        else:
            name = str(getattr(target, "__name__", type(target).__name__))
        self.name = _name_of_calls(name)
        self.is_active = True
        # torch finds a function by its hash, which an object with a method `__call__` may lack
        is_hashable = isinstance(function, Hashable)
        self.of_torch = function is None or (is_hashable and resolve_name(function) is not None)
        if self.of_torch:
            LISTS.put(self, self.name, entry)

    def undo(self) -> None:
        """Remove the rule; idempotent."""
        self.is_active = False
        LISTS.take(self)

    def __enter__(self) -> Self:
        if not self.is_active:
            raise RuntimeError(f"the rule of {self.name} was undone: register it again.")
        return self

    def __exit__(self, *exception: Any) -> None:
        self.undo()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise TypeError(
                f"{self.name!r} was registered by its name, so there is no function to call: call "
                "torch's function."
            )
        # a function of torch is cast by the lists, when it is called
        region = current() if self.is_active and not self.of_torch else None
        if region is None:
            return self.function(*args, **kwargs)
        return region.call(self.function, self.name, self.entry, args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # a function registered inside a class is a method
        if instance is None:
            return self
        return MethodType(self, instance)


def _name_of_calls(name: str) -> str:
    """Return the name under which an operation is called.

    An overload, such as "mm.default", has the rule of "mm", and an operator, such as "__add__", is
    called as "add".
    """
    stem = name.partition(".")[0]
    if not (stem.startswith("__") and stem.endswith("__")):
        return stem
    bare = stem[2:-2]
    return _OPERATORS.get(bare, bare)


def register(target: str | Callable[..., Any], rule: Rule, why: str = WHY) -> Registered:
    """Register a function on a list, until `undo` or the end of a `with` block.

    Args:
        target: an operation of torch (`torch.relu`, or its name, "relu"), or a Python function of
            your own.
        rule: the list. SET_DTYPE and APPEND_DTYPE are for functions that take a `dtype`.
        why: the reason, for events.

    Raises:
        TypeError: target is neither callable nor a name, or rule is not a Rule.
        ValueError: torch has no operation of this name.

    >>> import torch
    >>> from labkit.amp.casting.autocast import autocast
    >>> with autocast(), register("sigmoid", Rule.DENY):
    ...     torch.ones(1).half().sigmoid().dtype
    torch.float32
    """
    if not (isinstance(target, str) or callable(target)):
        raise TypeError(f"target: expected a function or the name of an operation, got {target!r}")
    if not isinstance(rule, Rule):
        raise TypeError(f"rule: expected one of {', '.join(str(r) for r in Rule)}, got {rule!r}")
    if isinstance(target, str):
        _require_operation(target)
    if isinstance(target, Registered):
        raise TypeError(
            f"{target.name} is registered already ({target.entry.rule.value}); undo that first"
        )
    return Registered(target, Entry(rule, why))


def _require_operation(name: str) -> None:
    """Require that a name, such as "mm" or "mm.default", is that of an operation of torch."""
    stem = name.partition(".")[0]
    places = (torch, Tensor, torch.nn.functional)
    if any(callable(getattr(place, stem, None)) for place in places):
        return
    # operators of other libraries too, each as "aten::mm"
    operators = {schema.name.rpartition("::")[2] for schema in torch._C._jit_get_all_schemas()}
    if stem in operators:
        return
    near = difflib.get_close_matches(stem, operators, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"target: expected the name of an operation of torch, got {name!r}.{hint}")


def half_function(target: str | Callable[..., Any]) -> Registered:
    """Run a function in the low-precision format; also a decorator.

    >>> import torch
    >>> from labkit.amp.casting.autocast import autocast
    >>> @half_function
    ... def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    ...     return a * b
    >>> with autocast():
    ...     product(torch.ones(2), torch.ones(2)).dtype
    torch.float16
    >>> product(torch.ones(2), torch.ones(2)).dtype
    torch.float32
    """
    return register(target, Rule.ALLOW)


def float_function(target: str | Callable[..., Any]) -> Registered:
    """Run a function in FP32; also a decorator."""
    return register(target, Rule.DENY)


def promote_function(target: str | Callable[..., Any]) -> Registered:
    """Run a function in the widest dtype of its tensors; also a decorator."""
    return register(target, Rule.PROMOTE)


_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def custom_fwd(forward: _Function, *, cast_inputs: FormatLike | None = None) -> _Function: ...
@overload
def custom_fwd(*, cast_inputs: FormatLike | None = None) -> Callable[[_Function], _Function]: ...
def custom_fwd(forward: Any = None, *, cast_inputs: FormatLike | None = None) -> Any:
    """Decorate the `forward` of a `torch.autograd.Function`, below `@staticmethod`.

    `custom_bwd` decorates `backward`.

    Args:
        forward: the method; None where the decorator is called with arguments.
        cast_inputs: inside a region, floating-point inputs (but FP64) are cast to this format, and
            forward runs with autocast off. None: operations inside are cast as everywhere in the
            region. No effect outside of a region.

    >>> class Product(torch.autograd.Function):
    ...     @staticmethod
    ...     @custom_fwd(cast_inputs=torch.float32)
    ...     def forward(ctx, a, b):
    ...         return a @ b
    >>> with autocast():
    ...     Product.apply(torch.ones(2, 2).half(), torch.ones(2, 2).half()).dtype
    torch.float32
    """
    if forward is not None and not callable(forward):
        raise TypeError(f"forward: expected a function, got {describe_value(forward)}")
    if forward is None:
        return partial(custom_fwd, cast_inputs=cast_inputs)
    dtype: torch.dtype | None = None
    if cast_inputs is not None:
        dtype = dtype_of(as_format(cast_inputs, "cast_inputs"))
    return _forward(forward, dtype)


def _forward(
    forward: Callable[..., Any], dtype: torch.dtype | None, device_type: str | None = None
) -> Callable[..., Any]:
    """Return the `forward` of a Function, decorated as `custom_fwd` does.

    Args:
        forward: the method.
        dtype: the dtype that inputs are cast to, or None.
        device_type: the argument of torch's decorator; None without one.
    """

    @wraps(forward)
    def decorated(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._modes = open_modes()
        if dtype is None or current(device_type) is None:
            return forward(ctx, *args, **kwargs)
        devices = {tensor.device.type for tensor in tensors_in((*args, *kwargs.values()))}
        # as in torch, only tensors on the decorator's device are cast, if there are any
        if device_type in devices:
            devices = {device_type}

        def cast(tensor: Tensor) -> Tensor:
            if tensor.dtype in CASTABLE and tensor.device.type in devices:
                return tensor.to(dtype)
            return tensor

        with autocast(enabled=False):
            ctx._modes = open_modes()
            return forward(ctx, *mapped(args, cast), **mapped(kwargs, cast))

    run_uncompiled(decorated, all_inside=True)
    return decorated


def custom_bwd(backward: _Function) -> _Function:
    """Decorate the `backward` of a `torch.autograd.Function`.

    It runs under the regions that forward ran under.

    Raises:
        TypeError: backward is not a function.
        RuntimeError: in the backward pass, forward was not decorated with `custom_fwd`.
    """
    if not callable(backward):
        raise TypeError(f"backward: expected a function, got {describe_value(backward)}")

    @wraps(backward)
    def decorated(ctx: Any, *gradients: Any) -> Any:
        if not hasattr(ctx, "_modes"):
            raise RuntimeError(
                "backward has custom_bwd, but forward has no custom_fwd: decorate both."
            )
        if current() is not None and not any(isinstance(mode, autocast) for mode in ctx._modes):
            # backward was called inside a region that was not active in forward
            with autocast(enabled=False):
                return backward(ctx, *gradients)
        return under(ctx._modes, backward, ctx, *gradients)

    return decorated  # type: ignore[return-value]


@cache
def _apply_under_regions(apply: Callable[..., Any]) -> Any:
    """Return `Function.apply` that makes Functions with torch's decorators respect our regions."""

    def apply_under_regions(cls: Any, *args: Any, **kwargs: Any) -> Any:
        function = cls
        # the length of the stack is cheaper than the modes on it
        if torch._C._len_torch_function_stack() and open_modes():
            function = _respecting_regions(cls)
        return super(_SingleLevelFunction, function).apply(*args, **kwargs)

    run_uncompiled(apply_under_regions)
    run_uncompiled(_respecting_regions)
    return classmethod(apply_under_regions)


# every Function's `apply` calls this one, however it was looked up
LabMode.replaced_while_open.add(Replacement(_SingleLevelFunction, "apply", _apply_under_regions))


def _respecting_regions(function: Any) -> Any:
    """Return a Function, or a subclass of it if torch's decorator is on its forward.

    The methods of the subclass have our decorators around torch's.
    """
    # the result is stored with the methods that it was made for, which may be replaced
    forward, backward, result = vars(function).get("_labkit_decorated", (None, None, None))
    if forward is function.forward and backward is function.backward:
        return result
    forward = function.forward
    backward = function.backward
    result = function
    forward_code, backward_code = _wrapper_codes()
    wrapper = _wrapper_with_code(forward, forward_code)
    if wrapper is not None:
        options = inspect.getclosurevars(wrapper).nonlocals
        our_forward = _forward(forward, options["cast_inputs"], options["device_type"])
        methods = {"forward": staticmethod(our_forward)}
        if _wrapper_with_code(backward, backward_code) is not None:
            methods["backward"] = staticmethod(custom_bwd(backward))
        names = {
            name: getattr(function, name) for name in ("__module__", "__qualname__", "__doc__")
        }
        result = type(function)(function.__name__, (function,), {**names, **methods})
    function._labkit_decorated = (forward, backward, result)
    return result


def _wrapper_with_code(function: Any, code: Any) -> Any:
    """Return the wrapper with this code object among a method's nested wrappers, or None."""
    while function is not None and getattr(function, "__code__", None) is not code:
        function = getattr(function, "__wrapped__", None)
    return function


@cache
def _wrapper_codes() -> tuple[Any, Any]:
    """Return the code objects of the wrappers that torch's custom_fwd and custom_bwd make."""

    def method(ctx: Any) -> None:
        pass

    forward: Any = autocast_mode.custom_fwd(method, device_type="cpu")
    backward: Any = autocast_mode.custom_bwd(method, device_type="cpu")
    return forward.__code__, backward.__code__
