"""What is said under a cell whose widget the page never answers for?

Idea: the cell ends at once; a deadline goes on in the kernel's event loop. When it is over and nothing has answered, a
place that the cell's output kept free says so. A kernel that was busy until then could hear no answer, and asks again.

Invariant: whose page answers in time reads nothing, and whose answers too late reads it no longer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from labkit.machine.findings import Report
from labkit.machine.front_end import host, silent

SECONDS = 15.0
BUSY = 1.0  # seconds after the deadline: the event loop came to it so late because a cell was running


def expect(
    answered: Callable[[], bool],
    say: Callable[[], None],
    later: Callable[[float, Callable[[], None]], object],
    now: Callable[[], float],
) -> None:
    """Call `say()` if `answered()` is still false at the deadline, by an event loop's `call_later` and `time`."""
    due = now() + SECONDS

    def judge() -> None:
        if not answered():
            expect(answered, say, later, now) if now() > due + BUSY else say()

    later(SECONDS, judge)


def verdict_below(answered: Callable[[], bool]) -> Callable[[], None] | None:
    """Keep a place free below this cell, and have it say so if nobody answers; return what empties it again.

    None where no verdict is possible: there is no kernel, or nobody sits in front of it (a notebook that is executed
    for a handout has no page that could answer).
    """
    try:
        from IPython import display, get_ipython

        loop, kernel = asyncio.get_running_loop(), getattr(get_ipython(), "kernel", None)
    except (ImportError, RuntimeError):
        return None
    if not getattr(kernel, "_allow_stdin", False):
        return None
    shown: Any = display
    place = shown.display(shown.HTML(""), display_id=True)
    report = Report((silent(SECONDS, host(os.environ)),), if_bad="Widgets do not answer")
    expect(answered, lambda: place.update(report), loop.call_later, loop.time)
    return lambda: place.update(shown.HTML(""))
