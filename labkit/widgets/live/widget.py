"""How does a learner touch a running training? Buttons, a switch and a slider beside curves that grow.

Idea: this widget is a wire. The state is in `Controller`, the thread in `Driver`, the words in `words`, and the
drawing in `view.js`; here they are put together, and messages of the browser become commands.

Invariant: every command of the browser is answered by a frame that names the command's number.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from labkit.amp import RECIPES, Recipe
from labkit.train import TASKS, StepRecord, Task
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import png
from labkit.widgets.driven.thread import Driver
from labkit.widgets.driven.widget import DrivenWidget
from labkit.widgets.live.controller import GROWTH_INTERVAL, Controller
from labkit.widgets.live.figure import WHY_STATIC, static_live
from labkit.widgets.live.outbox import Outbox
from labkit.widgets.live.runs import MakeRun, make_run
from labkit.widgets.live.state import Button, Change, Command, Phase, Scaling
from labkit.widgets.live.words import sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class LiveTraining(DrivenWidget):
    """A training that runs while you change it, beside the FP32 run of the same seed.

    Args:
        task: what to learn; a name in `TASKS`, or a Task.
        recipe: in which precision; a name in `RECIPES`, or a Recipe. The controls start where the recipe stands.
        seed: decides first weights and batches, of both runs.
        steps: how many; None takes the task's own number.
        growth_interval: clean steps before a dynamic scale doubles. (torch's 2,000 never happen in a short run.)
        make_run: (task, recipe, seed) -> run, for those who bring their own.

    Everything the learner can press is here for code too: `press("start")`, `change(scaling="dynamic", log2_scale=12)`.

    Raises:
        ValueError: an unknown task or recipe, or a scale that the slider cannot show.

    >>> live = LiveTraining("digits", "FP16 static", seed=1, steps=20)
    >>> live.phase, live.history
    (<Phase.IDLE: 'idle'>, ())
    >>> live.sentence[:67]
    'Nothing has run yet. Press Start: FP16 with a static scale of 2^10 '
    >>> live.close()
    """

    _esm = script("live")
    _css = style("live")

    def __init__(
        self,
        task: Task | str = "segmentation_small",
        recipe: Recipe | str = "FP16",
        seed: int = 0,
        *,
        steps: int | None = None,
        growth_interval: int = GROWTH_INTERVAL,
        make_run: MakeRun = make_run,
    ) -> None:
        chosen_task = task if isinstance(task, Task) else _row(TASKS, task, "task")
        chosen_recipe = recipe if isinstance(recipe, Recipe) else _row(RECIPES, recipe, "recipe")
        self.controller = Controller(
            chosen_task, chosen_recipe, seed, steps=steps, growth_interval=growth_interval, make_run=make_run
        )
        self.outbox = Outbox(self.controller, self._send_frame)
        self.driver = Driver(self.controller, self.outbox)
        super().__init__()
        self.on_msg(self._hear)
        atexit.register(self.driver.close)

    @property
    def phase(self) -> Phase:
        """What the training does now."""
        return self.controller.phase

    @property
    def history(self) -> tuple[StepRecord, ...]:
        """The steps of this run so far."""
        return tuple(self.controller.ours.steps)

    def press(self, button: str) -> None:
        """Press "start", "pause", "step", "stop" or "reset"; returns at once."""
        self.driver.command(Button(button))

    def change(
        self, *, scaling: str | None = None, log2_scale: int | None = None, master_weights: bool | None = None
    ) -> None:
        """Change what is given, from the next step on; returns at once."""
        self.driver.command(Change(None if scaling is None else Scaling(scaling), log2_scale, master_weights))

    @property
    def sentence(self) -> str:
        """What the figure shows now, in words."""
        return sentence(self.controller.scene())

    def figure(self) -> Figure:
        """Return a picture of the steps so far that stands still, for reports and for hosts without widgets."""
        return static_live(self.controller, why="")

    def close(self) -> None:
        """End the training's thread and take the widget down."""
        if hasattr(self, "driver"):  # ipywidgets closes a widget too whose arguments were refused
            atexit.unregister(self.driver.close)
            self.driver.close()
        super().close()

    def _repr_mimebundle_(self, **kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        data = {**data, "text/plain": f"{self.sentence}\n{WHY_STATIC}"}
        if self.history:
            data["image/png"] = png(static_live(self.controller))
        return data, metadata

    def _command(self, content: dict[str, Any]) -> Command:
        return command_of(content)


def command_of(content: dict[str, Any]) -> Command:
    """Return the command in a browser's message.

    Raises:
        ValueError: it holds none.

    >>> command_of({"do": "change", "scaling": "off", "number": 3})
    Change(scaling=<Scaling.OFF: 'off'>, log2_scale=None, master_weights=None)
    """
    if content.get("do") == "press":
        return Button(content["button"])
    if content.get("do") == "change":
        scaling = content.get("scaling")
        return Change(
            None if scaling is None else Scaling(scaling), content.get("log2_scale"), content.get("master_weights")
        )
    raise ValueError(f'a message says {{"do": "press" or "change" or "hello" or "drawn"}}; it was given {content!r}')


def _row(table: dict[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise ValueError(f"{what} is one of {', '.join(map(repr, table))}; it was given {name!r}")
    return table[name]
