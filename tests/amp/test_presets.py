"""Presets replay the originals: each rule is stated here once more, as a plain loop in the original's own terms.

A loop yields, step by step, the scale before the step and whether the step reaches the weights. It starts with the
original's defaults; `window` is the one value that some tests shorten, so that 10,000 steps see many growths.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

import pytest
import torch

from labkit.amp import PRESETS, ScalerConfig, advance, initial, must_skip

Trace = Sequence[bool]
Steps = Iterator[tuple[float, bool]]
SMALLEST_NORMAL = 2.0**-126
STEPS = 10_000


def torch_rule(trace: Trace, window: int = 2000) -> Steps:
    """torch's own kernel, not a retelling. It may fall below 2^-126; we do not, so neither does it here."""
    scale, tracker = torch.tensor(65536.0), torch.tensor(0, dtype=torch.int32)
    for inf in trace:
        yield scale.item(), not inf
        torch._amp_update_scale_(scale, tracker, torch.tensor(float(inf)), 2.0, 0.5, window)
        scale.clamp_(min=SMALLEST_NORMAL)


def apex_rule(trace: Trace, window: int = 2000) -> Steps:
    scale, unskipped = 2.0**16, 0
    for inf in trace:
        yield scale, not inf
        unskipped = 0 if inf else unskipped + 1
        if inf:
            scale = max(scale / 2, SMALLEST_NORMAL)
        if unskipped == window:
            scale, unskipped = min(2.0**24, scale * 2), 0


def deepspeed_rule(trace: Trace, window: int = 1000, delayed_shift: int = 2, consecutive: bool = False) -> Steps:
    """Iterations are numbered from 0, the last overflow was "in iteration -1", and nothing restarts after growth."""
    scale, last_overflow, left = 2.0**16, -1, delayed_shift
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
    scale, clean, counter = 2.0**32, 0, hysteresis
    for inf in trace:
        yield scale, not inf
        if inf:
            clean, counter = 0, counter - 1
            scale = max(scale * 0.5, 1.0) if counter <= 0 else scale
        else:
            clean += 1
            if clean == window:
                clean, counter, scale = 0, hysteresis, scale * 2


def oneflow_rule(trace: Trace, window: int = 2000) -> Steps:
    """FLT_MAX from torch, so that no constant of ours is compared with itself."""
    scale, good, flt_max = 2.0**16, 0, torch.finfo(torch.float32).max
    for inf in trace:
        yield scale, not inf
        good = 0 if inf else good + 1
        if inf:
            scale = max(scale / 2, 1.0)
        elif good >= window:
            scale, good = min(scale * 2, flt_max), 0


def fastai_rule(trace: Trace, window: int = 1000) -> Steps:
    """At the cap the count runs on; at scale 1 nobody looks, and the step is made and counted."""
    scale, noskip = 2.0**16, 0
    for inf in trace:
        if inf and scale > 1:
            yield scale, False
            scale, noskip = scale / 2, 0
        else:
            yield scale, True
            noskip += 1
            if noskip >= window and scale < 2.0**24:
                scale, noskip = scale * 2, 0


def fastai_2_rule(trace: Trace, window: int = 500) -> Steps:
    """fastai v2, callback/fp16.py, NonNativeMixedPrecision: a skipped batch leaves before the count is touched."""
    scale, count = 2.0**24, 0
    for inf in trace:
        yield scale, not inf
        if inf:
            scale = max(scale / 2, SMALLEST_NORMAL)
            continue
        count += 1
        if count == window:
            scale, count = scale * 2, 0


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
    """Clean runs one short of the window, exact, and one over, parted by one, two and three overflows."""
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


def first_difference(theirs: Steps, trace: Trace, config: ScalerConfig) -> tuple[int, object, object] | None:
    """The first step that differs, up to where DeepSpeed's and Megatron's scales leave FP32 and ours stays in it."""
    within = list(takewhile(lambda step: step[0] <= torch.finfo(torch.float32).max, theirs))
    assert len(within) >= min(90 * config.growth_interval, len(trace))
    pairs = enumerate(zip(within, ours(trace, config), strict=False))
    return next(((step, a, b) for step, (a, b) in pairs if a != b), None)


@pytest.mark.parametrize("window", [2, *(pytest.param(window, marks=pytest.mark.slow) for window in (30, None))])
def test_a_preset_replays_the_original(window: int | None) -> None:
    """With a short window, which sees many growths; the slow ones are longer, up to the preset's own."""
    assert list(PRESETS) == list(RULES)
    for name, rule in RULES.items():
        config = replace(PRESETS[name], growth_interval=window or PRESETS[name].growth_interval)
        for kind, whole in traces(config.growth_interval).items():
            trace = whole[:3000] if window else whole
            theirs = rule(trace, config.growth_interval)
            assert first_difference(theirs, trace, config) is None, (name, kind)


def test_at_the_top_of_fp32_torch_stays_and_oneflow_clamps() -> None:
    trace = [False] * 200 + [True] * 3
    for name, top in (("torch", 2.0**127), ("OneFlow", (2 - 2.0**-23) * 2.0**127)):
        config = replace(PRESETS[name], growth_interval=1)
        assert first_difference(RULES[name](trace, 1), trace, config) is None
        assert max(scale for scale, _ in ours(trace, config)) == top


@pytest.mark.parametrize("hysteresis", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 3, 5))])
def test_hysteresis_is_deepspeeds_in_both_flavours_and_megatrons(hysteresis: int) -> None:
    for kind, whole in traces(40).items():
        trace = whole[:4000]
        for name, consecutive in (("DeepSpeed", False), ("DeepSpeed", True), ("Megatron", False)):
            row = replace(PRESETS[name], hysteresis=hysteresis, consecutive_hysteresis=consecutive)
            theirs = RULES[name](trace, 40, hysteresis, *([consecutive] if name == "DeepSpeed" else []))
            assert first_difference(theirs, trace, replace(row, growth_interval=40)) is None, (kind, name, consecutive)


def test_fastai_takes_a_step_with_inf_at_scale_1() -> None:
    config = PRESETS["fastai"]
    steps = list(ours([True] * 20, config))
    assert [scale for scale, stepped in steps if not stepped] == [2.0**e for e in range(16, 0, -1)]
    assert steps[16:] == [(1.0, True)] * 4
    assert not any(stepped for _, stepped in ours([True] * 20, PRESETS["OneFlow"]))  # the others go on skipping


@pytest.mark.parametrize("window", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_fastai_2s_own_rule_keeps_its_count_at_an_overflow(window: int) -> None:
    config = ScalerConfig(init_scale=2.0**24, growth_interval=window, restart_on_inf=False)
    for kind in ("some", "half", "bursts", "just around the window", "every other step"):
        trace = traces(window)[kind]
        assert first_difference(fastai_2_rule(trace, window), trace, config) is None, kind
