"""Misuses as rows, name -> (act, error, words), each of which has to be refused with its error and its words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Misuses = Mapping[str, tuple[Callable[..., Any], type[Exception], str]]


def not_refused(misuses: Misuses, given: Callable[[], tuple[Any, ...]] = tuple) -> dict[str, str]:
    """Do each misuse with fresh arguments, and return those that were not refused as they should: name -> why.

    >>> not_refused({"zero": (lambda: 1 / 0, ZeroDivisionError, "division"), "one": (lambda: 1, ValueError, "one")})
    {'one': 'expected ValueError, got nothing'}
    """
    wrong = {}
    for name, (act, error, says) in misuses.items():
        try:
            act(*given())
            wrong[name] = f"expected {error.__name__}, got nothing"
        except Exception as raised:
            if not isinstance(raised, error) or not re.search(says, str(raised)):
                wrong[name] = f"expected {error.__name__} with {says!r}, got {raised!r}"
    return wrong
