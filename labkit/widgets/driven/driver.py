"""Runs that a learner drives: phases and buttons, steps taken in turn, and the thread that takes them.

Idea: every live widget is the same machine. A `Lockstep` knows no thread, no clock and no browser: its owner calls
`handle(command)` and, while `due`, `tick()`. In a widget the owner is a `Driver`, one thread that does everything that
touches the runs, with an inbox, so nothing is shared and nothing locked. What the browser sees leaves through a
`Sender`: new points as float32 columns beside a small JSON state, thirty frames a second at most, fewer when the
browser does not say that it has drawn the last ones.

Invariant: a command takes effect between two steps; an error becomes the phase FAILED and words; posting never waits
for the browser; one training at a time in a kernel, none after `close`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar

import numpy as np

from labkit.train import Place

FRAME_SECONDS = 1 / 30
UNANSWERED_SECONDS = 1 / 4  # pace towards a browser that does not answer: hidden, gone, or behind a busy kernel
IN_FLIGHT = 12  # frames on their way before we wait for an answer; the browser answers every quarter of a second

Send = Callable[[dict[str, Any], list[bytes]], None]
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


AFTER: dict[tuple[Phase, Button], Phase] = {
    (Phase.IDLE, Button.START): Phase.RUNNING,
    (Phase.IDLE, Button.STEP): Phase.PAUSED,
    (Phase.RUNNING, Button.PAUSE): Phase.PAUSED,
    (Phase.RUNNING, Button.STOP): Phase.FINISHED,
    (Phase.RUNNING, Button.RESET): Phase.IDLE,
    (Phase.PAUSED, Button.START): Phase.RUNNING,
    (Phase.PAUSED, Button.STEP): Phase.PAUSED,
    (Phase.PAUSED, Button.STOP): Phase.FINISHED,
    (Phase.PAUSED, Button.RESET): Phase.IDLE,
    (Phase.FINISHED, Button.START): Phase.RUNNING,
    (Phase.FINISHED, Button.RESET): Phase.IDLE,
    (Phase.FAILED, Button.START): Phase.RUNNING,
    (Phase.FAILED, Button.RESET): Phase.IDLE,
}


def press(phase: Phase, button: Button) -> Phase:
    """Return the phase after a button was pressed; the same phase where the button means nothing.

    >>> press(Phase.IDLE, Button.START), press(Phase.IDLE, Button.PAUSE)
    (<Phase.RUNNING: 'running'>, <Phase.IDLE: 'idle'>)
    """
    return AFTER.get((phase, button), phase)


def enabled(phase: Phase) -> frozenset[Button]:
    """Return the buttons that mean something in a phase.

    >>> sorted(enabled(Phase.FAILED))
    [<Button.RESET: 'reset'>, <Button.START: 'start'>]
    """
    return frozenset(button for before, button in AFTER if before is phase)


class Lockstep(ABC):
    """Runs that are driven together; who derives from it says what a step is.

    notice  what the last command met, in words; "" after one that was simply carried out
    error   what ended the training, in words
    """

    buttons: ClassVar[frozenset[Button]] = frozenset(Button)  # others mean nothing
    place: Place  # where they train

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.notice = self.error = ""
        self._single_steps = 0  # asked for by the step button and not done yet

    @abstractmethod
    def carry_out(self, command: Any) -> None:
        """Do what a command asks that is no button.

        Raises:
            ValueError, TypeError: it cannot be done; the message becomes the notice.
        """

    @abstractmethod
    def begin_again(self) -> None:
        """Forget the runs that Reset shall forget."""

    @property
    @abstractmethod
    def built(self) -> bool:
        """Whether all runs are made."""

    @abstractmethod
    def make(self) -> None:
        """Make the runs that are not there yet."""

    @abstractmethod
    def lead(self) -> bool:
        """Let the run beside do the step that is due, if it has not; return whether it had to."""

    @abstractmethod
    def follow(self) -> None:
        """Let the learner's runs do the step that is due."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the last step is done."""

    # --- commands -----------------------------------------------------------------------------------------------

    def handle(self, command: Any) -> None:
        """Carry out a command; one that cannot be leaves a notice and nothing else."""
        self.notice = ""
        try:
            if isinstance(command, Button):
                self._press(command)
            else:
                self.carry_out(command)
        except (ValueError, TypeError) as error:
            self.notice = f"Not done: {error}"

    def _press(self, button: Button) -> None:
        if button not in self.buttons:
            return
        before, self.phase = self.phase, press(self.phase, button)
        over = before in (Phase.FINISHED, Phase.FAILED)
        if button is Button.RESET or (button is Button.START and over):
            self.begin_again()
            self.error = ""
        single = button is Button.STEP and self.phase is Phase.PAUSED
        self._single_steps = self._single_steps + 1 if single else 0

    def stand(self, phase: Phase) -> None:
        """Enter a phase in which nothing trains."""
        self.phase, self._single_steps = phase, 0

    # --- steps --------------------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether there is a step to do now."""
        return self.phase is Phase.RUNNING or self._single_steps > 0

    @property
    def building(self) -> bool:
        """Whether the next tick begins with making runs, which can take a second or two."""
        return self.due and not self.built

    def build(self) -> None:
        self._guard(self.make)

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
        if self.complete:
            self.stand(Phase.FINISHED)

    def _guard(self, work: Callable[[], object]) -> object:
        try:
            return work()
        except Exception as error:  # whatever went wrong in the learner's task, the figure has to say it
            self.fail(error)
        return None

    def fail(self, error: Exception) -> None:
        """End the training with an error that the sentence names."""
        self.stand(Phase.FAILED)
        self.error = f"{type(error).__name__}: {error}".rstrip().rstrip(".:") + "."


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


class Driver:
    """The thread that trains. It starts with the first command; `rest` ends it until the next one, `close` for ever."""

    _driving: ClassVar[weakref.ref[Driver] | None] = None  # one training at a time: two would share one core's time
    _turn: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, lockstep: Lockstep, outbox: Sender) -> None:
        self.lockstep, self.outbox = lockstep, outbox
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._resting = False  # its thread ends, or has ended; the next command starts another
        self._closed = self._at_once = False

    def command(self, command: Any, number: int = 0) -> None:
        """Let the thread carry out a command before its next step; returns at once."""
        if command in (Button.START, Button.STEP):
            with Driver._turn:
                before = Driver._driving() if Driver._driving is not None else None
                Driver._driving = weakref.ref(self)
            if before is not None and before is not self:
                before.call(partial(before._pause, ANOTHER))
        self.call(partial(self._handle, command, number))

    def call(self, work: Callable[[], None]) -> None:
        """Let the thread do something between two steps, and send a frame."""
        with Driver._turn:
            if self._closed:
                return
            self._inbox.put(work)
            if self._thread is None or self._resting:
                before, self._resting = self._thread, False
                self._thread = threading.Thread(target=self._loop, args=(before,), name=NAME, daemon=True)
                self._thread.start()

    def rest(self, why: str) -> None:
        """Pause the training, say why, and end the thread after the step it is in; returns at once."""
        with Driver._turn:
            if self._thread is None or self._resting or self._closed:
                return
            self._inbox.put(partial(self._pause, why))
            self._inbox.put(None)
            self._resting = True
            if Driver._driving is not None and Driver._driving() is self:
                Driver._driving = None  # nobody has to wake it to make it pause

    def interrupt(self) -> None:
        """Pause the training, if it runs."""
        if self.alive and not self._resting:
            self.call(partial(self._pause, INTERRUPTED))

    def close(self, timeout: float = 5.0) -> None:
        """End the thread after the step it is in; returns when it has ended, or after `timeout` seconds."""
        self._closed = True
        self._inbox.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _pause(self, why: str) -> None:
        if self.lockstep.due:
            self.lockstep.handle(Button.PAUSE)
            self.lockstep.notice = f"Paused, because {why}"

    def _handle(self, command: Any, number: int) -> None:
        self.lockstep.handle(command)
        self.outbox.answered = max(self.outbox.answered, number)
        self._at_once = True  # the first step under a change is shown at once

    def _loop(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # it ends where the inbox told it to; what comes after that is ours
        while True:
            try:
                if not self._take_commands() or (self.lockstep.due and not self._work()):
                    return
            except Exception as error:  # a fault of ours, not of the task: log it, and say it in the figure if we can
                logging.getLogger(__name__).exception("the live training could not go on")
                if self.lockstep.phase is not Phase.FAILED:
                    self.lockstep.fail(error)
                    self._inbox.put(lambda: None)  # wakes the loop, which then posts

    def _work(self) -> bool:
        """Do a step, looking into the inbox between its two halves; return False to end."""
        runs = self.lockstep
        if runs.building:
            self.outbox.post(urgent=True)
            runs.build()
        if runs.tick_other() and not self._at_once:
            self.outbox.post()
        if runs.due and not self._take_commands():
            return False
        runs.tick()
        self.outbox.trained = self.outbox.answered
        self.outbox.post(urgent=self._at_once or not runs.due)
        self._at_once = False
        return True

    def _take_commands(self) -> bool:
        """Do what is in the inbox; wait for something when no step is due. Return False to end."""
        done = False
        while True:
            try:
                work = self._inbox.get(block=not self.lockstep.due and not done)
            except queue.Empty:
                break
            if work is None:
                return False
            work()
            done = True
        if done and not self.lockstep.due:
            self.outbox.post(urgent=True)  # otherwise the step that is due will show it
        return True
