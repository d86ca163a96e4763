"""How does a learner try a recipe on a task? A bench with every knob, a fork, and three ways to take the result along.

Idea: a wire, as `LiveTraining` is: the state is in `Bench`, the thread in `Driver`, the words in `words`, the
drawing in `view.js`. Messages of the browser become commands.

Invariant: every command of the browser is answered by a frame that names the command's number.
"""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.amp import RECIPES, Recipe
from labkit.train import TASKS, RunRecord, StepRecord, Task, write_whole
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import png
from labkit.widgets.driven.thread import Driver
from labkit.widgets.driven.widget import DrivenWidget
from labkit.widgets.live.state import Button, Phase, Scaling
from labkit.widgets.workbench.controller import Bench, Choose, Do, Fork, Turn
from labkit.widgets.workbench.figure import WHY_STATIC, static_bench
from labkit.widgets.workbench.knobs import EPSILONS, epsilon_text
from labkit.widgets.workbench.lines import torch_lines
from labkit.widgets.workbench.view import BenchOutbox
from labkit.widgets.workbench.words import sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Workbench(DrivenWidget):
    """A training with every knob of a recipe, beside the FP32 run of the same seed; it can be forked at any step.

    Args:
        task: what to learn; a name in `TASKS`, or a Task.
        recipe: where the knobs stand first; a name in `RECIPES`, or a Recipe.
        seed: decides first weights and batches, of all runs.
        steps: how many; None takes the task's own number.
        folder: where records and pictures are saved.

    Everything the learner can press is here for code too: `press("start")`, `turn(masters="forgotten")`, `fork(60)`.

    Raises:
        ValueError: an unknown task or recipe, or one that has no position on the knobs.

    >>> bench = Workbench("digits", "O2", steps=20)
    >>> bench.phase, bench.history
    (<Phase.IDLE: 'idle'>, ())
    >>> "GradScaler" in bench.lines
    True
    >>> bench.close()
    """

    _esm = script("workbench")
    _css = style("workbench")

    def __init__(
        self,
        task: Task | str = "segmentation_small",
        recipe: Recipe | str = "O2",
        seed: int = 0,
        *,
        steps: int | None = None,
        folder: Path | str = ".",
    ) -> None:
        self.bench = Bench(
            task if isinstance(task, Task) else _row(TASKS, task, "task"),
            recipe if isinstance(recipe, Recipe) else _row(RECIPES, recipe, "recipe"),
            seed,
            steps=steps,
        )
        self.folder = Path(folder)
        self.outbox = BenchOutbox(self.bench, self._send_frame)
        self.driver = Driver(self.bench, self.outbox)
        super().__init__()
        self.on_msg(self._hear)
        atexit.register(self.driver.close)

    # --- for code -----------------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """What the training does now."""
        return self.bench.phase

    @property
    def history(self) -> tuple[StepRecord, ...]:
        """The steps of the run so far."""
        return tuple(self.bench.run.steps)

    @property
    def forked(self) -> tuple[StepRecord, ...]:
        """The steps of the fork since it left the run."""
        return tuple(self.bench.fork.steps) if self.bench.fork is not None else ()

    def press(self, button: str) -> None:
        """Press "start", "pause", "step", "stop" or "reset"; returns at once."""
        self.driver.command(Button(button))

    def turn(self, **knobs: Any) -> None:
        """Put knobs into positions, by their names in `Knobs`; returns at once."""
        for knob, to in knobs.items():
            self.driver.command(Turn(knob, Scaling(to) if knob == "scaling" else to))

    def fork(self, step: int) -> None:
        """Let a second run leave the first after a step; its knobs are then on show. Returns at once."""
        self.driver.command(Fork(step))

    def record(self) -> RunRecord:
        """Return the record of the run whose knobs are on show.

        Raises:
            ValueError: nothing has run yet.
        """
        return self.bench.record()

    @property
    def lines(self) -> str:
        """The same run in plain torch, as a program."""
        return torch_lines(self.bench.turned.wanted, self.bench.task)

    @property
    def sentence(self) -> str:
        """What the bench shows now, in words."""
        return sentence(self.bench)

    def figure(self) -> Figure:
        """Return a picture of the steps so far that stands still."""
        return static_bench(self.bench)

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

    def close(self) -> None:
        """End the training's thread and take the widget down."""
        if hasattr(self, "driver"):  # ipywidgets closes a widget too whose arguments were refused
            atexit.unregister(self.driver.close)
            self.driver.close()
        super().close()

    # --- for the browser ----------------------------------------------------------------------------------------

    def _repr_mimebundle_(self, **kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        data = {**data, "text/plain": f"{self.sentence}\n{WHY_STATIC}"}
        if self.history:
            data["image/png"] = png(static_bench(self.bench, why=WHY_STATIC))
        return data, metadata

    def _command(self, content: dict[str, Any]) -> Button | Turn | Fork | Choose | Do:
        match content.get("do"):
            case "press":
                return Button(content["button"])
            case "turn":
                return Turn(content["knob"], _position(content["knob"], content["to"]))
            case "fork":
                return Fork(int(content["step"]))
            case "choose":
                return Choose(
                    TASKS.get(content.get("task", "")), RECIPES.get(content.get("recipe", "")), content.get("branch")
                )
            case "save":
                return Do(lambda: self.save(content["what"]))
        raise ValueError(f"the page asked for {content!r}, which the workbench does not know")


def _position(knob: str, to: Any) -> Any:
    if knob == "scaling":
        return Scaling(to)
    if knob == "epsilon":
        return next((e for e in EPSILONS if epsilon_text(e) == to), to)
    return to


def _row(table: dict[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise ValueError(f"{what} is one of {', '.join(map(repr, table))}; it was given {name!r}")
    return table[name]
