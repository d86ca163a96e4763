"""What does the learner's function say?

Idea: call it once per case, on copies of the arguments, and write down whatever happens: a value, or the reason why
there is none (not a function, wrong number of arguments, an exception with the line that raised it, an argument that
is no longer what it was).

Invariant: nothing that the learner's code does, short of ending the process or being interrupted, leaves `ask` as an
exception.
"""

from __future__ import annotations

import copy
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import CellType, CodeType, FrameType, FunctionType, ModuleType

import numpy as np
import torch

from labkit.grading.given.wire import Failure, Json, dump


def ask(
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

    call        how it should be called, for the message when it cannot be: "my_advance(state, found_inf, config)"
    withheld    functions and types that it may not be, nor name, nor call
    may_change  names of the arguments that may be others after the call: changing them is what is asked
    run_by      called with the function and the arguments, where it is not the function that is called with them
    owned       the arguments are for this call alone, and not copied

    >>> ask(lambda x: x + 1, "successor(x)", (1,))
    ['int', '2']
    >>> ask(5, "successor(x)", (1,))[:2]
    ['failure', 'call']
    >>> ask(lambda x: x.pop(), "last(x)", ([1, 2],))[2]
    'it changes `x`, which it was given: work on a copy, `list(x)`, `sorted(x)` or `x.clone()` for instance'
    """
    wanted = arguments if run_by is None else (None,) * (call.count(",") + 1)
    problem = _call_problem(function, call, wanted) or _borrowed(_reached(function), withheld)
    if problem:
        return dump(Failure("call", problem))
    own = arguments if owned else copy.deepcopy(arguments)
    before = [_contents(argument) for argument in own]
    try:
        with _calls_of(withheld) as caught:
            answer = run_by(function, *own) if run_by else function(*own)  # type: ignore[operator]
        problem = _borrowed(caught, withheld) or _changed(call, before, own, may_change)
        return dump(Failure("call", problem) if problem else answer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit is an answer too
        line = where(error, _file_of(function))
        if _is_starter(error, line):
            return dump(Failure("unsolved", "not yet answered: `raise NotImplementedError` still stands there"))
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


def _call_problem(function: object, call: str, arguments: tuple[object, ...]) -> str:
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


def _contents(argument: object) -> object:
    """Return what of an argument can be changed in place, down to the last item, to be compared later."""
    if isinstance(argument, torch.Tensor):
        plain = argument.detach()
        return plain.dtype, plain.shape, plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(argument, np.ndarray):
        return argument.dtype, argument.shape, argument.tobytes()
    if isinstance(argument, dict):
        return {key: _contents(item) for key, item in argument.items()}
    return [_contents(item) for item in argument] if isinstance(argument, (list, tuple)) else argument


def _changed(call: str, before: Sequence[object], after: Sequence[object], may_change: Sequence[str]) -> str:
    """Return a complaint if an argument does not hold what it held before the call."""
    names = call[call.index("(") + 1 : -1].split(", ")
    for name, held, argument in zip(names, before, after, strict=False):
        if name not in may_change and [held] != [_contents(argument)]:  # in a list, a NaN equals itself
            copies = f"`list({name})`, `sorted({name})` or `{name}.clone()`"
            return f"it changes `{name}`, which it was given: work on a copy, {copies} for instance"
    return ""


def _borrowed(reached: Iterable[object], withheld: Sequence[object]) -> str:
    """Return a complaint if something that is reached is withheld."""
    if not withheld:
        return ""
    names = {id(answer): _full_name(answer) for answer in withheld}
    found = next((names[id(thing)] for thing in reached if id(thing) in names), "")
    return f"it calls {found}, which is what you are asked for: write it yourself" if found else ""


def _full_name(thing: object) -> str:
    """Return "labkit.amp.advance"; torch's own, a dtype for instance, may have no module or no name."""
    name = getattr(thing, "__name__", None)
    return f"{getattr(thing, '__module__', None) or 'torch'}.{name}" if name else str(thing)


def _reached(function: object) -> Iterator[object]:
    """Yield the function and what it names, in itself or in functions inside of it and beside it.

    Names are looked up where a call would: among globals, defaults and what it encloses, in modules and what they hold;
    a text is a name, too, since `getattr` takes it, and beside numpy the type that numpy takes it for: "f2" is float16.
    """
    waiting, seen = [function], set[int]()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        yield thing
        if isinstance(thing, partial):
            waiting += [thing.func, *thing.args, *thing.keywords.values()]
        inner = getattr(thing, "__func__", thing) if callable(thing) else None
        inner = inner if isinstance(inner, FunctionType) else vars(type(thing)).get("__call__")
        if isinstance(inner, FunctionType) and (thing is function or inner.__globals__.get("__name__") == "__main__"):
            waiting += _named_in(inner)


def _named_in(function: FunctionType) -> list[object]:
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    found = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    names = set(_words(function.__code__))
    found += [function.__globals__[name] for name in names if name in function.__globals__]
    found += [sys.modules[name] for name in names if name in sys.modules]
    for _ in range(2):  # labkit.amp.advance: from a module to what is in it, twice
        modules = [thing for thing in found if isinstance(thing, ModuleType)]
        found += [vars(module)[name] for module in modules for name in names if name in vars(module)]
    texts = [thing for thing in (*function.__code__.co_consts, *found) if isinstance(thing, str)]
    return found + ([t for text in texts if (t := _type_called(text))] if any(thing is np for thing in found) else [])


def _type_called(text: str) -> object:
    """Return numpy's type of this name, if there is one."""
    with suppress(Exception):  # numpy takes a text apart, and has many ways to say no
        return np.dtype(text).type if len(text) <= len("float16") else None
    return None


def _words(code: CodeType) -> Iterator[str]:
    """Yield the names and the texts in a code, and in those of functions and comprehensions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _words(constant)


@contextmanager
def _calls_of(withheld: Sequence[object]) -> Iterator[list[object]]:
    """Collect the withheld functions that are called meanwhile in this thread, on whatever detour."""
    codes = {code: answer for answer in withheld if (code := getattr(answer, "__code__", None)) is not None}
    caught: list[object] = []

    def notice(frame: FrameType, event: str, called: object) -> None:
        if event == "call" and frame.f_code in codes:
            caught.append(codes[frame.f_code])
        elif event == "c_call":
            owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
            method = None if isinstance(owner, ModuleType) else getattr(type(owner), name, None)
            caught.extend(answer for answer in withheld if answer is called or answer is method)

    before = sys.getprofile()
    if withheld:
        sys.setprofile(notice)
    try:
        yield caught
    finally:
        if withheld:
            sys.setprofile(before)
