"""What does the learner's function say?

Idea: call it once per case, on copies of the arguments, and write down whatever happens: a value, or the reason why
there is none (not a function, wrong number of arguments, an exception with the line that raised it).

Invariant: nothing that the learner's code does, short of ending the process or being interrupted, leaves `ask` as an
exception.
"""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType

from labkit.grading.exercise import Case
from labkit.grading.given.wire import Failure, Json, dump


def ask(function: object, call: str, arguments: Case, withheld: Sequence[Callable[..., object]] = ()) -> Json:
    """Return the answer of `function` to one case, as JSON.

    call      how it should be called, for the message when it cannot be: "my_advance(state, found_inf, config)"
    withheld  functions that it may not be, nor name

    >>> ask(lambda x: x + 1, "successor(x)", (1,))
    ['int', '2']
    >>> ask(5, "successor(x)", (1,))[:2]
    ['failure', 'call']
    """
    problem = _call_problem(function, call, arguments) or _borrowed(function, withheld)
    if problem:
        return dump(Failure("call", problem))
    try:
        return dump(function(*copy.deepcopy(arguments)))  # type: ignore[operator]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit is an answer too
        line = where(error, _file_of(function))
        if _is_starter(error, line):
            return dump(Failure("unsolved", f"not solved yet: {last_line(error)}"))
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
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
    return f"line {frames[-1].lineno}: {frames[-1].line}".rstrip(": ") if frames else ""


def _is_starter(error: BaseException, line: str) -> bool:
    """Return whether it was the starter that raised; torch raises NotImplementedError too, for what it cannot do."""
    return isinstance(error, NotImplementedError) and "raise NotImplementedError" in line


def _file_of(function: object) -> str:
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _call_problem(function: object, call: str, arguments: Case) -> str:
    if not callable(function):
        return f"this is not a function but a {type(function).__name__}: pass the function itself, without parentheses"
    try:
        signature = inspect.signature(function)
    except Exception:  # a builtin without one, or an object that fakes one: the call itself will tell
        return ""
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return f"it is called as {call}, but yours takes {signature}: {error}"
    return ""


def _borrowed(function: object, withheld: Sequence[Callable[..., object]]) -> str:
    """Return a complaint if the function is a withheld one, or names one. A call through a detour is not found."""
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    around = getattr(function, "__globals__", {})
    reached = [function, *(around.get(name) for name in names)]
    for _ in range(2):  # labkit.amp.advance: from a module to what is in it, twice
        modules = [thing for thing in reached if isinstance(thing, ModuleType)]
        reached += [getattr(module, name, None) for module in modules for name in names]
    for answer in withheld:
        if any(thing is answer for thing in reached):
            return f"it calls {answer.__module__}.{answer.__name__}, which is what you are asked for: write it yourself"
    return ""
