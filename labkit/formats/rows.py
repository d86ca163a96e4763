"""Tables of rows by name, whose error for an unknown name lists the known ones."""

from __future__ import annotations

from typing import NoReturn, TypeVar

_Row = TypeVar("_Row")


class Rows(dict[str, _Row]):
    """A dict of rows by name; an unknown name raises a KeyError that lists the names.

    >>> Rows({"FP16": 16, "FP32": 32})["FP61"]
    Traceback (most recent call last):
    ...
    KeyError: "expected one of FP16, FP32, got 'FP61'"
    """

    def __missing__(self, name: object) -> NoReturn:
        raise KeyError(f"expected one of {', '.join(self)}, got {name!r}")
