"""What is the browser told, and how often? New points only, and no more than it can draw.

Idea: a frame holds the points since the last one, as float32 columns, which have a code for NaN, beside a small JSON
state. Thirty frames a second at most; fewer when the browser does not say that it has drawn the last ones.

Invariant: posting never waits for the browser, and every step is told in the end.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

FRAME_SECONDS = 1 / 30
UNANSWERED_SECONDS = 1 / 4  # pace towards a browser that does not answer: hidden, gone, or behind a busy kernel
IN_FLIGHT = 12  # frames on their way before we wait for an answer; the browser answers every quarter of a second

Send = Callable[[dict[str, Any], list[bytes]], None]


class Sender(ABC):
    """Sends frames at the pace of the browser; what is in a frame is left to who derives from it.

    Args:
        send: (content, buffers) -> None; the content is JSON without NaN, numbers that may be NaN travel in buffers.
        clock: seconds, monotonic.
    """

    def __init__(self, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self.send, self.clock = send, clock
        self.answered = 0  # number of the browser's latest command that was carried out
        self.trained = 0  # number of its latest command under which a step was done
        self._number = self._drawn = 0
        self._due = self._last = -1.0
        self.start_over()

    @abstractmethod
    def start_over(self) -> None:
        """Tell everything from the start with the next frame: somebody new is looking."""

    @abstractmethod
    def contents(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return what is new since the last frame, and the buffers that go with it."""

    def drawn(self, number: int) -> None:
        """Note that the browser has drawn a frame."""
        self._drawn = max(self._drawn, number)

    def post(self, *, urgent: bool = False) -> bool:
        """Send a frame if it is time for one, or in any case if it is urgent; return whether it was sent."""
        now = self.clock()
        waiting = self._number - self._drawn
        if not urgent and (now < self._due or (waiting >= IN_FLIGHT and now - self._last < UNANSWERED_SECONDS)):
            return False
        self._due = max(self._due + FRAME_SECONDS, now)  # the average counts: steps and frames do not share a beat
        self._last = now
        self._number += 1
        content, buffers = self.contents()
        head = {"kind": "frame", "number": self._number, "answered": self.answered, "trained": self.trained}
        self.send({**head, **content}, buffers)
        return True


def pack(rows: list[Any]) -> bytes:
    """Return rows as little-endian float32, which has a code for NaN; a loss too large for it becomes inf."""
    with np.errstate(over="ignore"):
        return np.asarray(rows, dtype="<f4").tobytes()
