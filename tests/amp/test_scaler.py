"""The loss scaler: a worked saw-tooth, what always holds, and torch.amp.GradScaler as the oracle."""

import math
import random
import re
from itertools import accumulate
from typing import Any

import pytest
import torch

from labkit.amp import DYNAMIC, NO_SCALING, ScalerConfig, ScalerState, advance, decide, initial, must_skip, static


def test_worked_example_a_saw_tooth() -> None:
    config = ScalerConfig(init_scale=1024.0, growth_interval=3)
    state, scales = initial(config), []
    for found_inf in [True, False, False, False, False, False, False, True, False]:
        scales.append(state.scale)
        state = advance(state, found_inf, config)
    #                 inf    three clean steps    three more           inf
    assert scales == [1024, 512, 512, 512, 1024, 1024, 1024, 2048, 1024]
    assert state == ScalerState(1024.0, 1)


def test_an_overflow_forgets_the_clean_steps_before_it() -> None:
    config = ScalerConfig(growth_interval=3)
    state = ScalerState(8.0, growth_tracker=2)
    state = advance(state, True, config)
    assert state == ScalerState(4.0, 0)


def test_static_and_none_never_move() -> None:
    for config in (NO_SCALING, static(1024), static(2.0**20, skip_on_inf=False)):
        state = initial(config)
        assert advance(state, True, config) == advance(state, False, config) == state
    assert initial(NO_SCALING).scale == 1.0


def trace(seed: int, steps: int) -> list[bool]:
    """Overflows come in bursts, rarely, and at times in every step."""
    rng = random.Random(seed)
    return [rng.random() < (0.02 if (i // 200) % 3 else 0.3) for i in range(steps)]


# Factors that are no powers of two are rounded to FP32 at every step, as torch's scale is: equal, not close.
@pytest.mark.parametrize("interval", [1, 2, 7, 50])
@pytest.mark.parametrize("factors", [(2.0, 0.5), (1.5, 0.3), (1.001, 0.999), (7.0, 1 / 3)])
def test_equal_to_torch_over_10000_random_steps(interval: int, factors: tuple[float, float]) -> None:
    growth, backoff = factors
    config = ScalerConfig(1000.1, growth, backoff, interval)
    theirs = torch.amp.GradScaler("cpu", 1000.1, growth, backoff, interval)
    theirs.scale(torch.zeros(()))
    scale, tracker = theirs._check_scale_growth_tracker("a test")
    state = initial(config)
    for found_inf in trace(interval, 10_000):
        # Neither may run off FP32's bottom, where torch goes on to 0: that has a test of its own.
        found_inf = (found_inf or state.scale > 2.0**126) and state.scale > 2.0**-100
        torch._amp_update_scale_(scale, tracker, torch.tensor(float(found_inf)), growth, backoff, interval)
        state = advance(state, found_inf, config)
        assert (state.scale, state.growth_tracker) == (scale.item(), tracker.item())


def test_equal_to_torch_through_a_whole_training_loop() -> None:
    config = ScalerConfig(growth_interval=7)
    theirs = torch.amp.GradScaler("cpu", growth_interval=7)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    ours = initial(config)
    for found_inf in trace(0, 500):
        theirs.scale(parameter.sum()).backward()
        parameter.grad = torch.full((1,), math.inf if found_inf else 1.0)
        theirs.step(optimizer)
        theirs.update()
        ours = advance(ours, found_inf, config)
        assert (ours.scale, ours.growth_tracker) == (theirs.get_scale(), theirs._get_growth_tracker())


def test_the_scale_never_reaches_zero_or_infinity() -> None:
    # torch's does: 166 overflows in a row take 2^16 to exactly 0, and every later gradient is 0/0.
    state, theirs, tracker = initial(DYNAMIC), torch.tensor([2.0**16]), torch.zeros(1, dtype=torch.int32)
    for _ in range(200):
        state = advance(state, True, DYNAMIC)
        torch._amp_update_scale_(theirs, tracker, torch.ones(1), 2.0, 0.5, 2000)
    assert theirs.item() == 0.0
    assert state.scale == 2.0**-126
    eager = ScalerConfig(growth_interval=1)
    state = initial(eager)
    for _ in range(200):
        state = advance(state, False, eager)
    assert state.scale == 2.0**127


def test_lowering_the_interval_below_the_tracker_still_grows() -> None:
    # torch compares with ==, so its scaler would never grow again.
    scale, tracker = torch.tensor(8.0), torch.tensor(500, dtype=torch.int32)
    state, config = ScalerState(8.0, 500), ScalerConfig(growth_interval=100)
    for _ in range(200):
        torch._amp_update_scale_(scale, tracker, torch.tensor(0.0), 2.0, 0.5, 100)
        state = advance(state, False, config)
    assert scale.item() == 8.0
    assert state == ScalerState(32.0, 99)


def test_hysteresis_forgives_all_but_the_last_of_n_overflows() -> None:
    config = ScalerConfig(init_scale=64.0, hysteresis=3)
    state, seen = initial(config), []
    for _ in range(5):
        state = advance(state, True, config)
        seen.append((state.scale, state.hysteresis_tracker))
    # Two are forgiven; from the third on every one backs off, until growth gives the patience back.
    assert seen == [(64, 1), (64, 2), (32, 2), (16, 2), (8, 2)]


def test_a_forgiven_overflow_starts_the_count_of_clean_steps_again() -> None:
    assert advance(ScalerState(8.0, 5), True, ScalerConfig(hysteresis=2)) == ScalerState(8.0, 0, 1)


@pytest.mark.parametrize("consecutive", [False, True])
def test_what_gives_the_patience_back(consecutive: bool) -> None:
    config = ScalerConfig(hysteresis=2, consecutive_hysteresis=consecutive, growth_interval=2)
    clean = advance(ScalerState(8.0, 0, 1), False, config)
    assert clean == ScalerState(8.0, 1, 0 if consecutive else 1)
    assert advance(clean, False, config) == ScalerState(16.0), "growth always does"


def test_lowering_hysteresis_below_the_tracker_backs_off_at_once() -> None:
    assert advance(ScalerState(8.0, 0, 4), True, ScalerConfig(hysteresis=2)).scale == 4.0


def test_floor_and_cap_are_reached_and_kept() -> None:
    config = ScalerConfig(init_scale=24.0, floor=5.0, cap=80.0, growth_interval=1)
    assert scales([True] * 4, config) == [24, 12, 6, 5, 5]
    assert scales([False] * 4, config) == [24, 48, 80, 80, 80]


def test_the_floor_steps_if_told_to() -> None:
    config = ScalerConfig(init_scale=4.0, floor=2.0, growth_interval=2, steps_at_floor=True)
    assert must_skip(ScalerState(4.0), True, config)
    assert not must_skip(ScalerState(2.0), True, config)
    # At the floor two overflows pass for two clean steps, so the scale grows, and the third is one again.
    assert scales([True] * 4, config) == [4, 2, 2, 4, 2]


def test_an_overflow_keeps_the_count_if_told_to() -> None:
    config = ScalerConfig(init_scale=8.0, growth_interval=3, restart_on_inf=False)
    assert scales([False, False, True, False], config) == [8, 8, 8, 4, 8]


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("skip_on_inf", [True, False])
def test_a_step_is_skipped_only_for_inf_and_only_if_somebody_looks(dynamic: bool, skip_on_inf: bool) -> None:
    if skip_on_inf or not dynamic:
        config = ScalerConfig(dynamic=dynamic, skip_on_inf=skip_on_inf)
        assert must_skip(initial(config), True, config) is skip_on_inf
        assert must_skip(initial(config), False, config) is False


def scales(found: list[bool], config: ScalerConfig) -> list[float]:
    """The scale before the first step, and after each."""
    states = accumulate(found, lambda state, found_inf: advance(state, found_inf, config), initial=initial(config))
    return [state.scale for state in states]


def test_advance_is_pure_and_a_state_is_a_value() -> None:
    state, config = ScalerState(8.0, 3, 1), ScalerConfig(hysteresis=3)
    assert advance(state, True, config) == advance(state, True, config) == ScalerState(8.0, 0, 2)
    assert state == ScalerState(8.0, 3, 1)
    assert len({state, ScalerState(8.0, 3, 1)}) == 1


def test_a_thousand_random_scalers_keep_to_their_range() -> None:
    rng = random.Random(0)
    for _ in range(1000):
        floor, cap = sorted(2.0 ** rng.uniform(-126, 127) for _ in range(2))
        config = ScalerConfig(
            init_scale=rng.uniform(floor, cap),
            growth_factor=rng.choice([1.01, 2.0, 1e30]),
            backoff_factor=rng.choice([0.99, 0.5, 1e-30]),
            growth_interval=rng.randrange(1, 4),
            hysteresis=rng.randrange(1, 4),
            consecutive_hysteresis=rng.random() < 0.5,
            floor=floor,
            cap=cap,
        )
        state, slack = initial(config), 1 + 2.0**-23  # floor and cap are rounded to FP32
        for _ in range(20):
            state = advance(state, rng.random() < 0.5, config)
            assert floor / slack <= state.scale <= cap * slack
            assert state.scale == torch.tensor(state.scale).item(), "an FP32 number"
            assert state.growth_tracker < config.growth_interval
            assert state.hysteresis_tracker < config.hysteresis


@pytest.mark.parametrize(
    ("knob", "value", "range_in_words"),
    [
        ("init_scale", 0.0, "2^-126"),
        ("init_scale", -1.0, "2^-126"),
        ("init_scale", math.nan, "2^-126"),
        ("init_scale", math.inf, "2^-126"),
        ("growth_factor", 1.0, "more than 1"),
        ("backoff_factor", 1.0, "between 0 and 1"),
        ("backoff_factor", 0.0, "between 0 and 1"),
        ("growth_interval", 0, "a whole number, 1 or more"),
        ("growth_interval", 2.5, "a whole number, 1 or more"),
        ("hysteresis", 0, "a whole number, 1 or more"),
        ("floor", 0.0, "2^-126"),
        ("floor", 2.0**17, "at most init_scale, 65536"),
        ("cap", 2.0**15, "at least init_scale, 65536"),
        ("cap", math.nan, "at least init_scale"),
        ("init_scale", "high", "2^-126"),
        ("growth_factor", "2", "more than 1"),
        ("backoff_factor", None, "between 0 and 1"),
        ("growth_interval", True, "a whole number, 1 or more"),
    ],
)
def test_values_out_of_range_are_refused_with_the_range(knob: str, value: float, range_in_words: str) -> None:
    with pytest.raises(ValueError, match=f"{knob} must be .*{re.escape(range_in_words)}"):
        ScalerConfig(**{knob: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "range_in_words"),
    [
        ((0.0,), "scale must be a number from 2^-126 to 3.4e38"),
        ((-8.0,), "scale must be a number from 2^-126 to 3.4e38"),
        ((math.nan,), "scale must be a number from 2^-126 to 3.4e38"),
        ((math.inf,), "scale must be a number from 2^-126 to 3.4e38"),
        ((torch.tensor(8.0),), "scale must be a number"),
        ((8.0, -1), "growth_tracker must be a whole number, 0 or more; it was given -1"),
        ((8.0, 1.5), "growth_tracker must be a whole number, 0 or more; it was given 1.5"),
        ((8.0, 0, -1), "hysteresis_tracker must be a whole number, 0 or more"),
    ],
)
def test_a_state_that_is_none_is_refused(state: tuple[Any, ...], range_in_words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(range_in_words)):
        ScalerState(*state)


def test_a_dynamic_scaler_must_look() -> None:
    with pytest.raises(ValueError, match="must look for inf"):
        ScalerConfig(skip_on_inf=False)


@pytest.mark.parametrize("config", [DYNAMIC, NO_SCALING, static(8.0), ScalerConfig(hysteresis=2, growth_interval=2)])
def test_a_decision_says_at_once_what_skips_and_what_follows(config: ScalerConfig) -> None:
    state, held = initial(config), []
    for found_inf in (True, True, False, False, True):
        decision = decide(state, found_inf, config)
        assert (decision.before, decision.found_inf) == (state, found_inf)
        assert decision.skip == must_skip(state, found_inf, config) == (found_inf and config.skip_on_inf)
        assert decision.after == advance(state, found_inf, config)
        held.append(decision.held)
        state = decision.after
    assert held == ([True, False, False, False, True] if config.hysteresis == 2 else [False] * 5)
