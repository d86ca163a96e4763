"""How does training cope with FP16? Loss scaling, master weights, autocast, and the recipes that combine them."""

from labkit.amp.autocast import CastEvent, autocast
from labkit.amp.convert import to_model_format
from labkit.amp.engine import Engine
from labkit.amp.ledger import LedgerRow, ledger
from labkit.amp.lists import POLICY, Entry, Rule, rule_for
from labkit.amp.presets import PRESETS
from labkit.amp.recipe import RECIPES, Recipe
from labkit.amp.scaler import (
    DYNAMIC,
    NO_SCALING,
    ScalerConfig,
    ScalerState,
    StepReport,
    advance,
    initial,
    must_skip,
    static,
)
from labkit.amp.skips import diagnosis, step_report
from labkit.amp.unscale import unscale
from labkit.amp.weights import Weights

__all__ = [
    "DYNAMIC",
    "NO_SCALING",
    "POLICY",
    "PRESETS",
    "RECIPES",
    "CastEvent",
    "Engine",
    "Entry",
    "LedgerRow",
    "Recipe",
    "Rule",
    "ScalerConfig",
    "ScalerState",
    "StepReport",
    "Weights",
    "advance",
    "autocast",
    "diagnosis",
    "initial",
    "ledger",
    "must_skip",
    "rule_for",
    "static",
    "step_report",
    "to_model_format",
    "unscale",
]
