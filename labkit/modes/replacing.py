"""Temporary replacement of functions of other libraries.

Some libraries have no hook where the lab needs one: torch's activation checkpointing does not
restore a mode, and torch's `Function.apply` does not enter our regions. There a function is
replaced, but only while a region is open.

Invariant: importing replaces nothing. The first region of any thread puts a replacement in place,
and the last one removes it. Then the owner has the same attribute as before, or none if it had none
of its own. If another library has replaced our replacement meanwhile, both stay, since theirs may
call ours, which then only passes the call on.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from types import ModuleType
from typing import Any

# regions open and close in several threads
_lock = RLock()
_MISSING = object()


class Replacement:
    """Replacement of an attribute of a class or module, from the first `open` to the last `close`.

    Args:
        owner: the class or module.
        name: its attribute.
        make: the attribute's value as a caller sees it -> the replacement. Called at the first
            `open`.

    >>> import math
    >>> shifted = Replacement(math, "floor", lambda floor: lambda x: floor(x) + 100)
    >>> shifted.open()
    >>> math.floor(2.5)
    102
    >>> shifted.close()
    >>> math.floor(2.5)
    2
    """

    def __init__(self, owner: type | ModuleType, name: str, make: Callable[[Any], Any]) -> None:
        self.owner = owner
        self.name = name
        self.make = make
        self._open_regions = 0
        self._original: Any = _MISSING
        self._replacement: Any = None

    @property
    def is_open(self) -> bool:
        """Whether the replacement is in place."""
        return self._open_regions > 0

    def open(self) -> None:
        """Put the replacement in place, if no other region has done so."""
        with _lock:
            if not self._open_regions:
                self.put()
            self._open_regions += 1

    def close(self) -> None:
        """Restore the original if no other region is open and no other library has replaced it."""
        with _lock:
            if not self._open_regions:
                return
            self._open_regions -= 1
            if not self._open_regions:
                self.take_back()

    def put(self) -> None:
        """Put the replacement in place; the caller holds the lock and counts the regions."""
        self._original = self.owner.__dict__.get(self.name, _MISSING)
        self._replacement = self.make(getattr(self.owner, self.name))
        setattr(self.owner, self.name, self._replacement)

    def take_back(self) -> None:
        """Restore the original, if no other library has replaced the replacement."""
        if self.owner.__dict__.get(self.name) is not self._replacement:
            return
        if self._original is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self._original)


class Replacements:
    """Several replacements that are opened and closed together.

    Only the first user and the last one touch them.
    """

    def __init__(self, *replacements: Replacement) -> None:
        self.all = replacements
        self._users = 0

    @property
    def is_open(self) -> bool:
        """Whether the replacements are in place."""
        return self._users > 0

    def add(self, replacement: Replacement) -> None:
        """Add a replacement; it is put in place at once if the others are."""
        with _lock:
            self.all = (*self.all, replacement)
            if self._users:
                replacement.put()

    def open(self) -> None:
        """Put all in place, if no other user has done so."""
        with _lock:
            if not self._users:
                self._put_all()
            self._users += 1

    def _put_all(self) -> None:
        """Put all replacements in place, or none if one of them fails."""
        done: list[Replacement] = []
        try:
            for replacement in self.all:
                replacement.put()
                done.append(replacement)
        except BaseException:
            for replacement in reversed(done):
                replacement.take_back()
            raise

    def close(self) -> None:
        """Restore all originals, if no other user is left."""
        with _lock:
            if not self._users:
                return
            self._users -= 1
            if not self._users:
                for replacement in self.all:
                    replacement.take_back()
