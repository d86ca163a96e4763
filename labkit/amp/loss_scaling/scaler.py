"""Dynamic loss scaling as a pure state machine.

Idea: a scale that is too high shows as inf or NaN in the gradients; a scale that is too low shows
nothing. So start high, back off when the gradients overflow, and grow again after enough clean
steps in a row. The whole policy is one pure function, `state -> next state`. A static scale, no
scaling, and the rules of other frameworks (`labkit.amp.PRESETS`) are the same object with other
values.

Invariant: the scale is a positive number that FP32 holds, and the tracker counts the clean steps
since the last change.

Source: arXiv:1710.03740, section 3.2 (loss scaling); torch.amp.GradScaler (the rule, its names and
defaults).
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, fields
from numbers import Integral, Real

from labkit.formats.arguments import require_kind

FP32_MAX = (2 - 2**-23) * 2.0**127
FP32_SMALLEST_NORMAL = 2.0**-126


def _require(name: str, value: object, valid: bool, expected: str) -> None:
    if not valid:
        raise ValueError(f"{name} must be {expected}; got {value!r}")


def _number(value: object) -> float:
    """Return a number of Python or numpy as one of Python; NaN for a bool and anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    return value if isinstance(value, int | float) else float(value)


def _require_between(name: str, value: object, above: float, below: float, expected: str) -> None:
    _require(name, value, above < _number(value) < below, f"a number, {expected}")


def _require_scale(name: str, value: object) -> None:
    valid = FP32_SMALLEST_NORMAL <= _number(value) <= FP32_MAX
    _require(name, value, valid, "a number from 2^-126 to 3.4e38, FP32's normal range")


def _require_count(name: str, value: object, least: int) -> None:
    whole = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
    valid = whole and int(value) >= least  # type: ignore[call-overload]
    _require(name, value, valid, f"a whole number, {least} or more")


@dataclass(frozen=True)
class ScalerConfig:
    """The configuration of a loss scaler.

    Lesson 06 covers the first four. The others describe further frameworks (see `PRESETS`); skip
    them at first reading.

    Attributes:
        init_scale: the first scale; from FP32's smallest normal number to FP32's largest.
        growth_factor: multiplies the scale after `growth_interval` clean steps; more than 1.
        backoff_factor: multiplies the scale after inf or NaN; between 0 and 1.
        growth_interval: clean steps in a row before the scale grows; 1 or more.
        dynamic: if False, the scale never changes.
        skip_on_inf: if False, steps with inf or NaN are not skipped.
        hysteresis: number of overflows that make the scale back off; those before only skip their
            step; 1 or more.
        consecutive_hysteresis: if True, a clean step resets the count of overflows; if False, only
            growth does.
        floor: the smallest scale that backing off leads to.
        cap: the largest scale that growing leads to; inf: FP32's largest.
        steps_at_floor: if True, at the floor, inf and NaN count as a clean step, and reach the
            weights.
        restart_on_inf: if False, an overflow does not reset the count of clean steps.

    Raises:
        TypeError: a value that must be True or False is neither.
        ValueError: a value is out of its range; the message names the range.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    dynamic: bool = True
    skip_on_inf: bool = True
    hysteresis: int = 1
    consecutive_hysteresis: bool = False
    floor: float = FP32_SMALLEST_NORMAL
    cap: float = math.inf
    steps_at_floor: bool = False
    restart_on_inf: bool = True

    def __post_init__(self) -> None:
        for name in (
            "dynamic",
            "skip_on_inf",
            "consecutive_hysteresis",
            "steps_at_floor",
            "restart_on_inf",
        ):
            require_kind(getattr(self, name), bool, name, "Pass True or False.")
        _require_scale("init_scale", self.init_scale)
        _require_between("growth_factor", self.growth_factor, 1, math.inf, "more than 1")
        _require_between("backoff_factor", self.backoff_factor, 0, 1, "between 0 and 1")
        _require_count("growth_interval", self.growth_interval, 1)
        _require_count("hysteresis", self.hysteresis, 1)
        _require_scale("floor", self.floor)
        _require(
            "floor",
            self.floor,
            self.floor <= self.init_scale,
            f"at most init_scale, {self.init_scale:g}",
        )
        _require(
            "cap",
            self.cap,
            _number(self.cap) >= self.init_scale,
            f"a number, at least init_scale, {self.init_scale:g}",
        )
        if self.dynamic and not self.skip_on_inf:
            raise ValueError(
                "a dynamic scaler must check for inf: set skip_on_inf=True, or dynamic=False"
            )
        self._convert_numpy_values()

    def _convert_numpy_values(self) -> None:
        """Replace numbers and booleans of numpy by Python's; torch.load refuses those of numpy."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool):
                value = bool(value)
            elif type(value) is not int:
                value = int(value) if isinstance(value, Integral) else float(value)
            object.__setattr__(self, field.name, value)


@dataclass(frozen=True)
class ScalerState:
    """The state of a scaler.

    Attributes:
        scale: the factor of the loss.
        growth_tracker: clean steps in a row since the scale last changed or an overflow occurred.
        hysteresis_tracker: overflows so far at which hysteresis prevented backing off; always 0 if
            hysteresis is 1.

    Raises:
        ValueError: a value is out of its range; the message names the range.
    """

    scale: float
    growth_tracker: int = 0
    hysteresis_tracker: int = 0

    def __post_init__(self) -> None:
        _require_scale("scale", self.scale)
        # torch.load refuses a checkpoint with a number of numpy
        if type(self.scale) not in (int, float):
            object.__setattr__(self, "scale", float(self.scale))
        for name in ("growth_tracker", "hysteresis_tracker"):
            count = getattr(self, name)
            _require_count(name, count, 0)
            # integers of numpy are allowed
            if type(count) is not int:
                object.__setattr__(self, name, int(count))


@dataclass(frozen=True)
class StepReport:
    """The result of one training step.

    Attributes:
        stepped: the weights were updated; step a learning-rate scheduler only then.
        found_inf: some gradient held inf or NaN.
        scale: the loss scale of this step.
        why: one sentence: why the step happened, or why not.
        culprits: names of the tensors that held inf or NaN, if they were read.
        skips_in_a_row: steps skipped in a row, this one included; 0 after a step that happened.
    """

    stepped: bool
    found_inf: bool
    scale: float
    why: str
    culprits: tuple[str, ...] = ()
    skips_in_a_row: int = 0


NO_SCALING = ScalerConfig(init_scale=1.0, dynamic=False)
DYNAMIC = ScalerConfig()


def static(scale: float, *, skip_on_inf: bool = True) -> ScalerConfig:
    """Return the configuration of a scale that never changes.

    >>> advance(initial(static(1024)), found_inf=True, config=static(1024)).scale
    1024.0
    """
    require_kind(scale, float, "scale")
    return ScalerConfig(init_scale=float(scale), dynamic=False, skip_on_inf=skip_on_inf)


def initial(config: ScalerConfig) -> ScalerState:
    """Return the state before the first step."""
    require_kind(config, ScalerConfig, "config", "For example: DYNAMIC, or static(1024.0)")
    return ScalerState(scale=_fp32(config.init_scale))


@dataclass(frozen=True)
class Decision:
    """The scaler's decision on one step.

    Attributes:
        found_inf: some gradient holds inf or NaN.
        skip: the step must not reach the weights.
        before: the scaler's state in this step.
        after: its state in the next step.
    """

    found_inf: bool
    skip: bool
    before: ScalerState
    after: ScalerState

    @property
    def held(self) -> bool:
        """Whether hysteresis prevented the scale from backing off at this overflow."""
        return self.after.hysteresis_tracker > self.before.hysteresis_tracker


def decide(state: ScalerState, found_inf: bool, config: ScalerConfig) -> Decision:
    """Decide whether to skip a step, and compute the scaler's next state (see `advance`).

    >>> decision = decide(ScalerState(8.0), found_inf=True, config=DYNAMIC)
    >>> decision.skip, decision.after.scale
    (True, 4.0)
    """
    require_kind(state, ScalerState, "state", "For example: ScalerState(1024.0)")
    require_kind(config, ScalerConfig, "config", "For example: DYNAMIC, or static(1024.0)")
    # at the floor no smaller scale is left, so some frameworks step all the same
    ignores_inf = config.steps_at_floor and is_at_floor(state.scale, config)
    skip = found_inf and config.skip_on_inf and not ignores_inf
    if not config.dynamic:
        after = state
    elif skip:
        after = _after_overflow(state, config)
    else:
        after = _after_clean_step(state, config)
    return Decision(found_inf, skip, state, after)


def is_at_floor(scale: float, config: ScalerConfig) -> bool:
    """Return whether backing off leads to no smaller scale.

    A scale is an FP32 number, so it is compared with the floor in FP32, which may be larger than
    the configured one.
    """
    return scale <= _fp32(config.floor)


def must_skip(state: ScalerState, found_inf: bool, config: ScalerConfig) -> bool:
    """Return whether a step must not reach the weights.

    >>> must_skip(ScalerState(8.0), found_inf=True, config=DYNAMIC)
    True
    """
    return decide(state, found_inf, config).skip


def advance(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """Return the state after a step whose gradients held inf or NaN (`found_inf`), or did not.

    The scale never leaves FP32's normal range. torch's does at the lower end. 142 overflows in a
    row take torch's from 2^16 to 2^-126, 144 to 2^-128, whose reciprocal is infinite in FP32, and
    166 to exactly 0. Down to 2^-126 both agree step by step. At the upper end both leave the scale
    unchanged if the next one would exceed FP32.

    >>> config = ScalerConfig(init_scale=8.0, growth_interval=2)
    >>> state = advance(initial(config), found_inf=False, config=config)
    >>> state = advance(state, found_inf=False, config=config)
    >>> state.scale, state.growth_tracker
    (16.0, 0)
    >>> advance(state, found_inf=True, config=config).scale
    8.0
    """
    return decide(state, found_inf, config).after


def _after_overflow(state: ScalerState, config: ScalerConfig) -> ScalerState:
    clean_steps = 0 if config.restart_on_inf else state.growth_tracker
    # hysteresis: the first overflows skip their steps but leave the scale
    if state.hysteresis_tracker + 1 < config.hysteresis:
        return ScalerState(state.scale, clean_steps, state.hysteresis_tracker + 1)
    # the count of overflows stays at its limit, so that the next one backs off, too
    lower = _fp32(max(state.scale * config.backoff_factor, config.floor))
    return ScalerState(lower, clean_steps, state.hysteresis_tracker)


def _after_clean_step(state: ScalerState, config: ScalerConfig) -> ScalerState:
    clean_steps = state.growth_tracker + 1
    if clean_steps < config.growth_interval:
        overflows = 0 if config.consecutive_hysteresis else state.hysteresis_tracker
        return ScalerState(state.scale, clean_steps, overflows)
    # growth resets all counts; if the next scale exceeds FP32 the scale stays, as torch's does
    higher = _fp32(min(state.scale * config.growth_factor, config.cap))
    return ScalerState(higher if higher <= FP32_MAX else state.scale)


def _fp32(value: float) -> float:
    """Round to FP32, the dtype of torch's scale; inf beyond its range."""
    # faster than an array or a tensor of one number
    return ctypes.c_float(value).value
