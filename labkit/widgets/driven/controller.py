"""Controller of runs that a learner drives: phases, buttons, a training thread, and frames.

A `Controller` has runs, a queue of commands, and a thread that executes commands between two steps.
Only the thread changes the runs, so they need no lock. Instead of starting the thread, a test calls
`handle(command)` and, while `due`, `tick()`. `post` sends frames to the browser: new points as
float32 columns, and a small state as JSON. Of a training it sends at most thirty frames a second,
and fewer while the browser has not drawn the last ones; an urgent frame, which answers a command,
is sent at once.

Invariant: a command takes effect between two steps. An error becomes the phase FAILED and a
message. Posting never waits for the browser. A kernel trains one controller at a time, and no
controller trains after `close`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar

import numpy as np

from labkit.train import Place, Task

FRAME_SECONDS = 1 / 30
# The time between frames to a browser that does not answer: it is hidden or closed, or the kernel
# is too busy to read its messages.
UNANSWERED_SECONDS = 1 / 4
# The number of frames without an answer after which frames are sent at that slower pace. A browser
# answers four times a second.
IN_FLIGHT = 12

NAME = "labkit live training"
ANOTHER = "another live training has started; only one trains at a time."
INTERRUPTED = "the kernel was interrupted. Nothing is lost: press Continue."


class Phase(StrEnum):
    """Phases of a training."""

    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    FAILED = "failed"


class Button(StrEnum):
    """Buttons of a live widget."""

    START = "start"
    PAUSE = "pause"
    STEP = "step"
    STOP = "stop"
    RESET = "reset"


# The phase after a button, by the phase before it. A missing button leaves the phase as it is, but
# RESET begins the run of IDLE again, too.
AFTER: dict[Phase, dict[Button, Phase]] = {
    Phase.IDLE: {Button.START: Phase.RUNNING, Button.STEP: Phase.PAUSED},
    Phase.RUNNING: {
        Button.PAUSE: Phase.PAUSED,
        Button.STOP: Phase.FINISHED,
        Button.RESET: Phase.IDLE,
    },
    Phase.PAUSED: {
        Button.START: Phase.RUNNING,
        Button.STEP: Phase.PAUSED,
        Button.STOP: Phase.FINISHED,
        Button.RESET: Phase.IDLE,
    },
    Phase.FINISHED: {Button.START: Phase.RUNNING, Button.RESET: Phase.IDLE},
    Phase.FAILED: {Button.START: Phase.RUNNING, Button.RESET: Phase.IDLE},
}

# A button, or a function. A ValueError, TypeError or OSError that the function raises becomes the
# notice; an OSError is that of a folder in which nothing can be saved, for example.
Command = Button | Callable[[], object]
# Steps, the numbers that are drawn of a step, and how many of the steps are drawn.
Points = tuple[Sequence[Any], Callable[[Any], tuple[float, ...]], int]


class Controller(ABC):
    """Runs that a learner drives together.

    A subclass defines a step. The widget sets `send` and `state`.

    Attributes:
        task: The task of the runs.
        total: The number of planned steps.
        place: The device on which the runs train.
        phase: The phase of the training.
        notice: A message about the last command, or "".
        error: A message about the error that ended the training, or "".
        send: Sends content as JSON without NaN, and buffers of numbers that can be NaN.
        state: Returns the part of a frame beside the points, as JSON.
        clock: Returns a monotonic time in seconds.
    """

    # The buttons of these runs.
    buttons: ClassVar[frozenset[Button]] = frozenset(Button)
    task: Task
    total: int
    place: Place

    # The controller that trains now. Two would share the time of one core.
    _driving: ClassVar[weakref.ref[Controller] | None] = None
    _turn: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.notice = ""
        self.error = ""
        self.send: Callable[[dict[str, Any], list[bytes]], None] = lambda content, buffers: None
        self.state: Callable[[], dict[str, Any]] = dict
        self.clock = time.monotonic
        # Presses of the step button whose step is not done yet.
        self._single_steps = 0
        # None ends the thread.
        self._inbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Whether the thread was told to end. The next command then starts another one.
        self._resting = False
        self._closed = False
        # Whether the next step is shown at once, since it is the first one after a command.
        self._at_once = False
        # The number of the browser's last command that was executed.
        self._answered = 0
        # The numbers of the last frame that was sent, and of the last one that the browser drew.
        self._number = 0
        self._drawn = 0
        # The time from which the next frame may be sent, and that of the last one.
        self._due = -1.0
        self._last = -1.0
        # The points that the browser has: for each curve its steps, and how many were sent.
        self._sent: list[tuple[Sequence[Any], int]] = []

    @property
    @abstractmethod
    def sides(self) -> Sequence[Any]:
        """The runs. Each has `run`, which `build()` makes, and `done`, the number of its steps."""

    @property
    @abstractmethod
    def steps(self) -> list[Any]:
        """The learner's steps so far."""

    @abstractmethod
    def points(self) -> list[Points]:
        """Return the curves, one for each buffer of a frame."""

    @abstractmethod
    def begin_again(self) -> None:
        """Remove the runs that Reset removes. `phase` is still the one before the button."""

    @abstractmethod
    def train_on(self, where: Place) -> None:
        """Continue or start the training on another device."""

    @abstractmethod
    def lead(self) -> bool:
        """Do the next step of the reference run if it is behind; return whether it was."""

    @abstractmethod
    def follow(self) -> None:
        """Do the next step of the learner's runs."""

    # --- commands ---------------------------------------------------------------------------------

    def handle(self, command: Command) -> None:
        """Execute a command. A command that fails sets the notice and changes nothing else."""
        self.notice = ""
        try:
            if isinstance(command, Button):
                self._press(command)
            else:
                command()
        except (ValueError, TypeError, OSError) as error:
            self.notice = f"Not done: {error}"

    def _press(self, button: Button) -> None:
        if button not in self.buttons:
            return
        has_ended = self.phase in (Phase.FINISHED, Phase.FAILED)
        if button is Button.RESET or (button is Button.START and has_ended):
            self.begin_again()
            self.error = ""
        self.phase = AFTER[self.phase].get(button, self.phase)
        if button is Button.STEP and self.phase is Phase.PAUSED:
            self._single_steps += 1
        else:
            self._single_steps = 0

    @property
    def enabled(self) -> list[Button]:
        """The buttons with an effect in this phase, sorted by name."""
        return sorted(AFTER[self.phase].keys() & self.buttons)

    def enter(self, phase: Phase) -> None:
        """Enter a phase in which nothing trains."""
        self.phase = phase
        self._single_steps = 0

    # --- steps ------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether a step is to be done now."""
        return self.phase is Phase.RUNNING or self._single_steps > 0

    @property
    def building(self) -> bool:
        """Whether the next tick makes runs first, which can take a second or two."""
        return self.due and any(side.run is None for side in self.sides)

    def build(self) -> None:
        """Make the runs that do not exist yet."""

        def build_all() -> None:
            for side in self.sides:
                side.build()

        self._guard(build_all)

    def tick_other(self) -> bool:
        """Do the next step of the reference run, and return whether it was behind."""
        if self.building:
            self.build()
        return self.due and bool(self._guard(self.lead))

    def tick(self) -> None:
        """Do the next step of all runs if a step is due."""
        self.tick_other()
        if self.due:
            self._guard(self._step)

    def _step(self) -> None:
        self.follow()
        self._single_steps = max(0, self._single_steps - 1)
        if all(side.done >= self.total for side in self.sides):
            self.enter(Phase.FINISHED)

    def _guard(self, work: Callable[[], object]) -> object:
        """Return the result of a function; after an exception, enter FAILED and return None."""
        try:
            return work()
        # The learner's task can raise anything, and the widget shows it.
        except Exception as error:
            self._fail(error)
        return None

    def _fail(self, error: Exception) -> None:
        self.enter(Phase.FAILED)
        self.error = f"{type(error).__name__}: {error}".rstrip().rstrip(".:") + "."

    # --- frames -----------------------------------------------------------------------------------

    def drawn(self, number: int) -> None:
        """Record that the browser has drawn a frame."""
        self._drawn = max(self._drawn, number)

    def forget_sent(self) -> None:
        """Send all points with the next frame, for a page that has none."""
        self._sent = []

    def post(self, *, urgent: bool = False) -> bool:
        """Send a frame if the pace allows one or it is urgent; return whether it was sent."""
        now = self.clock()
        is_unanswered = self._number - self._drawn >= IN_FLIGHT
        is_too_early = now < self._due
        if is_unanswered and now - self._last < UNANSWERED_SECONDS:
            is_too_early = True
        if is_too_early and not urgent:
            return False
        # A frame that is late may be followed sooner, so that the average pace is kept. Urgent
        # frames, which may be many, delay the next one no longer than a single frame does.
        self._due = min(max(self._due + FRAME_SECONDS, now), now + FRAME_SECONDS)
        self._last = now
        self._number += 1
        points = self.points()
        # After a change of runs, the curves have other lists, and all points are sent.
        whole = [id(steps) for steps, _ in self._sent] != [id(steps) for steps, _, _ in points]
        starts = [0] * len(points) if whole else [count for _, count in self._sent]
        buffers = []
        for start, (steps, row, end) in zip(starts, points, strict=True):
            buffers.append(pack([row(step) for step in steps[start:end]]))
        self._sent = [(steps, end) for steps, _, end in points]
        head = {"kind": "frame", "number": self._number, "answered": self._answered}
        self.send({**head, "whole": whole, **self.state()}, buffers)
        return True

    def first_frame(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return a frame with all points so far, or with the recorded ones, for a page."""
        head = {"kind": "frame", "number": 0, "answered": 0, "whole": True}
        buffers = [pack([row(step) for step in steps[:end]]) for steps, row, end in self.points()]
        return {**head, **self.state()}, buffers

    # --- thread -----------------------------------------------------------------------------------
    # The thread starts with the first command. `rest` ends it until the next command, `close` for
    # good.

    def ask(self, command: Command, number: int = 0) -> None:
        """Queue a command for the thread, which executes it before its next step.

        Args:
            command: The command.
            number: The number of the browser's command; 0 for others.
        """
        if command in (Button.START, Button.STEP):
            with Controller._turn:
                previous = None
                if Controller._driving is not None:
                    previous = Controller._driving()
                Controller._driving = weakref.ref(self)
            if previous is not None and previous is not self:
                previous.call(partial(previous._pause, ANOTHER))
        self.call(partial(self._answer, command, number))

    def call(self, work: Callable[[], object]) -> None:
        """Queue a function for the thread, which calls it between two steps and sends a frame."""
        with Controller._turn:
            if self._closed:
                return
            self._inbox.put(work)
            if self._thread is None or self._resting:
                previous = self._thread
                self._resting = False
                self._thread = threading.Thread(
                    target=self._loop, args=(previous,), name=NAME, daemon=True
                )
                self._thread.start()

    def rest(self, why: str) -> None:
        """Pause the training with a reason, and end the thread after its present step.

        This does not wait for the thread.
        """
        with Controller._turn:
            if self._thread is None or self._resting or self._closed:
                return
            self._inbox.put(partial(self._pause, why))
            self._inbox.put(None)
            self._resting = True
            if Controller._driving is not None and Controller._driving() is self:
                # Another controller that starts need not wake this one to pause it.
                Controller._driving = None

    def interrupt(self) -> None:
        """Pause the training if it is running."""
        if self.alive and not self._resting:
            self.call(partial(self._pause, INTERRUPTED))

    def close(self, timeout: float = 5.0) -> None:
        """End the thread after its present step, and wait for that up to `timeout` seconds."""
        self._closed = True
        self._inbox.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        """Whether the thread exists."""
        return self._thread is not None and self._thread.is_alive()

    def _pause(self, why: str) -> None:
        if self.due:
            self.handle(Button.PAUSE)
            self.notice = f"Paused, because {why}"

    def _answer(self, command: Command, number: int) -> None:
        self.handle(command)
        self._answered = max(self._answered, number)
        self._at_once = True

    def _loop(self, previous: threading.Thread | None) -> None:
        """Execute commands and do steps until the inbox says to end.

        Args:
            previous: A thread that still takes commands from the inbox, up to the None that ends
                it.
        """
        if previous is not None:
            previous.join()
        while True:
            try:
                if not self._execute_commands():
                    return
                if self.due and not self._do_step():
                    return
            # A fault of labkit, not of the task. It is logged, and shown if possible.
            except Exception as error:
                logging.getLogger(__name__).exception("the live training could not continue")
                if self.phase is not Phase.FAILED:
                    self._fail(error)
                    # This wakes the loop, which then sends a frame.
                    self._inbox.put(lambda: None)

    def _do_step(self) -> bool:
        """Do a step, with commands between its two halves; return False to end the thread."""
        if self.building:
            self.post(urgent=True)
            self.build()
        if self.tick_other() and not self._at_once:
            self.post()
        if self.due and not self._execute_commands():
            return False
        self.tick()
        self.post(urgent=self._at_once or not self.due)
        self._at_once = False
        return True

    def _execute_commands(self) -> bool:
        """Execute all commands in the inbox; return False to end the thread.

        Without a step to do, this waits for a command.
        """
        has_executed = False
        while True:
            try:
                work = self._inbox.get(block=not self.due and not has_executed)
            except queue.Empty:
                break
            if work is None:
                return False
            work()
            has_executed = True
        # If a step is due, its frame shows the effect of the commands.
        if has_executed and not self.due:
            self.post(urgent=True)
        return True


def pack(rows: list[Any]) -> bytes:
    """Return rows as little-endian float32; a number that is too large becomes inf."""
    with np.errstate(over="ignore"):
        return np.asarray(rows, dtype="<f4").tobytes()
