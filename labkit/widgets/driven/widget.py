"""Base class of the widgets that train live: messages, buttons, Interrupt, devices, pictures.

A widget connects a page with a `Controller`: messages of the browser become commands of the
controller. A kernel ignores SIGINT between cells; while a live widget exists, an interrupt between
cells pauses its training.

Invariant: a frame that names the command's number answers every command of the browser. An
interrupt during a cell stops the cell as usual. Outside of a notebook's kernel, signal handlers
stay as they are.

Source: ipykernel, `Kernel.pre_handler_hook` and `post_handler_hook`, which restore the handler of
SIGINT after a cell.
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

# Time between two checks whether the cell has ended.
POLL_SECONDS = 0.1
Row = TypeVar("Row")
Member = TypeVar("Member", bound=StrEnum)
# Why a training was paused after every view of its widget was removed from the page.
UNSEEN = "its picture had left the page. Nothing is lost: press Continue."


def on(where: Place) -> str:
    """Return the name of a place for a sentence such as "trains on ...".

    >>> on(places()[-1])
    'the CPU, emulated'
    """
    return f"the {where.label}" if where.emulated else where.label


def between_cells(act: Callable[[], Any]) -> None:
    """Call a method whenever the kernel is interrupted while no cell runs.

    Call this function from a cell. It does nothing outside of a notebook's kernel.

    Args:
        act: A bound method. Its object is referenced weakly.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not hasattr(get_ipython(), "kernel"):
        return
    # A kernel without asyncio has no running loop.
    with suppress(RuntimeError):
        _install_handler(asyncio.get_running_loop(), weakref.WeakMethod(act))


def _install_handler(
    loop: asyncio.AbstractEventLoop, act: weakref.WeakMethod[Callable[[], Any]]
) -> None:
    """Wait until the cell has ended, and handle SIGINT from then on."""
    handler = signal.getsignal(signal.SIGINT)
    # ipykernel installs the default handler for the time of a cell, and ignores SIGINT after it.
    if handler is signal.default_int_handler:
        loop.call_later(POLL_SECONDS, _install_handler, loop, act)
    elif handler is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _InterruptHandler(loop, act))
    elif isinstance(handler, _InterruptHandler):
        handler.acts.add(act)


class _InterruptHandler:
    """The handler of SIGINT between cells. The event loop then calls each method."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, act: weakref.WeakMethod[Callable[[], Any]]
    ) -> None:
        self.loop = loop
        self.acts = {act}

    def __call__(self, *_: object) -> None:
        for act in self.acts:
            method = act()
            if method is not None:
                self.loop.call_soon_threadsafe(method)


class DrivenWidget(LabWidget):
    """A widget whose trainings run in the thread of a `Controller`.

    Args:
        controller: Runs the training.
        offers: Choices of the page's controls, as JSON, such as the recipes. The devices are added.
    """

    # The sentence below the still picture, for hosts without widgets.
    why_static: ClassVar[str]
    _offers = traitlets.Dict().tag(sync=True)

    def __init__(self, controller: Controller, **offers: Any) -> None:
        self.controller = controller
        controller.send = self._send_frame
        controller.state = self.state
        # The controller's own place can be one that `places` leaves out.
        known_places = dict.fromkeys([*places(), controller.place])
        offers["places"] = [{"key": each.key, "label": each.label} for each in known_places]
        super().__init__(_offers=offers)
        self.on_msg(self._receive)
        atexit.register(controller.close)
        between_cells(controller.interrupt)

    @property
    @abstractmethod
    def sentence(self) -> str:
        """A sentence about what the figure shows now."""

    @abstractmethod
    def figure(self, why: str = "") -> Figure:
        """Return a still picture of the steps so far, with the text `why` below it."""

    @property
    def history(self) -> tuple[Any, ...]:
        """The learner's steps so far."""
        return tuple(self.controller.steps)

    @property
    def record_sentence(self) -> str:
        """A sentence about the recorded run, or "" without one."""
        return ""

    def page_state(self) -> dict[str, Any]:
        """Return the state for a page without a kernel, with the recorded run as first frame."""
        content, buffers = self.controller.first_frame()
        more_content, more_buffers = self.page_records()
        frame = {
            "content": {**content, "sentence": self.record_sentence, **more_content},
            "buffers": [*buffers, *more_buffers],
        }
        return {**super().page_state(), "_frame": as_json(frame)}

    def page_records(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return further records for a page: entries of the frame's content, and buffers."""
        return {}, []

    def state(self) -> dict[str, Any]:
        """Return the state that the browser shows beside the curves, as JSON without NaN."""
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
        """Return the command in a message of the browser: a button, or the choice of a device.

        Raises:
            ValueError: If the message holds no command.
        """
        match content:
            case {"do": "press", "button": button}:
                return member_of(Button, button, "press")
            case {"do": "choose", "place": key}:
                chosen = self.place if key == self.place.key else place(key)
                return partial(self.controller.train_on, chosen)
        raise ValueError(f"the page asked for {content!r}, which this widget does not know")

    @property
    def place(self) -> Place:
        """The device that the training runs on."""
        return self.controller.place

    def train_on(self, device: str | Place) -> None:
        """Continue or start the training on another device, without waiting for it.

        Args:
            device: "cpu", "gpu", or one of `labkit.train.places()`.

        Raises:
            ValueError: If this machine does not have the device.
        """
        self.controller.ask(partial(self.controller.train_on, place(device)))

    @property
    def phase(self) -> Phase:
        """The phase of the training, such as running or paused."""
        return self.controller.phase

    def press(self, button: str) -> None:
        """Press "start", "pause", "step", "stop" or "reset", without waiting for the effect.

        Raises:
            ValueError: If the button does not exist.
        """
        self.controller.ask(member_of(Button, button, "press"))

    def close(self) -> None:
        """End the training's thread, and close the widget."""
        # ipywidgets also closes a widget whose constructor failed before the controller was set.
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
        figure = self.figure(self.why_static) if self.history else None
        return still(self.sentence, self.why_static, figure)


def row_of(table: Mapping[str, Row], wanted: Row | str, what: str) -> Row:
    """Return a row of a table by its name; return a row as it is.

    Args:
        table: The rows by name; not empty.
        wanted: A name, or a row.
        what: The name of the argument, for the message.

    Raises:
        ValueError: If the table has no such row, or `wanted` is of another type.
    """
    kind = type(next(iter(table.values())))
    if isinstance(wanted, kind):
        return wanted
    if not isinstance(wanted, str) or wanted not in table:
        names = ", ".join(map(repr, table))
        raise ValueError(f"{what}: expected one of {names}, or a {kind.__name__}, got {wanted!r}")
    return table[wanted]


def member_of(kind: type[Member], wanted: str, what: str) -> Member:
    """Return the member of an enumeration with a value.

    Args:
        kind: The enumeration.
        wanted: The value.
        what: The name of the argument, for the message.

    Raises:
        ValueError: If no member has the value.

    >>> member_of(Button, "start", "press")
    <Button.START: 'start'>
    """
    try:
        return kind(wanted)
    except ValueError:
        values = ", ".join(repr(member.value) for member in kind)
        raise ValueError(f"{what}: expected one of {values}, got {wanted!r}") from None
