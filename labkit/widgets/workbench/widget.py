"""How does a learner try a recipe on a task? A bench with every knob, a fork, and three ways to take the result along.

Idea: a wire. The state is in `Bench`, the words in `words`, the drawing in `view.js`;
messages of the browser become commands.

Invariant: what is trained is the recipe that was given, bit for bit, until a knob is turned.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import traitlets

from labkit.amp import RECIPES, Recipe
from labkit.records import write_whole
from labkit.train import StepRecord, Task, places
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import png, why_still
from labkit.widgets.base.tour import tour_of
from labkit.widgets.bench.commands import Choose, Do, Fork, Turn
from labkit.widgets.bench.controller import Bench
from labkit.widgets.bench.outbox import BenchOutbox, tasks
from labkit.widgets.bench.widget import BenchWidget, position
from labkit.widgets.driven.widget import row_of
from labkit.widgets.workbench.code import code_of, opened
from labkit.widgets.workbench.lines import torch_lines
from labkit.widgets.workbench.state import state


class Workbench(BenchWidget):
    """A training with every knob of a recipe, beside the FP32 run of the same seed; it can be forked at any step.

    Args:
        task: what to learn; a name in `TASKS` (before a GPU, in `GPU_TASKS` too), or a Task.
        recipe: where the knobs stand first; a name in `RECIPES`, or a Recipe.
        seed: decides first weights and batches, of all runs.
        steps: how many; None takes the task's own number.
        device: where to train: "gpu", "cpu"; None takes the GPU where there is one.
        folder: where records and pictures are saved.
        knobs: name -> position, for those that shall stand elsewhere than the recipe has them.

    Everything the learner can press is here for code too: `press("start")`, `turn(masters="forgotten")`, `fork(60)`.

    Raises:
        ValueError: an unknown task, recipe or device, or a recipe that has no position on the knobs.

    >>> bench = Workbench("digits", "O2", steps=20, device="cpu")
    >>> bench.phase, bench.history
    (<Phase.IDLE: 'idle'>, ())
    >>> "GradScaler" in bench.lines
    True
    >>> bench.close()
    """

    _esm = script("driven", "bench", "workbench")
    _css = style("driven", "bench", "workbench")
    tour = traitlets.List(tour_of("workbench")).tag(sync=True)
    why_static = why_still(
        'for its knobs, or go on in code: bench.press("start"), bench.turn(scaling="off"), bench.fork(60)'
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
        what = row_of(tasks(places()), task, "task"), row_of(RECIPES, recipe, "recipe")
        bench = Bench(*what, seed, steps=steps, device=device)
        bench.begin_at({name: position(name, to) for name, to in (knobs or {}).items()})
        self.folder = Path(folder)
        super().__init__(bench, BenchOutbox(bench, self._send_frame, state=state))

    @classmethod
    def from_code(cls, code: str, *, device: Any = None, folder: Path | str = ".") -> Workbench:
        """Open the workbench that a code describes; "Copy a line that opens this" and `code` make one.

        Raises:
            ValueError: there is no such task, recipe, knob or position.

        >>> bench = Workbench.from_code("digits; O2; seed=3; scaling=off", device="cpu")
        >>> bench.code
        'digits; O2; seed=3; scaling=off'
        >>> bench.close()
        """
        said = opened(code)
        options: dict[str, Any] = {"steps": said.steps, "device": device, "folder": folder, "knobs": said.knobs}
        return cls(said.task, said.recipe, said.seed, **options)

    @property
    def code(self) -> str:
        """The knobs, the task and the seed as a text, for `from_code`.

        Raises:
            ValueError: task or recipe are none of the lab's.
        """
        return code_of(self.bench)

    @property
    def forked(self) -> tuple[StepRecord, ...]:
        """The steps of the fork since it left the run."""
        return tuple(self.bench.fork.steps) if self.bench.fork is not None else ()

    def turn(self, **knobs: Any) -> None:
        """Put knobs into positions, by their names in `Knobs`; returns at once."""
        self.driver.command(Turn({knob: position(knob, to) for knob, to in knobs.items()}))

    def fork(self, step: int) -> None:
        """Let a second run leave the first after a step; its knobs are then on show. Returns at once."""
        self.driver.command(Fork(step))

    @property
    def lines(self) -> str:
        """The same run in plain torch, as a program."""
        return torch_lines(self.bench.shown.wanted, self.bench.task)

    def save(self, what: str) -> str:
        """Write the "record" or the "picture" into the folder; return where it lies, in a sentence.

        Raises:
            ValueError: nothing has run yet, or `what` is neither.
        """
        if what not in ("record", "picture"):
            raise ValueError(f'what can be saved is the "record" or the "picture"; it was given {what!r}')
        record = self.record()
        stem = f"{record.task}-{'fork' if self.bench.active else 'run'}-seed{record.seed}"
        if what == "record":
            return f"The record is in {record.save(self.folder / f'{stem}.json')}; labkit.train.load reads it."
        path = write_whole(self.folder / f"{stem}.png", png(self.figure()))
        return f"The picture is in {path}."

    def command(self, content: Mapping[str, Any]) -> Turn | Fork | Choose | Do:
        """Return the command in a browser's message.

        Raises:
            ValueError: it holds none.
        """
        match content.get("do"):
            case "fork":
                return Fork(int(content["step"]))
            case "choose" if "place" not in content:
                task, recipe = tasks(places()).get(content.get("task", "")), RECIPES.get(content.get("recipe", ""))
                return Choose(task, recipe, content.get("branch"))
            case "save":
                return Do(lambda: self.save(content["what"]))
        return super().command(content)
