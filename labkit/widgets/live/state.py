"""In which state can a training be that a learner drives, and what does each button do to it?

Idea: five phases, five buttons, and one table. A button that means nothing in a phase changes nothing, so a press that
arrives late (the run ended while the finger came down) needs no special case.

Invariant: `press` is total: every phase and every button has an answer, and the answer is a phase.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from labkit.amp import DYNAMIC, NO_SCALING, Recipe, ScalerConfig, static
from labkit.formats import FP32

LOG2_SCALE_RANGE = (0, 30)
DEFAULT_LOG2_SCALE = 10  # where the slider stands when the recipe has no scale of its own


class Phase(StrEnum):
    """What the training does now."""

    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    FAILED = "failed"


class Button(StrEnum):
    """What a learner can press."""

    START = "start"
    PAUSE = "pause"
    STEP = "step"
    STOP = "stop"
    RESET = "reset"


class Scaling(StrEnum):
    """How the loss is scaled."""

    OFF = "off"
    STATIC = "static"
    DYNAMIC = "dynamic"


AFTER: dict[tuple[Phase, Button], Phase] = {
    (Phase.IDLE, Button.START): Phase.RUNNING,
    (Phase.IDLE, Button.STEP): Phase.PAUSED,
    (Phase.RUNNING, Button.PAUSE): Phase.PAUSED,
    (Phase.RUNNING, Button.STOP): Phase.FINISHED,
    (Phase.RUNNING, Button.RESET): Phase.IDLE,
    (Phase.PAUSED, Button.START): Phase.RUNNING,
    (Phase.PAUSED, Button.STEP): Phase.PAUSED,
    (Phase.PAUSED, Button.STOP): Phase.FINISHED,
    (Phase.PAUSED, Button.RESET): Phase.IDLE,
    (Phase.FINISHED, Button.START): Phase.RUNNING,
    (Phase.FINISHED, Button.RESET): Phase.IDLE,
    (Phase.FAILED, Button.START): Phase.RUNNING,
    (Phase.FAILED, Button.RESET): Phase.IDLE,
}


def press(phase: Phase, button: Button) -> Phase:
    """Return the phase after a button was pressed; the same phase where the button means nothing.

    >>> press(Phase.IDLE, Button.START), press(Phase.IDLE, Button.PAUSE)
    (<Phase.RUNNING: 'running'>, <Phase.IDLE: 'idle'>)
    """
    return AFTER.get((phase, button), phase)


def enabled(phase: Phase) -> frozenset[Button]:
    """Return the buttons that mean something in a phase.

    >>> sorted(enabled(Phase.FAILED))
    [<Button.RESET: 'reset'>, <Button.START: 'start'>]
    """
    return frozenset(button for before, button in AFTER if before is phase)


@dataclass(frozen=True)
class Settings:
    """What the learner chose.

    log2_scale  where the scale slider stands, 0 to 30; with scaling off it is remembered and not used

    Raises:
        ValueError: log2_scale is not a whole number in its range.
    """

    scaling: Scaling = Scaling.OFF
    log2_scale: int = DEFAULT_LOG2_SCALE
    master_weights: bool = True

    def __post_init__(self) -> None:
        low, high = LOG2_SCALE_RANGE
        if not isinstance(self.log2_scale, int) or not low <= self.log2_scale <= high:
            raise ValueError(f"log2_scale is a whole number from {low} to {high}; it was given {self.log2_scale!r}")


@dataclass(frozen=True)
class Change:
    """A command: what is None stays as it is."""

    scaling: Scaling | None = None
    log2_scale: int | None = None
    master_weights: bool | None = None


Command = Button | Change


def settings_of(recipe: Recipe) -> Settings:
    """Return where the controls stand for a recipe.

    Raises:
        ValueError: its scale is no power of two between 2^0 and 2^30, which the slider cannot show.
    """
    scaler = recipe.scaler
    exponent = math.log2(scaler.init_scale)
    low, high = LOG2_SCALE_RANGE
    if exponent != int(exponent) or not low <= exponent <= high:
        raise ValueError(
            f"the live training's slider shows scales from 2^{low} to 2^{high} in powers of two, but recipe "
            f"{recipe.name!r} starts at {scaler.init_scale:g}. Take 2^{min(max(round(exponent), low), high)}."
        )
    if scaler.dynamic:
        return Settings(Scaling.DYNAMIC, int(exponent), recipe.master_weights)
    if exponent == 0:
        return Settings(Scaling.OFF, DEFAULT_LOG2_SCALE, recipe.master_weights)
    return Settings(Scaling.STATIC, int(exponent), recipe.master_weights)


def scaler_for(settings: Settings, growth_interval: int, *, skip_on_inf: bool = True) -> ScalerConfig:
    """Return the scaler that the controls ask for.

    >>> scaler_for(Settings(Scaling.STATIC, 4), growth_interval=25).init_scale
    16.0
    """
    scale = 2.0**settings.log2_scale
    if settings.scaling is Scaling.DYNAMIC:
        return replace(DYNAMIC, init_scale=scale, growth_interval=growth_interval)
    if settings.scaling is Scaling.STATIC:
        return static(scale, skip_on_inf=skip_on_inf)
    return replace(NO_SCALING, skip_on_inf=skip_on_inf)


def recipe_for(base: Recipe, settings: Settings, growth_interval: int) -> Recipe:
    """Return the base recipe with the learner's scaling and master weights.

    Raises:
        ValueError: the recipe cannot have them; the message says why (`Recipe`).
    """
    scaler = scaler_for(settings, growth_interval, skip_on_inf=base.scaler.skip_on_inf)
    return replace(base, scaler=scaler, master_weights=settings.master_weights)


def number_format(recipe: Recipe) -> str:
    """Return the name of the format a recipe computes in.

    >>> from labkit.amp import RECIPES
    >>> number_format(RECIPES["O1"]), number_format(RECIPES["BF16"])
    ('FP16', 'BF16')
    """
    return recipe.autocast.name if recipe.autocast is not None else recipe.model.name


def why_master_is_fixed(recipe: Recipe) -> str:
    """Return why master weights cannot be switched under a recipe; an empty text where they can.

    >>> from labkit.amp import RECIPES
    >>> why_master_is_fixed(RECIPES["O1"])
    'the model itself is FP32 here, so its weights are their own master'
    """
    if recipe.model == FP32:
        return "the model itself is FP32 here, so its weights are their own master"
    if recipe.optimizer != FP32:
        return f"this recipe's optimizer steps {recipe.optimizer.name} weights, so there is no FP32 master to keep"
    return ""
