"""Presets of the loss scaler, against the rules of the original frameworks.

Each preset is compared with a plain loop that repeats the rule of the original. A loop yields for
each step the scale before it and whether it changes the weights. It starts with the original's
defaults; some tests shorten `window`, the number of clean steps before growth, so that 10,000 steps
contain many growths.
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
