"""What happens inside one training step? Eight stages, to be walked through by hand, in any recipe and at any scale.

Idea: a task, a recipe and a seed decide a run, so the same step can be taken again at another scale: the steps before
it are replayed. Going from stage to stage only shows another part of what was measured.

Invariant: what is shown comes from a step that a run took; `another_step` takes it for good.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import traitlets

from labkit.amp import RECIPES, Recipe
from labkit.train import STAGES, StepInStages, Task, TrainingRun, watch_step
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.widget import LabWidget, limited
from labkit.widgets.step_debugger.words import as_text, sentences, tensor_view, window

OFFERED = tuple(RECIPES[name] for name in ("FP32", "O1", "O2", "O3"))
MOST_LOG2_SCALE = 40
WHY_STATIC = why_still(
    "to walk through them, or go on in code: steps.log2_scale = 30; print(steps.sentence)", "These stages stand"
)


class StepDebugger(LabWidget):
    """One training step in eight stages, with dtype, smallest and largest number, zeros and inf of every tensor.

    Args:
        task: what is trained.
        recipe: in which precision to begin with.
        recipes: the recipes on offer.
        seed: of the run.

    What can be read and set: `stage` (0 to 7), `recipe_name`, `log2_scale` (0 to 40). What can be read: `watched`,
    `sentence`. What can be done: `another_step()`, `reset()`.

    Raises:
        TraitError: a stage, a recipe or a scale that does not exist.

    >>> from labkit.train import TASKS
    >>> steps = StepDebugger(TASKS["digits"])
    >>> steps.recipe_name, steps.log2_scale
    ('O2', 16)
    >>> steps.log2_scale, steps.stage = 40, 5
    >>> steps.watched.stepped, steps.watched.scale_after == 2.0**39
    (False, True)
    """

    _esm = script("step_debugger")
    _css = style("step_debugger")

    stage = traitlets.Int(0).tag(sync=True)
    recipe_name = traitlets.Unicode().tag(sync=True)
    log2_scale = traitlets.Int(0).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _taken: list[float]  # the scales of the steps that were taken for good
    _scale: float  # that of the step on show: where the recipe's scaler has it, or where the slider was put
    _watched: StepInStages
    _sentences: list[str]
    _view = traitlets.Dict().tag(sync=True)
    _about = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        task: Task,
        recipe: Recipe = RECIPES["O2"],
        recipes: Sequence[Recipe] = OFFERED,
        *,
        seed: int = 0,
    ) -> None:
        self._task, self._seed = task, seed
        self._recipes = {row.name: row for row in (*recipes, recipe)}
        self._following = False
        about = {
            "stages": STAGES,
            "recipes": list(self._recipes),
            "most": MOST_LOG2_SCALE,
            "task": task.name,
            **window(),
        }
        super().__init__(_about=about, recipe_name=recipe.name)
        self._begin()
        self.on_msg(self._told)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self._recipes[self.recipe_name]

    @property
    def watched(self) -> StepInStages:
        """What was measured."""
        return self._watched

    def another_step(self) -> None:
        """Take the step that is shown for good, and show the next one, at the scale that the scaler asks for."""
        self._taken.append(self._watched.scale)
        self._show_scale(self._watched.scale_after)
        self._take()

    def reset(self) -> None:
        """Go back to the first step."""
        self._begin()

    @limited("stage", "log2_scale", "recipe_name")
    def _places(self) -> dict[str, Collection[Any]]:
        log2_scales = range(MOST_LOG2_SCALE + 1)
        return {"stage": range(len(STAGES)), "log2_scale": log2_scales, "recipe_name": self._recipes}

    @traitlets.observe("recipe_name", "log2_scale", "stage")
    def _follow(self, change: dict[str, Any]) -> None:
        if not self._following:
            return
        if change["name"] == "recipe_name":
            self._begin()
        elif change["name"] == "log2_scale":
            self._scale = 2.0**self.log2_scale
            self._take()
        else:
            self.sentence = self._sentences[self.stage]

    def _begin(self) -> None:
        """Stand before the first step of a new run."""
        self._taken = []
        self._show_scale(self.recipe.scaler.init_scale)
        self._take()

    def _show_scale(self, scale: float) -> None:
        """Take the next step at a scale; the slider stands at the power of two that is nearest."""
        self._following, self._scale = False, scale
        self.log2_scale = min(max(round(math.log2(scale)), 0), MOST_LOG2_SCALE)
        self._following = True

    def _take(self) -> None:
        """Take the step at the scale that was asked for, after those that were taken for good."""
        run = TrainingRun(self._task, self.recipe, self._seed, measure_every=0)
        for scale in self._taken:
            run.scaler = replace(run.scaler, scale=scale)
            run.step()
        run.scaler = replace(run.scaler, scale=self._scale)
        self._watched = watch_step(run)
        self._sentences = sentences(self._watched, self.recipe)
        views = [[tensor_view(tensor) for tensor in stage.tensors] for stage in self._watched.stages]
        with self.hold_sync():
            self._view = {
                "stages": views,
                "sentences": self._sentences,
                "step": self._watched.step,
                "stepped": self._watched.stepped,
            }
            self.sentence = self._sentences[self.stage]

    def _told(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        """Do what a button asks."""
        if content["do"] == "step":
            self.another_step()
        else:
            self.reset()

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run."""
        return still(f"{as_text(self._watched, self.recipe)}\n", WHY_STATIC)
