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
from typing import Any, TypeVar

from torch import Tensor

_Function = TypeVar("_Function", bound=Callable[..., Any])

# most methods of Tensor check and recurse
MODULES = ("torch.nn.functional", "torch.functional", "torch.autograd")
FORWARD_MODULES = MODULES[:2]
MODE_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def constant_in_graphs(function: _Function) -> _Function:
    """Have torch.compile call a function while it traces, and take what it returns for a constant.

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
    checks = isinstance(func, FunctionType) and func.__globals__.get("__name__") in MODULES
    return (
        checks and any(name in MODE_CHECKS for name in func.__code__.co_names)
    ) or func is Tensor.backward


@lru_cache(maxsize=4096)
def calls_any(func: Callable[..., Any], names: frozenset[str]) -> bool:
    """Return whether the code of a composite function may call a function with one of these names.

    >>> from torch.nn import functional as F
    >>> linear = frozenset(["linear"])
    >>> calls_any(F.relu, linear), calls_any(F.multi_head_attention_forward, linear)
    (False, True)
    """
    if (
        not isinstance(func, FunctionType)
        or func.__globals__.get("__name__") not in FORWARD_MODULES
    ):
        return True  # a backward pass calls hooks, which may call anything
    pending = [func]
    visited = set[FunctionType]()
    while pending:
        visited.add(func := pending.pop())
        mentioned = _names_in(func.__code__)
        if not names.isdisjoint(mentioned):
            return True
        # functions of other modules check arguments
        called = (func.__globals__.get(name) for name in mentioned)
        pending += [
            f
            for f in called
            if isinstance(f, FunctionType)
            and f.__globals__.get("__name__") in FORWARD_MODULES
            and f not in visited
        ]
    return False


def _names_in(code: CodeType) -> set[str]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return set(code.co_names).union(*(_names_in(part) for part in inner))


@cache
def body_of(func: FunctionType) -> FunctionType:
    """Return a composite function in which every check for modes returns False."""
    checks = {name: lambda *_tensors: False for name in MODE_CHECKS if name in func.__globals__}
    body = FunctionType(
        func.__code__,
        {**func.__globals__, **checks},
        func.__name__,
        func.__defaults__,
        func.__closure__,
    )
    body.__kwdefaults__ = func.__kwdefaults__
    return body


class _Bodies:
    """Constant that torch.compile inlines in place of a function call.

    It is an attribute, because the compiler can guard on an attribute but not on a result.
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

    Methods of Tensor that are written in Python are called as methods, which the graph has whole:
    `unflatten` calls super(), which torch.compile does not trace.
    """
    if _is_python_method(func):
        return getattr(args[0], name_in_graphs(func))(*args[1:], **kwargs)
    return func(*args, **kwargs)


@constant_in_graphs
def _is_python_method(func: Callable[..., Any]) -> bool:
    return isinstance(func, FunctionType) and getattr(Tensor, func.__name__, None) is func
