"""Mixed-precision training: loss scaling, master weights, autocast, and their combinations."""

from labkit.amp.casting.autocast import CastEvent, autocast
from labkit.amp.casting.cast_cache import CastCache
from labkit.amp.casting.custom import (
    Registered,
    custom_bwd,
    custom_fwd,
    float_function,
    half_function,
    promote_function,
    register,
)
from labkit.amp.casting.ledger import LedgerRow, ledger
from labkit.amp.casting.lists import POLICY, Entry, Rule, rule_for
from labkit.amp.checkpoint import load as load_checkpoint
from labkit.amp.checkpoint import read as read_checkpoint
from labkit.amp.checkpoint import save as save_checkpoint
from labkit.amp.ema import Ema
from labkit.amp.engine import Engine
from labkit.amp.graph.cast_graph import CastGraph
from labkit.amp.graph.explain import Explanation, explain
from labkit.amp.loss_scaling.layer_scales import layer_scales
from labkit.amp.loss_scaling.presets import PRESETS
from labkit.amp.loss_scaling.scaler import (
    DYNAMIC,
    NO_SCALING,
    Decision,
    ScalerConfig,
    ScalerState,
    StepReport,
    advance,
    decide,
    initial,
    must_skip,
    static,
)
from labkit.amp.loss_scaling.skips import diagnosis, step_report
from labkit.amp.loss_scaling.unscale import unscale
from labkit.amp.low_bit.operands import (
    ProductFormat,
    TensorScale,
    rotate,
    round_saturating,
    round_to_blocks,
)
from labkit.amp.masters.convert import to_fp32, to_model_format
from labkit.amp.masters.groups import no_decay_on_norms_and_biases
from labkit.amp.masters.weights import Weights
from labkit.amp.masters.without_master import WeightRounding, store_rounded
from labkit.amp.recipe import RECIPES, Recipe, as_recipe, as_recipes
from labkit.instrument.events import Moment, StepEvent

__all__ = [
    "DYNAMIC",
    "NO_SCALING",
    "POLICY",
    "PRESETS",
    "RECIPES",
    "CastCache",
    "CastEvent",
    "CastGraph",
    "Decision",
    "Ema",
    "Engine",
    "Entry",
    "Explanation",
    "LedgerRow",
    "Moment",
    "ProductFormat",
    "Recipe",
    "Registered",
    "Rule",
    "ScalerConfig",
    "ScalerState",
    "StepEvent",
    "StepReport",
    "TensorScale",
    "WeightRounding",
    "Weights",
    "advance",
    "as_recipe",
    "as_recipes",
    "autocast",
    "custom_bwd",
    "custom_fwd",
    "decide",
    "diagnosis",
    "explain",
    "float_function",
    "half_function",
    "initial",
    "layer_scales",
    "ledger",
    "load_checkpoint",
    "must_skip",
    "no_decay_on_norms_and_biases",
    "promote_function",
    "read_checkpoint",
    "register",
    "rotate",
    "round_saturating",
    "round_to_blocks",
    "rule_for",
    "save_checkpoint",
    "static",
    "step_report",
    "store_rounded",
    "to_fp32",
    "to_model_format",
    "unscale",
]
