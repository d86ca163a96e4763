"""What is asked of a GPU beyond timings and captures? Checks, each with `main`, which asks, and `told`, which says.

Invariant: `main(device)` returns plain values, ready for JSON; `told` of them is what a person reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.gpu.checks import amp, cards, many, recurrent, speed, tasks, triton


@dataclass(frozen=True)
class Check:
    """main(device, ...) -> answers; told(answers) -> text."""

    main: Callable[..., dict[str, Any]]
    told: Callable[[dict[str, Any]], str]


CHECKS: dict[str, Check] = {
    "amp": Check(amp.main, amp.told),
    "cards": Check(cards.main, cards.told),
    "many": Check(many.main, many.told),
    "recurrent": Check(recurrent.main, recurrent.told),
    "speed": Check(speed.main, speed.told),
    "tasks": Check(tasks.main, tasks.told),
    "triton": Check(triton.main, triton.told),
}
