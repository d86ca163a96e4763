"""How is somebody shown round a widget? In a few short steps, each of which sets a state and rings what it speaks of.

Idea: a tour is data, `tour.toml` in the widget's folder. A step has a text, the selector of what is ringed, and what it
sets: names of traits with their values, or of methods with their arguments.

Invariant: a tour has 5 to 8 steps.
"""

from __future__ import annotations

import tomllib
from functools import cache
from typing import Any

from labkit.widgets.base.assets import FOLDERS

LENGTHS = range(5, 9)


@cache
def tour_of(folder: str) -> list[dict[str, Any]]:
    """Return the steps of a widget's tour: text, ring, set.

    Raises:
        ValueError: it has fewer than 5 steps or more than 8, or a step lacks its text or what it rings.
    """
    steps = tomllib.loads((FOLDERS / folder / "tour.toml").read_text(encoding="utf-8"))["step"]
    if len(steps) not in LENGTHS or any(
        not {"text", "ring"} <= step.keys() <= {"text", "ring", "set"} for step in steps
    ):
        raise ValueError(f"{folder}/tour.toml: a tour has 5 to 8 steps, each with text, ring and perhaps set")
    return [{"set": {}, **step} for step in steps]


def take_step(widget: object, step: dict[str, Any]) -> None:
    """Bring a widget into the state of a step: traits are set, methods are called, in the order of the data."""
    for name, to in step["set"].items():
        if not callable(getattr(widget, name)):
            setattr(widget, name, to)
        elif isinstance(to, dict):
            getattr(widget, name)(**to)
        else:
            getattr(widget, name)(to)
