"""Can you write the rule that moves the scale?

The rule is torch.amp.GradScaler's: inf or NaN multiplies the scale by the backoff factor and starts the count of
clean steps again; the clean step that completes the growth interval multiplies it by the growth factor and starts the
count again too.

Invariant: scales stay far from the ends of FP32, where torch and labkit part (see labkit.amp.advance). What is asked
here, both agree on, to the bit.
"""

from __future__ import annotations

from random import Random

import torch

from labkit.amp import ScalerConfig, ScalerState, advance
from labkit.grading.exercise import Case, Check, Exercise, Mistake


def reference(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """Return the state after a step with or without inf or NaN: labkit.amp's own rule.

    >>> reference(ScalerState(8.0, 1), False, ScalerConfig(growth_interval=2))
    ScalerState(scale=16.0, growth_tracker=0, hysteresis_tracker=0)
    """
    return advance(state, found_inf, config)


def _config(random: Random, low: int, high: int) -> ScalerConfig:
    """Return a configuration whose growth factor and backoff factor do not undo each other."""
    growth, backoff = random.choice(((2.0, 0.25), (4.0, 0.5), (3.0, 0.25), (1.5, 0.125)))
    return ScalerConfig(growth_factor=growth, backoff_factor=backoff, growth_interval=random.randrange(low, high))


def _scale(random: Random) -> float:
    return 2.0 ** random.randrange(4, 24)


def _counting(random: Random) -> list[Case]:
    """Clean steps well before the interval is complete: the very first one, and one beyond the usual 2000."""
    cases: list[Case] = []
    for tracker in (0, 1, 11, 2500):
        config = ScalerConfig(growth_interval=tracker + random.randrange(4, 500))
        cases.append((ScalerState(_scale(random), tracker), False, config))
    return cases


def _growing(random: Random) -> list[Case]:
    """The clean step that completes the interval, and the one before it."""
    cases: list[Case] = []
    for before in (1, 2, 1, 2):
        config = _config(random, 3, 100)
        cases.append((ScalerState(_scale(random), config.growth_interval - before), False, config))
    return cases


def _backing_off(random: Random) -> list[Case]:
    """Overflows in the middle of an interval."""
    cases: list[Case] = []
    for _ in range(4):
        config = _config(random, 10, 100)
        cases.append((ScalerState(_scale(random), random.randrange(1, 9)), True, config))
    return cases


def _in_a_row(random: Random) -> list[Case]:
    """Sixty steps, each from where the reference stood: growth, overflow and counting as training mixes them.

    At most 12 of them grow, so that a factor of 3 never needs more than FP32's 24 bits, to which `advance` rounds.
    """
    config = _config(random, 5, 8)
    state = ScalerState(_scale(random))
    cases: list[Case] = []
    for _ in range(60):
        found_inf = state.scale > 2.0**30 or (state.scale > 2.0**-10 and random.random() < 0.2)
        cases.append((state, found_inf, config))
        state = advance(state, found_inf, config)
    return cases


def _every_step(random: Random) -> list[Case]:
    """A growth interval of 1: every clean step grows."""
    return [(ScalerState(_scale(random)), found_inf, _config(random, 1, 2)) for found_inf in (False, True, False)]


def _answer(scale: float, tracker: int) -> ScalerState:
    return ScalerState(scale=scale, growth_tracker=tracker)


def _good(state: ScalerState, config: ScalerConfig) -> ScalerState:
    return advance(state, False, config)


def _overflow(state: ScalerState, config: ScalerConfig) -> ScalerState:
    return advance(state, True, config)


def _keeps_count(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return _answer(state.scale * config.backoff_factor, state.growth_tracker) if found_inf else _good(state, config)


def _counts_overflows(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return _answer(state.scale * config.backoff_factor, state.growth_tracker + 1) if found_inf else _good(state, config)


def _grows_when(grows: bool, state: ScalerState, config: ScalerConfig) -> ScalerState:
    return _answer(state.scale * config.growth_factor, 0) if grows else _answer(state.scale, state.growth_tracker + 1)


def _grows_late(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    late = state.growth_tracker + 1 > config.growth_interval
    return _overflow(state, config) if found_inf else _grows_when(late, state, config)


def _grows_early(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    early = state.growth_tracker + 1 >= config.growth_interval - 1
    return _overflow(state, config) if found_inf else _grows_when(early, state, config)


def _grows_always(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return _overflow(state, config) if found_inf else _grows_when(True, state, config)


def _never_restarts(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return _overflow(state, config) if found_inf else _answer(_good(state, config).scale, state.growth_tracker + 1)


def _never_counts(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return _overflow(state, config) if found_inf else _answer(_good(state, config).scale, 0)


def _grows_on_overflow(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return _answer(state.scale * config.growth_factor, 0) if found_inf else _good(state, config)


def _divides_by_backoff(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return _answer(state.scale / config.backoff_factor, 0) if found_inf else _good(state, config)


def _never_backs_off(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return _answer(state.scale, 0) if found_inf else _good(state, config)


def _ignores_found_inf(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return _good(state, config)


def _own_factors(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return advance(state, found_inf, ScalerConfig(growth_interval=config.growth_interval))


def _own_interval(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return advance(state, found_inf, ScalerConfig(config.init_scale, config.growth_factor, config.backoff_factor))


EXERCISE = Exercise(
    id="scaling.advance",
    lesson="06_loss_scaling",
    title="The rule that moves the scale",
    entry="my_advance",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=(
        Check("a clean step is counted, and the scale stays", 1, _counting),
        Check("the clean step that completes the interval grows the scale", 2, _growing),
        Check("inf or NaN backs off and starts the count again", 2, _backing_off),
        Check("sixty steps in a row", 2, _in_a_row, hidden=True),
        Check("an interval of one step", 1, _every_step, hidden=True),
    ),
    mistakes=(
        Mistake(
            "keeps the count at overflow",
            _keeps_count,
            "this is what keeping the tracker at an overflow gives: the scale grows again too soon. Clean steps "
            "must be in a row.",
        ),
        Mistake(
            "counts the overflow",
            _counts_overflows,
            "this is what counting a skipped step as a clean one gives.",
        ),
        Mistake(
            "grows one step late",
            _grows_late,
            "this is what comparing the tracker before counting this step gives, or > where >= is meant.",
        ),
        Mistake(
            "grows one step early",
            _grows_early,
            "this is what growing one clean step too early gives: this step completes the interval only if the "
            "count, with it, reaches growth_interval.",
        ),
        Mistake(
            "grows at every clean step",
            _grows_always,
            "this is what growing without waiting for the interval gives: every second step or so overflows.",
        ),
        Mistake(
            "forgets to start again after growth",
            _never_restarts,
            "this is what not resetting the tracker after growth gives: the count runs past the interval.",
        ),
        Mistake(
            "never counts",
            _never_counts,
            "this is what not counting clean steps gives: the tracker stays at 0 and the scale never grows.",
        ),
        Mistake(
            "grows on overflow",
            _grows_on_overflow,
            "this is what multiplying by the growth factor at an overflow gives: inf calls for a smaller scale, "
            "not a larger one.",
        ),
        Mistake(
            "divides by the backoff factor",
            _divides_by_backoff,
            "this is what dividing by the backoff factor gives. It is below 1: multiply by it.",
        ),
        Mistake(
            "never backs off",
            _never_backs_off,
            "this is what leaving the scale at an overflow gives: the next step overflows just the same.",
        ),
        Mistake(
            "ignores found_inf",
            _ignores_found_inf,
            "this is what not looking at found_inf gives: an overflow counts as a clean step.",
        ),
        Mistake(
            "has factors of its own",
            _own_factors,
            "this is what writing 2 and 0.5 into the code gives. Take them from config.",
        ),
        Mistake(
            "has an interval of its own",
            _own_interval,
            "this is what writing 2000 into the code gives. Take it from config.",
        ),
    ),
    provides={"torch": torch, "ScalerState": ScalerState, "ScalerConfig": ScalerConfig},
    withheld=(advance,),
)
