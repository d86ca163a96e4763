"""Controller of runs that a learner drives: phases, buttons, a training thread, and frames.

Idea: every live widget is the same machine, one `Controller`: runs, a queue of commands, and a
thread that carries out commands between two steps. Only the thread touches the runs, so nothing is
shared and nothing locked; a test calls `handle(command)` and, while `due`, `tick()` instead. The
browser gets frames through `post`: new points as float32 columns beside a small JSON state. At most
thirty frames a second leave, fewer while the browser has not drawn the last ones.

Invariant: a command takes effect between two steps; an error becomes the phase FAILED and words;
posting never waits for the browser; one training at a time in a kernel, none after `close`.
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
# pace towards a browser that does not answer: hidden, gone, or behind a busy kernel
UNANSWERED_SECONDS = 1 / 4
# Frames on their way before we wait for an answer; the browser answers every quarter of a second.
IN_FLIGHT = 12

NAME = "labkit live training"
ANOTHER = "another live training has started; only one trains at a time."
INTERRUPTED = "the kernel was interrupted. Nothing is lost: press Continue."


class Phase(StrEnum):
    """What the training does now."""

    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    FAILED = "failed"


class Button(StrEnum):
    """What a learner can press."""

    START = "start"
    PAUSE = "pause"
    STEP = "step"
    STOP = "stop"
    RESET = "reset"


# A button that is missing here changes nothing in that phase.
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

# A ValueError or TypeError that a command raises becomes the notice.
Command = Button | Callable[[], object]
# steps, what is drawn of one, how many are drawn
Points = tuple[Sequence[Any], Callable[[Any], tuple[float, ...]], int]


class Controller(ABC):
    """Runs that are driven together.

    A subclass says what a step is, the widget sets `send` and `state`.

    Attributes:
        notice: message on the last command; "" if it was simply carried out.
        error: message on what ended the training.
        send: sends a content, JSON without NaN, and buffers of numbers that may be NaN.
        state: returns what a frame shows beside the points, as JSON.
        clock: seconds, monotonic.
    """

    # buttons that mean something for these runs
    buttons: ClassVar[frozenset[Button]] = frozenset(Button)
    task: Task
    total: int  # planned steps
    place: Place  # where they train

    # one training at a time: two would share one core's time
    _driving: ClassVar[weakref.ref[Controller] | None] = None
    _turn: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.notice = self.error = ""
        self.send: Callable[[dict[str, Any], list[bytes]], None] = lambda content, buffers: None
        self.state: Callable[[], dict[str, Any]] = dict
        self.clock = time.monotonic
        self._single_steps = 0  # asked for by the step button and not done yet
        self._inbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # its thread ends, or has ended; the next command starts another
        self._resting = False
        self._closed = self._at_once = False
        # number of the browser's latest command that was carried out
        self._answered = 0
        # numbers of the latest frame, and of the latest one that the browser has drawn
        self._number = self._drawn = 0
        self._due = self._last = -1.0
        # which points the browser has: a list of steps, and how many
        self._sent: list[tuple[Sequence[Any], int]] = []

    @property
    @abstractmethod
    def sides(self) -> Sequence[Any]:
        """The runs; each has `run`, None until `build()` makes it, and `done`, its steps so far."""

    @property
    @abstractmethod
    def steps(self) -> list[Any]:
        """The learner's steps so far."""

    @abstractmethod
    def points(self) -> list[Points]:
        """Return what is drawn, one entry for each buffer of a frame."""

    @abstractmethod
    def begin_again(self) -> None:
        """Drop the runs that Reset removes; the phase is still the one before the button."""

    @abstractmethod
    def train_on(self, where: Place) -> None:
        """Continue, or begin, on another device."""

    @abstractmethod
    def lead(self) -> bool:
        """Do the due step of the reference run, if it is behind; return whether it was."""

    @abstractmethod
    def follow(self) -> None:
        """Do the due step of the learner's runs."""

    # --- commands ---------------------------------------------------------------------------------

    def handle(self, command: Command) -> None:
        """Carry out a command; one that cannot be leaves a notice and nothing else."""
        self.notice = ""
        try:
            if isinstance(command, Button):
                self._press(command)
            else:
                command()
        except (ValueError, TypeError) as error:
            self.notice = f"Not done: {error}"

    def _press(self, button: Button) -> None:
        if button not in self.buttons:
            return
        over = self.phase in (Phase.FINISHED, Phase.FAILED)
        if button is Button.RESET or (button is Button.START and over):
            self.begin_again()
            self.error = ""
        self.phase = AFTER[self.phase].get(button, self.phase)
        single = button is Button.STEP and self.phase is Phase.PAUSED
        self._single_steps = self._single_steps + 1 if single else 0

    @property
    def enabled(self) -> list[Button]:
        """The buttons that mean something now, by name."""
        return sorted(AFTER[self.phase].keys() & self.buttons)

    def enter(self, phase: Phase) -> None:
        """Enter a phase in which nothing trains."""
        self.phase = phase
        self._single_steps = 0

    # --- steps ------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether there is a step to do now."""
        return self.phase is Phase.RUNNING or self._single_steps > 0

    @property
    def building(self) -> bool:
        """Whether the next tick begins with making runs, which can take a second or two."""
        return self.due and any(side.run is None for side in self.sides)

    def build(self) -> None:
        """Make the runs that do not exist yet."""
        self._guard(lambda: [side.build() for side in self.sides])

    def tick_other(self) -> bool:
        """Bring the run beside to the step that is due; return whether there was anything to do."""
        if self.building:
            self.build()
        return self.due and bool(self._guard(self.lead))

    def tick(self) -> None:
        """Do the step that is due, in all runs; does nothing when none is."""
        self.tick_other()
        if self.due:
            self._guard(self._step)

    def _step(self) -> None:
        self.follow()
        self._single_steps = max(0, self._single_steps - 1)
        if all(side.done >= self.total for side in self.sides):
            self.enter(Phase.FINISHED)

    def _guard(self, work: Callable[[], object]) -> object:
        try:
            return work()
        except Exception as error:
            # The learner's task may raise anything, and the figure has to show it.
            self._fail(error)
        return None

    def _fail(self, error: Exception) -> None:
        self.enter(Phase.FAILED)
        self.error = f"{type(error).__name__}: {error}".rstrip().rstrip(".:") + "."

    # --- frames -----------------------------------------------------------------------------------

    def drawn(self, number: int) -> None:
        """Note that the browser has drawn a frame."""
        self._drawn = max(self._drawn, number)

    def forget_sent(self) -> None:
        """Send everything from the start with the next frame: somebody new is looking."""
        self._sent = []

    def post(self, *, urgent: bool = False) -> bool:
        """Send a frame if it is time for one, or in any case if it is urgent.

        Return whether it was sent.
        """
        now = self.clock()
        waiting = self._number - self._drawn
        if not urgent and (
            now < self._due or (waiting >= IN_FLIGHT and now - self._last < UNANSWERED_SECONDS)
        ):
            return False
        # the average counts: steps and frames do not share a beat
        self._due = max(self._due + FRAME_SECONDS, now)
        self._last = now
        self._number += 1
        points = self.points()
        whole = [id(steps) for steps, _ in self._sent] != [id(steps) for steps, _, _ in points]
        begins = [0] * len(points) if whole else [count for _, count in self._sent]
        rows = [
            map(row, steps[at:end]) for at, (steps, row, end) in zip(begins, points, strict=True)
        ]
        self._sent = [(steps, end) for steps, _, end in points]
        head = {"kind": "frame", "number": self._number, "answered": self._answered}
        self.send({**head, "whole": whole, **self.state()}, [pack(list(each)) for each in rows])
        return True

    def first_frame(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return a frame with all points so far, or the recorded ones, for a page."""
        head = {"kind": "frame", "number": 0, "answered": 0, "whole": True}
        return {**head, **self.state()}, [
            pack([row(step) for step in steps[:end]]) for steps, row, end in self.points()
        ]

    # --- thread
    # --------------------------------------------------------------------------------------- It
    # starts with the first command; `rest` ends it until the next one, `close` forever.

    def ask(self, command: Command, number: int = 0) -> None:
        """Let the thread carry out a command, the browser's of that number, before its next step.

        Returns at once.
        """
        if command in (Button.START, Button.STEP):
            with Controller._turn:
                before = Controller._driving() if Controller._driving is not None else None
                Controller._driving = weakref.ref(self)
            if before is not None and before is not self:
                before.call(partial(before._pause, ANOTHER))
        self.call(partial(self._answer, command, number))

    def call(self, work: Callable[[], object]) -> None:
        """Let the thread do something between two steps, and send a frame."""
        with Controller._turn:
            if self._closed:
                return
            self._inbox.put(work)
            if self._thread is None or self._resting:
                before = self._thread
                self._resting = False
                self._thread = threading.Thread(
                    target=self._loop, args=(before,), name=NAME, daemon=True
                )
                self._thread.start()

    def rest(self, why: str) -> None:
        """Pause the training, say why, and end the thread after the step it is in.

        Returns at once.
        """
        with Controller._turn:
            if self._thread is None or self._resting or self._closed:
                return
            self._inbox.put(partial(self._pause, why))
            self._inbox.put(None)
            self._resting = True
            if Controller._driving is not None and Controller._driving() is self:
                Controller._driving = None  # nobody has to wake it to make it pause

    def interrupt(self) -> None:
        """Pause the training, if it runs."""
        if self.alive and not self._resting:
            self.call(partial(self._pause, INTERRUPTED))

    def close(self, timeout: float = 5.0) -> None:
        """End the thread after the step it is in.

        Returns when it has ended, or after `timeout` seconds.
        """
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
        self._at_once = True  # the first step under a change is shown at once

    def _loop(self, before: threading.Thread | None) -> None:
        if before is not None:
            # it ends where the inbox told it to; what comes after that is ours
            before.join()
        while True:
            try:
                if not self._take_commands() or (self.due and not self._work()):
                    return
            except Exception as error:
                # A fault of ours, not of the task: log it, and show it in the figure if possible.
                logging.getLogger(__name__).exception("the live training could not continue")
                if self.phase is not Phase.FAILED:
                    self._fail(error)
                    # wakes the loop, which then posts
                    self._inbox.put(lambda: None)

    def _work(self) -> bool:
        """Do a step, looking into the inbox between its two halves; return False to end."""
        if self.building:
            self.post(urgent=True)
            self.build()
        if self.tick_other() and not self._at_once:
            self.post()
        if self.due and not self._take_commands():
            return False
        self.tick()
        self.post(urgent=self._at_once or not self.due)
        self._at_once = False
        return True

    def _take_commands(self) -> bool:
        """Do what is in the inbox; wait for something when no step is due. Return False to end."""
        done = False
        while True:
            try:
                work = self._inbox.get(block=not self.due and not done)
            except queue.Empty:
                break
            if work is None:
                return False
            work()
            done = True
        if done and not self.due:
            self.post(urgent=True)  # otherwise the step that is due will show it
        return True


def pack(rows: list[Any]) -> bytes:
    """Return rows as little-endian float32, which has a code for NaN.

    A loss too large for it becomes inf.
    """
    with np.errstate(over="ignore"):
        return np.asarray(rows, dtype="<f4").tobytes()
