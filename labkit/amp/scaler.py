"""By how much should the loss be multiplied, so that no gradient falls off FP16's bottom or top?

Idea: a scale that was too high announces itself by inf or NaN; a scale that is too low says nothing. So start high,
back off when the gradients overflow, and after enough clean steps in a row try higher again. The whole policy is one
pure function, `state -> next state`; a static scale, and none at all, are the same object with other values.

Invariant: the scale stays a positive finite number, and the tracker counts the clean steps since the last change.

Source: arXiv:1710.03740, section 3.2 (loss scaling); torch.amp.GradScaler (the rule, its names and defaults).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FP32_MAX = (2 - 2**-23) * 2.0**127
FP32_SMALLEST_NORMAL = 2.0**-126


def _require(name: str, given: object, in_range: bool, range_in_words: str) -> None:
    if not in_range:
        raise ValueError(f"{name} must be {range_in_words}; it was given {given!r}")


@dataclass(frozen=True)
class ScalerConfig:
    """The knobs of a loss scaler.

    init_scale       what the loss is multiplied by at first; FP32's smallest normal number to FP32's largest
    growth_factor    multiplies the scale after `growth_interval` clean steps; more than 1
    backoff_factor   multiplies the scale after inf or NaN; between 0 and 1
    growth_interval  clean steps in a row before the scale grows; 1 or more
    dynamic          False: the scale never moves
    skip_on_inf      False: nobody looks for inf or NaN, and a bad step reaches the weights

    Raises:
        ValueError: a value is out of its range; the message names the range.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    dynamic: bool = True
    skip_on_inf: bool = True

    def __post_init__(self) -> None:
        _require("init_scale", self.init_scale, FP32_SMALLEST_NORMAL <= self.init_scale <= FP32_MAX, "2^-126 to 3.4e38")
        _require("growth_factor", self.growth_factor, 1 < self.growth_factor < math.inf, "more than 1")
        _require("backoff_factor", self.backoff_factor, 0 < self.backoff_factor < 1, "between 0 and 1")
        whole = isinstance(self.growth_interval, int) and self.growth_interval >= 1
        _require("growth_interval", self.growth_interval, whole, "a whole number, 1 or more")
        if self.dynamic and not self.skip_on_inf:
            raise ValueError("a dynamic scaler must look for inf: set skip_on_inf=True, or dynamic=False")


@dataclass(frozen=True)
class ScalerState:
    """Where a scaler stands: the scale, and the number of clean steps since it last moved."""

    scale: float
    growth_tracker: int = 0


NO_SCALING = ScalerConfig(init_scale=1.0, dynamic=False)
DYNAMIC = ScalerConfig()


def static(scale: float, *, skip_on_inf: bool = True) -> ScalerConfig:
    """Return a scaler whose scale never moves.

    >>> advance(initial(static(1024)), found_inf=True, config=static(1024)).scale
    1024.0
    """
    return ScalerConfig(init_scale=float(scale), dynamic=False, skip_on_inf=skip_on_inf)


def initial(config: ScalerConfig) -> ScalerState:
    """Return the state before the first step."""
    return ScalerState(scale=float(config.init_scale))


def advance(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """Return the state after a step whose gradients held inf or NaN (`found_inf`), or did not.

    The scale never leaves FP32's normal range. torch's does, at the bottom: 142 overflows in a row take 2^16 to 2^-126,
    144 to 2^-128, whose reciprocal (which torch multiplies by) is infinite, and 166 to exactly 0. Up to 2^-126 the two
    agree step by step, and at the top both stay where they are when the next scale would be beyond FP32.

    >>> config = ScalerConfig(init_scale=8.0, growth_interval=2)
    >>> state = advance(initial(config), found_inf=False, config=config)
    >>> state = advance(state, found_inf=False, config=config)
    >>> state
    ScalerState(scale=16.0, growth_tracker=0)
    >>> advance(state, found_inf=True, config=config)
    ScalerState(scale=8.0, growth_tracker=0)
    """
    if not config.dynamic:
        return state
    if found_inf:
        return ScalerState(max(state.scale * config.backoff_factor, FP32_SMALLEST_NORMAL))
    if state.growth_tracker + 1 < config.growth_interval:
        return ScalerState(state.scale, state.growth_tracker + 1)
    grown = state.scale * config.growth_factor
    return ScalerState(grown if grown <= FP32_MAX else state.scale)
