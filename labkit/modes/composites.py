"""Composite functions: torch functions in Python, run so that a mode sees the operations inside.

Idea: torch.nn.functional is partly Python. The first line of `F.multi_head_attention_forward`
checks for a mode to handle the call. If the mode calls the function itself, torch disables the mode
for the whole body, matrix products included. `body_of` returns the same function without that
check, so a mode can stay active while the body runs. A backward pass is composite too: it may run
hooks and custom Functions written in Python.

Invariant: body_of(f)(...) computes what f(...) computes; only the modes that see its operations
differ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from types import CodeType, FunctionType
from typing import Any, TypeGuard, TypeVar

from torch import Tensor

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Modules of composite functions. Methods of Tensor are not among them: most check for modes, and
# then call themselves.
FORWARD_MODULES = ("torch.nn.functional", "torch.functional")
MODULES = (*FORWARD_MODULES, "torch.autograd")
# the functions by which a composite function checks for modes
MODE_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def constant_in_graphs(function: _Function) -> _Function:
    """Have torch.compile call a function while it traces, and use the result as a constant.

    Equivalent to torch.compiler.assume_constant_result, whose import takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@lru_cache(maxsize=4096)
def is_composite(func: Callable[..., Any]) -> bool:
    """Return whether a function is Python code of torch that checks for modes before it begins.

    >>> import torch
    >>> is_composite(torch.nn.functional.multi_head_attention_forward), is_composite(torch.matmul)
    (True, False)
    """
    # Look at the module of the code, not at __module__: max_pool2d is a dispatcher in
    # torch._jit_internal. The function itself must check: meshgrid leaves that to a function it
    # calls, which would recurse endlessly.
    if func is Tensor.backward:
        return True
    if not isinstance(func, FunctionType) or func.__globals__.get("__name__") not in MODULES:
        return False
    return any(name in MODE_CHECKS for name in func.__code__.co_names)


@lru_cache(maxsize=4096)
def calls_any(func: Callable[..., Any], names: frozenset[str]) -> bool:
    """Return whether the code of a composite function may call a function with one of these names.

    >>> from torch.nn import functional as F
    >>> linear = frozenset(["linear"])
    >>> calls_any(F.relu, linear), calls_any(F.multi_head_attention_forward, linear)
    (False, True)
    """
    # a backward pass calls hooks, which may call anything
    if not _is_forward_function(func):
        return True
    pending = [func]
    visited = set[FunctionType]()
    while pending:
        function = pending.pop()
        visited.add(function)
        mentioned = _names_in(function.__code__)
        if not names.isdisjoint(mentioned):
            return True
        # functions of other modules only check arguments
        for name in mentioned:
            called = function.__globals__.get(name)
            if _is_forward_function(called) and called not in visited:
                pending.append(called)
    return False


def _is_forward_function(value: object) -> TypeGuard[FunctionType]:
    """Return whether a value is a Python function of torch's modules of forward operations."""
    return isinstance(value, FunctionType) and value.__globals__.get("__name__") in FORWARD_MODULES


def _names_in(code: CodeType) -> set[str]:
    """Return the global names and attributes in a code object and in functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names


@cache
def body_of(func: FunctionType) -> FunctionType:
    """Return a composite function in which every check for modes returns False."""

    def no_mode(*_tensors: object) -> bool:
        return False

    replaced = {name: no_mode for name in MODE_CHECKS if name in func.__globals__}
    body = FunctionType(
        func.__code__,
        {**func.__globals__, **replaced},
        func.__name__,
        func.__defaults__,
        func.__closure__,
    )
    body.__kwdefaults__ = func.__kwdefaults__
    return body


class _Bodies:
    """A namespace of bodies of composite functions.

    torch.compile can inline a function that is an attribute, but not one that a call returned.
    """


_bodies = _Bodies()


def body_in_graphs(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return `body_of` a composite function while torch.compile traces."""
    body: Callable[..., Any] = getattr(_bodies, _place_of_body(func))
    return body


@constant_in_graphs
def _place_of_body(func: Any) -> str:
    place = f"{func.__module__}.{func.__qualname__}".replace(".", "_")
    setattr(_bodies, place, body_of(func))
    return place


@constant_in_graphs
def name_in_graphs(func: Callable[..., Any]) -> str:
    """Return the name of an operation while torch.compile traces, which calls this."""
    return str(getattr(func, "__name__", ""))


def call_in_graph(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operation while torch.compile traces, for the mode below or for the graph.

    A method of Tensor that is written in Python is called as a method, so that it is one operation
    of the graph: `unflatten`, for instance, calls super(), which torch.compile does not trace.
    """
    if _is_python_method(func):
        return getattr(args[0], name_in_graphs(func))(*args[1:], **kwargs)
    return func(*args, **kwargs)


@constant_in_graphs
def _is_python_method(func: Callable[..., Any]) -> bool:
    return isinstance(func, FunctionType) and getattr(Tensor, func.__name__, None) is func
