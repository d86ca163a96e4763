"""The workbench: a live training with every knob of a recipe, and a fork.

Its record and its picture can be saved. A line of text, the code of a workbench, opens it again:
`"digits; O2; seed=0; scaling=off"` has the task, the recipe, the seed, and the knobs that differ
from the recipe.

Invariant: the training is that of the recipe, bit for bit, until a knob is turned. A code does not
have the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import traitlets

from labkit.amp import RECIPES, Recipe
from labkit.findings import counted
from labkit.records import write_atomic
from labkit.train import CATEGORIES, StepRecord, Task, bytes_held, places
from labkit.widgets.base.figures import png, why_still
from labkit.widgets.base.widget import tour_of
from labkit.widgets.driven.controller import Command
from labkit.widgets.live_training.knobs import (
    ALL,
    POSITIONS,
    PRESETS,
    knobs_of,
    preset_of,
    recipe_of,
    require_knob,
    span,
)
from labkit.widgets.live_training.widget import LiveTraining, position, tasks
from labkit.widgets.live_training.words import names
from labkit.widgets.workbench.lines import torch_lines

FORM = 'a code reads "digits; O2; seed=0; scaling=off": task, recipe, then what differs'
UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
# The settings of a code that are whole numbers, with the least value of each.
NUMBERS = {"seed": 0, "steps": 1}


def opened(code: str) -> dict[str, Any]:
    """Return the arguments of `Workbench` in a code.

    Raises:
        TypeError: The code is not a text.
        ValueError: The task, the recipe, a setting or its value does not exist, or a setting is
            given twice.

    >>> opened("digits; O2; seed=3; scaling=off; log2_lr=-2")["knobs"]
    {'scaling': <Scaling.OFF: 'off'>, 'log2_lr': -2}
    """
    if not isinstance(code, str):
        raise TypeError(f"a code: expected a text, got {code!r}. ({FORM})")
    task, *others = [part.strip() for part in code.split(";")]
    recipe = others[0] if others else ""
    for what, name, known in (("task", task, tasks(places())), ("recipe", recipe, RECIPES)):
        if name not in known:
            raise ValueError(f"{what}: expected one of {', '.join(known)}, got {name!r}. ({FORM})")
    numbers: dict[str, int] = {}
    knobs: dict[str, Any] = {}
    for name, text in _settings(others[1:], code).items():
        if name in NUMBERS:
            numbers[name] = _whole_number(name, text)
        else:
            knobs[name] = _position_in(name, text)
    return {"task": task, "recipe": recipe, **numbers, "knobs": knobs}


def _settings(parts: Sequence[str], code: str) -> dict[str, str]:
    """Return name -> text of the parts NAME=TEXT of a code."""
    settings: dict[str, str] = {}
    for part in parts:
        name, equals, text = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is not a setting. ({FORM})")
        if name.strip() in settings:
            raise ValueError(f"{name.strip()}: expected to be given once, got {code!r}")
        settings[name.strip()] = text.strip()
    return settings


def _whole_number(name: str, text: str) -> int:
    """Return the value of a setting in `NUMBERS`."""
    least = NUMBERS[name]
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name}: expected a whole number from {least} on, got {text!r}")
    return int(text)


def _position_in(name: str, text: str) -> Any:
    """Return the position of a knob whose text this is."""
    require_knob(name, POSITIONS)
    for each in POSITIONS[name]:
        if str(each) == text:
            return each
    kind = "a whole number " if isinstance(POSITIONS[name], range) else ""
    raise ValueError(f"{name}: expected {kind}{span(POSITIONS[name])}, got {text!r}")


def size(count: int) -> str:
    """Return a number of bytes as text, with three digits and a unit.

    >>> size(2_500_000_000), size(999_600), size(104_488), size(1)
    ('2.5 GB', '1 MB', '104 kB', '1 byte')
    """
    if count < 1000:
        return counted(count, "byte")
    rounded = float(f"{count:.3g}")
    unit, divisor = next(each for each in UNITS if rounded >= each[1])
    return f"{rounded / divisor:.4g} {unit}"


class Workbench(LiveTraining, folder="workbench"):
    """A training with every knob of a recipe, beside the FP32 run of the same seed.

    It can be forked at any step.

    Args:
        task: The task: a name in `TASKS` (on a machine with a GPU also in `GPU_TASKS`), or a Task.
        recipe: The first positions of the knobs: a name in `RECIPES`, or a Recipe.
        seed: The seed of the first weights and the batches, of all runs.
        steps: The number of steps; None for the task's own number.
        device: "gpu", "cpu", a `Place`, or None for the GPU if there is one.
        folder: The folder in which records and pictures are saved.
        knobs: Name -> position, for knobs that differ from the recipe.

    Python code can do what the learner does: `press("start")`, `turn(masters="forgotten")`,
    `fork(60)`.

    Raises:
        ValueError: The task, the recipe, the device, a knob or its position does not exist, or the
            knobs have no positions for the recipe.

    >>> bench = Workbench("digits", "O2", steps=20, device="cpu")
    >>> bench.phase, bench.history
    (<Phase.IDLE: 'idle'>, ())
    >>> "GradScaler" in bench.lines
    True
    >>> bench.close()
    """

    title = "Workbench"
    offered = ALL
    forkable = True
    tour = traitlets.List(tour_of("workbench")).tag(sync=True)
    why_static = why_still(
        'for its knobs, or go on in code: bench.press("start"), '
        'bench.turn(scaling="off"), bench.fork(60)'
    )

    def __init__(
        self,
        task: Task | str = "segmentation_small",
        recipe: Recipe | str = "O2",
        seed: int = 0,
        *,
        steps: int | None = None,
        device: Any = None,
        folder: Path | str = ".",
        knobs: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        positions = {name: position(name, to) for name, to in (knobs or {}).items()}
        super().__init__(task, recipe, seed, steps=steps, device=device)
        try:
            self.forked_run.begin_at(positions)
        except ValueError:
            # A workbench that cannot be returned must not stay registered with the kernel.
            self.close()
            raise

    @classmethod
    def from_code(cls, code: str, *, device: Any = None, folder: Path | str = ".") -> Workbench:
        """Return the workbench that a code describes.

        Args:
            code: The code: the attribute `code` of a workbench, or the line that its page copies.
            device: As for `Workbench`.
            folder: As for `Workbench`.

        Raises:
            TypeError: The code is not a text.
            ValueError: The task, recipe, knob or position does not exist.

        >>> bench = Workbench.from_code("digits; O2; seed=3; scaling=off", device="cpu")
        >>> bench.code
        'digits; O2; seed=3; scaling=off'
        >>> bench.close()
        """
        return cls(**opened(code), device=device, folder=folder)

    @property
    def code(self) -> str:
        """The task, the recipe, the seed and the knobs as a text, for `from_code`.

        Raises:
            ValueError: The lab does not have the task or the recipe.
        """
        forked_run = self.forked_run
        knobs = forked_run.selected.wanted
        is_own_task = tasks(places()).get(forked_run.task.name) is not forked_run.task
        is_own_recipe = RECIPES.get(knobs.given.name) != knobs.given
        if is_own_task or is_own_recipe:
            raise ValueError(
                "a task or recipe of your own has no code: hand over the lines that make it"
            )
        parts = [forked_run.task.name, knobs.given.name, f"seed={forked_run.seed}"]
        if forked_run.asked_steps is not None:
            parts.append(f"steps={forked_run.asked_steps}")
        first = knobs_of(knobs.given)
        differing = [name for name in POSITIONS if getattr(knobs, name) != getattr(first, name)]
        parts += [f"{name}={getattr(knobs, name)}" for name in differing]
        return "; ".join(parts)

    @property
    def forked(self) -> tuple[StepRecord, ...]:
        """The steps of the fork since it left the run; empty without a fork."""
        if self.forked_run.fork is None:
            return ()
        return tuple(self.forked_run.fork.steps)

    def turn(self, **knobs: Any) -> None:
        """Turn knobs to positions, by their names in `Knobs`, without waiting for the effect.

        Raises:
            ValueError: The kind of scaling does not exist. Other knobs and positions are refused
                later, when the training thread makes the change; the page then shows why.
        """
        positions = {knob: position(knob, to) for knob, to in knobs.items()}
        self.forked_run.ask(partial(self.forked_run.turn, positions))

    def fork(self, step: int) -> None:
        """Fork a second run from the first after a step, without waiting for it.

        The page then shows the knobs of the fork.
        """
        self.forked_run.ask(partial(self.forked_run.fork_after, step))

    @property
    def lines(self) -> str:
        """The same run in plain torch, as a program."""
        return torch_lines(self.forked_run.selected.wanted, self.forked_run.task)

    def save(self, what: str) -> str:
        """Save the "record" or the "picture" to the folder; return a sentence with the path.

        Raises:
            OSError: The folder cannot be written to.
            ValueError: No step was done yet, or `what` is neither of them.
        """
        if what not in ("record", "picture"):
            raise ValueError(f'what: expected "record" or "picture", got {what!r}')
        record = self.record()
        branch = "fork" if self.forked_run.active else "run"
        stem = f"{record.task}-{branch}-seed{record.seed}"
        if what == "record":
            path = record.save(self.folder / f"{stem}.json")
            return f"The record is in {path}; labkit.train.load reads it."
        path = write_atomic(self.folder / f"{stem}.png", png(self.figure()))
        return f"The picture is in {path}."

    def state(self) -> dict[str, Any]:
        try:
            opens = f'Workbench.from_code("{self.code}")'
        except ValueError:
            # The task or the recipe is the learner's own.
            opens = ""
        return {
            **super().state(),
            "task": self.forked_run.task.name,
            "tasks": list(tasks(places())),
            "recipe": preset_of(recipe_of(self.forked_run.selected.wanted)),
            "recipes": list(PRESETS),
            "memory": self._memory_rows(),
            "lines": self.lines,
            "opens": opens,
        }

    def _memory_rows(self) -> list[dict[str, Any]]:
        """Return the bytes that each run keeps between steps; runs without steps are left out."""
        rows = []
        run_names = ("FP32", *names(self.forked_run))
        for name, side in zip(run_names, self.forked_run.sides, strict=True):
            if side.run is None or side.done == 0:
                continue
            held = bytes_held(side.run.engine)
            row = {
                "name": name,
                "bytes": [held[category] for category in CATEGORIES],
                "texts": [f"{category} {size(held[category])}" for category in CATEGORIES],
                "total": size(sum(held.values())),
            }
            rows.append(row)
        return rows

    def command(self, content: Mapping[str, Any]) -> Command:
        match content.get("do"):
            case "fork":
                return partial(self.forked_run.fork_after, int(content["step"]))
            case "choose" if "place" not in content:
                task = tasks(places()).get(content.get("task", ""))
                recipe = RECIPES.get(content.get("recipe", ""))
                return partial(self.forked_run.choose, task, recipe, content.get("branch"))
            case "save":
                return partial(self._save_and_say, content["what"])
        return super().command(content)

    def _save_and_say(self, what: str) -> None:
        self.forked_run.notice = self.save(what)
