"""What is the browser told, and how often? New points only, and no more than it can draw.

Idea: a frame holds the points since the last one, as float32 columns, which have a code for NaN, beside a small JSON
state. Thirty frames a second at most; fewer when the browser does not say that it has drawn the last ones.

Invariant: posting never waits for the browser, and every step is told in the end.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.widgets.live.controller import Controller
from labkit.widgets.live.runs import Curve
from labkit.widgets.live.state import enabled, why_master_is_fixed
from labkit.widgets.live.words import power, sentence

FRAME_SECONDS = 1 / 30
UNHEARD_SECONDS = 1 / 4  # pace towards a browser that does not answer: hidden, gone, or behind a busy kernel
IN_FLIGHT = 12  # frames on their way before we wait for an answer; the browser answers every quarter of a second

Send = Callable[[dict[str, Any], list[bytes]], None]


class Sender(ABC):
    """Sends frames at the pace of the browser; what is in a frame is left to who derives from it.

    Args:
        send: (content, buffers) -> None; the content is JSON without NaN, numbers that may be NaN travel in buffers.
        clock: seconds, monotonic.
    """

    def __init__(self, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self.send, self.clock = send, clock
        self.heard = 0  # number of the browser's latest command that was obeyed
        self.trained = 0  # number of its latest command under which a step was done
        self._number = self._drawn = 0
        self._due = self._last = -1.0
        self.forget()

    @abstractmethod
    def forget(self) -> None:
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
        if not urgent and (now < self._due or (waiting >= IN_FLIGHT and now - self._last < UNHEARD_SECONDS)):
            return False
        self._due = max(self._due + FRAME_SECONDS, now)  # the average counts: steps and frames do not share a beat
        self._last = now
        self._number += 1
        content, buffers = self.contents()
        head = {"kind": "frame", "number": self._number, "heard": self.heard, "trained": self.trained}
        self.send({**head, **content}, buffers)
        return True


class Outbox(Sender):
    """What the browser was told of a live training already, and what it must be told next.

    Args:
        controller: what is told about.
        send, clock: see `Sender`.
    """

    def __init__(self, controller: Controller, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self.controller = controller
        super().__init__(send, clock)

    def forget(self) -> None:
        """Tell everything from the start with the next frame."""
        self._curve: Curve | None = None
        self._ours = self._fp32 = 0

    def contents(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return the points since the last frame, and the state beside them."""
        c = self.controller
        whole = self._curve is not c.ours or self._fp32 > len(c.fp32.steps)
        if whole:
            self._curve, self._ours, self._fp32 = c.ours, 0, 0
        ours, fp32 = c.ours.steps[self._ours :], c.fp32.steps[self._fp32 :]
        self._ours, self._fp32 = len(c.ours.steps), len(c.fp32.steps)
        buffers = [
            pack([(s.loss, s.scale, s.found_inf, s.stepped, _or_nan(s.underflow)) for s in ours]),
            pack([s.loss for s in fp32]),
            pack([s.loss for s in c.previous] if whole else []),
        ]
        return {"whole": whole, **state(c)}, buffers


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


def pack(rows: list[Any]) -> bytes:
    """Return rows as little-endian float32, which has a code for NaN; a loss too large for it becomes inf."""
    with np.errstate(over="ignore"):
        return np.asarray(rows, dtype="<f4").tobytes()
