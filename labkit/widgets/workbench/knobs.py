"""Which knobs does a recipe have, and which of them may be turned while the run goes on?

Idea: a recipe is eight answers to eight questions. `Knobs` holds the answers as a learner gives them; `recipe_of` makes
a `Recipe` of them, and `knobs_of` reads them off one, so O0 to O3 are four positions of the same knobs. Knobs that
mean nothing where another one stands (a master of weights that are FP32) are remembered and not used.

Invariant: `recipe_of` never raises; what cannot be is said by `why_fixed` before it is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from labkit.amp import RECIPES, Recipe
from labkit.formats import BF16, FP16, FP32, Format
from labkit.gemm import SEQUENTIAL_FP16, SPECS
from labkit.train import Task
from labkit.widgets.live.state import DEFAULT_LOG2_SCALE, LOG2_SCALE_RANGE, Scaling, Settings, scaler_for

FORMATS: dict[str, Format] = {"FP32": FP32, "FP16": FP16, "BF16": BF16}
ACCUMULATORS = {"FP32": None, "FP16": SEQUENTIAL_FP16, "V100": SPECS["V100"], "H100": SPECS["H100"]}
MASTERS = ("kept", "forgotten", "none")
EPSILONS = (1e-8, 1e-6, 1e-4)
LR_RANGE = (-6, 6)
PRESETS = ("O0", "O1", "O2", "O3", "FP16", "FP16 static", "FP16 no master", "BF16", "BF16 no master")
GROWTH_INTERVAL = 25  # torch's 2,000 would never grow in a run of some hundred steps


@dataclass(frozen=True)
class Knobs:
    """Where the knobs stand.

    format       what matrix products read: FP32, FP16 or BF16
    autocast     True: the weights are FP32 and each operation casts by the lists; False: the model itself is converted
    norms_fp32   a converted model keeps its normalisation layers in FP32
    accumulator  what matrix products add up in: "FP32", "FP16" or a GPU's Tensor Core
    masters      of a converted model: FP32 weights are "kept" between steps, "forgotten" after each, or there are
                 "none": the optimizer too steps 16-bit weights
    scaling      of the loss
    log2_scale   where a scale starts, or stays
    log2_lr      the task's learning rate, times a power of two
    epsilon      of Adam

    Raises:
        ValueError: a knob has no such position.
    """

    format: str = "FP16"
    autocast: bool = False
    norms_fp32: bool = True
    accumulator: str = "FP32"
    masters: str = "kept"
    scaling: Scaling = Scaling.OFF
    log2_scale: int = DEFAULT_LOG2_SCALE
    log2_lr: int = 0
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        for name, there in POSITIONS.items():
            if getattr(self, name) not in there:
                raise ValueError(f"{name} is one of {', '.join(map(str, there))}; it was given {getattr(self, name)!r}")


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


def recipe_of(knobs: Knobs) -> Recipe:
    """Return the recipe at these positions; it has the name of a preset where it is one.

    >>> recipe_of(knobs_of(RECIPES["O3"])).name, recipe_of(Knobs(masters="forgotten")).name
    ('O3', 'FP16 without scaling, with no masters')
    """
    number, emulated = FORMATS[knobs.format], FORMATS[knobs.format] != FP32
    converted = emulated and not knobs.autocast
    recipe = Recipe(
        describe(knobs),
        model=number if converted else FP32,
        autocast=number if emulated and knobs.autocast else None,
        keep_norms=knobs.norms_fp32 or not converted,
        master_weights=knobs.masters == "kept" or not converted,
        optimizer=number if converted and knobs.masters == "none" else FP32,
        scaler=scaler_for(Settings(knobs.scaling, knobs.log2_scale), GROWTH_INTERVAL),
        accumulator=_accumulator(knobs) if emulated else None,
    )
    return replace(recipe, name=preset_of(recipe) or recipe.name)


def _accumulator(knobs: Knobs) -> object:
    if knobs.accumulator == "V100" and knobs.format == "BF16":
        return None  # its Tensor Cores know no BF16: `why_fixed` says so
    return ACCUMULATORS[knobs.accumulator]


def preset_of(recipe: Recipe) -> str:
    """Return the name of the preset that a recipe is, whatever it is called; "" if it is none."""
    for name in PRESETS:
        preset = RECIPES[name]
        scaler = replace(preset.scaler, growth_interval=recipe.scaler.growth_interval)
        if replace(preset, name=recipe.name, scaler=scaler) == recipe:
            return name
    return ""


def knobs_of(recipe: Recipe) -> Knobs:
    """Return where the knobs stand for a recipe.

    Raises:
        ValueError: the knobs have no such position (FP8, other roundings); the message says which they have.
    """
    number, scaler = recipe.autocast or recipe.model, recipe.scaler
    exponent = int(math.log2(scaler.init_scale))
    scaling = Scaling.DYNAMIC if scaler.dynamic else Scaling.STATIC if exponent else Scaling.OFF
    names = [name for name, value in ACCUMULATORS.items() if value == recipe.accumulator]
    refusal = f"the workbench has no knob for all of {recipe.name!r}. Take one of {', '.join(PRESETS)}."
    if number.name not in FORMATS or not names:
        raise ValueError(refusal)
    knobs = Knobs(
        format=number.name,
        autocast=recipe.autocast is not None,
        norms_fp32=recipe.keep_norms,
        accumulator=names[0],
        masters="none" if recipe.optimizer != FP32 else "kept" if recipe.master_weights else "forgotten",
        scaling=scaling,
        log2_scale=exponent if scaling is not Scaling.OFF else DEFAULT_LOG2_SCALE,
    )
    again = recipe_of(knobs)
    if replace(again, name=recipe.name, scaler=recipe.scaler) != recipe:
        raise ValueError(refusal)
    return knobs


def lives_on(before: Knobs, after: Knobs) -> bool:
    """Say whether a run can go on under the new positions, or has to begin anew because a format changes."""
    old, new = recipe_of(before), recipe_of(after)
    on_the_way = ("name", "scaler", "master_weights")
    return all(getattr(old, f.name) == getattr(new, f.name) for f in fields(old) if f.name not in on_the_way)


def why_fixed(knobs: Knobs, task: Task) -> dict[str, str]:
    """Return knob -> why it means nothing where the others stand; knobs that mean something are left out.

    >>> from labkit.train import TASKS
    >>> why_fixed(Knobs(), TASKS["digits"])
    {'epsilon': 'this task is trained with SGD, which has no epsilon'}
    """
    why: dict[str, str] = {}
    if knobs.format == "FP32":
        why |= dict.fromkeys(("autocast", "norms_fp32", "accumulator", "masters"), "everything is FP32")
    elif knobs.autocast:
        why["norms_fp32"] = "autocast's lists decide what a norm computes in"
        why["masters"] = "under autocast the weights are FP32 themselves"
    if knobs.format == "BF16" and knobs.accumulator == "V100":
        why["accumulator"] = "a V100 multiplies no BF16; the sums are FP32"
    if not has_epsilon(task):
        why["epsilon"] = f"this task is trained with {optimizer_name(task)}, which has no epsilon"
    return why


def optimizer_name(task: Task) -> str:
    """Return the name of the class of a task's optimizer."""
    return str(getattr(getattr(task.make_optimizer, "func", task.make_optimizer), "__name__", "its own optimizer"))


def has_epsilon(task: Task) -> bool:
    """Say whether a task's optimizer divides by a root plus epsilon."""
    return "Adam" in optimizer_name(task)


def describe(knobs: Knobs) -> str:
    """Return the positions in words, only what matters.

    >>> describe(Knobs(autocast=True, scaling=Scaling.DYNAMIC, log2_lr=2))
    'FP16 by autocast with dynamic scaling, with 4 times the learning rate'
    """
    parts = [knobs.format + (" by autocast" if knobs.autocast and knobs.format != "FP32" else "")]
    parts.append(
        {
            Scaling.OFF: "without scaling" if knobs.format == "FP16" else "",
            Scaling.STATIC: f"with a scale of 2^{knobs.log2_scale}",
            Scaling.DYNAMIC: "with dynamic scaling",
        }[knobs.scaling]
    )
    extras = []
    if knobs.format != "FP32":
        converted = not knobs.autocast
        extras += ["no masters"] * (converted and knobs.masters == "forgotten")
        extras += [f"{_an(knobs.format)} optimizer"] * (converted and knobs.masters == "none")
        extras += [f"norms in {knobs.format}"] * (converted and not knobs.norms_fp32)
        extras += [f"sums of {_sums(knobs.accumulator)}"] * (knobs.accumulator != "FP32")
    extras += [f"{_times(knobs.log2_lr)} the learning rate"] * (knobs.log2_lr != 0)
    extras += [f"epsilon {epsilon_text(knobs.epsilon)}"] * (knobs.epsilon != EPSILONS[0])
    joined = " and ".join(filter(None, (", ".join(extras[:-1]), extras[-1] if extras else "")))
    said = " ".join(filter(None, parts))
    comma = "," if parts[1] else ""
    return f"{said}{comma} with {joined}" if joined else said


def changed(before: Knobs, after: Knobs) -> str:
    """Return what was turned, short enough for a label in the figure; an empty text for nothing.

    >>> changed(Knobs(), Knobs(scaling=Scaling.STATIC, masters="forgotten"))
    'masters forgotten, scale 2^10'
    """
    words = []
    for f in fields(Knobs):
        old, new = getattr(before, f.name), getattr(after, f.name)
        if old != new and not (f.name == "log2_scale" and after.scaling is Scaling.OFF):
            words.append(_turned(f.name, after))
    return ", ".join(dict.fromkeys(words))


def _turned(name: str, knobs: Knobs) -> str:
    scale = {
        Scaling.OFF: "scaling off",
        Scaling.STATIC: f"scale 2^{knobs.log2_scale}",
        Scaling.DYNAMIC: f"dynamic from 2^{knobs.log2_scale}",
    }[knobs.scaling]
    return {
        "format": knobs.format,
        "autocast": "autocast on" if knobs.autocast else "autocast off",
        "norms_fp32": "norms in FP32" if knobs.norms_fp32 else f"norms in {knobs.format}",
        "accumulator": f"sums of {_sums(knobs.accumulator)}",
        "masters": {"kept": "masters kept", "forgotten": "masters forgotten", "none": f"{knobs.format} optimizer"}[
            knobs.masters
        ],
        "scaling": scale,
        "log2_scale": scale,
        "log2_lr": f"learning rate × {_times(knobs.log2_lr, '')}",
        "epsilon": f"epsilon {epsilon_text(knobs.epsilon)}",
    }[name]


def _sums(accumulator: str) -> str:
    return {"FP16": "FP16", "FP32": "FP32"}.get(accumulator, f"a {accumulator}")


def _an(format: str) -> str:
    return f"{'an' if format == 'FP16' else 'a'} {format}"


def _times(exponent: int, word: str = " times") -> str:
    return f"{2**exponent}{word}" if exponent >= 0 else f"1/{2**-exponent}" + (" of" if word else "")


def epsilon_text(epsilon: float) -> str:
    """Return 1e-08 as 1e-8."""
    digits, exponent = f"{epsilon:.0e}".split("e")
    return f"{digits}e{int(exponent)}"
