"""Boundary between an instrument and the run that it observes.

Failures of an instrument are reported, and do not end the run.

Each function that torch or a tapped method calls is entered through `guarded`, `guarded_around` or
`guarded_context`. An exception of the instrument goes to a `Failed` callback, which adds it to the
report. An exception of the run itself passes unchanged, and so does one that is not an `Exception`
(KeyboardInterrupt, SystemExit).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

MOST_CHARACTERS = 160  # of a message in a report: torch writes paragraphs

# called with the place in the instrument that failed, and the exception
Failed = Callable[[str, Exception], None]


class Unseen(Exception):
    """Something cannot be observed, or a step cannot be replayed; the message says why."""


def in_short(error: BaseException) -> str:
    r"""Return an error's type and the first line of its message, at most 160 characters of it.

    >>> in_short(ValueError("no such\nlayout"))
    'ValueError: no such'
    """
    line = str(error).strip().partition("\n")[0]
    if len(line) > MOST_CHARACTERS:
        line = f"{line[: MOST_CHARACTERS - 3]}..."
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def described(where: str, error: Exception) -> str:
    r"""Return a failure as one line: where in the instrument, what was raised, file and line.

    >>> described("count", ValueError("no such\nlayout"))
    'count failed with ValueError: no such'
    """
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{where} failed with {in_short(error)}{at}"


def name_of(function: Any) -> str:
    """Return a readable name of a function.

    >>> name_of(partial(name_of, 3))
    'name of'
    """
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__)).strip("_").replace("_", " ")


class reporting:
    """Context that reports an exception of its block, and continues after it.

    `where` may be a function with a name.
    """

    __slots__ = ("failed", "where")

    def __init__(self, failed: Failed, where: str | Callable[..., Any]) -> None:
        self.failed = failed
        self.where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self.failed(self.where if isinstance(self.where, str) else name_of(self.where), error)
        return True


def guarded(hook: Callable[..., Any], failed: Failed) -> Callable[..., None]:
    """Return a hook that reports its exceptions, and returns nothing.

    >>> guarded(lambda x: 1 / x, lambda where, error: print(type(error).__name__))(0)
    ZeroDivisionError
    """

    def safe(*args: Any, **kwargs: Any) -> None:
        with reporting(failed, hook):
            hook(*args, **kwargs)

    return safe


class _Original:
    """A method of the run, with the result of its call: the tap around it may fail afterwards."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.called = False
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.called = True
        try:
            self.result = self.call(*args, **kwargs)
        except BaseException as error:
            self.error = error
            raise
        return self.result


def guarded_around(
    around: Callable[..., Any], failed: Failed, call: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Call `around(call, *args)` with the outcome of `call`, even if `around` itself fails.

    >>> def clumsy(call, x): return call(x) / 0
    >>> guarded_around(clumsy, lambda where, error: print(where, "failed"), abs, -3)
    clumsy failed
    3
    """
    original = _Original(call)
    try:
        return around(original, *args, **kwargs)
    except Exception as error:
        if error is original.error:
            raise
        failed(name_of(around), error)
        if original.error is not None:
            raise original.error from None
    finally:
        original.error = None  # its traceback holds this frame
    return original.result if original.called else call(*args, **kwargs)


class guarded_context:
    """Context around a block that lets the block run even if the context fails to open or close."""

    __slots__ = ("context", "failed", "open", "where")

    def __init__(
        self, context: AbstractContextManager[Any], failed: Failed, where: str | Callable[..., Any]
    ) -> None:
        self.context = context
        self.failed = failed
        self.where = where
        self.open = False

    def __enter__(self) -> None:
        with reporting(self.failed, self.where):
            self.context.__enter__()
            self.open = True

    def __exit__(self, *error: Any) -> None:
        if self.open:
            with reporting(self.failed, self.where):
                self.context.__exit__(*error)
