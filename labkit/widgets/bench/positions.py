"""Which knobs does a recipe have, and where can each of them stand?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from labkit.amp import RECIPES, Recipe
from labkit.formats import BF16, FP16, FP32, Format
from labkit.gemm import SEQUENTIAL_FP16, SPECS

FORMATS: dict[str, Format] = {"FP32": FP32, "FP16": FP16, "BF16": BF16}
ACCUMULATORS = {"FP32": None, "FP16": SEQUENTIAL_FP16, "V100": SPECS["V100"], "H100": SPECS["H100"]}
MASTERS = ("kept", "forgotten", "none")
EPSILONS = (1e-8, 1e-6, 1e-4)
LR_RANGE = (-6, 6)
PRESETS = (
    "O0", "TF32", "O1", "O2", "O3", "FP16", "FP16 static", "FP16 no master", "BF16", "BF16 no master",
    "BF16 stochastic", "BF16 Kahan", "FP8 current", "FP8 delayed", "MXFP8", "NVFP4", "unit scaled",
)  # fmt: skip
LOG2_SCALE_RANGE = (0, 30)
DEFAULT_LOG2_SCALE = 10  # where the slider stands when the recipe has no scale of its own
GROWTH_INTERVAL = RECIPES["FP16 dynamic"].scaler.growth_interval  # of a scaling that is switched on here


class Scaling(StrEnum):
    """How the loss is scaled."""

    OFF = "off"
    STATIC = "static"
    DYNAMIC = "dynamic"


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
    epsilon      of Adam; None: the task's own
    growth_interval  clean steps before a dynamic scale grows that was switched on here
    given        the recipe that the knobs were read off: what no knob turns stays as it has it
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
