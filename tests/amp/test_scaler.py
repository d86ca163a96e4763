"""The loss scaler, against torch.amp.GradScaler's own kernel; presets and reports of skipped steps.

Each preset is compared with a plain loop that repeats the rule of the original framework. A loop
yields for each step the scale before it and whether it changes the weights. It starts with the
original's defaults; some tests shorten `window`, the number of clean steps before growth, so that
10,000 steps contain many growths.
"""

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest
import torch

from labkit.amp import (
    DYNAMIC,
    NO_SCALING,
    PRESETS,
    ScalerConfig,
    ScalerState,
    StepReport,
    advance,
    decide,
    diagnosis,
    initial,
    must_skip,
    static,
    step_report,
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


def reports(
    overflows: list[bool], config: ScalerConfig, culprits: tuple[str, ...] = ()
) -> list[StepReport]:
    """Return the report of each step; `culprits` are the parameters blamed for each overflow."""
    state = initial(config)
    skips = 0
    step_reports = []
    for found_inf in overflows:
        decision = decide(state, found_inf, config)
        step_reports.append(step_report(decision, culprits if found_inf else (), skips))
        state = decision.after
        skips = step_reports[-1].skips_in_a_row
    return step_reports


def test_worked_example_of_reports() -> None:
    clean, bad, bad_again, clean_again = reports(
        [False, True, True, False], DYNAMIC, ("fc.weight",)
    )
    assert clean == StepReport(True, False, 2.0**16, "taken: every gradient is finite")
    assert bad.why == "skipped for inf or NaN in 'fc.weight'; the scale goes from 2^16 to 2^15"
    assert not bad.stepped
    assert bad.found_inf
    assert bad.scale == 2.0**16
    assert bad.culprits == ("fc.weight",)
    assert [r.skips_in_a_row for r in (clean, bad, bad_again, clean_again)] == [0, 1, 2, 0]


def test_reports_state_how_the_scale_changes() -> None:
    forgiven, backed_off = reports([True, True], PRESETS["Megatron"])
    assert forgiven.why == "skipped for inf or NaN in some gradient; the scale stays"
    assert backed_off.why.endswith("the scale goes from 2^32 to 2^31")
    (third,) = reports([True], ScalerConfig(init_scale=1000.0, backoff_factor=0.3))
    assert third.why.endswith("from 1000 to 300")


def test_a_step_taken_in_spite_of_inf_is_reported() -> None:
    (blind,) = reports([True], static(8.0, skip_on_inf=False), ("a",))
    assert blind.stepped
    assert blind.found_inf
    assert blind.skips_in_a_row == 0
    assert blind.why == "taken in spite of inf or NaN in 'a': this scaler does not skip"


def test_fastai_steps_at_a_scale_of_1_in_spite_of_inf() -> None:
    # Sixteen skips take 2^16 to 1.
    steps = reports([True] * 18, PRESETS["fastai"])
    assert [step.stepped for step in steps] == [False] * 16 + [True] * 2
    assert steps[-1].why.endswith("this scaler does not skip at its floor")


def test_a_diagnosis_appears_when_the_scale_reaches_1() -> None:
    """There is no diagnosis before.

    Megatron starts at 2^32, and its first minute ordinarily skips more than 16 steps.
    """
    for name, skips in (("torch", 17), ("Megatron", 34), ("DeepSpeed", 18), ("OneFlow", 17)):
        config = PRESETS[name]
        has_diagnosis = [
            diagnosis(report, config) is not None for report in reports([True] * 40, config)
        ]
        assert has_diagnosis.index(True) == skips - 1, name
    # A scale far above its initial value may fall to it by any number of skips.
    far_above = ScalerConfig(init_scale=1.0)
    assert diagnosis(StepReport(False, True, 2.0**8, "", (), 12), far_above) is None


def test_a_diagnosis_names_parameters_and_remedies() -> None:
    names = tuple(f"w{i}" for i in range(9))
    message = diagnosis(StepReport(False, True, 1.0, "", names, 20), ScalerConfig(init_scale=1.0))
    assert message is not None
    assert message.startswith(
        "20 steps in a row were skipped for inf or NaN in 'w0', 'w1', 'w2', 'w3', 'w4' and 4 more."
    )
    for remedy in ("set_detect_anomaly", "learning rate", "clip", "BF16"):
        assert remedy in message


def test_a_diagnosis_fits_the_configuration_of_the_scaler() -> None:
    for config, remedy in (
        (
            static(2.0**26),
            "static, 2^26, and does not change: use a smaller one or a dynamic scaler",
        ),
        (ScalerConfig(floor=2.0**10), "at its floor, 2^10: use a lower floor"),
        (NO_SCALING, "not the cause: it is 1 or less"),
    ):
        *_, last = reports([True] * 50, config)
        assert remedy in (diagnosis(last, config) or "")
        assert diagnosis(reports([True] * 4, config)[-1], config) is None


Trace = Sequence[bool]
Steps = Iterator[tuple[float, bool]]
SMALLEST_NORMAL = 2.0**-126
STEPS = 10_000


def torch_rule(trace: Trace, window: int = 2000) -> Steps:
    """Run torch's own kernel, with its scale clamped to 2^-126, as labkit's is."""
    scale = torch.tensor(65536.0)
    tracker = torch.tensor(0, dtype=torch.int32)
    for inf in trace:
        yield scale.item(), not inf
        torch._amp_update_scale_(scale, tracker, torch.tensor(float(inf)), 2.0, 0.5, window)
        scale.clamp_(min=SMALLEST_NORMAL)


def apex_rule(trace: Trace, window: int = 2000) -> Steps:
    scale = 2.0**16
    unskipped = 0
    for inf in trace:
        yield scale, not inf
        unskipped = 0 if inf else unskipped + 1
        if inf:
            scale = max(scale / 2, SMALLEST_NORMAL)
        if unskipped == window:
            scale = min(2.0**24, scale * 2)
            unskipped = 0


def deepspeed_rule(
    trace: Trace, window: int = 1000, delayed_shift: int = 2, consecutive: bool = False
) -> Steps:
    """Repeat the loss scaler of DeepSpeed.

    Iterations are numbered from 0, the last overflow counts as one in iteration -1 at the start,
    and growth restarts no count.
    """
    scale = 2.0**16
    last_overflow = -1
    hysteresis = delayed_shift
    for iteration, inf in enumerate(trace):
        yield scale, not inf
        if inf:
            last_overflow = iteration
            if delayed_shift == 1 or hysteresis == 1:
                scale = max(scale / 2, 1.0)
            else:
                hysteresis -= 1
            continue
        grows = (iteration - last_overflow) % window == 0
        if consecutive or grows:
            hysteresis = delayed_shift
        if grows:
            scale *= 2


def megatron_rule(trace: Trace, window: int = 1000, hysteresis: int = 2) -> Steps:
    """Repeat the scaler of Megatron.

    Its hysteresis counter goes below zero, and only growth restores it.
    """
    scale = 2.0**32
    clean = 0
    counter = hysteresis
    for inf in trace:
        yield scale, not inf
        if inf:
            clean = 0
            counter = counter - 1
            scale = max(scale * 0.5, 1.0) if counter <= 0 else scale
        else:
            clean += 1
            if clean == window:
                clean = 0
                counter = hysteresis
                scale = scale * 2


def oneflow_rule(trace: Trace, window: int = 2000) -> Steps:
    """Repeat the scaler of OneFlow, with FLT_MAX from torch, not from labkit."""
    scale = 2.0**16
    good = 0
    flt_max = torch.finfo(torch.float32).max
    for inf in trace:
        yield scale, not inf
        good = 0 if inf else good + 1
        if inf:
            scale = max(scale / 2, 1.0)
        elif good >= window:
            scale = min(scale * 2, flt_max)
            good = 0


def fastai_rule(trace: Trace, window: int = 1000) -> Steps:
    """Repeat the scaler of fastai.

    The count runs on at the cap; at a scale of 1, each step is taken and counted without a check
    for inf.
    """
    scale = 2.0**16
    noskip = 0
    for inf in trace:
        if inf and scale > 1:
            yield scale, False
            scale = scale / 2
            noskip = 0
        else:
            yield scale, True
            noskip += 1
            if noskip >= window and scale < 2.0**24:
                scale = scale * 2
                noskip = 0


RULES: dict[str, Callable[..., Steps]] = {
    "torch": torch_rule,
    "apex": apex_rule,
    "DeepSpeed": deepspeed_rule,
    "Megatron": megatron_rule,
    "OneFlow": oneflow_rule,
    "fastai": fastai_rule,
}


def ours(trace: Trace, config: ScalerConfig) -> Steps:
    state = initial(config)
    for inf in trace:
        yield state.scale, not must_skip(state, inf, config)
        state = advance(state, inf, config)


def random_trace(rate: float, seed: int) -> Trace:
    rng = random.Random(seed)
    return [rng.random() < rate for _ in range(STEPS)]


def bursts(seed: int) -> Trace:
    """Return runs of overflows and of clean steps, from one step to some hundred long."""
    rng = random.Random(seed)
    trace: list[bool] = []
    while len(trace) < STEPS:
        trace += [rng.random() < 0.5] * rng.choice([1, 1, 2, 3, 7, 50, 300])
    return trace[:STEPS]


def runs_near_the_window(window: int) -> Trace:
    """Return runs of clean steps that are one shorter than the window, equal, and one longer.

    One, two and three overflows separate them.
    """
    runs = [(window + extra, overflows) for extra in (-1, 0, 1) for overflows in (1, 2, 3)]
    runs += [(2 * window + extra, 1) for extra in (-1, 0, 1)]
    trace: list[bool] = []
    while len(trace) < STEPS:
        for clean, overflows in runs:
            trace += [False] * clean + [True] * overflows
    return trace[:STEPS]


def traces(window: int) -> dict[str, Trace]:
    return {
        "never": [False] * STEPS,
        "always": [True] * STEPS,
        "every other step": [i % 2 == 0 for i in range(STEPS)],
        "rare": random_trace(0.0005, 1),
        "some": random_trace(0.02, 2),
        "half": random_trace(0.5, 3),
        "bursts": bursts(4),
        "runs near the window": runs_near_the_window(window),
        "up, then only down": [False] * (STEPS // 2) + [True] * (STEPS // 2),
        "down, then only up": [True] * 300 + [False] * (STEPS - 300),
    }


def first_difference(
    theirs: Steps, trace: Trace, config: ScalerConfig
) -> tuple[int, object, object] | None:
    """Return the first step that differs, with both results, or None.

    The scales of DeepSpeed and Megatron may leave the range of FP32 and labkit's may not, so the
    comparison ends there.
    """
    within = list(takewhile(lambda step: step[0] <= torch.finfo(torch.float32).max, theirs))
    # From 2^32, Megatron's scale may grow 95 times inside FP32: at least 90 windows are compared.
    assert len(within) >= min(90 * config.growth_interval, len(trace))
    pairs = enumerate(zip(within, ours(trace, config), strict=False))
    return next(((step, a, b) for step, (a, b) in pairs if a != b), None)


@pytest.mark.parametrize(
    "window", [2, *(pytest.param(window, marks=pytest.mark.slow) for window in (30, None))]
)
def test_a_preset_replays_the_original(window: int | None) -> None:
    """A short window shows many growths; slow cases have longer ones, up to the preset's own."""
    assert list(PRESETS) == list(RULES)
    for name, rule in RULES.items():
        config = replace(PRESETS[name], growth_interval=window or PRESETS[name].growth_interval)
        for description, full_trace in traces(config.growth_interval).items():
            # Fewer steps keep a short window fast; the preset's own window needs all of them.
            trace = full_trace[:3000] if window else full_trace
            theirs = rule(trace, config.growth_interval)
            assert first_difference(theirs, trace, config) is None, (name, description)


@pytest.mark.parametrize(
    "hysteresis", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 3, 5))]
)
def test_hysteresis_equals_deepspeed_s_and_megatron_s(hysteresis: int) -> None:
    # Of a window of 40 steps, 4,000 steps contain up to 100.
    for description, full_trace in traces(40).items():
        trace = full_trace[:4000]
        for name, consecutive in (("DeepSpeed", False), ("DeepSpeed", True), ("Megatron", False)):
            row = replace(PRESETS[name], hysteresis=hysteresis, consecutive_hysteresis=consecutive)
            theirs = RULES[name](
                trace, 40, hysteresis, *([consecutive] if name == "DeepSpeed" else [])
            )
            assert first_difference(theirs, trace, replace(row, growth_interval=40)) is None, (
                description,
                name,
                consecutive,
            )
