"""The loss scaler, against torch.amp.GradScaler's own kernel; presets and reports of skipped steps.

Presets replay the originals: each rule is stated here once more, as a plain loop in the original's
own terms. A loop yields, step by step, the scale before the step and whether the step reaches the
weights. It starts with the original's defaults; `window` is the one value that some tests shorten,
so that 10,000 steps see many growths.
"""

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

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


def scales(found: list[bool], config: ScalerConfig) -> list[float]:
    """The scale before the first step, and after each."""
    states = itertools.accumulate(
        found, lambda state, inf: advance(state, inf, config), initial=initial(config)
    )
    return [state.scale for state in states]


def test_worked_example_a_saw_tooth() -> None:
    config = ScalerConfig(init_scale=1024.0, growth_interval=3)
    found = [True, False, False, False, False, False, False, True, False]
    scale = scales(found, config)
    #                inf    three clean steps    three more           inf
    assert scale == [1024, 512, 512, 512, 1024, 1024, 1024, 2048, 1024, 1024]


def test_an_overflow_forgets_the_clean_steps_before_it() -> None:
    state = ScalerState(8.0, growth_tracker=2)
    assert advance(state, True, ScalerConfig(growth_interval=3)) == ScalerState(4.0, 0)
    assert advance(
        state, True, ScalerConfig(growth_interval=3, restart_on_inf=False)
    ) == ScalerState(4.0, 2)
    assert advance(state, True, ScalerConfig(hysteresis=2)) == ScalerState(8.0, 0, 1), (
        "one that is forgiven, too"
    )


def test_static_and_none_never_move() -> None:
    for config in (NO_SCALING, static(1024), static(2.0**20, skip_on_inf=False)):
        state = initial(config)
        assert advance(state, True, config) == advance(state, False, config) == state
    assert initial(NO_SCALING).scale == 1.0


def test_equal_to_torch_over_random_steps() -> None:
    """Factors that are no powers of two are rounded to FP32 at every step, as torch's scale is:
    equal, not close.
    """
    factors = ((2.0, 0.5), (1.5, 0.3), (1.001, 0.999), (7.0, 1 / 3))
    for interval, (growth, backoff) in itertools.product((1, 2, 7, 50), factors):
        rng = random.Random(interval)
        scale = torch.tensor(1000.1)
        tracker = torch.tensor(0, dtype=torch.int32)
        config = ScalerConfig(1000.1, growth, backoff, interval)
        state = initial(config)
        for step in range(3000):
            found_inf = rng.random() < (0.02 if (step // 200) % 3 else 0.3)
            # Neither may run off FP32's bottom, where torch goes on to 0: that has a test of its
            # own.
            found_inf = (found_inf or state.scale > 2.0**126) and state.scale > 2.0**-100
            torch._amp_update_scale_(
                scale, tracker, torch.tensor(float(found_inf)), growth, backoff, interval
            )
            state = advance(state, found_inf, config)
            assert (state.scale, state.growth_tracker) == (scale.item(), tracker.item()), (
                config,
                step,
            )


def test_the_scale_never_reaches_zero_or_infinity() -> None:
    # torch's does: 166 overflows in a row take 2^16 to exactly 0, and every later gradient is 0/0.
    theirs = torch.tensor([2.0**16])
    tracker = torch.zeros(1, dtype=torch.int32)
    for _ in range(200):
        torch._amp_update_scale_(theirs, tracker, torch.ones(1), 2.0, 0.5, 2000)
    assert theirs.item() == 0.0
    assert scales([True] * 200, DYNAMIC)[-1] == 2.0**-126
    assert scales([False] * 200, ScalerConfig(growth_interval=1))[-1] == 2.0**127


def test_lowering_the_interval_below_the_tracker_still_grows() -> None:
    # torch compares with ==, so its scaler would never grow again.
    scale = torch.tensor(8.0)
    tracker = torch.tensor(500, dtype=torch.int32)
    state = ScalerState(8.0, 500)
    config = ScalerConfig(growth_interval=100)
    for _ in range(200):
        torch._amp_update_scale_(scale, tracker, torch.tensor(0.0), 2.0, 0.5, 100)
        state = advance(state, False, config)
    assert (scale.item(), state) == (8.0, ScalerState(32.0, 99))


def test_hysteresis_forgives_all_but_the_last_of_n_overflows() -> None:
    config = ScalerConfig(init_scale=64.0, hysteresis=3)
    # Two are forgiven; from the third on every one backs off, until growth gives the patience back.
    assert scales([True] * 5, config) == [64, 64, 64, 32, 16, 8]
    for consecutive in (False, True):
        config = ScalerConfig(hysteresis=2, consecutive_hysteresis=consecutive, growth_interval=2)
        clean = advance(ScalerState(8.0, 0, 1), False, config)
        assert clean == ScalerState(8.0, 1, 0 if consecutive else 1)
        assert advance(clean, False, config) == ScalerState(16.0), "growth always does"
    lowered = advance(ScalerState(8.0, 0, 4), True, ScalerConfig(hysteresis=2))
    assert lowered.scale == 4.0, "below the tracker: it backs off at once"


def test_floor_and_cap_are_reached_and_kept() -> None:
    config = ScalerConfig(init_scale=24.0, floor=5.0, cap=80.0, growth_interval=1)
    assert scales([True] * 4, config) == [24, 12, 6, 5, 5]
    assert scales([False] * 4, config) == [24, 48, 80, 80, 80]
    steps = ScalerConfig(init_scale=4.0, floor=2.0, growth_interval=2, steps_at_floor=True)
    assert must_skip(ScalerState(4.0), True, steps)
    assert not must_skip(ScalerState(2.0), True, steps)
    # At the floor two overflows pass for two clean steps, so the scale grows, and the third is one
    # again.
    assert scales([True] * 4, steps) == [4, 2, 2, 4, 2]


def test_values_out_of_range_are_refused_with_the_range() -> None:
    range_of = {
        "init_scale": ("2^-126", 0.0, -1.0, math.nan, math.inf, "high"),
        "growth_factor": ("more than 1", 1.0, "2"),
        "backoff_factor": ("between 0 and 1", 1.0, 0.0, None),
        "growth_interval": ("a whole number, 1 or more", 0, 2.5, True),
        "hysteresis": ("a whole number, 1 or more", 0),
        "floor": (r"(2\^-126|at most init_scale, 65536)", 0.0, 2.0**17),
        "cap": ("at least init_scale, 65536", 2.0**15, math.nan),
    }
    for knob, (in_words, *values) in range_of.items():
        for value in values:
            expected = in_words if "|" in in_words else re.escape(in_words)
            with pytest.raises(ValueError, match=f"{knob} must be .*{expected}"):
                ScalerConfig(**{knob: value})
    with pytest.raises(ValueError, match="must check for inf"):
        ScalerConfig(skip_on_inf=False)
    for scale in (0.0, math.inf, torch.tensor(8.0)):
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
    found: list[bool], config: ScalerConfig, culprits: tuple[str, ...] = ()
) -> list[StepReport]:
    state = initial(config)
    skips = 0
    told = []
    for found_inf in found:
        decision = decide(state, found_inf, config)
        told.append(step_report(decision, culprits if found_inf else (), skips))
        state = decision.after
        skips = told[-1].skips_in_a_row
    return told


def test_worked_example() -> None:
    clean, bad, bad_again, clean_again = reports(
        [False, True, True, False], DYNAMIC, ("fc.weight",)
    )
    assert clean == StepReport(True, False, 2.0**16, "taken: every gradient is finite")
    assert bad.why == "skipped for inf or NaN in 'fc.weight'; the scale goes from 2^16 to 2^15"
    assert (bad.stepped, bad.found_inf, bad.scale, bad.culprits) == (
        False,
        True,
        2.0**16,
        ("fc.weight",),
    )
    assert [r.skips_in_a_row for r in (clean, bad, bad_again, clean_again)] == [0, 1, 2, 0]


def test_a_constant_scale_and_a_step_taken_with_inf_are_reported() -> None:
    forgiven, backed_off = reports([True, True], PRESETS["Megatron"])
    assert forgiven.why == "skipped for inf or NaN in some gradient; the scale stays"
    assert backed_off.why.endswith("the scale goes from 2^32 to 2^31")
    (third,) = reports([True], ScalerConfig(init_scale=1000.0, backoff_factor=0.3))
    assert third.why.endswith("from 1000 to 300")
    (blind,) = reports([True], static(8.0, skip_on_inf=False), ("a",))
    assert (blind.stepped, blind.found_inf, blind.skips_in_a_row) == (True, True, 0)
    assert blind.why == "taken in spite of inf or NaN in 'a': this scaler does not skip"
    assert [r.stepped for r in reports([True] * 18, PRESETS["fastai"])] == [False] * 16 + [True] * 2


def test_a_failing_run_is_reported_when_its_scale_reaches_1() -> None:
    """Not before: Megatron starts at 2^32, and 17 skips to 2^16 are its ordinary first minute."""
    for name, skips in (("torch", 17), ("Megatron", 34), ("DeepSpeed", 18), ("OneFlow", 17)):
        config = PRESETS[name]
        told = [diagnosis(report, config) is not None for report in reports([True] * 40, config)]
        assert told.index(True) == skips - 1, name
    # a scale that grew far above its start may come all the way down
    far_above = ScalerConfig(init_scale=1.0)
    assert diagnosis(StepReport(False, True, 2.0**8, "", (), 12), far_above) is None
    names = tuple(f"w{i}" for i in range(9))
    said = diagnosis(StepReport(False, True, 1.0, "", names, 20), far_above) or ""
    assert said.startswith(
        "20 steps in a row were skipped for inf or NaN in 'w0', 'w1', 'w2', 'w3', 'w4' and 4 more."
    )
    assert all(remedy in said for remedy in ("set_detect_anomaly", "learning rate", "clip", "BF16"))
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
    """torch's own kernel, not a retelling. It may fall below 2^-126; we do not, so neither does it
    here.
    """
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
    """Iterations are numbered from 0, the last overflow was "in iteration -1", and nothing restarts
    after growth.
    """
    scale = 2.0**16
    last_overflow = -1
    left = delayed_shift
    for iteration, inf in enumerate(trace):
        yield scale, not inf
        if inf:
            last_overflow = iteration
            if delayed_shift == 1 or left == 1:
                scale = max(scale / 2, 1.0)
            else:
                left -= 1
            continue
        grows = (iteration - last_overflow) % window == 0
        if consecutive or grows:
            left = delayed_shift
        if grows:
            scale *= 2


def megatron_rule(trace: Trace, window: int = 1000, hysteresis: int = 2) -> Steps:
    """The hysteresis counter goes below zero and is filled only where the scale grows."""
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
    """FLT_MAX from torch, so that no constant of ours is compared with itself."""
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
    """At the cap the count runs on; at scale 1 nobody looks, and the step is made and counted."""
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
    """Runs of overflows and of clean steps, both of any length up to some hundred."""
    rng = random.Random(seed)
    trace: list[bool] = []
    while len(trace) < STEPS:
        trace += [rng.random() < 0.5] * rng.choice([1, 1, 2, 3, 7, 50, 300])
    return trace[:STEPS]


def just_around(window: int) -> Trace:
    """Clean runs one short of the window, exact, and one over, parted by one, two and three
    overflows.
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
        "just around the window": just_around(window),
        "up, then only down": [False] * (STEPS // 2) + [True] * (STEPS // 2),
        "down, then only up": [True] * 300 + [False] * (STEPS - 300),
    }


def first_difference(
    theirs: Steps, trace: Trace, config: ScalerConfig
) -> tuple[int, object, object] | None:
    """The first step that differs, up to where DeepSpeed's and Megatron's scales leave FP32 and
    ours stays in it.
    """
    within = list(takewhile(lambda step: step[0] <= torch.finfo(torch.float32).max, theirs))
    assert len(within) >= min(90 * config.growth_interval, len(trace))
    pairs = enumerate(zip(within, ours(trace, config), strict=False))
    return next(((step, a, b) for step, (a, b) in pairs if a != b), None)


@pytest.mark.parametrize(
    "window", [2, *(pytest.param(window, marks=pytest.mark.slow) for window in (30, None))]
)
def test_a_preset_replays_the_original(window: int | None) -> None:
    """With a short window, which sees many growths; the slow ones are longer, up to the preset's
    own.
    """
    assert list(PRESETS) == list(RULES)
    for name, rule in RULES.items():
        config = replace(PRESETS[name], growth_interval=window or PRESETS[name].growth_interval)
        for kind, whole in traces(config.growth_interval).items():
            trace = whole[:3000] if window else whole
            theirs = rule(trace, config.growth_interval)
            assert first_difference(theirs, trace, config) is None, (name, kind)


@pytest.mark.parametrize(
    "hysteresis", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 3, 5))]
)
def test_hysteresis_is_deepspeeds_in_both_flavours_and_megatrons(hysteresis: int) -> None:
    for kind, whole in traces(40).items():
        trace = whole[:4000]
        for name, consecutive in (("DeepSpeed", False), ("DeepSpeed", True), ("Megatron", False)):
            row = replace(PRESETS[name], hysteresis=hysteresis, consecutive_hysteresis=consecutive)
            theirs = RULES[name](
                trace, 40, hysteresis, *([consecutive] if name == "DeepSpeed" else [])
            )
            assert first_difference(theirs, trace, replace(row, growth_interval=40)) is None, (
                kind,
                name,
                consecutive,
            )
