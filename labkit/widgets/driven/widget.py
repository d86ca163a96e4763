"""Base of the widgets that train live: driver, buttons, Interrupt, devices, and a picture where nothing moves.

Idea: a widget is a wire. The runs are a `Lockstep`, the thread a `Driver`, what the page draws a `Sender`; messages of
the browser become commands. A kernel ignores SIGINT between cells; there it pauses the training.

Invariant: every command of the browser is answered by a frame that names the command's number; a cell's own Interrupt
stays the cell's, and outside of a notebook's kernel no handler is touched.

Source: ipykernel, `Kernel.pre_handler_hook` and `post_handler_hook`, which put back what handled SIGINT before a cell.
"""

from __future__ import annotations

import asyncio
import atexit
import signal
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from IPython import get_ipython

from labkit.train import Place, place, places
from labkit.widgets.base.figures import still
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.driven.driver import Button, Driver, Lockstep, Phase, Sender

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOK_SECONDS = 0.1  # between two looks whether the cell has ended
Row = TypeVar("Row")
UNSEEN = "its picture had left the page. Nothing is lost: press Continue."


def on(where: Place) -> str:
    """Return a place as it follows "on".

    >>> on(places()[-1])
    'the CPU, emulated'
    """
    return f"the {where.label}" if where.emulated else where.label


def offered(own: Place) -> list[dict[str, str]]:
    """Return key and label of every place there is to train on, the widget's own included."""
    return [{"key": each.key, "label": each.label} for each in dict.fromkeys((*places(), own))]


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


class DrivenWidget(LabWidget):
    """A widget whose runs, a `Lockstep`, are trained in a thread of their own; the outbox's `send` is `_send_frame`."""

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

    def command(self, content: Mapping[str, Any]) -> Any:
        """Return the command in a browser's message that presses no button; here a device that was chosen.

        Raises:
            ValueError: it holds none.
        """
        if content.get("do") == "choose" and "place" in content:
            return self.place if content["place"] == self.place.key else place(content["place"])
        raise ValueError(f"the page asked for {content!r}, which this widget does not know")

    @property
    def place(self) -> Place:
        """Where it trains."""
        return self.lockstep.place

    def train_on(self, device: str | Place) -> None:
        """Go on, or begin, on another device: "cpu", "gpu", or one of `labkit.train.places()`; returns at once.

        Raises:
            ValueError: there is no such device here.
        """
        self.driver.command(place(device))

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
