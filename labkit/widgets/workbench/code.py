"""How is a workbench handed to somebody else? As a line of text that a person can read, and that opens the same one.

Idea: task, recipe and seed, and after them only what differs: `"digits; O2; seed=0; scaling=off"`.

Invariant: what a code opens has the knobs, seed and steps of what it was made of; where it is trained is not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.amp import RECIPES
from labkit.train import Task, places
from labkit.widgets.bench.controller import Bench
from labkit.widgets.bench.knobs import knobs_of
from labkit.widgets.bench.outbox import tasks
from labkit.widgets.bench.positions import POSITIONS

FORM = 'a code reads "digits; O2; seed=0; scaling=off": task, recipe, then what differs'


@dataclass(frozen=True)
class Opened:
    """What a code says: `knobs` are those that stand elsewhere than the recipe has them; steps None: the task's own."""

    task: Task
    recipe: str
    seed: int
    steps: int | None
    knobs: Mapping[str, Any]


def code_of(bench: Bench) -> str:
    """Return the code of a bench, for the run whose knobs are on show.

    Raises:
        ValueError: its task or recipe is not one of the lab's, so nobody else could open it.
    """
    knobs = bench.shown.wanted
    if tasks(places()).get(bench.task.name) is not bench.task or RECIPES.get(knobs.given.name) != knobs.given:
        raise ValueError("a task or recipe of your own has no code: hand over the lines that make it")
    first = knobs_of(knobs.given)
    differing = [name for name in POSITIONS if getattr(knobs, name) != getattr(first, name)]
    steps = [] if bench.asked_steps is None else [f"steps={bench.asked_steps}"]
    parts = [bench.task.name, knobs.given.name, f"seed={bench.seed}", *steps]
    return "; ".join([*parts, *(f"{name}={getattr(knobs, name)}" for name in differing)])


def opened(code: str) -> Opened:
    """Return what a code says.

    Raises:
        TypeError: it is no text.
        ValueError: it has no such form, or names a task, recipe, knob or position that there is not.

    >>> opened("digits; O2; seed=3; scaling=off; log2_lr=-2").knobs
    {'scaling': <Scaling.OFF: 'off'>, 'log2_lr': -2}
    """
    if not isinstance(code, str):
        raise TypeError(f"a code is a text; it was given {code!r}. ({FORM})")
    task, recipe, *rest = [part.strip() for part in code.split(";")] if code.count(";") else (code.strip(), "")
    for name, known in ((task, tasks(places())), (recipe, RECIPES)):
        if name not in known:
            raise ValueError(f"there is no {name!r} here; there are {', '.join(known)}. ({FORM})")
    said = dict(_pair(part) for part in rest)
    if len(said) < len(rest):
        raise ValueError(f"something stands twice in {code!r}")
    numbers = {name: _whole(name, said.pop(name)) for name in ("seed", "steps") if name in said}
    knobs = {name: _position(name, text) for name, text in said.items()}
    return Opened(tasks(places())[task], recipe, numbers.get("seed", 0), numbers.get("steps"), knobs)


def _pair(part: str) -> tuple[str, str]:
    name, equals, text = part.partition("=")
    if not equals:
        raise ValueError(f"{part!r} is no setting. ({FORM})")
    return name.strip(), text.strip()


def _whole(name: str, text: str) -> int:
    least = {"seed": 0, "steps": 1}[name]
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name} is a whole number from {least} on; it was given {text!r}")
    return int(text)


def _position(name: str, text: str) -> Any:
    if name not in POSITIONS:
        raise ValueError(f"there is no knob {name!r}; there are {', '.join(POSITIONS)}")
    found = [position for position in POSITIONS[name] if str(position) == text]
    if not found:
        there = POSITIONS[name]
        words = (
            f"from {there[0]} to {there[-1]}" if isinstance(there, range) else f"one of {', '.join(map(str, there))}"
        )
        raise ValueError(f"{name} is {words}; it was given {text!r}")
    return found[0]
