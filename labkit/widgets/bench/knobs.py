"""Which knobs does a recipe have, and which of them may be turned while the run goes on?

Idea: a recipe is eight answers to eight questions. `Knobs` holds the answers as a learner gives them; `recipe_of` makes
a `Recipe` of them, and `knobs_of` reads them off one, so O0 to O3 are four positions of the same knobs. Knobs that
mean nothing where another one stands (a master of weights that are FP32) are remembered and not used; what has no knob
(hysteresis, a floor, a rounding) stays as the recipe has it that the knobs were read off.

Invariant: `recipe_of(knobs_of(recipe)) == recipe`, to the last field; what cannot be shown is refused in words.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from labkit.amp import DYNAMIC, NO_SCALING, RECIPES, Recipe, ScalerConfig, WeightRounding, static
from labkit.formats import FP32, Format
from labkit.widgets.bench.labels import describe
from labkit.widgets.bench.positions import (
    ACCUMULATORS,
    ALL,
    DEFAULT_LOG2_SCALE,
    FORMATS,
    GROWTH_INTERVAL,
    LOG2_SCALE_RANGE,
    POSITIONS,
    PRESETS,
    Knobs,
    Scaling,
)


def turn(knobs: Knobs, to: Mapping[str, Any]) -> Knobs:
    """Return the knobs with some of them in other positions.

    Raises:
        ValueError: a knob has no such position, or the recipe would contradict itself.

    >>> turn(Knobs(), {"masters": "gone"})
    Traceback (most recent call last):
    ...
    ValueError: masters is one of kept, forgotten, none; it was given 'gone'
    """
    for name, position in to.items():
        there = POSITIONS.get(name, ())
        whole = not isinstance(there, range) or type(position) is int
        if position not in there or not whole:
            words = f"a whole number from {there[0]} to {there[-1]}" if isinstance(there, range) else one_of(there)
            raise ValueError(f"{name} is {words}; it was given {position!r}")
    result = replace(knobs, **to)
    recipe_of(result)
    return result


def one_of(positions: Collection[object]) -> str:
    """Return "one of a, b, c"."""
    return f"one of {', '.join(map(str, positions))}"


def recipe_of(knobs: Knobs) -> Recipe:
    """Return the recipe at these positions: the given one where they stand as it has them, else one named in words.

    Raises:
        ValueError: the given recipe has something that contradicts the positions (`Recipe`).

    >>> recipe_of(knobs_of(RECIPES["O3"])).name, recipe_of(Knobs(masters="forgotten")).name
    ('O3', 'FP16 without scaling or master weights')
    """
    given = knobs.given
    if replace(knobs, log2_lr=0, epsilon=None, growth_interval=GROWTH_INTERVAL) == _read(given):
        return given
    number, emulated = _format(knobs), knobs.format != "FP32"
    converted = emulated and not knobs.autocast
    forgets = converted and knobs.masters == "forgotten"
    recipe = replace(
        given,
        name=describe(knobs),
        rounding=given.rounding if forgets else WeightRounding.NEAREST,
        products=None if emulated else given.products,
        tf32=given.tf32 and not emulated,
        model=number if converted else FP32,
        autocast=number if emulated and knobs.autocast else None,
        keep_norms=knobs.norms_fp32 or not converted,
        master_weights=knobs.masters == "kept" or not converted,
        optimizer=number if converted and knobs.masters == "none" else FP32,
        scaler=_scaler(knobs),
        accumulator=_accumulator(knobs) if emulated else None,
        graph=False,  # it changes no number
    )
    name = given.name if replace(recipe, name=given.name) == given else preset_of(recipe)
    return replace(recipe, name=name or recipe.name)


def _format(knobs: Knobs) -> Format:
    return FORMATS.get(knobs.format, knobs.given.autocast or knobs.given.model)


def _scaler(knobs: Knobs) -> ScalerConfig:
    """Return the given recipe's scaler where the knobs leave it alone; else one that keeps what they do not turn."""
    own, scale = knobs.given.scaler, 2.0**knobs.log2_scale
    if knobs.scaling is scaling_of(own) and (knobs.scaling is Scaling.OFF or scale == own.init_scale):
        return own
    if knobs.scaling is Scaling.OFF:
        return replace(NO_SCALING, skip_on_inf=own.skip_on_inf)
    if knobs.scaling is Scaling.STATIC:
        return static(scale, skip_on_inf=own.skip_on_inf)
    moving = own if own.dynamic else replace(DYNAMIC, growth_interval=knobs.growth_interval)
    return replace(moving, init_scale=scale)


def _accumulator(knobs: Knobs) -> object:
    if knobs.accumulator == "V100" and knobs.format == "BF16":
        return None  # its Tensor Cores know no BF16: `why_fixed` says so
    return ACCUMULATORS.get(knobs.accumulator, knobs.given.accumulator)


def preset_of(recipe: Recipe) -> str:
    """Return the name of the preset that a recipe is, whatever it is called; "" if it is none."""
    return next((name for name in PRESETS if replace(RECIPES[name], name=recipe.name) == recipe), "")


def knobs_of(recipe: Recipe, offered: Collection[str] = ALL) -> Knobs:
    """Return where the knobs stand for a recipe.

    Args:
        recipe: what shall be trained.
        offered: the knobs that a learner can turn; the others may stand where they have no name.

    Raises:
        ValueError: an offered knob has no such position (a scale of 1000, FP8); the message says which it has.
    """
    knobs, scale = _read(recipe), recipe.scaler.init_scale
    if knobs.scaling is not Scaling.OFF and scale != 2.0**knobs.log2_scale:
        low, high = LOG2_SCALE_RANGE
        near = min(max(round(math.log2(scale)), low), high)
        raise ValueError(
            f"the slider shows scales from 2^{low} to 2^{high} in powers of two, but recipe {recipe.name!r} starts at "
            f"{scale:g}. Take 2^{near}."
        )
    missing = [name for name in offered if getattr(knobs, name) not in (*POSITIONS[name], None)]
    if missing or ("format" in offered and not _told_by_knobs(knobs)):
        raise ValueError(f"there is no knob for all of {recipe.name!r}. Take one of {', '.join(PRESETS)}.")
    return knobs


def _told_by_knobs(knobs: Knobs) -> bool:
    """Say whether the knobs give the recipe back, but for what is told beside them: see `labels.describe`."""
    again = recipe_of(replace(knobs, given=RECIPES["FP32"]))
    given = knobs.given
    beside = {name: getattr(given, name) for name in ("name", "scaler", "graph", "rounding", "products", "tf32")}
    return replace(again, **beside) == given


def _read(recipe: Recipe) -> Knobs:
    """Return where the knobs stand, in words of our own where they have no such position."""
    scaling, accumulators = scaling_of(recipe.scaler), [n for n, v in ACCUMULATORS.items() if v == recipe.accumulator]
    exponent = int(min(max(math.log2(recipe.scaler.init_scale), LOG2_SCALE_RANGE[0]), LOG2_SCALE_RANGE[1]))
    return Knobs(
        format=(recipe.autocast or recipe.model).name,
        autocast=recipe.autocast is not None,
        norms_fp32=recipe.keep_norms,
        accumulator=accumulators[0] if accumulators else str(getattr(recipe.accumulator, "name", recipe.accumulator)),
        masters="none" if recipe.optimizer != FP32 else "kept" if recipe.master_weights else "forgotten",
        scaling=scaling,
        log2_scale=exponent if scaling is not Scaling.OFF else DEFAULT_LOG2_SCALE,
        given=recipe,
    )


def scaling_of(scaler: ScalerConfig) -> Scaling:
    """Return how a scaler scales.

    >>> scaling_of(DYNAMIC), scaling_of(static(1024.0)), scaling_of(static(1.0))
    (<Scaling.DYNAMIC: 'dynamic'>, <Scaling.STATIC: 'static'>, <Scaling.OFF: 'off'>)
    """
    return Scaling.DYNAMIC if scaler.dynamic else Scaling.STATIC if scaler.init_scale != 1 else Scaling.OFF


def lives_on(before: Knobs, after: Knobs) -> bool:
    """Say whether a run can go on under the new positions, or has to begin anew because a format changes."""
    old, new = recipe_of(before), recipe_of(after)
    on_the_way = ("name", "scaler", "master_weights")
    return all(getattr(old, f.name) == getattr(new, f.name) for f in fields(old) if f.name not in on_the_way)
