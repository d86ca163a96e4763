"""How do a training thread and a page talk? Frames go out as they are packed, commands come in by number.

Idea: every widget that trains live has a `Driver` (the thread) and an outbox (what to draw). What differs is only how a
browser's message becomes a command.

Invariant: a frame is sent when a page is there to draw it; what the page says of drawing never waits for a step.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from labkit.widgets.base.widget import LabWidget
from labkit.widgets.driven.thread import Driver
from labkit.widgets.live.outbox import Sender


class DrivenWidget(LabWidget):
    """A widget whose `driver` trains and whose `outbox` holds what the page shall draw."""

    driver: Driver
    outbox: Sender

    @abstractmethod
    def _command(self, content: dict[str, Any]) -> Any:
        """Return the command in a browser's message."""

    def _send_frame(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        if self.comm is not None:
            self.send(content, buffers)

    def _hear(self, _: object, content: dict[str, Any], __: object) -> None:
        if content.get("do") == "drawn":
            self.outbox.drawn(int(content["number"]))
        elif content.get("do") == "hello":
            self.driver.call(self.outbox.forget)
        else:
            self.driver.command(self._command(content), int(content.get("number", 0)))
