"""The knobs of a recipe: their positions, the recipe that they make, and their names.

`recipe_of` makes a `Recipe` of the positions of all knobs, and `knobs_of` returns the positions for
a recipe, so O0 to O3 are four positions of the same knobs. A knob that has no effect beside
another one, such as master weights of FP32 weights, keeps its position. A field without a knob,
such as hysteresis, stays as in the recipe that the knobs come from.

Invariant: `recipe_of(knobs_of(recipe)) == recipe`, to the last field. A recipe that the knobs
cannot show is refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
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
# The position of the slider if the recipe has no scale.
DEFAULT_LOG2_SCALE = 10
# The growth interval of a dynamic scale that a knob switches on.
GROWTH_INTERVAL = RECIPES["FP16 dynamic"].scaler.growth_interval


class Scaling(StrEnum):
    """Kinds of loss scaling."""

    OFF = "off"
    STATIC = "static"
    DYNAMIC = "dynamic"


@dataclass(frozen=True)
class Knobs:
    """Positions of the knobs.

    Attributes:
        format: The format of the operands of matrix products: FP32, FP16 or BF16.
        autocast: True for FP32 weights and casts by autocast's lists; False for a converted model.
        norms_fp32: Whether a converted model keeps its normalization layers in FP32.
        accumulator: The format of the sums in matrix products: "FP32", "FP16", or the name of a
            GPU for the arithmetic of its Tensor Cores.
        masters: For a converted model, "kept" for FP32 master weights, "forgotten" for master
            weights that are rounded to the model's format after each step, and "none" for an
            optimizer that steps 16-bit weights.
        scaling: The kind of loss scaling.
        log2_scale: The exponent of a static scale, or of the initial dynamic scale.
        log2_lr: The exponent of a factor on the task's learning rate.
        epsilon: Adam's epsilon; None for that of the task.
        growth_interval: Clean steps before a dynamic scale grows that a knob switched on.
        given: The recipe that the knobs come from, whose other fields stay.
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
    """Return the knobs without an effect at the positions of the others, with the reason.

    Args:
        knobs: The positions of all knobs.
        task: The task that is trained.
        offered: The names of the knobs that the learner can turn.

    >>> from labkit.train import TASKS
    >>> why_fixed(Knobs(), TASKS["digits"])
    {'epsilon': 'this task is trained with SGD, which has no epsilon'}
    """
    why: dict[str, str] = {}
    if knobs.format == "FP32":
        multiplied = _multiplied(knobs)
        reason = "everything is FP32"
        if multiplied:
            reason = f"layers multiply {multiplied}; all else is FP32"
        why |= dict.fromkeys(("autocast", "norms_fp32", "accumulator"), reason)
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
    return {name: reason for name, reason in why.items() if name in offered}


def describe(knobs: Knobs) -> str:
    """Return a description of the positions that have an effect.

    >>> describe(Knobs(autocast=True, scaling=Scaling.DYNAMIC, log2_lr=2))
    'FP16 by autocast with dynamic scaling and 4 times the learning rate'
    """
    text = knobs.format
    if knobs.autocast and knobs.format != "FP32":
        text += " by autocast"
    features = _features(knobs)
    if features:
        text += f" with {_joined(features, 'and')}"
    missing = _missing(knobs)
    if missing:
        comma = "," if features else ""
        text += f"{comma} without {_joined(missing, 'or')}"
    return text


def _features(knobs: Knobs) -> list[str]:
    """Return what a run has beyond plain FP32, in a few words each."""
    is_half = knobs.format != "FP32"
    converted = is_half and not knobs.autocast
    features = []
    if knobs.scaling is Scaling.STATIC:
        features.append(f"a static scale of 2^{knobs.log2_scale}")
    if knobs.scaling is Scaling.DYNAMIC:
        features.append("dynamic scaling")
    if converted and knobs.masters == "none":
        article = "an" if knobs.format == "FP16" else "a"
        features.append(f"{article} {knobs.format} optimizer")
    if converted and not knobs.norms_fp32:
        features.append(f"norms in {knobs.format}")
    rounding = knobs.given.rounding
    if converted and knobs.masters == "forgotten" and rounding is not WeightRounding.NEAREST:
        features.append(f"{rounding.value} rounding")
    if not is_half and _multiplied(knobs):
        features.append(f"{_multiplied(knobs)} operands")
    if is_half and knobs.accumulator != "FP32":
        features.append(f"sums of {_sums(knobs.accumulator)}")
    if knobs.log2_lr > 0:
        features.append(f"{2**knobs.log2_lr} times the learning rate")
    elif knobs.log2_lr < 0:
        features.append(f"1/{2**-knobs.log2_lr} of the learning rate")
    if knobs.epsilon is not None:
        features.append(f"epsilon {epsilon_text(knobs.epsilon)}")
    return features


def _missing(knobs: Knobs) -> list[str]:
    """Return what a run lacks that its format needs."""
    missing = []
    if knobs.scaling is Scaling.OFF and knobs.format not in ("FP32", "BF16"):
        missing.append("scaling")
    converted = knobs.format != "FP32" and not knobs.autocast
    if converted and knobs.masters == "forgotten":
        missing.append("master weights")
    return missing


def _multiplied(knobs: Knobs) -> str:
    """Return the format of the operands under an FP32 recipe, or "" if it is FP32, too."""
    if knobs.given.products is not None:
        return knobs.given.products.forward.name
    return "TF32" if knobs.given.tf32 else ""


def operands(knobs: Knobs) -> str:
    """Return the name of the format of the operands of matrix products.

    >>> operands(Knobs()), operands(knobs_of(RECIPES["FP8 delayed"]))
    ('FP16', 'E4M3')
    """
    if knobs.format != "FP32":
        return knobs.format
    return _multiplied(knobs) or "FP32"


def _joined(words: Sequence[str], conjunction: str) -> str:
    """Return words as a list in a sentence: "a, b and c"."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def changed(before: Knobs, after: Knobs) -> str:
    """Return the change of the positions as a label for the figure, or "" without a change.

    >>> changed(Knobs(), Knobs(scaling=Scaling.STATIC, masters="forgotten"))
    'scaling on, 2^10, master weights forgotten'
    """
    labels = []
    if before.scaling is not after.scaling:
        labels.append(_scaling_label(after))
    if before.format != after.format:
        labels.append(after.format)
    if before.autocast != after.autocast:
        labels.append("autocast on" if after.autocast else "autocast off")
    if before.norms_fp32 != after.norms_fp32:
        labels.append("norms in FP32" if after.norms_fp32 else f"norms in {after.format}")
    if before.accumulator != after.accumulator:
        labels.append(f"sums of {_sums(after.accumulator)}")
    if before.masters != after.masters:
        has_optimizer = after.masters == "none"
        masters = (
            f"{after.format} optimizer" if has_optimizer else f"master weights {after.masters}"
        )
        labels.append(masters)
    is_same_scaling = before.scaling is after.scaling is not Scaling.OFF
    if is_same_scaling and before.log2_scale != after.log2_scale:
        labels.append(f"scale 2^{after.log2_scale}")
    if before.log2_lr != after.log2_lr:
        factor = 2**after.log2_lr if after.log2_lr >= 0 else f"1/{2**-after.log2_lr}"
        labels.append(f"learning rate × {factor}")
    if before.epsilon != after.epsilon:
        if after.epsilon is None:
            labels.append("the task's own epsilon")
        else:
            labels.append(f"epsilon {epsilon_text(after.epsilon)}")
    text = ", ".join(labels)
    if not text and before.given != after.given:
        return after.given.name
    return text


def _scaling_label(knobs: Knobs) -> str:
    if knobs.scaling is Scaling.OFF:
        return "scaling off"
    if knobs.scaling is Scaling.STATIC:
        return f"scaling on, 2^{knobs.log2_scale}"
    return f"dynamic, from 2^{knobs.log2_scale}"


def _sums(accumulator: str) -> str:
    return accumulator if accumulator in ("FP16", "FP32") else f"a {accumulator}"


def epsilon_text(epsilon: float) -> str:
    """Return an epsilon without leading zeros in its exponent: 1e-8, where Python prints 1e-08."""
    digits, exponent = f"{epsilon:.0e}".split("e")
    return f"{digits}e{int(exponent)}"


def lacks_masters(knobs: Knobs) -> bool:
    """Return whether the weights have only 16 bits between two steps.

    >>> fp32 = Knobs(format="FP32", masters="none")
    >>> lacks_masters(Knobs(masters="forgotten")), lacks_masters(fp32)
    (True, False)
    """
    return knobs.format != "FP32" and not knobs.autocast and knobs.masters != "kept"


def optimizer_name(task: Task) -> str:
    """Return the name of the class of a task's optimizer."""
    # A task passes options by functools.partial.
    make = getattr(task.make_optimizer, "func", task.make_optimizer)
    return str(getattr(make, "__name__", "its own optimizer"))


def has_epsilon(task: Task) -> bool:
    """Return whether a task's optimizer divides by a root plus epsilon."""
    return "Adam" in optimizer_name(task)


def require_knob(name: str, known: Iterable[str]) -> None:
    """Raise a ValueError for the name of a knob that is not known."""
    names = list(known)
    if name not in names:
        raise ValueError(f"knob: expected one of {', '.join(names)}, got {name!r}")


def turn(knobs: Knobs, to: Mapping[str, Any]) -> Knobs:
    """Return the knobs with some of them in other positions.

    Args:
        knobs: The positions of all knobs.
        to: The new positions by the names of the knobs.

    Raises:
        ValueError: If a knob does not exist or does not have the position, or the positions
            contradict each other.

    >>> turn(Knobs(), {"masters": "gone"})
    Traceback (most recent call last):
    ...
    ValueError: masters: expected one of kept, forgotten, none, got 'gone'
    """
    exact: dict[str, Any] = {}
    for name, position in to.items():
        require_knob(name, POSITIONS)
        positions = POSITIONS[name]
        # The known position itself: "static" and 1 are equal to Scaling.STATIC and True.
        equal = [known for known in positions if known == position]
        kind = ""
        if isinstance(positions, range):
            kind = "a whole number "
            # 3.0 and True are equal to members of a range.
            if type(position) is not int:
                equal = []
        if not equal:
            raise ValueError(f"{name}: expected {kind}{span(positions)}, got {position!r}")
        exact[name] = equal[0]
    turned = replace(knobs, **exact)
    # This raises if the positions contradict each other.
    recipe_of(turned)
    return turned


def span(positions: Collection[object]) -> str:
    """Return "from a to b" for a range, and "one of a, b, c" for anything else."""
    if isinstance(positions, range):
        return f"from {positions[0]} to {positions[-1]}"
    return f"one of {', '.join(map(str, positions))}"


def recipe_of(knobs: Knobs) -> Recipe:
    """Return the recipe at these positions.

    It is the recipe that the knobs come from if they are in its positions.

    Raises:
        ValueError: If a field of that recipe contradicts the positions; see `Recipe`.

    >>> recipe_of(knobs_of(RECIPES["O3"])).name, recipe_of(Knobs(masters="forgotten")).name
    ('O3', 'FP16 without scaling or master weights')
    """
    given = knobs.given
    if replace(knobs, log2_lr=0, epsilon=None, growth_interval=GROWTH_INTERVAL) == _read(given):
        return given
    number_format = FORMATS.get(knobs.format, given.autocast or given.model)
    is_half = knobs.format != "FP32"
    converted = is_half and not knobs.autocast
    forgets = converted and knobs.masters == "forgotten"
    accumulator = ACCUMULATORS.get(knobs.accumulator, given.accumulator)
    # The Tensor Cores of a V100 have no BF16; see `why_fixed`.
    if not is_half or (knobs.accumulator == "V100" and knobs.format == "BF16"):
        accumulator = None
    recipe = replace(
        given,
        name=describe(knobs),
        rounding=given.rounding if forgets else WeightRounding.NEAREST,
        products=None if is_half else given.products,
        tf32=given.tf32 and not is_half,
        model=number_format if converted else FP32,
        autocast=number_format if is_half and knobs.autocast else None,
        keep_norms=knobs.norms_fp32 or not converted,
        master_weights=knobs.masters == "kept" or not converted,
        optimizer=number_format if converted and knobs.masters == "none" else FP32,
        scaler=_scaler_of(knobs),
        accumulator=accumulator,
        # A graph computes the same numbers, and a live training can change its casts.
        graph=False,
    )
    if replace(recipe, name=given.name) == given:
        return replace(recipe, name=given.name)
    return replace(recipe, name=preset_of(recipe) or recipe.name)


def _scaler_of(knobs: Knobs) -> ScalerConfig:
    """Return the scaler at these positions; settings without a knob stay as they are."""
    scaler = knobs.given.scaler
    scale = 2.0**knobs.log2_scale
    is_same_kind = knobs.scaling is scaling_of(scaler)
    is_same_scale = knobs.scaling is Scaling.OFF or scale == scaler.init_scale
    if is_same_kind and is_same_scale:
        return scaler
    if knobs.scaling is Scaling.OFF:
        return replace(NO_SCALING, skip_on_inf=scaler.skip_on_inf)
    if knobs.scaling is Scaling.STATIC:
        return static(scale, skip_on_inf=scaler.skip_on_inf)
    if scaler.dynamic:
        return replace(scaler, init_scale=scale)
    return replace(DYNAMIC, growth_interval=knobs.growth_interval, init_scale=scale)


def preset_of(recipe: Recipe) -> str:
    """Return the name of the preset with a recipe's settings, or ""."""
    for name in PRESETS:
        if replace(RECIPES[name], name=recipe.name) == recipe:
            return name
    return ""


def knobs_of(recipe: Recipe, offered: Collection[str] = ALL) -> Knobs:
    """Return the positions of the knobs for a recipe.

    Args:
        recipe: The recipe.
        offered: The names of the knobs that the learner can turn. The other knobs may be in
            positions that `POSITIONS` does not list.

    Raises:
        ValueError: If an offered knob does not have the position, such as a scale of 1000.
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
    # The recipe that the knobs make by themselves, with the fields that they do not set.
    again = replace(
        recipe_of(replace(knobs, given=RECIPES["FP32"])),
        name=recipe.name,
        scaler=recipe.scaler,
        graph=recipe.graph,
        rounding=recipe.rounding,
        products=recipe.products,
        tf32=recipe.tf32,
    )
    if missing or ("format" in offered and again != recipe):
        raise ValueError(
            f"there is no knob for all of {recipe.name!r}. Take one of {', '.join(PRESETS)}."
        )
    return knobs


def _read(recipe: Recipe) -> Knobs:
    """Return the positions of the knobs, which may be positions that `POSITIONS` does not list."""
    scaling = scaling_of(recipe.scaler)
    log2_scale = DEFAULT_LOG2_SCALE
    if scaling is not Scaling.OFF:
        low, high = LOG2_SCALE_RANGE
        log2_scale = int(min(max(math.log2(recipe.scaler.init_scale), low), high))
    accumulator = str(getattr(recipe.accumulator, "name", recipe.accumulator))
    for name, known in ACCUMULATORS.items():
        if known == recipe.accumulator:
            accumulator = name
            break
    if recipe.optimizer != FP32:
        masters = "none"
    else:
        masters = "kept" if recipe.master_weights else "forgotten"
    return Knobs(
        format=(recipe.autocast or recipe.model).name,
        autocast=recipe.autocast is not None,
        norms_fp32=recipe.keep_norms,
        accumulator=accumulator,
        masters=masters,
        scaling=scaling,
        log2_scale=log2_scale,
        given=recipe,
    )


def scaling_of(scaler: ScalerConfig) -> Scaling:
    """Return the kind of scaling of a scaler.

    >>> scaling_of(DYNAMIC), scaling_of(static(1024.0)), scaling_of(static(1.0))
    (<Scaling.DYNAMIC: 'dynamic'>, <Scaling.STATIC: 'static'>, <Scaling.OFF: 'off'>)
    """
    if scaler.dynamic:
        return Scaling.DYNAMIC
    return Scaling.STATIC if scaler.init_scale != 1 else Scaling.OFF


def lives_on(before: Knobs, after: Knobs) -> bool:
    """Return whether a run continues under the new positions; otherwise it restarts."""
    old = recipe_of(before)
    new = recipe_of(after)
    # These fields can change during a run. `replace` would refuse some mixtures of two recipes.
    changeable = ("name", "scaler", "master_weights")
    fixed = [field.name for field in fields(Recipe) if field.name not in changeable]
    return all(getattr(old, name) == getattr(new, name) for name in fixed)
