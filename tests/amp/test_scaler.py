"""The rule of the loss scaler, against torch.amp.GradScaler's own kernel."""

import itertools
import math
import random
import re

import numpy as np
import pytest
import torch

from labkit.amp import (
    DYNAMIC,
    NO_SCALING,
    ScalerConfig,
    ScalerState,
    StepReport,
    advance,
    decide,
    diagnosis,
    initial,
    must_skip,
    static,
)


def scales(overflows: list[bool], config: ScalerConfig) -> list[float]:
    """Return the scale before the first step, and after each."""
    states = itertools.accumulate(
        overflows, lambda state, inf: advance(state, inf, config), initial=initial(config)
    )
    return [state.scale for state in states]


def test_worked_example_of_a_sawtooth() -> None:
    config = ScalerConfig(init_scale=1024.0, growth_interval=3)
    overflows = [True, False, False, False, False, False, False, True, False]
    scale = scales(overflows, config)
    #                inf    three clean steps    three more           inf
    assert scale == [1024, 512, 512, 512, 1024, 1024, 1024, 2048, 1024, 1024]


def test_an_overflow_resets_the_count_of_clean_steps() -> None:
    state = ScalerState(8.0, growth_tracker=2)
    assert advance(state, True, ScalerConfig(growth_interval=3)) == ScalerState(4.0, 0)
    assert advance(
        state, True, ScalerConfig(growth_interval=3, restart_on_inf=False)
    ) == ScalerState(4.0, 2)
    # Hysteresis keeps the scale at the first overflow, and the count is reset all the same.
    assert advance(state, True, ScalerConfig(hysteresis=2)) == ScalerState(8.0, 0, 1)


def test_static_scales_never_change() -> None:
    for config in (NO_SCALING, static(1024), static(2.0**20, skip_on_inf=False)):
        state = initial(config)
        assert advance(state, True, config) == state
        assert advance(state, False, config) == state
    assert initial(NO_SCALING).scale == 1.0


def test_scale_equals_torch_s_over_random_steps() -> None:
    """Scale and count are equal after every step.

    The factors are not always powers of two: both scalers round their scale to FP32.
    """
    factors = ((2.0, 0.5), (1.5, 0.3), (1.001, 0.999), (7.0, 1 / 3))
    for interval, (growth, backoff) in itertools.product((1, 2, 7, 50), factors):
        rng = random.Random(interval)
        scale = torch.tensor(1000.1)
        tracker = torch.tensor(0, dtype=torch.int32)
        config = ScalerConfig(1000.1, growth, backoff, interval)
        state = initial(config)
        for step in range(3000):
            # Rare overflows let the scale grow; every third period of 200 steps has many.
            found_inf = rng.random() < (0.02 if (step // 200) % 3 else 0.3)
            # The scale stays inside FP32's normal range, because torch's may become 0 below it; the
            # next test is about that.
            found_inf = (found_inf or state.scale > 2.0**126) and state.scale > 2.0**-100
            torch._amp_update_scale_(
                scale, tracker, torch.tensor(float(found_inf)), growth, backoff, interval
            )
            state = advance(state, found_inf, config)
            assert state.scale == scale.item(), (config, step)
            assert state.growth_tracker == tracker.item(), (config, step)


def test_the_scale_never_reaches_zero_or_infinity() -> None:
    # torch's does: 166 overflows in a row take 2^16 to exactly 0, and every later gradient is 0/0.
    theirs = torch.tensor([2.0**16])
    tracker = torch.zeros(1, dtype=torch.int32)
    for _ in range(200):
        torch._amp_update_scale_(theirs, tracker, torch.ones(1), 2.0, 0.5, 2000)
    assert theirs.item() == 0.0
    assert scales([True] * 200, DYNAMIC)[-1] == 2.0**-126
    assert scales([False] * 200, ScalerConfig(growth_interval=1))[-1] == 2.0**127


def test_scale_grows_after_the_interval_was_lowered() -> None:
    # torch compares with ==, so its scaler would never grow again.
    scale = torch.tensor(8.0)
    tracker = torch.tensor(500, dtype=torch.int32)
    state = ScalerState(8.0, 500)
    config = ScalerConfig(growth_interval=100)
    for _ in range(200):
        torch._amp_update_scale_(scale, tracker, torch.tensor(0.0), 2.0, 0.5, 100)
        state = advance(state, False, config)
    assert scale.item() == 8.0
    assert state == ScalerState(32.0, 99)


def test_hysteresis_forgives_all_but_the_last_of_n_overflows() -> None:
    config = ScalerConfig(init_scale=64.0, hysteresis=3)
    # Two overflows are forgiven; from the third on each one backs off, until the scale grows.
    assert scales([True] * 5, config) == [64, 64, 64, 32, 16, 8]


def test_hysteresis_is_restored_by_growth_or_by_a_clean_step() -> None:
    for consecutive in (False, True):
        config = ScalerConfig(hysteresis=2, consecutive_hysteresis=consecutive, growth_interval=2)
        clean = advance(ScalerState(8.0, 0, 1), False, config)
        assert clean == ScalerState(8.0, 1, 0 if consecutive else 1)
        # Growth restores hysteresis in both variants.
        assert advance(clean, False, config) == ScalerState(16.0)


def test_lowered_hysteresis_backs_off_at_once() -> None:
    lowered = advance(ScalerState(8.0, 0, 4), True, ScalerConfig(hysteresis=2))
    assert lowered.scale == 4.0


def test_floor_and_cap_are_reached_and_kept() -> None:
    config = ScalerConfig(init_scale=24.0, floor=5.0, cap=80.0, growth_interval=1)
    assert scales([True] * 4, config) == [24, 12, 6, 5, 5]
    assert scales([False] * 4, config) == [24, 48, 80, 80, 80]


def test_steps_are_taken_at_the_floor_if_configured() -> None:
    steps = ScalerConfig(init_scale=4.0, floor=2.0, growth_interval=2, steps_at_floor=True)
    assert must_skip(ScalerState(4.0), True, steps)
    assert not must_skip(ScalerState(2.0), True, steps)
    # At the floor two overflows count as two clean steps, so the scale grows; the next overflow is
    # above the floor, and backs off.
    assert scales([True] * 4, steps) == [4, 2, 2, 4, 2]


def test_a_floor_between_two_fp32_numbers_is_reached() -> None:
    """The scale is an FP32 number, here 0.1 rounded up; the floor of 0.1 is in FP64."""
    config = ScalerConfig(init_scale=1.0, floor=0.1, steps_at_floor=True)
    state = initial(config)
    for _ in range(4):
        state = advance(state, True, config)
    assert state.scale > 0.1
    assert not decide(state, True, config).skip
    above_one = ScalerConfig(init_scale=8.0, floor=1.1)
    report = StepReport(False, True, advance(ScalerState(2.0), True, above_one).scale, "", (), 5)
    assert "The scale is at its floor" in str(diagnosis(report, above_one))


def test_values_out_of_range_are_refused_with_the_range() -> None:
    ranges_and_values = {
        "init_scale": ("2^-126", 0.0, -1.0, math.nan, math.inf, "high", True),
        "growth_factor": ("more than 1", 1.0, "2"),
        "backoff_factor": ("between 0 and 1", 1.0, 0.0, None),
        "growth_interval": ("a whole number, 1 or more", 0, 2.5, True),
        "hysteresis": ("a whole number, 1 or more", 0),
        "floor": (r"(2\^-126|at most init_scale, 65536)", 0.0, 2.0**17),
        "cap": ("a number, at least init_scale, 65536", 2.0**15, math.nan, "high", None),
    }
    for knob, (message, *values) in ranges_and_values.items():
        for value in values:
            # A message with an alternative is a regular expression already.
            expected = message if "|" in message else re.escape(message)
            with pytest.raises(ValueError, match=f"{knob} must be .*{expected}"):
                ScalerConfig(**{knob: value})


def test_numbers_of_numpy_become_python_s() -> None:
    for eight in (np.float16(8.5), np.float32(8.5), np.float64(8.5), np.int64(8)):
        config = ScalerConfig(init_scale=eight, growth_factor=eight, floor=eight, cap=eight)
        values = (config.init_scale, config.growth_factor, config.floor, config.cap)
        values += (ScalerState(eight).scale,)
        assert values == (eight,) * 5
        assert {type(value) for value in values} <= {int, float}


def test_a_switch_that_is_neither_true_nor_false_is_refused() -> None:
    for switch in (
        "dynamic",
        "skip_on_inf",
        "consecutive_hysteresis",
        "steps_at_floor",
        "restart_on_inf",
    ):
        for value in ("no", 1, None):
            with pytest.raises(TypeError, match=f"{switch}: expected a bool, got"):
                ScalerConfig(**{switch: value})


def test_dynamic_scalers_must_check_for_inf() -> None:
    with pytest.raises(ValueError, match="must check for inf"):
        ScalerConfig(skip_on_inf=False)


def test_invalid_states_are_refused() -> None:
    for scale in (0.0, math.inf, torch.tensor(8.0), True):
        with pytest.raises(ValueError, match=r"scale must be a number from 2\^-126 to 3.4e38"):
            ScalerState(scale)
    for counts, name in (
        ((-1,), "growth_tracker"),
        ((1.5,), "growth_tracker"),
        ((0, -1), "hysteresis_tracker"),
    ):
        with pytest.raises(
            ValueError, match=f"{name} must be a whole number, 0 or more; got {counts[-1]}"
        ):
            ScalerState(8.0, *counts)
