"""The workbench: a live training with every knob, a fork, and three ways to take the result along.

Idea: a workbench is handed on as a line of text: task, recipe and seed, and after them only what
differs: `"digits; O2; seed=0; scaling=off"`.

Invariant: the training is that of the recipe, bit for bit, until a knob is turned. A code holds
knobs, seed and steps, but no device.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import traitlets

from labkit.amp import RECIPES, Recipe
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
    span,
)
from labkit.widgets.live_training.widget import LiveTraining, position, tasks
from labkit.widgets.live_training.words import names
from labkit.widgets.workbench.lines import torch_lines

FORM = 'a code reads "digits; O2; seed=0; scaling=off": task, recipe, then what differs'
UNITS = (("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


def opened(code: str) -> dict[str, Any]:
    """Return the arguments of `Workbench` in a code.

    `knobs` are those whose positions differ from the recipe's.

    >>> opened("digits; O2; seed=3; scaling=off; log2_lr=-2")["knobs"]
    {'scaling': <Scaling.OFF: 'off'>, 'log2_lr': -2}
    """
    if not isinstance(code, str):
        raise TypeError(f"a code: expected a text, got {code!r}. ({FORM})")
    task, recipe, *rest = (
        [part.strip() for part in code.split(";")] if code.count(";") else (code.strip(), "")
    )
    for name, known in ((task, tasks(places())), (recipe, RECIPES)):
        if name not in known:
            raise ValueError(f"there is no {name!r} here; there are {', '.join(known)}. ({FORM})")
    if plain := [part for part in rest if "=" not in part]:
        raise ValueError(f"{plain[0]!r} is not a setting. ({FORM})")
    said = {name.strip(): text.strip() for name, _, text in (part.partition("=") for part in rest)}
    if len(said) < len(rest):
        raise ValueError(f"a setting is given twice in {code!r}")
    numbers = {}
    knobs = {}
    for name, text in said.items():
        least = {"seed": 0, "steps": 1}.get(name)
        if least is not None:
            if not text.isdecimal() or int(text) < least:
                raise ValueError(f"{name}: expected a whole number from {least} on, got {text!r}")
            numbers[name] = int(text)
            continue
        if name not in POSITIONS:
            raise ValueError(f"there is no knob {name!r}; there are {', '.join(POSITIONS)}")
        found = [position for position in POSITIONS[name] if str(position) == text]
        if not found:
            raise ValueError(f"{name}: expected {span(POSITIONS[name])}, got {text!r}")
        knobs[name] = found[0]
    return {"task": task, "recipe": recipe, **numbers, "knobs": knobs}


def size(count: int) -> str:
    """Return a number of bytes as a person reads it.

    >>> size(104_488), size(12)
    ('104 kB', '12 bytes')
    """
    unit, divisor = next((u for u in UNITS if count >= u[1]), UNITS[-1])
    return f"{count / divisor:.3g} {unit}"


class Workbench(LiveTraining, folder="workbench"):
    """A training with every knob of a recipe, beside the FP32 run of the same seed.

    It can be forked at any step.

    Args:
        task: what to learn; a name in `TASKS` (before a GPU, in `GPU_TASKS` too), or a Task.
        recipe: the first positions of the knobs: a name in `RECIPES`, or a Recipe.
        seed: decides first weights and batches, of all runs.
        steps: how many; None takes the task's own number.
        device: where to train: "gpu", "cpu"; None takes the GPU if there is one.
        folder: where records and pictures are saved.
        knobs: name -> position, for knobs that differ from the recipe.

    Everything the learner can press is here for code too: `press("start")`,
    `turn(masters="forgotten")`, `fork(60)`.

    Raises:
        ValueError: an unknown task, recipe or device, or a recipe that has no position on the
            knobs.

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
        super().__init__(task, recipe, seed, steps=steps, device=device)
        self.forked_run.begin_at({name: position(name, to) for name, to in (knobs or {}).items()})

    @classmethod
    def from_code(cls, code: str, *, device: Any = None, folder: Path | str = ".") -> Workbench:
        """Open the workbench that a code describes.

        "Copy a line that opens this" and `code` make one.

        Raises:
            ValueError: the task, recipe, knob or position does not exist.

        >>> bench = Workbench.from_code("digits; O2; seed=3; scaling=off", device="cpu")
        >>> bench.code
        'digits; O2; seed=3; scaling=off'
        >>> bench.close()
        """
        return cls(**opened(code), device=device, folder=folder)

    @property
    def code(self) -> str:
        """The knobs, the task and the seed as a text, for `from_code`.

        Raises:
            ValueError: task or recipe are none of the lab's.
        """
        forked_run = self.forked_run
        knobs = forked_run.selected.wanted
        if (
            tasks(places()).get(forked_run.task.name) is not forked_run.task
            or RECIPES.get(knobs.given.name) != knobs.given
        ):
            raise ValueError(
                "a task or recipe of your own has no code: hand over the lines that make it"
            )
        first = knobs_of(knobs.given)
        differing = [name for name in POSITIONS if getattr(knobs, name) != getattr(first, name)]
        asked = forked_run.asked_steps
        steps: list[str] = [] if asked is None else [f"steps={asked}"]
        parts = [forked_run.task.name, knobs.given.name, f"seed={forked_run.seed}", *steps]
        return "; ".join([*parts, *(f"{name}={getattr(knobs, name)}" for name in differing)])

    @property
    def forked(self) -> tuple[StepRecord, ...]:
        """The steps of the fork since it left the run."""
        return tuple(self.forked_run.fork.steps) if self.forked_run.fork is not None else ()

    def turn(self, **knobs: Any) -> None:
        """Put knobs into positions, by their names in `Knobs`; returns at once."""
        self.forked_run.ask(
            partial(self.forked_run.turn, {knob: position(knob, to) for knob, to in knobs.items()})
        )

    def fork(self, step: int) -> None:
        """Let a second run leave the first after a step.

        Its knobs are then on show. Returns at once.
        """
        self.forked_run.ask(partial(self.forked_run.fork_after, step))

    @property
    def lines(self) -> str:
        """The same run in plain torch, as a program."""
        return torch_lines(self.forked_run.selected.wanted, self.forked_run.task)

    def save(self, what: str) -> str:
        """Write the "record" or the "picture" into the folder; return where it lies, in a sentence.

        Raises:
            ValueError: nothing has run yet, or `what` is neither.
        """
        if what not in ("record", "picture"):
            raise ValueError(f'what: expected "record" or "picture", got {what!r}')
        record = self.record()
        stem = f"{record.task}-{'fork' if self.forked_run.active else 'run'}-seed{record.seed}"
        if what == "record":
            return (
                f"The record is in {record.save(self.folder / f'{stem}.json')}; "
                "labkit.train.load reads it."
            )
        path = write_atomic(self.folder / f"{stem}.png", png(self.figure()))
        return f"The picture is in {path}."

    def state(self) -> dict[str, Any]:
        try:
            opens = f'Workbench.from_code("{self.code}")'
        except ValueError:
            opens = ""  # the task or the recipe are a learner's own
        return {
            **super().state(),
            "task": self.forked_run.task.name,
            "tasks": list(tasks(places())),
            "recipe": preset_of(recipe_of(self.forked_run.selected.wanted)),
            "recipes": list(PRESETS),
            "memory": [
                {
                    "name": name,
                    "bytes": [held[category] for category in CATEGORIES],
                    "texts": [f"{category} {size(held[category])}" for category in CATEGORIES],
                    "total": size(sum(held.values())),
                }
                for name, side in zip(
                    ("FP32", *names(self.forked_run)), self.forked_run.sides, strict=True
                )
                if side.run is not None and side.done
                for held in [bytes_held(side.run.engine)]
            ],
            "lines": self.lines,
            "opens": opens,
        }

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
