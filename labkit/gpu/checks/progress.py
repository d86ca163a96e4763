"""A check's items, run one after the other: what one of them cannot do is in its answers with the reason.

Invariant: after each item the answers are whole, so whoever keeps them keeps all that was found by then.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

Answers = dict[str, Any]
TIME_UP = "the time was up"


def each(items: Iterable[tuple[str, Callable[[], object]]], answers: Answers, seconds: float) -> Iterator[Answers]:
    """Run (name, function) pairs, which fill `answers`; yield the answers after each.

    An item that raises, or before which the seconds were over, is named in answers["left_out"] with its reason.

    >>> found = {}
    >>> for _ in each([("a", lambda: found.update(a=1)), ("b", lambda: 1 / 0)], found, 60.0): pass
    >>> found
    {'left_out': {'b': 'ZeroDivisionError: division by zero'}, 'a': 1}
    """
    end = time.monotonic() + seconds
    left_out = answers.setdefault("left_out", {})
    for name, run in items:
        if time.monotonic() > end:
            left_out[name] = TIME_UP
        else:
            try:
                run()
            except Exception as error:
                left_out[name] = reason(error)
            release_memory()
        yield answers


def complete(answers: Iterable[Answers]) -> Answers:
    """Return the last of a check's answers, which is all of them."""
    *_, last = answers
    return last


def reason(error: Exception) -> str:
    """Return what an exception says, in one line with its type.

    >>> reason(RuntimeError("expected scalar type Half but found Float"))
    'RuntimeError: expected scalar type Half but found Float'
    """
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]


def release_memory() -> None:
    """Give the memory of what an item left, cycles included, back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def left_out_lines(answers: Answers) -> list[str]:
    """Return a line for each item that a check left out."""
    return [f"{name}: LEFT OUT, {why}" for name, why in answers.get("left_out", {}).items()]
