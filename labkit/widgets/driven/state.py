"""In which state can a training be that a learner drives, and what does each button do to it?

Idea: five phases, five buttons, and one table. A button that means nothing in a phase changes nothing, so a press that
arrives late (the run ended while the finger came down) needs no special case.

Invariant: `press` is total: every phase and every button has an answer, and the answer is a phase.
"""

from __future__ import annotations

from enum import StrEnum


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
