"""By how much should the loss be multiplied, so that no gradient falls off FP16's bottom or top?

Idea: a scale that was too high announces itself by inf or NaN; a scale that is too low says nothing. So start high,
back off when the gradients overflow, and after enough clean steps in a row try higher again. The whole policy is one
pure function, `state -> next state`; a static scale, and none at all, are the same object with other values, and so are
the rules of other frameworks (labkit.amp.presets).

Invariant: the scale is a positive number that FP32 holds, and the tracker counts the clean steps since the last change.

Source: arXiv:1710.03740, section 3.2 (loss scaling); torch.amp.GradScaler (the rule, its names and defaults).
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from numbers import Integral

FP32_MAX = (2 - 2**-23) * 2.0**127
FP32_SMALLEST_NORMAL = 2.0**-126


def _require(name: str, given: object, in_range: bool, range_in_words: str) -> None:
    if not in_range:
        raise ValueError(f"{name} must be {range_in_words}; it was given {given!r}")


def _require_between(name: str, given: object, above: float, below: float, range_in_words: str) -> None:
    _require(name, given, isinstance(given, int | float) and above < given < below, f"a number, {range_in_words}")


def _require_scale(name: str, given: object) -> None:
    in_range = isinstance(given, int | float) and FP32_SMALLEST_NORMAL <= given <= FP32_MAX
    _require(name, given, in_range, "a number from 2^-126 to 3.4e38, FP32's normal range")


def _require_count(name: str, given: object, least: int) -> None:
    in_range = isinstance(given, Integral) and not isinstance(given, bool) and int(given) >= least
    _require(name, given, in_range, f"a whole number, {least} or more")


@dataclass(frozen=True)
class ScalerConfig:
    """The knobs of a loss scaler.

    init_scale              what the loss is multiplied by at first; FP32's smallest normal number to FP32's largest
    growth_factor           multiplies the scale after `growth_interval` clean steps; more than 1
    backoff_factor          multiplies the scale after inf or NaN; between 0 and 1
    growth_interval         clean steps in a row before the scale grows; 1 or more
    dynamic                 False: the scale never moves
    skip_on_inf             False: nobody looks for inf or NaN, and a step with them reaches the weights
    hysteresis              from the how-manyth overflow on the scale backs off; those before it only skip their step;
                            1 or more
    consecutive_hysteresis  True: only overflows in a row add up to it. False: clean steps between them do not part
                            them, until the scale grows
    floor                   backing off stops here
    cap                     growing stops here; inf: where FP32 ends
    steps_at_floor          True: at the floor inf and NaN pass for a clean step, and reach the weights
    restart_on_inf          False: an overflow does not start the count of clean steps again

    The first four are lesson 06; whoever reads the code for the first time may leave the rest, which other frameworks
    have (see `PRESETS`).

    Raises:
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
        _require_scale("init_scale", self.init_scale)
        _require_between("growth_factor", self.growth_factor, 1, math.inf, "more than 1")
        _require_between("backoff_factor", self.backoff_factor, 0, 1, "between 0 and 1")
        _require_count("growth_interval", self.growth_interval, 1)
        _require_count("hysteresis", self.hysteresis, 1)
        _require_scale("floor", self.floor)
        _require("floor", self.floor, self.floor <= self.init_scale, f"at most init_scale, {self.init_scale:g}")
        _require("cap", self.cap, self.cap >= self.init_scale, f"at least init_scale, {self.init_scale:g}")
        if self.dynamic and not self.skip_on_inf:
            raise ValueError("a dynamic scaler must look for inf: set skip_on_inf=True, or dynamic=False")


@dataclass(frozen=True)
class ScalerState:
    """Where a scaler stands.

    scale               what the loss is multiplied by
    growth_tracker      clean steps in a row since the scale last moved or an overflow was met
    hysteresis_tracker  overflows that hysteresis let pass without backing off; always 0 where hysteresis is 1

    Raises:
        ValueError: a value is out of its range; the message names the range.
    """

    scale: float
    growth_tracker: int = 0
    hysteresis_tracker: int = 0

    def __post_init__(self) -> None:
        _require_scale("scale", self.scale)
        for name in ("growth_tracker", "hysteresis_tracker"):
            _require_count(name, getattr(self, name), 0)
            object.__setattr__(self, name, int(getattr(self, name)))  # numpy's whole numbers are welcome


@dataclass(frozen=True)
class StepReport:
    """What became of one training step.

    stepped         the weights moved; a learning-rate scheduler follows only then
    found_inf       some gradient held inf or NaN
    scale           the loss scale of this step
    why             one sentence: why the step happened, or why not
    culprits        names of the tensors that held inf or NaN, where they were asked for
    skips_in_a_row  steps skipped in a row, this one included; 0 after a step that happened
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
    """Return a scaler whose scale never moves.

    >>> advance(initial(static(1024)), found_inf=True, config=static(1024)).scale
    1024.0
    """
    return ScalerConfig(init_scale=float(scale), dynamic=False, skip_on_inf=skip_on_inf)


def initial(config: ScalerConfig) -> ScalerState:
    """Return the state before the first step."""
    return ScalerState(scale=_fp32(config.init_scale))


@dataclass(frozen=True)
class Decision:
    """What becomes of one step.

    found_inf  some gradient holds inf or NaN
    skip       the step must not reach the weights
    before     the scaler's state in this step
    after      its state in the next one
    """

    found_inf: bool
    skip: bool
    before: ScalerState
    after: ScalerState

    @property
    def held(self) -> bool:
        """Whether it was an overflow at which hysteresis let the scale be."""
        return self.after.hysteresis_tracker > self.before.hysteresis_tracker


def decide(state: ScalerState, found_inf: bool, config: ScalerConfig) -> Decision:
    """Decide on a step: whether to skip it, and how the scaler goes on (see `advance`).

    >>> decision = decide(ScalerState(8.0), found_inf=True, config=DYNAMIC)
    >>> decision.skip, decision.after.scale
    (True, 4.0)
    """
    gives_up = config.steps_at_floor and state.scale <= config.floor
    skip = found_inf and config.skip_on_inf and not gives_up
    if not config.dynamic:
        after = state
    else:
        after = _after_overflow(state, config) if skip else _after_clean_step(state, config)
    return Decision(found_inf, skip, state, after)


def must_skip(state: ScalerState, found_inf: bool, config: ScalerConfig) -> bool:
    """Return whether a step must not reach the weights.

    >>> must_skip(ScalerState(8.0), found_inf=True, config=DYNAMIC)
    True
    """
    return decide(state, found_inf, config).skip


def advance(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """Return the state after a step whose gradients held inf or NaN (`found_inf`), or did not.

    The scale never leaves FP32's normal range. torch's does, at the bottom: 142 overflows in a row take 2^16 to 2^-126,
    144 to 2^-128, whose reciprocal (which torch multiplies by) is infinite, and 166 to exactly 0. Up to 2^-126 the two
    agree step by step, and at the top both stay where they are when the next scale would be beyond FP32.

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
    if state.hysteresis_tracker + 1 < config.hysteresis:
        return ScalerState(state.scale, clean_steps, state.hysteresis_tracker + 1)
    lower = _fp32(max(state.scale * config.backoff_factor, config.floor))
    return ScalerState(lower, clean_steps, state.hysteresis_tracker)


def _after_clean_step(state: ScalerState, config: ScalerConfig) -> ScalerState:
    clean_steps = state.growth_tracker + 1
    if clean_steps < config.growth_interval:
        return ScalerState(state.scale, clean_steps, 0 if config.consecutive_hysteresis else state.hysteresis_tracker)
    higher = _fp32(min(state.scale * config.growth_factor, config.cap))
    return ScalerState(higher if higher <= FP32_MAX else state.scale)


def _fp32(value: float) -> float:
    """Round to FP32, in which the loss is multiplied and torch keeps its scale; beyond its range comes inf."""
    return ctypes.c_float(value).value  # C's own conversion: no array for a single number
