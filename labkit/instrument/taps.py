"""Taps on the methods of a class: functions called around each call while a block is open.

Idea: where a library has no hook, the method that it calls is replaced while somebody listens
(`labkit.modes.replacing`).

Invariant: a tap changes neither the result of a call nor its exception. Once the last one has
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

Around = Callable[..., Any]  # gets a method and the arguments of a call, and calls it


class _Tap:
    """A method that calls functions around the original one, and how often it is tapped."""

    def __init__(self, owner: type | ModuleType, method: str) -> None:
        # another thread may tap while a call runs
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

    A function of a module can be tapped too: `around(function, *arguments)`. The last tap is
    outermost. With `failed`, an exception of `around` itself is reported there, and the method is
    still called.

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
    if failed is not None:
        around = partial(guarded_around, around, failed)
    with _lock:
        tapped = _taps.setdefault((cls, method), _Tap(cls, method))
        tapped.arounds = (*tapped.arounds, around)
        tapped.replacement.open()
    try:
        yield
    finally:
        with _lock:
            tapped.arounds = tuple(each for each in tapped.arounds if each is not around)
            tapped.replacement.close()
            if not tapped.replacement.is_open:
                del _taps[cls, method]
