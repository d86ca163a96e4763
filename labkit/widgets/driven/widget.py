"""What do the widgets that train live share? A thread, an outbox, buttons, and a picture where nothing moves.

Idea: a widget is a wire. The runs are a `Lockstep`, the thread a `Driver`, what the page draws a `Sender`; here they
are put together, and messages of the browser become commands.

Invariant: every command of the browser is answered by a frame that names the command's number; what the page says of
drawing never waits for a step.
"""

from __future__ import annotations

import atexit
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from labkit.widgets.base.figures import still
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.driven.interrupt import between_cells
from labkit.widgets.driven.lockstep import Lockstep
from labkit.widgets.driven.outbox import Sender
from labkit.widgets.driven.state import Button, Phase
from labkit.widgets.driven.thread import Driver

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = TypeVar("Row")
UNSEEN = "its picture had left the page. Nothing is lost: press Continue."


class DrivenWidget(LabWidget):
    """A widget whose runs are trained in a thread of their own.

    Args:
        lockstep: the runs.
        outbox: makes what the page draws; its `send` is `_send_frame`.
    """

    why_static: ClassVar[str]  # said with the standing picture, in hosts without widgets

    def __init__(self, lockstep: Lockstep, outbox: Sender) -> None:
        self.lockstep, self.outbox = lockstep, outbox
        self.driver = Driver(lockstep, outbox)
        super().__init__()
        self.on_msg(self._hear)
        atexit.register(self.driver.close)
        between_cells(self.driver.interrupt)

    @property
    @abstractmethod
    def sentence(self) -> str:
        """What the figure shows now, in words."""

    @property
    @abstractmethod
    def history(self) -> tuple[Any, ...]:
        """The learner's steps so far."""

    @abstractmethod
    def figure(self, why: str = "") -> Figure:
        """Return a picture of the steps so far that stands still; `why` is written under it."""

    @abstractmethod
    def command(self, content: Mapping[str, Any]) -> Any:
        """Return the command in a browser's message that presses no button.

        Raises:
            ValueError: it holds none.
        """

    @property
    def phase(self) -> Phase:
        """What the training does now."""
        return self.lockstep.phase

    def press(self, button: str) -> None:
        """Press "start", "pause", "step", "stop" or "reset"; returns at once."""
        self.driver.command(Button(button))

    def close(self) -> None:
        """End the training's thread and take the widget down."""
        if hasattr(self, "driver"):  # ipywidgets closes a widget too whose arguments were refused
            atexit.unregister(self.driver.close)
            self.driver.close()
        super().close()

    def _send_frame(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        if self.comm is not None:
            self.send(content, buffers)

    def _hear(self, _: object, content: dict[str, Any], __: object) -> None:
        match content.get("do"):
            case "drawn":
                self.outbox.drawn(int(content["number"]))
            case "hello":
                self.driver.call(self.outbox.start_over)
            case "unseen":
                self.driver.rest(UNSEEN)
            case "press":
                self.driver.command(Button(content["button"]), int(content.get("number", 0)))
            case _:
                self.driver.command(self.command(content), int(content.get("number", 0)))

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run."""
        return still(self.sentence, self.why_static, self.figure(self.why_static) if self.history else None)


def row_of(table: Mapping[str, Row], wanted: Row | str, what: str) -> Row:
    """Return a row of a table by its name; a row is returned as it is.

    Raises:
        ValueError: the table has no such row.
    """
    if not isinstance(wanted, str):
        return wanted
    if wanted not in table:
        raise ValueError(f"{what} is one of {', '.join(map(repr, table))}; it was given {wanted!r}")
    return table[wanted]
