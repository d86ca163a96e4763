"""How does a notebook's Interrupt reach a training that runs beside its cells? By a handler of its signal.

Idea: a kernel gives SIGINT to the cell that runs and ignores it between cells. What it ignores there is heard here.

Invariant: a cell's own Interrupt stays the cell's, and outside of a notebook's kernel no handler is touched.

Source: ipykernel, `Kernel.pre_handler_hook` and `post_handler_hook`, which put back what handled SIGINT before a cell.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from IPython import get_ipython

LOOK_SECONDS = 0.1  # between two looks whether the cell has ended


def between_cells(act: Callable[[], Any]) -> None:
    """Call a method when the kernel is interrupted while no cell runs. A cell calls this; the object may go away."""
    if threading.current_thread() is threading.main_thread() and hasattr(get_ipython(), "kernel"):
        with suppress(RuntimeError):  # a kernel without asyncio
            _listen(asyncio.get_running_loop(), weakref.WeakMethod(act))


def _listen(loop: asyncio.AbstractEventLoop, act: weakref.WeakMethod[Callable[[], Any]]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # the cell's
        loop.call_later(LOOK_SECONDS, _listen, loop, act)
    elif handler is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _InterruptHandler(loop, act))
    elif isinstance(handler, _InterruptHandler):
        handler.acts.add(act)


class _InterruptHandler:
    """What handles SIGINT between cells: the event loop calls each of the methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop, act: weakref.WeakMethod[Callable[[], Any]]) -> None:
        self.loop, self.acts = loop, {act}

    def __call__(self, *_: object) -> None:
        for act in self.acts:
            if (method := act()) is not None:
                self.loop.call_soon_threadsafe(method)
