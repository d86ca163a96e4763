"""How can a training run while the notebook's kernel stays free? In one thread that owns it, and an inbox.

Idea: everything that touches the runs happens in one thread, between two steps; whoever wants something puts it
into the inbox and goes on. Nothing is shared, so nothing is locked. What the browser sees leaves through the outbox.

Invariant: one training at a time in a kernel, none after `close`, and none in a thread that nobody looks at.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from labkit.widgets.driven.lockstep import Lockstep
from labkit.widgets.driven.outbox import Sender
from labkit.widgets.driven.state import Button, Phase

NAME = "labkit live training"
ANOTHER = "another live training has started; only one trains at a time."
INTERRUPTED = "the kernel was interrupted. Nothing is lost: press Continue."


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
            self._take_turn()
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
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def _take_turn(self) -> None:
        with Driver._turn:
            before = Driver._driving() if Driver._driving is not None else None
            Driver._driving = weakref.ref(self)
        if before is not None and before is not self:
            before.call(partial(before._pause, ANOTHER))

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
