"""What can a learner ask of a bench, beside pressing its buttons?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.amp import Recipe
from labkit.train import Place, Task


@dataclass(frozen=True)
class Turn:
    """A command: put knobs of the active branch into positions, all of them or none."""

    knobs: Mapping[str, Any]


@dataclass(frozen=True)
class Fork:
    """A command: let a second run leave the first one after a step."""

    step: int


@dataclass(frozen=True)
class Choose:
    """A command: another task, recipe or device, or the branch that the knobs turn (0 the run, 1 its fork)."""

    task: Task | None = None
    recipe: Recipe | None = None
    branch: int | None = None
    place: Place | None = None


@dataclass(frozen=True)
class Do:
    """A command: let the training's thread do something between two steps; what it returns is the notice."""

    work: Callable[[], str]
