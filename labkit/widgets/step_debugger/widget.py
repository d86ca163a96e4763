"""One training step in eight stages, walked through by hand, in any recipe and at any scale.

A task, a recipe and a seed decide a run. So the same step can be taken again at another scale,
after the steps before it are replayed. `labkit.train.watch_step` measures it. Each tensor becomes a
bar on an axis of powers of two, with the range of FP16 behind it, and each stage a sentence.

Invariant: tensors and sentences belong to one step of a run with the current recipe and scale.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import traitlets

from labkit.amp import RECIPES, Recipe, WeightRounding
from labkit.findings import counted
from labkit.formats import FP16, FP32
from labkit.interop import format_of
from labkit.train import STAGES, StagedStep, StepStage, Task, TensorSummary, TrainingRun, watch_step
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.number_words import brief, percent, power, short
from labkit.widgets.base.widget import LabWidget, limited

# The exponents at the ends of the axis. Smaller and larger magnitudes are drawn at its ends.
AXIS = (-44, 24)
TICKS = range(-40, 17, 8)
OFFERED = tuple(RECIPES[name] for name in ("FP32", "O1", "O2", "O3"))
MOST_LOG2_SCALE = 40
WHY_STATIC = why_still(
    "to walk through them, or go on in code: steps.log2_scale = 30; print(steps.sentence)",
    "These stages stand",
)


def window() -> dict[str, Any]:
    """Return where FP16's zones begin on the axis, and the exponents and positions of its ticks.

    Positions go from 0 to 1.
    """
    # Magnitudes up to half of the smallest subnormal number are rounded to 0.
    edges = {
        "subnormal": FP16.emin - FP16.significand_bits - 1,
        "normal": FP16.emin,
        "overflowed": FP16.emax + 1,
    }
    return {
        "edges": {name: place(2.0**exponent) for name, exponent in edges.items()},
        "ticks": [[exponent, place(2.0**exponent)] for exponent in TICKS],
    }


def place(size: float) -> float:
    """Return the position of a magnitude on the axis, from 0 to 1.

    >>> place(2.0**-44), place(2.0**-10), place(1e30)
    (0.0, 0.5, 1.0)
    """
    if size == 0:
        return 0.0
    low, high = AXIS
    share = (math.log2(size) - low) / (high - low)
    return min(max(share, 0.0), 1.0)


def tensor_view(tensor: TensorSummary) -> dict[str, Any]:
    """Return what the browser needs to draw a tensor."""
    has_range = tensor.largest > 0
    return {
        "name": tensor.name,
        "format": format_of(tensor.dtype).name,
        "elements": f"{tensor.elements:,}",
        "bar": [place(tensor.smallest), place(tensor.largest)] if has_range else None,
        "smallest": brief(tensor.smallest) if has_range else "",
        "largest": brief(tensor.largest) if has_range else "",
        "zeros": percent(tensor.zeros / tensor.elements) if tensor.zeros else "",
        "non_finite": f"{tensor.non_finite:,}" if tensor.non_finite else "",
    }


def sentences(step: StagedStep, recipe: Recipe) -> list[str]:
    """Return a sentence or two for each stage.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS, TrainingRun, watch_step
    >>> step = watch_step(TrainingRun(TASKS["digits"], RECIPES["FP32"]))
    >>> sentences(step, RECIPES["FP32"])[7]
    'Nothing to copy: the model computes with the very weights that were stepped.'
    """
    # In the order of STAGES.
    says = (_cast, _forward, _loss, _backward, _unscale, _check, _step, _copy_back)
    return [say(step, recipe, stage) for say, stage in zip(says, step.stages, strict=True)]


def as_text(step: StagedStep, recipe: Recipe) -> str:
    """Write all stages with their tensors as text."""
    lines = []
    for number, (stage, sentence) in enumerate(
        zip(step.stages, sentences(step, recipe), strict=True), 1
    ):
        lines.append(f"{number} {stage.name}: {sentence}")
        for tensor in stage.tensors:
            view = tensor_view(tensor)
            span = f"{view['smallest']:>9} .. {view['largest']:<9}" if view["bar"] else " " * 22
            rest = f"{view['zeros']} zero" if view["zeros"] else ""
            if view["non_finite"]:
                rest += f" {view['non_finite']} inf or NaN"
            lines.append(f"    {view['name']:<22} {view['format']}  {span} {rest}".rstrip())
    return "\n".join(lines)


def _cast(_step: StagedStep, recipe: Recipe, stage: StepStage) -> str:
    if recipe.autocast is not None:
        return (
            f"{recipe.name} casts nothing here: every weight stays in FP32, and autocast "
            f"casts a copy to {recipe.autocast.name} wherever a matrix product or a convolution "
            "asks for one."
        )
    if recipe.model == FP32:
        operands = "TF32" if recipe.tf32 else ""
        if recipe.products is not None:
            operands = recipe.products.forward.name
        if operands:
            return f"No weight is cast: only products round their operands, to {operands}."
        return "Nothing is cast: everything in this step is FP32."
    low = sum(format_of(tensor.dtype) == recipe.model for tensor in stage.tensors)
    kept = len(stage.tensors) - low
    norms = ""
    if kept == 1:
        norms = "; 1 normalisation layer keeps FP32"
    elif kept:
        norms = f"; {kept} normalisation layers keep FP32"
    if not recipe.master_weights:
        return (
            f"The weights are {recipe.model.name}{norms}, and there is no FP32 master behind them."
        )
    return f"The model computes with {recipe.model.name} copies of FP32 master weights{norms}."


def _forward(_step: StagedStep, recipe: Recipe, stage: StepStage) -> str:
    formats = [format_of(tensor.dtype).name for tensor in stage.tensors]
    counts = Counter(formats)
    share = " and ".join(
        f"{count} {'returns' if count == 1 else 'return'} {name}" for name, count in counts.items()
    )
    broken = next((tensor for tensor in stage.tensors if tensor.non_finite), None)
    if broken is not None:
        return (
            f"Of {counted(len(formats), 'layer')}, {share}. "
            f"{broken.name} holds {broken.non_finite:,} inf or NaN."
        )
    largest = max(stage.tensors, key=lambda tensor: tensor.largest)
    where = f"{brief(largest.largest)}, in {largest.name}"
    return (
        f"Of {counted(len(formats), 'layer')}, {share}. "
        f"The largest number is {where}; FP16 goes to {brief(FP16.max)}."
    )


def _loss(step: StagedStep, _recipe: Recipe, stage: StepStage) -> str:
    if not math.isfinite(step.loss):
        return f"The loss is {short(step.loss)}: look for the first inf or NaN up to here."
    scaled = stage.tensors[-1]
    times = "inf" if scaled.non_finite else brief(scaled.largest)
    if step.scale == 1:
        return f"The loss is {brief(step.loss)}, in FP32, and nothing scales it."
    return (
        f"The loss is {brief(step.loss)}, in FP32. Times the scale {power(step.scale)} it is "
        f"{times}."
    )


def _backward(step: StagedStep, _recipe: Recipe, stage: StepStage) -> str:
    bad = sum(tensor.non_finite for tensor in stage.tensors)
    zeros = sum(tensor.zeros for tensor in stage.tensors)
    total = sum(tensor.elements for tensor in stage.tensors)
    if bad:
        return (
            f"At scale {power(step.scale)} gradients overflow: {bad:,} of {total:,} numbers "
            "are inf or NaN."
        )
    times = f"Every gradient is {power(step.scale)} times that of the loss"
    if step.scale == 1:
        times = "Nothing is scaled"
    if zeros == total:
        return f"{times}, and all {total:,} of them are zero: no weight will learn from this step."
    low = min(tensor.smallest for tensor in stage.tensors if tensor.smallest)
    high = max(tensor.largest for tensor in stage.tensors)
    return (
        f"{times}: they go from {brief(low)} to {brief(high)}, and {percent(zeros / total)} "
        "of them are zero."
    )


def _unscale(step: StagedStep, _recipe: Recipe, stage: StepStage) -> str:
    dtype = format_of(stage.tensors[0].dtype).name
    non_zero = [tensor.smallest for tensor in stage.tensors if tensor.smallest]
    if not non_zero:
        return (
            f"Divided by {power(step.scale)} in {dtype}: no finite gradient other than zero "
            "is left."
        )
    low = min(non_zero)
    why = "which FP16 could hold too"
    if low < FP16.smallest_subnormal / 2:
        why = "which FP16 would have rounded to 0"
    how = f"First to {dtype}, then divided by {power(step.scale)}"
    if step.scale == 1:
        how = f"In {dtype}, divided by 1"
    return f"{how}. The smallest weight gradient is {brief(low)}, {why}."


def _check(step: StagedStep, recipe: Recipe, stage: StepStage) -> str:
    total = sum(tensor.elements for tensor in stage.tensors)
    bad = sum(tensor.non_finite for tensor in stage.tensors)
    if not step.found_inf:
        grown = ""
        if step.scale_after != step.scale:
            grown = f" The scale becomes {power(step.scale_after)}."
        return f"All {total:,} gradients are finite: the step may happen.{grown}"
    first = next((tensor.name for tensor in stage.tensors if tensor.non_finite), "a gradient")
    found = f"found_inf: {bad:,} of {total:,} gradients are inf or NaN, first in {first}."
    if step.stepped:
        return f"{found} {recipe.name} does not look, so the step happens all the same."
    if step.scale_after == step.scale:
        return f"{found} The step is skipped, and the scale of {recipe.name} does not move."
    return f"{found} The step is skipped, and the scale goes down to {power(step.scale_after)}."


def _step(step: StagedStep, recipe: Recipe, stage: StepStage) -> str:
    if not step.stepped:
        return "Skipped: the weights and the optimizer's state stay as they were."
    what = f"{recipe.optimizer.name} weights"
    if recipe.model != recipe.optimizer:
        # Without a master, the step's result was rounded before its weights were counted.
        what = f"{recipe.model.name} weights"
        if recipe.master_weights:
            what = f"{recipe.optimizer.name} master weights"
        elif recipe.rounding is WeightRounding.KAHAN:
            what += " with their compensation"
    bad = sum(tensor.non_finite for tensor in stage.tensors)
    if bad:
        share = f"{bad:,} of its {step.weights:,} updates"
        return f"The optimizer computes in {recipe.optimizer.name}, and {share} are inf or NaN."
    largest = max(tensor.largest for tensor in stage.tensors)
    return (
        f"The optimizer moves {step.moved:,} of {step.weights:,} {what}, by {brief(largest)} "
        "at most."
    )


def _copy_back(step: StagedStep, recipe: Recipe, stage: StepStage) -> str:
    bad = sum(tensor.non_finite for tensor in stage.tensors)
    total = sum(tensor.elements for tensor in stage.tensors)
    if bad:
        which = "Every weight is" if bad == total else f"{bad:,} of {total:,} weights are"
        return f"{which} inf or NaN: this model is lost, and no later step repairs it."
    if recipe.model == recipe.optimizer:
        return "Nothing to copy: the model computes with the very weights that were stepped."
    if not step.stepped:
        return "Nothing moved, so nothing changes."
    stayed = step.moved - step.model_moved
    if not recipe.master_weights and recipe.rounding is not WeightRounding.KAHAN:
        missed = "what rounding took off is forgotten"
    elif stayed > 0:
        fate = "stays in the master" if recipe.master_weights else "is kept in the compensation"
        missed = f"for {stayed:,} the update was less than half an ulp, and {fate}"
    else:
        missed = "none was missed"
    moved = f"{step.model_moved:,} of {step.weights:,} weights change"
    return f"Rounded into the model's {recipe.model.name}, {moved}; {missed}."


class StepDebugger(LabWidget, folder="step_debugger"):
    """One training step in eight stages, with dtype, range, zeros and inf of every tensor.

    Args:
        task: The task that is trained.
        recipe: The first recipe.
        recipes: The recipes that can be chosen.
        seed: The seed of the run.

    Traits to read and set: `stage` (0 to 7), `recipe_name` and `log2_scale` (0 to 40). To read:
    `watched` (the step with its stages) and `sentence` (that of the stage).

    Raises:
        TraitError: The stage, the recipe or the scale does not exist.

    >>> from labkit.train import TASKS
    >>> steps = StepDebugger(TASKS["digits"])
    >>> steps.recipe_name, steps.log2_scale
    ('O2', 16)
    >>> steps.log2_scale, steps.stage = 40, 5
    >>> steps.watched.stepped, steps.watched.scale_after == 2.0**39
    (False, True)
    """

    stage = traitlets.Int(0).tag(sync=True)
    recipe_name = traitlets.Unicode().tag(sync=True)
    log2_scale = traitlets.Int(0).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    # The scales of the steps before the one that is shown.
    _taken: list[float]
    # The scale of the step that is shown: that of the recipe's scaler, or of the slider.
    _scale: float
    _watched: StagedStep
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
        self._task = task
        self._seed = seed
        self._recipes = {row.name: row for row in (*recipes, recipe)}
        self._following = False
        about = {
            "stages": STAGES,
            "recipes": list(self._recipes),
            "most": MOST_LOG2_SCALE,
            "task": task.name,
        }
        super().__init__(_about=about | window(), recipe_name=recipe.name)
        self.reset()
        self.on_msg(self._on_message)

    @property
    def recipe(self) -> Recipe:
        return self._recipes[self.recipe_name]

    @property
    def watched(self) -> StagedStep:
        return self._watched

    def _on_message(self, _: object, content: dict[str, Any], __: object) -> None:
        match content.get("do"):
            case "step":
                self.another_step()
            case "reset":
                self.reset()

    def another_step(self) -> None:
        """Keep the step that is shown, and show the next one, at the scaler's new scale."""
        self._taken.append(self._watched.scale)
        self._show_scale(self._watched.scale_after)
        self._take()

    @limited("stage", "log2_scale", "recipe_name")
    def _places(self) -> dict[str, Collection[Any]]:
        log2_scales = range(MOST_LOG2_SCALE + 1)
        return {
            "stage": range(len(STAGES)),
            "log2_scale": log2_scales,
            "recipe_name": self._recipes,
        }

    @traitlets.observe("recipe_name", "log2_scale", "stage")
    def _follow(self, change: dict[str, Any]) -> None:
        if not self._following:
            return
        if change["name"] == "recipe_name":
            self.reset()
        elif change["name"] == "log2_scale":
            self._scale = 2.0**self.log2_scale
            self._take()
        else:
            self.sentence = self._sentences[self.stage]

    def reset(self) -> None:
        """Prepare the first step of a new run."""
        self._taken = []
        self._show_scale(self.recipe.scaler.init_scale)
        self._take()

    def _show_scale(self, scale: float) -> None:
        """Set the scale of the next step; the slider shows the nearest power of two.

        A scaler can have a scale between or beyond the positions of the slider, so that the slider
        must not set `_scale` here.
        """
        self._scale = scale
        self._following = False
        try:
            self.log2_scale = min(max(round(math.log2(scale)), 0), MOST_LOG2_SCALE)
        finally:
            self._following = True

    def _take(self) -> None:
        """Replay the steps before, take a step at `_scale`, and show it."""
        run = TrainingRun(self._task, self.recipe, self._seed, measure_every=0)
        for scale in self._taken:
            run.scaler = replace(run.scaler, scale=scale)
            run.step()
        run.scaler = replace(run.scaler, scale=self._scale)
        self._watched = watch_step(run)
        self._sentences = sentences(self._watched, self.recipe)
        views = [
            [tensor_view(tensor) for tensor in stage.tensors] for stage in self._watched.stages
        ]
        with self.hold_sync():
            step = {"step": self._watched.step, "stepped": self._watched.stepped}
            self._view = {"stages": views, "sentences": self._sentences, **step}
            self.sentence = self._sentences[self.stage]

    def still(self) -> dict[str, Any]:
        return still(f"{as_text(self._watched, self.recipe)}\n", WHY_STATIC)
