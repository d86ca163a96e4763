"""Which steps does a framework's scaler skip?

The point: one rule and a handful of knobs. Hysteresis lets the first overflow pass without backing off, so the next one
comes sooner; a floor and a cap stop the scale; and one framework looks for nothing once it is at its floor.

Invariant: all scales are powers of two or the ends given, so every product is exact.
Oracle in the tests: each framework's own rule, written from its source, without `advance`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from labkit.amp import PRESETS, ScalerConfig, advance, decide, initial, must_skip
from labkit.grading.exercise import Case, Check, Exercise, wrong

OVERFLOWS = 65520.0


def reference(largest: list[float], config: ScalerConfig) -> list[int]:
    """Return the numbers of the skipped steps, counted from 1.

    >>> reference([1.0, 0.5, 1.0, 1.0], ScalerConfig(hysteresis=2))
    [1, 3]
    """
    state, skipped = initial(config), []
    for step, gradient in enumerate(largest, start=1):
        decision = decide(state, state.scale * gradient >= OVERFLOWS, config)
        state = decision.after
        if decision.skip:
            skipped.append(step)
    return skipped


def _gradients(random: Random, steps: int, top: int, spread: int) -> list[float]:
    """Return largest magnitudes of gradients, from 2^(top - spread) to 2^(top + spread)."""
    return [
        random.randrange(1025, 2047) / 1024 * 2.0 ** random.randint(top - spread, top + spread) for _ in range(steps)
    ]


def _rule(name: str, random: Random, **knobs: float) -> ScalerConfig:
    """Return a framework's rule with a short interval, and a start of 2^16."""
    interval = random.randint(2, 4)
    return replace(PRESETS[name], **{"init_scale": 2.0**16, "growth_interval": interval, **knobs})  # type: ignore[arg-type]


def _plain(random: Random) -> list[Case]:
    drawn: list[Case] = [(_gradients(random, 30, 0, 3), _rule("torch", random)) for _ in range(2)]
    return [*drawn, ([], ScalerConfig()), ([2.0], ScalerConfig())]


def _limit(random: Random) -> list[Case]:
    """65520 at the present scale, what is just below, and inf."""
    at = OVERFLOWS / 2.0**16
    below, rule = math.nextafter(at, 0), replace(PRESETS["torch"], growth_interval=50)
    return [([below, at, at, below / 2, math.inf, at * 4, 0.0], rule), ([below, below, math.inf] * 3, rule)]


def _hysteresis(random: Random) -> list[Case]:
    rules = [_rule("DeepSpeed", random), _rule("Megatron", random, hysteresis=3)]
    return [(_gradients(random, 30, 0, 2), rule) for rule in rules for _ in range(2)]


def _high(random: Random) -> list[Case]:
    """As Megatron ships its start: 2^32, and gradients far below 1."""
    return [(_gradients(random, 30, -16, 3), _rule("Megatron", random, init_scale=2.0**32))]


def _floor(random: Random) -> list[Case]:
    """Large gradients: the scale comes down to its floor, and overflows go on there; 16 cannot be halved down to 6."""
    rules = [_rule(name, random, init_scale=16.0, growth_interval=3) for name in ("OneFlow", "fastai")]
    drawn: list[Case] = [(_gradients(random, 20, 16, 2), rule) for rule in rules for _ in range(2)]
    return [*drawn, ([9000.0] * 5, replace(rules[0], floor=6.0, growth_interval=50)), *_ends(random, floor=True)]


def _cap(random: Random) -> list[Case]:
    """Small gradients: at apex's cap, 2^24, none overflows, and at 2^25 all do."""
    rules = [_rule("apex", random, init_scale=2.0**22, growth_interval=2), _rule("torch", random, init_scale=2.0**22)]
    between = ScalerConfig(init_scale=48.0, growth_interval=1, floor=1.0, cap=64.0)  # 48 doubles up to 64
    return [
        *((_gradients(random, 24, -9, 0), rule) for rule in rules),
        ([1100.0] * 6, between),
        *_ends(random, floor=False),
    ]


def _ends(random: Random, floor: bool) -> list[Case]:
    """All knobs at once: a scale that walks between a floor and a cap, hysteresis at both, and counts that end there.

    The gradients' exponents lie around the end that is meant: 65520 is passed at the floor, or just below the cap.
    """
    cases: list[Case] = []
    for hysteresis in (1, 2, 3):
        for blind in (False, True):
            low, high = random.choice((1.0, 3.0, 8.0)), random.choice((64.0, 96.0, 32.0))
            rule = ScalerConfig(
                init_scale=low if floor else high, growth_interval=random.randint(1, 3), hysteresis=hysteresis,
                floor=low, cap=high, steps_at_floor=blind,
            )  # fmt: skip
            cases.append((_gradients(random, 40, 13 if floor else 10, 2), rule))
    return cases


def _skipped(
    largest: list[float],
    config: ScalerConfig,
    *,
    restarts: bool = True,
    refills: bool = True,
    limit: float = OVERFLOWS,
) -> list[int]:
    """Play the rule, with a part of it left out."""
    scale, clean, forgiven, skipped = config.init_scale, 0, 0, []
    for step, gradient in enumerate(largest, start=1):
        blind = config.steps_at_floor and scale <= config.floor
        if scale * gradient >= limit and not blind:
            skipped.append(step)
            forgiven += 1
            clean = 0 if restarts else clean
            scale = max(scale / 2, config.floor) if forgiven >= config.hysteresis else scale
        else:
            clean += 1
            if clean >= config.growth_interval:
                scale, clean, forgiven = min(scale * 2, config.cap), 0, 0 if refills else forgiven
    return skipped


# fmt: off
MISTAKES = (
    wrong("knows no hysteresis", "this halves the scale at every overflow. With hysteresis 2 the first one since the "
          "scale last grew only skips its step.",
          lambda largest, config: reference(largest, replace(config, hysteresis=1))),
    wrong("halves one overflow too late", "this lets one overflow too many pass: with hysteresis 2 the second one "
          "halves the scale.",
          lambda largest, config: reference(largest, replace(config, hysteresis=config.hysteresis + 1))),
    wrong("never forgives again", "this lets overflows pass once and for all. When the scale grows, it begins anew.",
          lambda largest, config: _skipped(largest, config, refills=False)),
    wrong("forgives only in a row", "this forgets an overflow at the next clean step. It is remembered until the "
          "scale grows.", lambda largest, config: reference(largest, replace(config, consecutive_hysteresis=True))),
    wrong("knows no floor", "this backs off below the floor.",
          lambda largest, config: reference(largest, replace(config, floor=2.0**-126, steps_at_floor=False))),
    wrong("knows no cap", "this grows beyond the cap.",
          lambda largest, config: reference(largest, replace(config, cap=math.inf))),
    wrong("looks for inf at the floor", "this skips at the floor too, where `steps_at_floor` turns the check off: "
          "there an overflow is a clean step.",
          lambda largest, config: reference(largest, replace(config, steps_at_floor=False))),
    wrong("goes on counting", "this goes on counting clean steps after an overflow. The count starts again.",
          lambda largest, config: _skipped(largest, config, restarts=False)),
    wrong("overflows at 65536", "this lets 65520 pass, which FP16 rounds to inf.",
          lambda largest, config: _skipped(largest, config, limit=65536.0)),
    wrong("counts from zero", "this counts steps from 0; the first one is step 1.",
          lambda largest, config: [step - 1 for step in reference(largest, config)]),
)
# fmt: on

EXERCISE = Exercise(
    id="frameworks.skips",
    title="Which steps are skipped?",
    entry="my_skipped_steps",
    difficulty=3,
    minutes=12,
    reference=reference,
    checks=(
        Check("torch's rule", 1, _plain),
        Check("65520, what is just below, and inf", 1, _limit),
        Check("hysteresis of 2 and of 3", 2, _hysteresis),
        Check("a start at 2^32", 1, _high),
        Check("at the floor, skipped or stepped", 1, _floor),
        Check("at the cap, and without one", 1, _cap),
    ),
    mistakes=MISTAKES,
    withheld=(advance, decide, must_skip),
)
