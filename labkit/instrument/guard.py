"""Boundary between an instrument and the run that it observes.

Invariant: a failure of an instrument is reported, and does not end the run.

Torch and tapped methods call an instrument only through `guarded`, `guarded_around` or
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

# of a message in a report: torch's own messages may be paragraphs
MOST_CHARACTERS = 160

# called with the place in the instrument that failed, and the exception
Failed = Callable[[str, Exception], None]


class Unseen(Exception):
    """Something cannot be observed, or a step cannot be replayed; the message says why."""


def in_short(error: BaseException) -> str:
    r"""Return an error's type and the first line of its message, cut to 160 characters.

    >>> in_short(ValueError("no such\nlayout"))
    'ValueError: no such'
    """
    try:
        message = str(error)
    # a class of the user's code may fail to make its message
    except Exception:
        message = "(its message cannot be made)"
    line = message.strip().partition("\n")[0]
    if len(line) > MOST_CHARACTERS:
        line = f"{line[: MOST_CHARACTERS - 3]}..."
    kind = type(error).__name__
    return f"{kind}: {line}" if line else kind


def describe_failure(where: str, error: Exception) -> str:
    r"""Return one line about a failure: the place in the instrument, the error, file and line.

    >>> describe_failure("count", ValueError("no such\nlayout"))
    'count failed with ValueError: no such'
    """
    sentence = f"{where} failed with {in_short(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return sentence
    innermost = frames[-1]
    return f"{sentence} ({Path(innermost.filename).name}:{innermost.lineno})"


def name_of(function: Callable[..., Any]) -> str:
    """Return a readable name of a function, for a report.

    >>> name_of(partial(name_of, 3))
    'name of'
    """
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__name__", type(function).__name__)
    return name.strip("_").replace("_", " ")


class reporting:
    """Context that reports an exception of its block, and continues after the block.

    Args:
        failed: receives the place and the exception.
        where: the place in the instrument, or a function whose name is the place.
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
        where = self.where if isinstance(self.where, str) else name_of(self.where)
        self.failed(where, error)
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


# attribute of an exception that a listener raises in the training on purpose
_ON_PURPOSE = "_labkit_on_purpose"


def on_purpose(error: Exception) -> Exception:
    """Mark an exception so that `guarded_around` lets it pass into the training, and return it."""
    setattr(error, _ON_PURPOSE, True)
    return error


class _Original:
    """A method of the run that keeps the outcome of its call.

    If the tap around it fails afterwards, the run still gets this outcome.
    """

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
    """Return `around(call, *args)`; if `around` itself fails, the outcome of `call` alone.

    If `around` fails before it has called `call`, `call` runs afterwards; it never runs again. An
    exception that `on_purpose` has marked is raised.

    >>> def clumsy(call, x): return call(x) / 0
    >>> guarded_around(clumsy, lambda where, error: print(where, "failed"), abs, -3)
    clumsy failed
    3
    """
    original = _Original(call)
    own_error = None
    try:
        return around(original, *args, **kwargs)
    except Exception as error:
        if error is original.error or hasattr(error, _ON_PURPOSE):
            raise
        failed(name_of(around), error)
        own_error = original.error
    finally:
        # its traceback refers to this frame: without this line the two would keep each other alive
        original.error = None
    if own_error is not None:
        # outside of the handler, whose exception would become the context of the run's own
        try:
            raise own_error
        finally:
            own_error = None
    if original.called:
        return original.result
    return call(*args, **kwargs)


class guarded_context:
    """Context that runs its block even if the context inside it fails to open or to close."""

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
            self.open = False
            with reporting(self.failed, self.where):
                self.context.__exit__(*error)
