"""The knobs of a recipe: their positions, the recipe they make, and their names.

Idea: a recipe is eight answers to eight questions. `Knobs` holds the answers; `recipe_of` makes a
`Recipe` of them, and `knobs_of` reads them off one, so O0 to O3 are four positions of the same
knobs. A knob without a meaning beside another one (a master of FP32 weights) is remembered and not
used. A field without a knob (hysteresis, a floor, a rounding) stays as in the recipe that the knobs
come from.

Invariant: `recipe_of(knobs_of(recipe)) == recipe`, to the last field; what cannot be shown is
refused with a message.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from labkit.amp import DYNAMIC, NO_SCALING, RECIPES, Recipe, ScalerConfig, WeightRounding, static
from labkit.formats import BF16, FP16, FP32, Format
from labkit.gemm import SEQUENTIAL_FP16, SPECS
from labkit.train import Task

FORMATS: dict[str, Format] = {"FP32": FP32, "FP16": FP16, "BF16": BF16}
ACCUMULATORS = {"FP32": None, "FP16": SEQUENTIAL_FP16, "V100": SPECS["V100"], "H100": SPECS["H100"]}
MASTERS = ("kept", "forgotten", "none")
EPSILONS = (1e-8, 1e-6, 1e-4)
LR_RANGE = (-6, 6)
PRESETS = (
    "O0",
    "TF32",
    "O1",
    "O2",
    "O3",
    "FP16",
    "FP16 static",
    "FP16 no master",
    "BF16",
    "BF16 no master",
    "BF16 stochastic",
    "BF16 Kahan",
    "FP8 current",
    "FP8 delayed",
    "MXFP8",
    "NVFP4",
    "unit scaled",
)
LOG2_SCALE_RANGE = (0, 30)
# the slider's position if the recipe has no scale of its own
DEFAULT_LOG2_SCALE = 10
# of a scaling that is switched on here
GROWTH_INTERVAL = RECIPES["FP16 dynamic"].scaler.growth_interval


class Scaling(StrEnum):
    """How the loss is scaled."""

    OFF = "off"
    STATIC = "static"
    DYNAMIC = "dynamic"


@dataclass(frozen=True)
class Knobs:
    """Positions of the knobs.

    Attributes:
        format: what matrix products read: FP32, FP16 or BF16.
        autocast: True: the weights are FP32 and each operation casts by the lists; False: the model
            itself is converted.
        norms_fp32: a converted model keeps its normalisation layers in FP32.
        accumulator: what matrix products add up in: "FP32", "FP16" or a GPU's Tensor Core.
        masters: of a converted model: FP32 weights are "kept" between steps, "forgotten" after
            each, or there are "none": the optimizer too steps 16-bit weights.
        scaling: of the loss.
        log2_scale: where a scale starts, or stays.
        log2_lr: the task's learning rate, times a power of two.
        epsilon: of Adam; None: the task's own.
        growth_interval: clean steps before a dynamic scale grows that was switched on here.
        given: the recipe that the knobs were read off: what no knob turns stays as it has it.
    """

    format: str = "FP16"
    autocast: bool = False
    norms_fp32: bool = True
    accumulator: str = "FP32"
    masters: str = "kept"
    scaling: Scaling = Scaling.OFF
    log2_scale: int = DEFAULT_LOG2_SCALE
    log2_lr: int = 0
    epsilon: float | None = None
    growth_interval: int = GROWTH_INTERVAL
    given: Recipe = RECIPES["FP32"]


POSITIONS = {
    "format": tuple(FORMATS),
    "autocast": (False, True),
    "norms_fp32": (False, True),
    "accumulator": tuple(ACCUMULATORS),
    "masters": MASTERS,
    "scaling": tuple(Scaling),
    "log2_scale": range(LOG2_SCALE_RANGE[0], LOG2_SCALE_RANGE[1] + 1),
    "log2_lr": range(LR_RANGE[0], LR_RANGE[1] + 1),
    "epsilon": EPSILONS,
}


ALL = tuple(POSITIONS)


def why_fixed(knobs: Knobs, task: Task, offered: Collection[str] = ALL) -> dict[str, str]:
    """Return knob -> why it has no effect at the positions of the others.

    Knobs that mean something are left out.

    >>> from labkit.train import TASKS
    >>> why_fixed(Knobs(), TASKS["digits"])
    {'epsilon': 'this task is trained with SGD, which has no epsilon'}
    """
    why: dict[str, str] = {}
    if knobs.format == "FP32":
        multiplied = _multiplied(knobs)
        words = (
            f"layers multiply {multiplied}; all else is FP32"
            if multiplied
            else "everything is FP32"
        )
        why |= dict.fromkeys(("autocast", "norms_fp32", "accumulator"), words)
        why["masters"] = "the model itself is FP32 here, so its weights are their own master"
    elif knobs.autocast:
        why["norms_fp32"] = "autocast's lists decide what a norm computes in"
        why["masters"] = "under autocast the weights are FP32 themselves, and their own master"
    elif knobs.masters == "none" and "format" not in offered:
        why["masters"] = (
            f"this recipe's optimizer steps {knobs.format} weights, and master weights "
            "are FP32: that is another run"
        )
    if knobs.format == "BF16" and knobs.accumulator == "V100":
        why["accumulator"] = "a V100 multiplies no BF16; the sums are FP32"
    if not has_epsilon(task):
        why["epsilon"] = f"this task is trained with {optimizer_name(task)}, which has no epsilon"
    return {name: words for name, words in why.items() if name in offered}


def describe(knobs: Knobs) -> str:
    """Return a text on the positions that matter.

    >>> describe(Knobs(autocast=True, scaling=Scaling.DYNAMIC, log2_lr=2))
    'FP16 by autocast with dynamic scaling and 4 times the learning rate'
    """
    emulated = knobs.format != "FP32"
    said = f"{knobs.format} by autocast" if knobs.autocast and emulated else knobs.format
    if has := _features(knobs):
        said += f" with {_joined(has, 'and')}"
    if lacks := _missing(knobs):
        said += f"{',' if has else ''} without {_joined(lacks, 'or')}"
    return said


def _features(knobs: Knobs) -> list[str]:
    """Return a text on what a run has that plain FP32 does not have."""
    emulated = knobs.format != "FP32"
    converted = emulated and not knobs.autocast
    has = []
    if knobs.scaling is Scaling.STATIC:
        has.append(f"a static scale of 2^{knobs.log2_scale}")
    if knobs.scaling is Scaling.DYNAMIC:
        has.append("dynamic scaling")
    if converted and knobs.masters == "none":
        an = "an" if knobs.format == "FP16" else "a"
        has.append(f"{an} {knobs.format} optimizer")
    if converted and not knobs.norms_fp32:
        has.append(f"norms in {knobs.format}")
    rounding = knobs.given.rounding
    if converted and knobs.masters == "forgotten" and rounding is not WeightRounding.NEAREST:
        has.append(f"{rounding.value} rounding")
    if not emulated and _multiplied(knobs):
        has.append(f"{_multiplied(knobs)} operands")
    if emulated and knobs.accumulator != "FP32":
        has.append(f"sums of {_sums(knobs.accumulator)}")
    if knobs.log2_lr:
        has.append(f"{_times(knobs.log2_lr)} the learning rate")
    if knobs.epsilon is not None:
        has.append(f"epsilon {epsilon_text(knobs.epsilon)}")
    return has


def _missing(knobs: Knobs) -> list[str]:
    """Return a text on what a run lacks that its format needs."""
    lacks = []
    if knobs.scaling is Scaling.OFF and knobs.format not in ("FP32", "BF16"):
        lacks.append("scaling")
    converted = knobs.format != "FP32" and not knobs.autocast
    if converted and knobs.masters == "forgotten":
        lacks.append("master weights")
    return lacks


def _multiplied(knobs: Knobs) -> str:
    """Return the format of what layers multiply under an FP32 recipe, "" where that is FP32 too."""
    if knobs.given.products is not None:
        return knobs.given.products.forward.name
    return "TF32" if knobs.given.tf32 else ""


def operands(knobs: Knobs) -> str:
    """Return the format of what matrix products read.

    >>> operands(Knobs()), operands(knobs_of(RECIPES["FP8 delayed"]))
    ('FP16', 'E4M3')
    """
    return knobs.format if knobs.format != "FP32" else _multiplied(knobs) or "FP32"


def _joined(words: Sequence[str], last: str) -> str:
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def changed(before: Knobs, after: Knobs) -> str:
    """Return what was turned, short enough for a label in the figure; an empty text for nothing.

    >>> changed(Knobs(), Knobs(scaling=Scaling.STATIC, masters="forgotten"))
    'scaling on, 2^10, master weights forgotten'
    """
    on = {
        Scaling.OFF: "scaling off",
        Scaling.STATIC: "scaling on, 2^{}",
        Scaling.DYNAMIC: "dynamic, from 2^{}",
    }
    scale = ("scale 2^{}" if before.scaling is after.scaling else on[after.scaling]).format(
        after.log2_scale
    )
    labels = {
        "scaling": scale,
        "format": after.format,
        "autocast": f"autocast {'on' if after.autocast else 'off'}",
        "norms_fp32": f"norms in {'FP32' if after.norms_fp32 else after.format}",
        "accumulator": f"sums of {_sums(after.accumulator)}",
        "masters": f"{after.format} optimizer"
        if after.masters == "none"
        else f"master weights {after.masters}",
        "log2_scale": "" if after.scaling is Scaling.OFF else scale,
        "log2_lr": f"learning rate × {_times(after.log2_lr, '')}",
        "epsilon": "the task's own epsilon"
        if after.epsilon is None
        else f"epsilon {epsilon_text(after.epsilon)}",
    }
    turned = [
        label for name, label in labels.items() if getattr(before, name) != getattr(after, name)
    ]
    words = ", ".join(dict.fromkeys(filter(None, turned)))
    return words or (after.given.name if before.given != after.given else "")


def _sums(accumulator: str) -> str:
    return {"FP16": "FP16", "FP32": "FP32"}.get(accumulator, f"a {accumulator}")


def _times(exponent: int, word: str = " times") -> str:
    return (
        f"{2**exponent}{word}" if exponent >= 0 else f"1/{2**-exponent}" + (" of" if word else "")
    )


def epsilon_text(epsilon: float) -> str:
    """Return 1e-08 as 1e-8."""
    digits, exponent = f"{epsilon:.0e}".split("e")
    return f"{digits}e{int(exponent)}"


def lacks_masters(knobs: Knobs) -> bool:
    """Say whether 16-bit weights are all that outlasts a step.

    >>> fp32 = Knobs(format="FP32", masters="none")
    >>> lacks_masters(Knobs(masters="forgotten")), lacks_masters(fp32)
    (True, False)
    """
    return knobs.format != "FP32" and not knobs.autocast and knobs.masters != "kept"


def optimizer_name(task: Task) -> str:
    """Return the name of the class of a task's optimizer."""
    return str(
        getattr(
            getattr(task.make_optimizer, "func", task.make_optimizer),
            "__name__",
            "its own optimizer",
        )
    )


def has_epsilon(task: Task) -> bool:
    """Say whether a task's optimizer divides by a root plus epsilon."""
    return "Adam" in optimizer_name(task)


def turn(knobs: Knobs, to: Mapping[str, Any]) -> Knobs:
    """Return the knobs with some of them in other positions.

    Raises:
        ValueError: a knob has no such position, or the recipe would contradict itself.

    >>> turn(Knobs(), {"masters": "gone"})
    Traceback (most recent call last):
    ...
    ValueError: masters: expected one of kept, forgotten, none, got 'gone'
    """
    for name, position in to.items():
        there = POSITIONS.get(name, ())
        whole = not isinstance(there, range) or type(position) is int
        if position not in there or not whole:
            number = "a whole number " if isinstance(there, range) else ""
            raise ValueError(f"{name}: expected {number}{span(there)}, got {position!r}")
    result = replace(knobs, **to)
    recipe_of(result)
    return result


def span(positions: Collection[object]) -> str:
    """Return "from a to b" of a range, and "one of a, b, c" of anything else."""
    if isinstance(positions, range):
        return f"from {positions[0]} to {positions[-1]}"
    return f"one of {', '.join(map(str, positions))}"


def recipe_of(knobs: Knobs) -> Recipe:
    """Return the recipe at these positions: the given one if they are its own, else a new one.

    Raises:
        ValueError: the given recipe has something that contradicts the positions (`Recipe`).

    >>> recipe_of(knobs_of(RECIPES["O3"])).name, recipe_of(Knobs(masters="forgotten")).name
    ('O3', 'FP16 without scaling or master weights')
    """
    given = knobs.given
    if replace(knobs, log2_lr=0, epsilon=None, growth_interval=GROWTH_INTERVAL) == _read(given):
        return given
    number = FORMATS.get(knobs.format, given.autocast or given.model)
    emulated = knobs.format != "FP32"
    # on its Tensor Cores: `why_fixed` says so
    no_bf16 = knobs.accumulator == "V100" and knobs.format == "BF16"
    accumulator = None if no_bf16 else ACCUMULATORS.get(knobs.accumulator, given.accumulator)
    converted = emulated and not knobs.autocast
    forgets = converted and knobs.masters == "forgotten"
    # the scaler keeps what no knob turns
    scaler = given.scaler
    scale = 2.0**knobs.log2_scale
    if knobs.scaling is not scaling_of(scaler) or (
        knobs.scaling is not Scaling.OFF and scale != scaler.init_scale
    ):
        moving = scaler
        if not scaler.dynamic:
            moving = replace(DYNAMIC, growth_interval=knobs.growth_interval)
        scaler = {
            Scaling.OFF: replace(NO_SCALING, skip_on_inf=scaler.skip_on_inf),
            Scaling.STATIC: static(scale, skip_on_inf=scaler.skip_on_inf),
            Scaling.DYNAMIC: replace(moving, init_scale=scale),
        }[knobs.scaling]
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
        scaler=scaler,
        accumulator=accumulator if emulated else None,
        graph=False,  # it changes no number
    )
    name = given.name if replace(recipe, name=given.name) == given else preset_of(recipe)
    return replace(recipe, name=name or recipe.name)


def preset_of(recipe: Recipe) -> str:
    """Return the name of the preset with a recipe's settings, or ""."""
    return next(
        (name for name in PRESETS if replace(RECIPES[name], name=recipe.name) == recipe), ""
    )


def knobs_of(recipe: Recipe, offered: Collection[str] = ALL) -> Knobs:
    """Return the positions of the knobs for a recipe.

    Args:
        recipe: what shall be trained.
        offered: the knobs that a learner can turn; the others may have positions without a name.

    Raises:
        ValueError: an offered knob has no such position (a scale of 1000, FP8); the message says
            which it has.
    """
    knobs = _read(recipe)
    scale = recipe.scaler.init_scale
    if knobs.scaling is not Scaling.OFF and scale != 2.0**knobs.log2_scale:
        low, high = LOG2_SCALE_RANGE
        near = min(max(round(math.log2(scale)), low), high)
        raise ValueError(
            f"the slider shows scales from 2^{low} to 2^{high} in powers of two, but "
            f"recipe {recipe.name!r} starts at {scale:g}. Take 2^{near}."
        )
    missing = [name for name in offered if getattr(knobs, name) not in (*POSITIONS[name], None)]
    beside = {
        name: getattr(recipe, name)
        for name in ("name", "scaler", "graph", "rounding", "products", "tf32")
    }
    # but for what `describe` adds
    again = replace(recipe_of(replace(knobs, given=RECIPES["FP32"])), **beside)
    if missing or ("format" in offered and again != recipe):
        raise ValueError(
            f"there is no knob for all of {recipe.name!r}. Take one of {', '.join(PRESETS)}."
        )
    return knobs


def _read(recipe: Recipe) -> Knobs:
    """Return the positions of the knobs, named by us if a knob lacks the position."""
    scaling = scaling_of(recipe.scaler)
    accumulators = [n for n, v in ACCUMULATORS.items() if v == recipe.accumulator]
    exponent = int(
        min(max(math.log2(recipe.scaler.init_scale), LOG2_SCALE_RANGE[0]), LOG2_SCALE_RANGE[1])
    )
    if recipe.optimizer != FP32:
        masters = "none"
    else:
        masters = "kept" if recipe.master_weights else "forgotten"
    return Knobs(
        format=(recipe.autocast or recipe.model).name,
        autocast=recipe.autocast is not None,
        norms_fp32=recipe.keep_norms,
        accumulator=accumulators[0]
        if accumulators
        else str(getattr(recipe.accumulator, "name", recipe.accumulator)),
        masters=masters,
        scaling=scaling,
        log2_scale=exponent if scaling is not Scaling.OFF else DEFAULT_LOG2_SCALE,
        given=recipe,
    )


def scaling_of(scaler: ScalerConfig) -> Scaling:
    """Return how a scaler scales.

    >>> scaling_of(DYNAMIC), scaling_of(static(1024.0)), scaling_of(static(1.0))
    (<Scaling.DYNAMIC: 'dynamic'>, <Scaling.STATIC: 'static'>, <Scaling.OFF: 'off'>)
    """
    if scaler.dynamic:
        return Scaling.DYNAMIC
    return Scaling.STATIC if scaler.init_scale != 1 else Scaling.OFF


def lives_on(before: Knobs, after: Knobs) -> bool:
    """Return whether a run continues under the new positions, or restarts in another format."""
    old = recipe_of(before)
    new = recipe_of(after)
    on_the_way = ("name", "scaler", "master_weights")
    return all(
        getattr(old, f.name) == getattr(new, f.name)
        for f in fields(old)
        if f.name not in on_the_way
    )
