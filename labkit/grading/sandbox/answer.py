"""Calls of a learner's function, each with its answer or the reason for having none.

A function is called once for each case, on copies of the arguments. The result is a value, or the
reason for its absence: not a function, the wrong number of arguments, an exception with the line
that raised it, a changed argument.

Invariant: whatever the code does, `answer_case` raises nothing but KeyboardInterrupt, unless the
process ends.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import traceback
from collections.abc import Callable, Sequence
from functools import cached_property
from types import FunctionType

from labkit.grading.sandbox.kinds import is_array, is_tensor, with_article
from labkit.grading.sandbox.wire import Failure, Json, dump


def answer_case(
    function: object,
    call: str,
    arguments: tuple[object, ...],
    may_change: Sequence[str] = (),
    run_by: Callable[..., object] | None = None,
    *,
    owned: bool = False,
) -> Json:
    """Return the answer of `function` to one case, as JSON.

    Args:
        function: What the learner wrote, a function or not.
        call: How it is called, for messages: "my_advance(state, found_inf, config)".
        arguments: The arguments of the case.
        may_change: Names of the arguments that the call may change.
        run_by: Is called with the function and the arguments, instead of the function.
        owned: The arguments are used by this call alone, and need no copy.

    >>> answer_case(lambda x: x + 1, "successor(x)", (1,))
    ['int', '2']
    >>> answer_case(5, "successor(x)", (1,))[:2]
    ['failure', 'call']
    >>> print(answer_case(lambda x: x.pop(), "last(x)", ([1, 2],))[2].partition(":")[0])
    it changes `x`, an argument
    """
    expected = arguments if run_by is None else (None,) * (call.count(",") + 1)
    problem = _call_problem(function, call, expected)
    if problem:
        return dump(Failure("call", problem))
    own = arguments if owned else copy.deepcopy(arguments)
    before = [_snapshot(argument) for argument in own]
    try:
        answer = run_by(function, *own) if run_by else function(*own)  # type: ignore[operator]
        problem = _changed(call, before, own, may_change)
        return dump(Failure("call", problem) if problem else answer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # sys.exit is an answer, too.
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
    if isinstance(error, MemoryError) and not text:
        text = "it needs more memory than it may use"
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def where(error: BaseException, filename: str) -> str:
    """Return the last line of this file that led to the error: "line 4: return scale / 0".

    Returns:
        The line; "" if the error came from elsewhere.
    """
    if isinstance(error, SyntaxError):
        # a source with a null byte has an error without a line
        return f"line {error.lineno}" if error.lineno is not None else ""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename
    ]
    return f"line {frames[-1].lineno}: {frames[-1].line}".rstrip(": ") if frames else ""


def _call_problem(function: object, call: str, arguments: tuple[object, ...]) -> str:
    if not callable(function):
        kind = with_article(type(function).__name__)
        return f"expected a function, got {kind}: pass the function itself, without parentheses"
    code = function.__code__ if isinstance(function, FunctionType) else None
    if code is not None and code.co_argcount == len(arguments) and not code.co_kwonlyargcount:
        # So are most answers; reading a signature takes as long as many a call.
        return ""
    try:
        signature = inspect.signature(function)
    except Exception:
        # A builtin has no signature, and an object can fake one: the call itself decides.
        return ""
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return f"it is called as {call}, but yours takes {signature}: {error}"
    return ""


def _snapshot(argument: object) -> object:
    """Return a snapshot of what can be changed in place in an argument."""
    if is_tensor(argument):
        from labkit.grading.sandbox.elements import snapshot_of_tensor

        return snapshot_of_tensor(argument)
    if is_array(argument):
        return argument.dtype, argument.shape, argument.tobytes()
    if isinstance(argument, (set, bytearray)):
        return copy.copy(argument)
    if isinstance(argument, dict):
        return {key: _snapshot(item) for key, item in argument.items()}
    if isinstance(argument, (list, tuple)):
        return [_snapshot(item) for item in argument]
    if dataclasses.is_dataclass(argument) and not isinstance(argument, type):
        # a frozen one can be changed as well, by `object.__setattr__`
        attributes = getattr(argument, "__dict__", {})
        kind = type(argument)
        # a cached property stores its value when it is first read, which changes nothing
        return kind, {
            name: _snapshot(value)
            for name, value in attributes.items()
            if not isinstance(getattr(kind, name, None), cached_property)
        }
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
