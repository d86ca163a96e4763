"""How can a training run while the notebook's kernel stays free? In one thread that owns it, and an inbox.

Idea: everything that touches the controller happens in one thread, between two steps; whoever wants something puts it
into the inbox and goes on. Nothing is shared, so nothing is locked. What the browser sees leaves through the outbox, at
most 30 times a second, and less often when the browser does not say that it has drawn the last frames.

Invariant: a slow or absent browser never holds up a step, and no step is missing from what it is told in the end.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from labkit.widgets.live_controller import Command, Controller, Curve
from labkit.widgets.live_state import Button, Phase, enabled, why_master_is_fixed
from labkit.widgets.live_words import power, sentence

FRAME_SECONDS = 1 / 30
UNHEARD_SECONDS = 1 / 4  # pace towards a browser that does not answer: hidden, gone, or behind a busy kernel
IN_FLIGHT = 12  # frames on their way before we wait for an answer; the browser answers every quarter of a second

Send = Callable[[dict[str, Any], list[bytes]], None]


class Outbox:
    """What the browser was told already, and what it must be told next.

    Args:
        controller: what is told about.
        send: (content, buffers) -> None; the content is JSON without NaN, numbers that may be NaN travel in buffers.
        clock: seconds, monotonic.
    """

    def __init__(self, controller: Controller, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self.controller, self.send, self.clock = controller, send, clock
        self.heard = 0  # number of the browser's latest command that was obeyed
        self.trained = 0  # number of its latest command under which a step was done
        self._number = self._drawn = 0
        self._due = self._last = -1.0
        self.forget()

    def forget(self) -> None:
        """Tell everything from the start with the next frame: somebody new is looking."""
        self._curve: Curve | None = None
        self._ours = self._fp32 = 0

    def drawn(self, number: int) -> None:
        """Note that the browser has drawn a frame."""
        self._drawn = max(self._drawn, number)

    def post(self, *, urgent: bool = False) -> bool:
        """Send a frame if it is time for one, or in any case if it is urgent; return whether it was sent."""
        now = self.clock()
        waiting = self._number - self._drawn
        if not urgent and (now < self._due or (waiting >= IN_FLIGHT and now - self._last < UNHEARD_SECONDS)):
            return False
        self._due = max(self._due + FRAME_SECONDS, now)  # the average counts: steps and frames do not share a beat
        self._last = now
        self._number += 1
        self.send(*self._frame())
        return True

    def _frame(self) -> tuple[dict[str, Any], list[bytes]]:
        c = self.controller
        whole = self._curve is not c.ours or self._fp32 > len(c.fp32.steps)
        if whole:
            self._curve, self._ours, self._fp32 = c.ours, 0, 0
        ours, fp32 = c.ours.steps[self._ours :], c.fp32.steps[self._fp32 :]
        self._ours, self._fp32 = len(c.ours.steps), len(c.fp32.steps)
        buffers = [
            _pack([(s.loss, s.scale, s.found_inf, s.stepped, _or_nan(s.underflow)) for s in ours]),
            _pack([s.loss for s in fp32]),
            _pack([s.loss for s in c.previous] if whole else []),
        ]
        return {
            "kind": "frame",
            "number": self._number,
            "whole": whole,
            "heard": self.heard,
            "trained": self.trained,
            **state(c),
        }, buffers


def state(controller: Controller) -> dict[str, Any]:
    """Return what the browser shows beside the curves, as JSON that holds no NaN."""
    scene, settings = controller.scene(), controller.settings
    metric = scene.metric and {
        "name": scene.metric_name,
        "step": scene.metric[0],
        "ours": f"{scene.metric[1]:.3f}",
        "fp32": f"{scene.metric[2]:.3f}",
    }
    return {
        "title": f"Live training: {scene.task.replace('_', ' ')}, seed {controller.seed}",
        "about": controller.task.about,
        "phase": scene.phase.value,
        "enabled": sorted(enabled(scene.phase)),
        "building": scene.building,
        "step": 0 if scene.last is None else scene.last.step,
        "total": scene.total,
        "label": scene.label,
        "scaling": settings.scaling.value,
        "log2_scale": settings.log2_scale,
        "scale": float(np.log2(controller.scale)),
        "scale_text": power(controller.scale),
        "master_weights": settings.master_weights,
        "master_is_fixed": why_master_is_fixed(controller.recipe),
        "growth_interval": controller.growth_interval,
        "skipped": scene.skipped,
        "marks": [{"step": mark.step, "label": mark.label} for mark in controller.marks],
        "metric": metric,
        "bad_since": scene.bad_since,
        "sentence": sentence(scene),
        "notice": controller.notice,
    }


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _pack(rows: list[Any]) -> bytes:
    """Return rows as little-endian float32, which has a code for NaN; a loss too large for it becomes inf."""
    with np.errstate(over="ignore"):
        return np.asarray(rows, dtype="<f4").tobytes()


class Driver:
    """The thread that trains. It starts with the first command and ends with `close`."""

    _driving: ClassVar[weakref.ref[Driver] | None] = None  # one training at a time: two would share one core's time
    _turn: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, controller: Controller, outbox: Outbox) -> None:
        self.controller, self.outbox = controller, outbox
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = self._hurry = False

    def command(self, command: Command, number: int = 0) -> None:
        """Let the thread obey a command before its next step; returns at once."""
        if command in (Button.START, Button.STEP):
            self._take_turn()
        self.call(partial(self._handle, command, number))

    def call(self, work: Callable[[], None]) -> None:
        """Let the thread do something between two steps, and send a frame."""
        with Driver._turn:
            if self._closed:
                return
            self._inbox.put(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="labkit live training", daemon=True)
                self._thread.start()

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
            before.command(Button.PAUSE)

    def _handle(self, command: Command, number: int) -> None:
        self.controller.handle(command)
        self.outbox.heard = max(self.outbox.heard, number)
        self._hurry = True  # the first step under a change is shown at once

    def _loop(self) -> None:
        while True:
            try:
                if not self._obey() or (self.controller.due and not self._work()):
                    return
            except Exception as error:  # a fault of ours, not of the task: log it, and say it in the figure if we can
                logging.getLogger(__name__).exception("the live training could not go on")
                if self.controller.phase is not Phase.FAILED:
                    self.controller.fail(error)
                    self._inbox.put(lambda: None)  # wakes the loop, which then posts

    def _work(self) -> bool:
        """Do a step, looking into the inbox between its two halves; return False to end."""
        c = self.controller
        if c.building:
            self.outbox.post(urgent=True)
            c.build()
        if c.tick_fp32() and not self._hurry:
            self.outbox.post()
        if c.due and not self._obey():
            return False
        c.tick()
        self.outbox.trained = self.outbox.heard
        self.outbox.post(urgent=self._hurry or not c.due)
        self._hurry = False
        return True

    def _obey(self) -> bool:
        """Do what is in the inbox; wait for something when no step is due. Return False to end."""
        obeyed = False
        while True:
            try:
                work = self._inbox.get(block=not self.controller.due and not obeyed)
            except queue.Empty:
                break
            if work is None:
                return False
            work()
            obeyed = True
        if obeyed and not self.controller.due:
            self.outbox.post(urgent=True)  # otherwise the step that is due will show it
        return True
