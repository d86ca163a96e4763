"""Can you write the rule that moves the scale?

The rule is torch.amp.GradScaler's: inf or NaN multiplies the scale by the backoff factor and starts the count of
clean steps again; the clean step that completes the growth interval multiplies it by the growth factor and starts the
count again too.

A count is always below its interval here, since it starts again where the interval is complete; so >= and == (torch's
way) and a remainder are one and the same. What the last two cost when an interval is lowered: scaling.repair.

Invariant: scales stay far from the ends of FP32, where torch and labkit part (see labkit.amp.advance). What is asked
here, both agree on, to the bit.
"""

from __future__ import annotations

from random import Random

import torch

from labkit.amp import ScalerConfig, ScalerState, advance
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong


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
    return [*cases, (ScalerState(1.5, 2), False, ScalerConfig(growth_interval=9))]


def _growing(random: Random) -> list[Case]:
    """The clean step that completes the interval, and the one before it."""
    cases: list[Case] = []
    for before in (1, 2, 1, 2):
        config = _config(random, 3, 100)
        cases.append((ScalerState(_scale(random), config.growth_interval - before), False, config))
    large = ScalerConfig(growth_interval=7)
    return [*cases, *((ScalerState(2.0**k, 6), False, large) for k in (24, 32, 40, 60))]


def _backing_off(random: Random) -> list[Case]:
    """Overflows in the middle of an interval."""
    cases: list[Case] = []
    for _ in range(4):
        config = _config(random, 10, 100)
        cases.append((ScalerState(_scale(random), random.randrange(1, 9)), True, config))
    return [*cases, *((ScalerState(scale, 3), True, ScalerConfig(growth_interval=9)) for scale in (1.0, 2.0**-6))]


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


def _clean(state: ScalerState, config: ScalerConfig) -> ScalerState:
    return advance(state, False, config)


def _skipped(state: ScalerState, config: ScalerConfig) -> ScalerState:
    return advance(state, True, config)


def _grows_when(grows: bool, state: ScalerState, config: ScalerConfig) -> ScalerState:
    return _answer(state.scale * config.growth_factor, 0) if grows else _answer(state.scale, state.growth_tracker + 1)


@mistake
def keeps_the_count_at_overflow(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """This is what keeping the tracker at an overflow gives: the scale grows again too soon. Clean steps must be in a
    row."""
    return _answer(state.scale * config.backoff_factor, state.growth_tracker) if found_inf else _clean(state, config)


@mistake
def counts_the_overflow(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """This is what counting a skipped step as a clean one gives."""
    return (
        _answer(state.scale * config.backoff_factor, state.growth_tracker + 1) if found_inf else _clean(state, config)
    )


@mistake
def grows_one_step_late(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """This is what comparing the tracker before counting this step gives, or > where >= is meant."""
    late = state.growth_tracker + 1 > config.growth_interval
    return _skipped(state, config) if found_inf else _grows_when(late, state, config)


@mistake
def grows_one_step_early(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """This is what growing one clean step too early gives: this step completes the interval only if the count, with it,
    reaches growth_interval."""
    early = state.growth_tracker + 1 >= config.growth_interval - 1
    return _skipped(state, config) if found_inf else _grows_when(early, state, config)


@mistake
def forgets_to_start_again_after_growth(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """This is what not resetting the tracker after growth gives: the count runs past the interval."""
    return _skipped(state, config) if found_inf else _answer(_clean(state, config).scale, state.growth_tracker + 1)


@mistake
def never_counts(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """This is what not counting clean steps gives: the tracker stays at 0 and the scale never grows."""
    return _skipped(state, config) if found_inf else _answer(_clean(state, config).scale, 0)


@mistake
def grows_on_overflow(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """This is what multiplying by the growth factor at an overflow gives: inf calls for a smaller scale, not a larger
    one."""
    return _answer(state.scale * config.growth_factor, 0) if found_inf else _clean(state, config)


@mistake
def divides_by_the_backoff_factor(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """This is what dividing by the backoff factor gives. It is below 1: multiply by it."""
    return _answer(state.scale / config.backoff_factor, 0) if found_inf else _clean(state, config)


@mistake
def has_factors_of_its_own(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """This is what writing 2 and 0.5 into the code gives. Take them from config."""
    return advance(state, found_inf, ScalerConfig(growth_interval=config.growth_interval))


@mistake
def has_an_interval_of_its_own(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    """This is what writing 2000 into the code gives. Take it from config."""
    return advance(state, found_inf, ScalerConfig(config.init_scale, config.growth_factor, config.backoff_factor))


# fmt: off
MISTAKES = (
    keeps_the_count_at_overflow,
    counts_the_overflow,
    grows_one_step_late,
    grows_one_step_early,
    wrong("grows at every clean step", "this is what growing without waiting for the interval gives: every second "
          "step or so overflows.",
          lambda state, found_inf, config: _skipped(state, config) if found_inf else _grows_when(True, state, config)),
    forgets_to_start_again_after_growth,
    never_counts,
    grows_on_overflow,
    divides_by_the_backoff_factor,
    wrong("never backs off", "this is what leaving the scale at an overflow gives: the next step overflows just the "
          "same.", lambda state, found_inf, config: _answer(state.scale, 0) if found_inf else _clean(state, config)),
    wrong("never looks for inf", "this is what not looking at found_inf gives: an overflow counts as a clean step.",
          lambda state, found_inf, config: _clean(state, config)),
    has_factors_of_its_own,
    has_an_interval_of_its_own,
)
# fmt: on

EXERCISE = Exercise(
    id="scaling.advance",
    title="The rule that moves the scale",
    entry="my_advance",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=(
        Check("a clean step is counted, and the scale stays", 1, _counting),
        Check("the clean step that completes the interval grows the scale", 2, _growing),
        Check("inf or NaN backs off and starts the count again", 2, _backing_off),
        Check("sixty steps in a row", 2, _in_a_row),
        Check("an interval of one step", 1, _every_step),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch, "ScalerState": ScalerState, "ScalerConfig": ScalerConfig},
    withheld=(advance,),
)
