"""Checks of a GPU beyond timings and captures, each with `main`, which asks, and `told`, which says.

Invariant: `main(device, seconds=...)` yields its answers after each item, in plain values, ready for JSON: what one
item cannot do is in them, and the others go on. `told` of them is what a person reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from labkit.gpu.checks import amp, cards, many, outputs, speed, tasks, triton


@dataclass(frozen=True)
class Check:
    """main(device, ...) yields answers, more after each item; told(answers) -> text."""

    main: Callable[..., Iterator[dict[str, Any]]]
    told: Callable[[dict[str, Any]], str]


CHECKS: dict[str, Check] = {
    "amp": Check(amp.main, amp.told),
    "cards": Check(cards.main, cards.told),
    "many": Check(many.main, many.told),
    "recurrent": Check(outputs.main, outputs.told),
    "speed": Check(speed.main, speed.told),
    "tasks": Check(tasks.main, tasks.told),
    "triton": Check(triton.main, triton.told),
}
