"""Calls of a learner's function, each with the reason where there is no answer.

A function is called once for each case, on copies of the arguments. The result is a value, or the reason for its
absence: not a function, the wrong number of arguments, an exception with the line that raised it, a changed argument.

Invariant: whatever the code does, `answer_case` raises nothing but KeyboardInterrupt, unless the process ends.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import CellType, CodeType, FrameType, FunctionType, ModuleType

import numpy as np
import torch

from labkit.grading.sandbox.wire import Failure, Json, dump


def answer_case(
    function: object,
    call: str,
    arguments: tuple[object, ...],
    withheld: Sequence[object] = (),
    may_change: Sequence[str] = (),
    run_by: Callable[..., object] | None = None,
    *,
    owned: bool = False,
) -> Json:
    """Return the answer of `function` to one case, as JSON.

    call        how it is called, for messages: "my_advance(state, found_inf, config)"
    withheld    functions and types that it must not be, name or call
    may_change  names of the arguments that the call may change
    run_by      is called with the function and the arguments, instead of the function
    owned       the arguments are used by this call alone, and need no copy

    >>> answer_case(lambda x: x + 1, "successor(x)", (1,))
    ['int', '2']
    >>> answer_case(5, "successor(x)", (1,))[:2]
    ['failure', 'call']
    >>> answer_case(lambda x: x.pop(), "last(x)", ([1, 2],))[2]
    'it changes `x`, an argument: work on a copy, `list(x)`, `sorted(x)` or `x.clone()` for instance'
    """
    expected = arguments if run_by is None else (None,) * (call.count(",") + 1)
    problem = _call_problem(function, call, expected) or _withheld_problem(
        _reachable(function), withheld
    )
    if problem:
        return dump(Failure("call", problem))
    own = arguments if owned else copy.deepcopy(arguments)
    before = [_snapshot(argument) for argument in own]
    try:
        with _calls_to(withheld) as caught:
            answer = run_by(function, *own) if run_by else function(*own)  # type: ignore[operator]
        problem = _withheld_problem(caught, withheld) or _changed(call, before, own, may_change)
        return dump(Failure("call", problem) if problem else answer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit is an answer too
        line = where(error, str(getattr(getattr(function, "__code__", None), "co_filename", "")))
        # torch raises it as well
        if isinstance(error, NotImplementedError) and "raise NotImplementedError" in line:
            return dump(
                Failure("unsolved", "not yet answered: the cell still raises NotImplementedError")
            )
        return dump(Failure("error", f"it stopped with {last_line(error)}", line))


def last_line(error: BaseException) -> str:
    """Return "KeyError: 'scale'", even for an exception whose own `__str__` fails."""
    try:
        text = str(error)
    except BaseException:
        text = ""
    if isinstance(error, SystemExit):
        return f"sys.exit({text})"
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def where(error: BaseException, filename: str) -> str:
    """Return the last line of this file that led to the error: "line 4: return scale / 0"; "" if there is none."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename
    ]
    return f"line {frames[-1].lineno}: {frames[-1].line}".rstrip(": ") if frames else ""


def _call_problem(function: object, call: str, arguments: tuple[object, ...]) -> str:
    if not callable(function):
        return f"expected a function, got a {type(function).__name__}: pass the function itself, without parentheses"
    code = function.__code__ if isinstance(function, FunctionType) else None
    if code is not None and code.co_argcount == len(arguments) and not code.co_kwonlyargcount:
        return ""  # most answers; reading a signature takes as long as many a call
    try:
        signature = inspect.signature(function)
    except Exception:  # a builtin without one, or an object that fakes one: the call itself decides
        return ""
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return f"it is called as {call}, but yours takes {signature}: {error}"
    return ""


def _snapshot(argument: object) -> object:
    """Return a snapshot of what can be changed in place in an argument."""
    if isinstance(argument, torch.Tensor):
        plain = argument.detach()
        return plain.dtype, plain.shape, plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(argument, np.ndarray):
        return argument.dtype, argument.shape, argument.tobytes()
    if isinstance(argument, dict):
        return {key: _snapshot(item) for key, item in argument.items()}
    if isinstance(argument, (list, tuple)):
        return [_snapshot(item) for item in argument]
    if dataclasses.is_dataclass(argument) and not isinstance(argument, type):
        # a frozen one can be changed as well, by `object.__setattr__`
        return type(argument), _snapshot(getattr(argument, "__dict__", {}))
    return argument


def _changed(
    call: str, before: Sequence[object], after: Sequence[object], may_change: Sequence[str]
) -> str:
    """Return a message if an argument differs from its snapshot before the call."""
    names = call[call.index("(") + 1 : -1].split(", ")
    for name, earlier, argument in zip(names, before, after, strict=False):
        # in a list, a NaN equals itself
        if name not in may_change and [earlier] != [_snapshot(argument)]:
            copies = f"`list({name})`, `sorted({name})` or `{name}.clone()`"
            if dataclasses.is_dataclass(argument):
                copies = f"`dataclasses.replace({name}, ...)`"
            return f"it changes `{name}`, an argument: work on a copy, {copies} for instance"
    return ""


def _withheld_problem(reached: Iterable[object], withheld: Sequence[object]) -> str:
    """Return a message if a reachable object is withheld."""
    if not withheld:
        return ""
    names = {id(answer): _full_name(answer) for answer in withheld}
    found = next((names[id(obj)] for obj in reached if id(obj) in names), "")
    return (
        f"it calls {found}, which is what this exercise asks for: write it yourself"
        if found
        else ""
    )


def _full_name(obj: object) -> str:
    """Return "labkit.amp.advance"; objects of torch, such as dtypes, may have no module or no name."""
    name = getattr(obj, "__name__", None)
    return f"{getattr(obj, '__module__', None) or 'torch'}.{name}" if name else str(obj)


def _reachable(function: object) -> Iterator[object]:
    """Yield the function and the objects that it, its inner functions and the learner's other functions name.

    Names are resolved as a call would: in globals, defaults, closures, modules and their attributes. A string counts as
    a name, since `getattr` takes it, and next to numpy as a dtype: "f2" is float16.
    """
    waiting, seen = [function], set[int]()
    while waiting:
        obj = waiting.pop()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        yield obj
        if isinstance(obj, partial):
            waiting += [obj.func, *obj.args, *obj.keywords.values()]
        inner = getattr(obj, "__func__", obj) if callable(obj) else None
        inner = inner if isinstance(inner, FunctionType) else vars(type(obj)).get("__call__")
        if isinstance(inner, FunctionType) and (
            obj is function or inner.__globals__.get("__name__") == "__main__"
        ):
            waiting += _named_in(inner)


def _named_in(function: FunctionType) -> list[object]:
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    found = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    names = set(_words(function.__code__))
    found += [function.__globals__[name] for name in names if name in function.__globals__]
    found += [sys.modules[name] for name in names if name in sys.modules]
    for _ in range(2):  # labkit.amp.advance: from a module to what is in it, twice
        modules = [obj for obj in found if isinstance(obj, ModuleType)]
        found += [
            vars(module)[name] for module in modules for name in names if name in vars(module)
        ]
    texts = [obj for obj in (*function.__code__.co_consts, *found) if isinstance(obj, str)]
    return found + (
        [t for text in texts if (t := _numpy_type(text))] if any(obj is np for obj in found) else []
    )


def _numpy_type(text: str) -> object:
    """Return numpy's type with this name, if any."""
    with suppress(Exception):  # numpy parses the string, and raises many kinds of errors
        return np.dtype(text).type if len(text) <= len("float16") else None
    return None


def _words(code: CodeType) -> Iterator[str]:
    """Yield the names and the strings in a code object, inner functions and comprehensions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _words(constant)


@contextmanager
def _calls_to(withheld: Sequence[object]) -> Iterator[list[object]]:
    """Collect the withheld functions that this thread calls meanwhile, directly or not."""
    codes = {
        code: answer
        for answer in withheld
        if (code := getattr(answer, "__code__", None)) is not None
    }
    caught: list[object] = []

    def profile(frame: FrameType, event: str, called: object) -> None:
        if event == "call" and frame.f_code in codes:
            caught.append(codes[frame.f_code])
        elif event == "c_call":
            owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
            method = None if isinstance(owner, ModuleType) else getattr(type(owner), name, None)
            caught.extend(answer for answer in withheld if answer is called or answer is method)

    before = sys.getprofile()
    if withheld:
        sys.setprofile(profile)
    try:
        yield caught
    finally:
        if withheld:
            sys.setprofile(before)
