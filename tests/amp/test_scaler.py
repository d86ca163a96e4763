"""The loss scaler: a worked saw-tooth, what always holds, and torch.amp.GradScaler as the oracle."""

import math
import random

import pytest
import torch

from labkit.amp import DYNAMIC, NO_SCALING, ScalerConfig, ScalerState, advance, initial, static


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


@pytest.mark.parametrize("interval", [1, 2, 7, 50])
def test_equal_to_torch_over_2000_random_steps(interval: int) -> None:
    config = ScalerConfig(init_scale=2.0**16, growth_interval=interval, growth_factor=2.0, backoff_factor=0.5)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=interval)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    ours = initial(config)
    for found_inf in trace(interval, 2000):
        # Neither may run off FP32's range: what happens there has a test of its own.
        found_inf = (found_inf or ours.scale > 2.0**100) and ours.scale > 2.0**-100
        theirs.scale(parameter.sum()).backward()
        parameter.grad = torch.full((1,), math.inf if found_inf else 1.0)
        theirs.step(optimizer)
        theirs.update()
        ours = advance(ours, found_inf, config)
        assert ours.scale == theirs.get_scale()
        assert ours.growth_tracker == theirs._get_growth_tracker()


def test_odd_factors_equal_torch_in_its_fp32() -> None:
    # torch keeps its scale in FP32; factors that are powers of two agree exactly, others to FP32's rounding.
    config = ScalerConfig(init_scale=1000.0, growth_factor=1.5, backoff_factor=0.3, growth_interval=2)
    state, theirs = initial(config), torch.tensor([1000.0])
    tracker = torch.zeros(1, dtype=torch.int32)
    for found_inf in trace(3, 50):
        found = torch.tensor([float(found_inf)])
        torch._amp_update_scale_(theirs, tracker, found, 1.5, 0.3, 2)
        state = advance(state, found_inf, config)
        assert state.scale == pytest.approx(theirs.item(), rel=1e-5)


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
    assert advance(ScalerState(8.0, 500), False, ScalerConfig(growth_interval=100)).scale == 16.0


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
    ],
)
def test_values_out_of_range_are_refused_with_the_range(knob: str, value: float, range_in_words: str) -> None:
    with pytest.raises(ValueError, match=f"{knob} must be .*{range_in_words.replace('^', '.')}"):
        ScalerConfig(**{knob: value})  # type: ignore[arg-type]


def test_a_dynamic_scaler_must_look() -> None:
    with pytest.raises(ValueError, match="must look for inf"):
        ScalerConfig(skip_on_inf=False)
