"""Base of the widgets that train live: messages, buttons, Interrupt, devices, and a picture.

Idea: a widget is a wire between a page and a `Controller`: messages of the browser become its
commands. A kernel ignores SIGINT between cells; there it pauses the training.

Invariant: every command of the browser is answered by a frame that names the command's number; a
cell's own Interrupt stays the cell's, and outside of a notebook's kernel no handler is touched.

Source: ipykernel, `Kernel.pre_handler_hook` and `post_handler_hook`, which put back what handled
SIGINT before a cell.
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
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import traitlets
from IPython import get_ipython

from labkit.train import Place, place, places
from labkit.widgets.base.figures import still
from labkit.widgets.base.widget import LabWidget, as_json
from labkit.widgets.driven.controller import Button, Command, Controller, Phase

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOK_SECONDS = 0.1  # between two looks whether the cell has ended
Row = TypeVar("Row")
Member = TypeVar("Member", bound=StrEnum)
UNSEEN = "its picture had left the page. Nothing is lost: press Continue."


def on(where: Place) -> str:
    """Return a place as it follows "on".

    >>> on(places()[-1])
    'the CPU, emulated'
    """
    return f"the {where.label}" if where.emulated else where.label


def between_cells(act: Callable[[], Any]) -> None:
    """Call a method when the kernel is interrupted while no cell runs.

    A cell calls this function. The object is referenced weakly.
    """
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

    def __init__(
        self, loop: asyncio.AbstractEventLoop, act: weakref.WeakMethod[Callable[[], Any]]
    ) -> None:
        self.loop = loop
        self.acts = {act}

    def __call__(self, *_: object) -> None:
        for act in self.acts:
            if (method := act()) is not None:
                self.loop.call_soon_threadsafe(method)


class DrivenWidget(LabWidget):
    """A widget whose runs are trained in the thread of a `Controller`."""

    # shown with the still picture, in hosts without widgets
    why_static: ClassVar[str]
    # what the page offers to turn, and the devices
    _offers = traitlets.Dict().tag(sync=True)

    def __init__(self, controller: Controller, **offers: Any) -> None:
        self.controller = controller
        controller.send = self._send_frame
        controller.state = self.state
        offered = dict.fromkeys((*places(), controller.place))
        super().__init__(
            _offers={**offers, "places": [{"key": one.key, "label": one.label} for one in offered]}
        )
        self.on_msg(self._receive)
        atexit.register(controller.close)
        between_cells(controller.interrupt)

    @property
    @abstractmethod
    def sentence(self) -> str:
        """Text of what the figure shows now."""

    @abstractmethod
    def figure(self, why: str = "") -> Figure:
        """Return a still picture of the steps so far; `why` is written under it."""

    @property
    def history(self) -> tuple[Any, ...]:
        """The learner's steps so far."""
        return tuple(self.controller.steps)

    @property
    def record_sentence(self) -> str:
        """Text of what the recorded run shows; "" if there is none."""
        return ""

    def page_state(self) -> dict[str, Any]:
        """Add the first frame, with the recorded run, which a page without a kernel plays."""
        content, buffers = self.controller.first_frame()
        more, further = self.page_records()
        frame = {
            "content": {**content, "sentence": self.record_sentence, **more},
            "buffers": [*buffers, *further],
        }
        return {**super().page_state(), "_frame": as_json(frame)}

    def page_records(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return what a page can play besides the recorded run: entries of a frame, and buffers."""
        return {}, []

    def state(self) -> dict[str, Any]:
        """Return what the browser shows beside the points, as JSON that holds no NaN."""
        controller = self.controller
        return {
            "about": controller.task.about,
            "phase": controller.phase.value,
            "enabled": controller.enabled,
            "step": len(controller.steps),
            "total": controller.total,
            "sentence": self.sentence,
            "notice": controller.notice,
        }

    def command(self, content: Mapping[str, Any]) -> Command:
        """Return the command in a browser's message; here a button, or a device that was chosen.

        Raises:
            ValueError: it holds none.
        """
        match content:
            case {"do": "press", "button": button}:
                return member_of(Button, button, "press")
            case {"do": "choose", "place": key}:
                return partial(
                    self.controller.train_on, self.place if key == self.place.key else place(key)
                )
        raise ValueError(f"the page asked for {content!r}, which this widget does not know")

    @property
    def place(self) -> Place:
        """Where it trains."""
        return self.controller.place

    def train_on(self, device: str | Place) -> None:
        """Continue, or begin, on another device; returns at once.

        A device is "cpu", "gpu", or one of `labkit.train.places()`.

        Raises:
            ValueError: the device does not exist here.
        """
        self.controller.ask(partial(self.controller.train_on, place(device)))

    @property
    def phase(self) -> Phase:
        """What the training does now."""
        return self.controller.phase

    def press(self, button: str) -> None:
        """Press "start", "pause", "step", "stop" or "reset"; returns at once.

        Raises:
            ValueError: the button does not exist.
        """
        self.controller.ask(member_of(Button, button, "press"))

    def close(self) -> None:
        """End the training's thread and take the widget down."""
        # ipywidgets closes a widget too whose arguments were refused
        if hasattr(self, "controller"):
            atexit.unregister(self.controller.close)
            self.controller.close()
        super().close()

    def _send_frame(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        if self.comm is not None:
            self.send(content, buffers)

    def _receive(self, _: object, content: dict[str, Any], __: object) -> None:
        match content.get("do"):
            case "drawn":
                self.controller.drawn(int(content["number"]))
            case "hello":
                self.controller.call(self.controller.forget_sent)
            case "unseen":
                self.controller.rest(UNSEEN)
            case _:
                self.controller.ask(self.command(content), int(content.get("number", 0)))

    def still(self) -> dict[str, Any]:
        return still(
            self.sentence, self.why_static, self.figure(self.why_static) if self.history else None
        )


def row_of(table: Mapping[str, Row], wanted: Row | str, what: str) -> Row:
    """Return a row of a table by its name; a row is returned as it is.

    Raises:
        ValueError: the row is not in the table, or it is of another kind.
    """
    kind = type(next(iter(table.values())))
    if isinstance(wanted, kind):
        return wanted
    if not isinstance(wanted, str) or wanted not in table:
        names = ", ".join(map(repr, table))
        raise ValueError(f"{what}: expected one of {names}, or a {kind.__name__}, got {wanted!r}")
    return table[wanted]


def member_of(kind: type[Member], wanted: str, what: str) -> Member:
    """Return a member of an enumeration by its value.

    Raises:
        ValueError: there is none of that value.

    >>> member_of(Button, "start", "press")
    <Button.START: 'start'>
    """
    try:
        return kind(wanted)
    except ValueError:
        values = ", ".join(repr(member.value) for member in kind)
        raise ValueError(f"{what}: expected one of {values}, got {wanted!r}") from None
