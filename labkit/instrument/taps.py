"""Taps on the methods of a class: functions called around each call while a block is open.

Idea: where a library has no hook, the method that it calls is replaced while a tap is open
(`labkit.modes.replacing`).

Invariant: a tap changes neither the result of a call nor its exception. After the last tap has
closed, the class holds its original function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from threading import Lock
from types import ModuleType
from typing import Any

from labkit.instrument.guard import Failed, guarded_around
from labkit.modes.replacing import Replacement

# called with a method and the arguments of a call; it calls the method, and returns the result
Around = Callable[..., Any]


class _Tap:
    """The replacement of a method, which calls functions around the original one."""

    def __init__(self, owner: type | ModuleType, method: str) -> None:
        # a tuple, since another thread may open a tap while a call iterates over it
        self.arounds: tuple[Around, ...] = ()
        self.replacement = Replacement(owner, method, self._around_all)

    def _around_all(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def tapped(*args: Any, **kwargs: Any) -> Any:
            call = original
            for around in self.arounds:
                call = partial(around, call)
            return call(*args, **kwargs)

        return tapped


_taps: dict[tuple[Any, str], _Tap] = {}
_lock = Lock()


@contextmanager
def tap(
    cls: type | ModuleType, method: str, around: Around, failed: Failed | None = None
) -> Iterator[None]:
    """Call `around(method, object, *arguments)` for each call of a method, until the block ends.

    Of several taps on a method, the last one is outermost.

    Args:
        cls: a class, or a module: then `around(function, *arguments)` is called.
        method: name of the method or function.
        around: calls the method that it gets, and returns its result.
        failed: receives an exception of `around` itself, and the method is still called. None: the
            exception is raised.

    >>> class Safe:
    ...     def open(self, key): return key
    >>> def log(original, safe, key):
    ...     print("before", key)
    ...     return original(safe, key)
    >>> with tap(Safe, "open", log):
    ...     Safe().open("left")
    before left
    'left'
    >>> Safe().open("right")
    'right'
    """
    # each tap has an object of its own: two taps may have the same function, and end one by one
    if failed is None:
        around = partial(around)
    else:
        around = partial(guarded_around, around, failed)
    with _lock:
        if (cls, method) in _taps:
            tapped = _taps[cls, method]
        else:
            tapped = _Tap(cls, method)
        # this raises an error for a method that the class does not have: then no tap is recorded
        tapped.replacement.open()
        _taps[cls, method] = tapped
        tapped.arounds = (*tapped.arounds, around)
    try:
        yield
    finally:
        with _lock:
            tapped.arounds = tuple(each for each in tapped.arounds if each is not around)
            tapped.replacement.close()
            if not tapped.replacement.is_open:
                del _taps[cls, method]
