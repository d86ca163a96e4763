"""How does a mode see what happens inside a function that is written in Python?

Idea: torch.nn.functional is partly Python. `F.multi_head_attention_forward` asks at its first line whether a mode wants
to handle it, and a mode that says "go on" is switched off for all that follows, matrix products included. `body_of`
gives the same function without that question, so a mode can stay on while the body runs. A backward pass is such a
function too: what it is made of are the hooks and the custom Functions that somebody wrote in Python.

Invariant: body_of(f)(...) computes what f(...) computes; only who may listen differs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor

HOMES = ("torch.nn.functional", "torch.functional", "torch.autograd")  # most methods of Tensor ask, and call themselves
FORWARD = HOMES[:2]
ASKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@lru_cache(maxsize=4096)
def is_composite(func: Callable[..., Any]) -> bool:
    """Say whether a function is Python code of torch that asks for modes before it begins.

    >>> import torch
    >>> is_composite(torch.nn.functional.multi_head_attention_forward), is_composite(torch.matmul)
    (True, False)
    """
    # Where its code lives, not what it says of itself: max_pool2d is a switch of torch._jit_internal, and asks later.
    # And it must ask itself: meshgrid leaves that to a function it calls, which would ask about meshgrid for ever.
    at_home = isinstance(func, FunctionType) and func.__globals__.get("__name__") in HOMES and _asks(func.__code__)
    return at_home or func is Tensor.backward


@lru_cache(maxsize=4096)
def calls_any(func: Callable[..., Any], names: frozenset[str]) -> bool:
    """Say whether a composite function may call a function of one of these names, as far as its code tells.

    >>> from torch.nn import functional as F
    >>> calls_any(F.relu, frozenset(["linear"])), calls_any(F.multi_head_attention_forward, frozenset(["linear"]))
    (False, True)
    """
    if not isinstance(func, FunctionType) or func.__globals__.get("__name__") not in FORWARD:
        return True  # a backward pass calls hooks, which may call anything
    return _mentions(func, names, set())


def _mentions(func: FunctionType, names: frozenset[str], seen: set[FunctionType]) -> bool:
    """Look for names in a function's code, and in that of the Python functions of torch that it calls."""
    if func in seen:
        return False
    seen.add(func)
    if not names.isdisjoint(_names_in(func.__code__)):
        return True
    called = (func.__globals__.get(name) for name in _names_in(func.__code__))
    own = [f for f in called if isinstance(f, FunctionType) and f.__globals__.get("__name__") in FORWARD]
    return any(_mentions(f, names, seen) for f in own)  # what lives elsewhere checks arguments


def _names_in(code: CodeType) -> set[str]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return set(code.co_names).union(*(_names_in(part) for part in inner))


@cache
def body_of(func: FunctionType) -> FunctionType:
    """Return a composite function whose question for modes is answered with no."""
    answers = {name: _nobody for name in ASKS if name in func.__globals__}
    known = {**func.__globals__, **answers}
    body = FunctionType(func.__code__, known, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


@cache
def _asks(code: CodeType) -> bool:
    return any(name in ASKS for name in code.co_names)


def _nobody(*_tensors: object) -> bool:
    return False
