"""Exercises of lesson 06: static and dynamic loss scaling, clipping, and the order of a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import cast

import torch
from torch import Tensor

from labkit.amp import ScalerConfig, ScalerState
from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, wrong
from labkit.grading.solutions import Solutions

from .cases import Knobs, Loop, ScaledBackward

solution = Solutions(__file__)

# --- scaling.static_step ---


def _backward(random: Random, low: int, high: int, units: int) -> ScaledBackward:
    """Return the backward pass of a gradient of whole numbers over `units`."""
    return ScaledBackward(whole(random, (4,), low, high) / units)


def _ordinary_steps(random: Random) -> list[Case]:
    """Gradients n / 2^11 below 1/2 and weights n / 2^10.

    FP16 holds both, and their sum is exact in FP32.
    """
    cases: list[Case] = []
    for _ in range(4):
        weight = whole(random, (4,), 0, 1024) / 2**10
        backward = _backward(random, 65, 1024, 2**11)
        scale = 2.0 ** random.randrange(4, 12)
        cases.append((weight, backward, scale, random.choice((0.5, 0.25, 0.125))))
    return cases


def _large_steps(random: Random) -> list[Case]:
    """Scaled elements of one sign, 32,768 or more: each is finite, and their FP16 sum is not.

    The last case is a gradient of zeros, which is finite, too.
    """
    weight = whole(random, (4,), 0, 1024) / 2**10
    gradient = whole(random, (4,), 512, 1024).abs() / 2**11
    # Scaled, this is 65504.
    largest = torch.full((4,), 2047 / 2**12)
    zeros = torch.zeros(4)
    return [
        (weight, ScaledBackward(drawn), 2.0**17, 0.5)
        for drawn in (gradient, -gradient, largest, zeros)
    ]


def _tiny_steps(random: Random) -> list[Case]:
    """Gradients n / 2^36 below 2^-26, all of which are 0 in FP16.

    At the scales of the cases, 2^22 or more, they are normal numbers of FP16.
    """
    return [
        (torch.zeros(4), _backward(random, 1, 1024, 2**36), 2.0 ** random.randrange(22, 27), 0.5)
        for _ in range(4)
    ]


def _spoiled_steps(random: Random, element: Callable[[], float]) -> list[Case]:
    """Ordinary cases, but for one element of the gradient."""
    cases: list[Case] = []
    for weight, _, scale, lr in _ordinary_steps(random):
        gradient = whole(random, (4,), 65, 1024) / 2**11
        gradient[random.randrange(4)] = element()
        cases.append((weight, ScaledBackward(gradient), scale, lr))
    return cases


def _overflowing_steps(random: Random) -> list[Case]:
    """One element times the scale is beyond FP16's 65504: +inf or -inf."""
    either_sign = _spoiled_steps(random, lambda: random.choice((-1, 1)) * 2.0**13)
    return either_sign + _spoiled_steps(random, lambda: -(2.0**13))


def _short_steps(random: Random) -> list[Case]:
    """Weights from 8 to 16, where FP16's spacing is 2^-7, and steps below 2^-9."""
    return [
        (
            8 + whole(random, (4,), 1, 512).abs() / 2**6,
            _backward(random, 1, 64, 2**14),
            2.0**10,
            0.125,
        )
        for _ in range(4)
    ]


STATIC_STEP = Exercise(
    id="scaling.static_step",
    notes="""The gradient is cast to FP32 before it is unscaled, because FP16 loses the small
    gradients once more; and the step is thrown away when the gradient holds inf or NaN.

    Weights, gradients and learning rates are such that every sum fits FP32's 24 bits and every
    factor is a power of two. The result is exact in whatever order it is written, so answers are
    compared bit for bit.""",
    checks=(
        Check(
            "ordinary gradients move the weight by lr times the gradient",
            2,
            lambda random: [
                *_ordinary_steps(random),
                (torch.zeros(4), _backward(random, 65, 1024, 2**11), 1.0, 0.5),
            ],
        ),
        Check("gradients too small for FP16 arrive", 2, _tiny_steps),
        Check("large gradients that are finite are no reason to skip", 1, _large_steps),
        Check("inf skips the step", 1, _overflowing_steps),
        Check("NaN skips the step", 1, lambda random: _spoiled_steps(random, lambda: torch.nan)),
        Check("steps too small for an FP16 weight arrive", 2, _short_steps),
    ),
    mistakes=(
        wrong(
            "forgets to unscale",
            "this is what forgetting to unscale gives: the step is `scale` times too long.",
            replace=(" / scale", ""),
        ),
        wrong(
            "unscales in FP16",
            "this is what dividing in FP16 gives: what the scale had saved underflows again. "
            "Cast to FP32 first, then divide.",
            replace=("gradient_of(scale).float() / scale", "(gradient_of(scale) / scale).float()"),
        ),
        wrong(
            "multiplies by the scale again",
            "this is what multiplying by the scale once more gives. The loss was "
            "multiplied; to undo it, divide.",
            replace=(" / scale", " * scale"),
        ),
        wrong(
            "divides the learning rate as well",
            "this is what unscaling twice gives: the gradient and the learning "
            "rate were both divided by the scale.",
            replace=("lr * gradient", "lr / scale * gradient"),
        ),
        wrong(
            "never skips",
            "this is what stepping with inf or NaN gives: one such step and the weight never "
            "recovers.",
            replace=("    if not torch.isfinite(gradient).all():\n        return weight\n", ""),
        ),
        wrong(
            "asks the sum in FP16",
            "this is what asking the FP16 sum gives: it overflows although every element is "
            "finite. Ask every element.",
            replace=("torch.isfinite(gradient).all()", "torch.isfinite(gradient_of(scale).sum())"),
        ),
        wrong(
            "skips on NaN only",
            "this is what looking for NaN alone gives. An overflow makes inf first; NaN comes "
            "later, from inf - inf.",
            replace=("not torch.isfinite(gradient).all()", "gradient.isnan().any()"),
        ),
        wrong(
            "skips on inf only",
            "this is what looking for inf alone gives. Where two infs met in the backward pass "
            "there is NaN.",
            replace=("not torch.isfinite(gradient).all()", "gradient.isinf().any()"),
        ),
        wrong(
            "overlooks minus inf",
            "this is what comparing with +inf gives: gradients overflow downwards as well.",
            replace=(
                "not torch.isfinite(gradient).all()",
                "(gradient.isnan() | (gradient == torch.inf)).any()",
            ),
        ),
        wrong(
            "puts 0 for inf",
            "this is what replacing inf by 0 gives: the other elements still step, in a wrong "
            "direction. Skip the whole step.",
            replace=(
                "gradient_of(scale).float()",
                "torch.nan_to_num(gradient_of(scale).float(), 0.0, 0.0, 0.0)",
            ),
        ),
        wrong(
            "steps in FP16",
            "this is what an FP16 weight gives: steps below its spacing are rounded away. Keep the "
            "weight in FP32.",
            replace=("weight - lr * gradient", "(weight.half() - (lr * gradient).half()).float()"),
        ),
        wrong(
            "forgets to scale",
            "this is what a scale of 1 gives: the small gradients underflow in the backward "
            "pass, and nothing brings them back.",
            replace=("gradient_of(scale).float() / scale", "gradient_of(1.0).float()"),
        ),
        wrong(
            "climbs",
            "this is what adding the gradient gives: the loss goes up. Subtract.",
            replace=("weight - lr", "weight + lr"),
        ),
    ),
    provides={"torch": torch},
)

# --- scaling.unscale ---


def _gradients(random: Random, low: int = 1, high: int = 2048) -> list[Tensor]:
    return [whole(random, shape, low, high).half() for shape in ((3,), (2, 3))]


def _ordinary_gradients(random: Random) -> list[Case]:
    """Quotients that FP16 holds too, in tensors of all shapes, empty ones included; no tensor."""
    cases: list[Case] = [(_gradients(random), 2.0 ** random.randrange(3, 11)) for _ in range(3)]
    single = whole(random, (1,), 1, 2048).half()
    return [*cases, ([single], 2.0**5), ([single[:0], single.reshape(())], 2.0**-3), ([], 2.0**5)]


def _limited(draw: Callable[[Random], list[Case]]) -> Callable[[Random], list[Case]]:
    """Return a drawer of the same cases without a limit, and of clean gradients around a limit.

    The limit is below, at or above the largest element, of either sign. Scaled gradients exceed it.
    """

    def drawn(random: Random) -> list[Case]:
        cases: list[Case] = [(*case, math.inf) for case in draw(random)]
        for part in (1.0, 0.75, 1.5):
            gradients = _gradients(random, 1, 1000)
            scale = 2.0 ** random.randrange(3, 8)
            flat = random.choice(gradients).view(-1)
            flat[random.randrange(len(flat))] = random.choice((-1, 1)) * 1024
            cases.append((gradients, scale, 1024 / scale * part))
        return cases

    return drawn


def _spoiled_gradients(random: Random, element: float, first: float | None = None) -> list[Case]:
    """Gradients with one bad element, and `first` at the beginning of every tensor if given."""
    cases: list[Case] = []
    for place in range(2):
        gradients = _gradients(random)
        flat = gradients[place].view(-1)
        flat[random.randrange(len(flat))] = element
        if first is not None:
            for gradient in gradients:
                gradient.view(-1)[0] = first
        cases.append((gradients, 2.0**10))
    return cases


UNSCALE = Exercise(
    id="scaling.unscale",
    notes="""The gradients are cast to FP32 before they are divided, and every element of every
    tensor is looked at, for inf *and* NaN. A sum is no substitute: it overflows although all its
    terms are finite. The limit is what no framework's unscaling has.

    Scales are powers of two and gradients are FP16 numbers, so every quotient is exact and answers
    are compared bit for bit. Oracle in the tests: torch.amp.GradScaler.unscale_.""",
    checks=(
        Check("the gradients of the loss, in FP32", 1, _limited(_ordinary_gradients)),
        # quotients below 2^-26, which FP16 has no numbers for
        Check(
            "gradients too small for FP16 arrive",
            1,
            _limited(
                lambda random: [
                    ([g * 2.0**-8 for g in _gradients(random, 1, 256)], 2.0**k)
                    for k in (26, 28, 30)
                ]
            ),
        ),
        Check(
            "inf is found, in whichever tensor",
            1,
            _limited(lambda random: _spoiled_gradients(random, random.choice((-1, 1)) * torch.inf)),
        ),
        Check(
            "NaN is found, in whichever tensor",
            1,
            _limited(lambda random: _spoiled_gradients(random, torch.nan)),
        ),
        # finite elements of one sign, three of which add up to more than 65504
        Check(
            "large but finite gradients are no reason to skip",
            1,
            _limited(
                lambda random: [
                    ([g.abs() * 32 for g in _gradients(random, 900, 1024)], 2.0**k) for k in (8, 12)
                ]
            ),
        ),
        Check(
            "inf and -inf do not cancel",
            1,
            _limited(lambda random: _spoiled_gradients(random, torch.inf, -torch.inf)),
        ),
    ),
    mistakes=(
        wrong(
            "divides in FP16",
            "this is what dividing before casting gives: FP16 rounds the small quotients to 0. "
            "Cast first.",
            replace=("grad.float() / scale", "(grad / scale).float()"),
        ),
        wrong(
            "stays in FP16",
            "this is what never casting gives: the master weights need FP32 gradients.",
            replace=("grad.float() / scale", "grad / scale"),
        ),
        wrong(
            "multiplies",
            "this is what scaling a second time gives: divide.",
            replace=(" / scale", " * scale"),
        ),
        wrong(
            "keeps the scale",
            "this is the scaled gradient, cast: divide by the scale.",
            replace=(" / scale", ""),
        ),
        wrong(
            "tests the sum in FP16",
            "this is what testing the FP16 sum gives: it overflows at 65520 although every term "
            "is finite, and a clean step is thrown away. Sum in FP32, or ask torch.isfinite for "
            "every element.",
            replace=(
                "isfinite(grad).all()) for grad in grads",
                "isfinite(grad.sum())) for grad in scaled_grads",
            ),
        ),
        wrong(
            "looks for inf alone",
            "this is what looking for inf alone gives, or comparing magnitudes with 65504: "
            "every comparison with NaN is False, and inf - inf or 0 x inf inside the backward "
            "pass makes NaN.",
            replace=(
                "all(bool(torch.isfinite(grad).all())",
                "not any(bool(torch.isinf(grad).any())",
            ),
        ),
        wrong(
            "looks for NaN alone",
            "this is what looking for NaN alone gives: a gradient beyond 65504 arrives as inf.",
            replace=(
                "all(bool(torch.isfinite(grad).all())",
                "not any(bool(torch.isnan(grad).any())",
            ),
        ),
        wrong(
            "looks at the first tensor",
            "this is what looking at the first tensor alone gives. One bad tensor spoils the step.",
            replace=(
                (".all()) for grad in grads)", ".all()) for grad in grads[:1])"),
                (".any()) for grad in grads)", ".any()) for grad in grads[:1])"),
            ),
        ),
        wrong(
            "looks at the last tensor",
            "this is what overwriting found_inf in the loop gives: only the last tensor "
            "counts. Use `or`.",
            replace=(
                (".all()) for grad in grads)", ".all()) for grad in grads[-1:])"),
                (".any()) for grad in grads)", ".any()) for grad in grads[-1:])"),
            ),
        ),
        wrong(
            "says the opposite",
            "this is whether all are finite. found_inf is True where some element is not.",
            replace=("return grads, found_inf", "return grads, not found_inf"),
        ),
        wrong(
            "knows no limit",
            "this looks for inf and NaN, and lets gradients beyond the limit pass.",
            replace=(" or any(bool((grad.abs() > limit).any()) for grad in grads)", ""),
        ),
        wrong(
            "limits scaled gradients",
            "this compares the scaled gradients with the limit. Unscale first.",
            replace=(
                "(grad.abs() > limit).any()) for grad in grads",
                "(grad.abs() > limit).any()) for grad in scaled_grads",
            ),
        ),
        wrong(
            "refuses the limit itself",
            "this refuses a gradient as large as the limit. Only what is larger is bad.",
            replace=("> limit", ">= limit"),
        ),
        wrong(
            "repairs the gradients",
            "this is what replacing inf and NaN by 0 gives: the scaler does not learn that "
            "the scale is too high. Report it.",
            replace=(
                "grad.float() / scale",
                "torch.nan_to_num(grad.float() / scale, 0.0, 0.0, 0.0)",
            ),
        ),
    ),
    provides={"torch": torch},
    former=(math.inf,),
)

# --- scaling.advance ---


def _config(random: Random, low: int, high: int) -> Knobs:
    """Return knobs whose growth factor and backoff factor do not undo each other."""
    growth, backoff = random.choice(((2.0, 0.25), (4.0, 0.5), (3.0, 0.25), (1.5, 0.125)))
    return Knobs(growth, backoff, random.randrange(low, high))


def _with_factors_of_1(draw: Callable[[Random], list[Case]]) -> Callable[[Random], list[Case]]:
    """Return a drawer of the same steps and two with a factor of 1, which no framework takes."""

    def drawn(random: Random) -> list[Case]:
        cases = draw(random)
        state, found_inf, config = random.choice(cases)
        cases.append((state, found_inf, replace(cast(Knobs, config), growth_factor=1.0)))
        state, found_inf, config = random.choice(cases)
        cases.append((state, found_inf, replace(cast(Knobs, config), backoff_factor=1.0)))
        return cases

    return drawn


def _state(random: Random, tracker: int = 0) -> ScalerState:
    return ScalerState(2.0 ** random.randrange(4, 24), tracker)


def _counting(random: Random) -> list[Case]:
    """Clean steps well before the interval is complete, from the first to one beyond 2000."""
    cases: list[Case] = []
    for tracker in (0, 1, 11, 2500):
        config = Knobs(growth_interval=tracker + random.randrange(4, 500))
        cases.append((_state(random, tracker), False, config))
    return [*cases, (ScalerState(1.5, 2), False, Knobs(growth_interval=9))]


def _growing(random: Random) -> list[Case]:
    """The clean step that completes the interval, and the one before it."""
    cases: list[Case] = []
    for before in (1, 2, 1, 2):
        config = _config(random, 3, 100)
        cases.append((_state(random, config.growth_interval - before), False, config))
    return [
        *cases,
        *((ScalerState(2.0**k, 6), False, Knobs(growth_interval=7)) for k in (24, 32, 40, 60)),
    ]


def _backing_off(random: Random) -> list[Case]:
    """Overflows in the middle of an interval."""
    cases: list[Case] = []
    for _ in range(4):
        config = _config(random, 10, 100)
        scale = _state(random).scale
        cases.append((ScalerState(scale, random.randrange(1, 9)), True, config))
    return [
        *cases,
        *((ScalerState(scale, 3), True, Knobs(growth_interval=9)) for scale in (1.0, 2.0**-6)),
    ]


def _in_a_row(random: Random) -> list[Case]:
    """Sixty steps in a row, with growth, overflow and counting mixed as in training.

    At most 12 of them grow, so a factor of 3 never needs more than FP32's 24 bits, to which torch
    rounds.
    """
    cases: list[Case] = []
    config = _config(random, 5, 8)
    state = _state(random)
    for _ in range(60):
        found_inf = state.scale > 2.0**30 or (state.scale > 2.0**-10 and random.random() < 0.2)
        cases.append((state, found_inf, config))
        state = solution.my_advance(state, found_inf, config)
    return cases


ADVANCE = Exercise(
    id="scaling.advance",
    notes="""The rule is torch.amp.GradScaler's: inf or NaN multiplies the scale by the backoff
    factor and starts the count of clean steps again; the clean step that completes the growth
    interval multiplies it by the growth factor and starts the count again too.

    A count is always below its interval here, since it starts again where the interval is complete;
    so >= and == (torch's way) and a remainder are one and the same. What the last two cost when an
    interval is lowered: scaling.repair.

    Factors of 1 are a limit of the rule that every framework refuses, so that no call of one
    answers.

    Scales stay far from the ends of FP32, where torch and labkit differ (see labkit.amp.advance).
    On these inputs both agree to the bit.""",
    checks=(
        Check("a clean step is counted, and the scale stays", 1, _with_factors_of_1(_counting)),
        Check(
            "the clean step that completes the interval grows the scale",
            2,
            _with_factors_of_1(_growing),
        ),
        Check(
            "inf or NaN backs off and starts the count again", 2, _with_factors_of_1(_backing_off)
        ),
        Check("sixty steps in a row", 2, _with_factors_of_1(_in_a_row)),
        Check(
            "an interval of one step",
            1,
            _with_factors_of_1(
                lambda random: [
                    (_state(random), found_inf, _config(random, 1, 2))
                    for found_inf in (False, True, False)
                ]
            ),
        ),
    ),
    mistakes=(
        wrong(
            "keeps the count at overflow",
            "this is what keeping the tracker at an overflow gives: the scale grows "
            "again too soon. Clean steps must be in a row.",
            replace=(
                "backoff_factor, growth_tracker=0",
                "backoff_factor, growth_tracker=state.growth_tracker",
            ),
        ),
        wrong(
            "counts the overflow",
            "this is what counting a skipped step as a clean one gives.",
            replace=(
                "backoff_factor, growth_tracker=0",
                "backoff_factor, growth_tracker=state.growth_tracker + 1",
            ),
        ),
        wrong(
            "grows one step late",
            "this is what comparing the tracker before counting this step gives, or > where "
            ">= is meant.",
            replace=(">=", ">"),
        ),
        wrong(
            "grows one step early",
            "this is what growing one clean step too early gives: this step completes the "
            "interval only if the count, with it, reaches growth_interval.",
            replace=("config.growth_interval:", "config.growth_interval - 1:"),
        ),
        wrong(
            "grows at every clean step",
            "this is what growing without waiting for the interval gives: every second "
            "step or so overflows.",
            replace=("state.growth_tracker + 1 >= config.growth_interval", "True"),
        ),
        wrong(
            "forgets to start again after growth",
            "this is what not resetting the tracker after growth gives: the "
            "count runs past the interval.",
            replace=(
                "growth_factor, growth_tracker=0",
                "growth_factor, growth_tracker=state.growth_tracker + 1",
            ),
        ),
        wrong(
            "never counts",
            "this is what not counting clean steps gives: the tracker stays at 0 and the scale "
            "never grows.",
            replace=("growth_tracker=state.growth_tracker + 1", "growth_tracker=0"),
        ),
        wrong(
            "grows on overflow",
            "this is what multiplying by the growth factor at an overflow gives: inf calls for "
            "a smaller scale, not a larger one.",
            replace=("config.backoff_factor", "config.growth_factor"),
        ),
        wrong(
            "divides by the backoff factor",
            "this is what dividing by the backoff factor gives. It is below 1: multiply by it.",
            replace=("* config.backoff_factor", "/ config.backoff_factor"),
        ),
        wrong(
            "never backs off",
            "this is what leaving the scale at an overflow gives: the next step overflows just "
            "the same.",
            replace=(" * config.backoff_factor", ""),
        ),
        wrong(
            "never looks for inf",
            "this is what not looking at found_inf gives: an overflow counts as a clean step.",
            replace=("if found_inf", "if False"),
        ),
        wrong(
            "has factors of its own",
            "this is what writing 2 and 0.5 into the code gives. Take them from config.",
            replace=(("config.backoff_factor", "0.5"), ("config.growth_factor", "2")),
        ),
        wrong(
            "has an interval of its own",
            "this is what writing 2000 into the code gives. Take it from config.",
            replace=("config.growth_interval", "2000"),
        ),
    ),
    provides={"torch": torch, "ScalerState": ScalerState, "ScalerConfig": ScalerConfig},
)

# --- scaling.clip ---

CLIP_SHAPES = ((2,), (2, 2), (3,))


def _scaled(random: Random, low: int, high: int, log2_unit: int) -> list[Tensor]:
    """Return FP16 tensors of exact numbers n * 2^log2_unit, low <= |n| < high <= 2048."""
    return [(whole(random, shape, low, high) * 2.0**log2_unit).half() for shape in CLIP_SHAPES]


def _long(random: Random) -> list[Case]:
    """Elements from 1 to 8, so norms from 3 to 24."""
    return [
        (_scaled(random, 128, 1024, k - 7), 2.0**k, random.choice((0.5, 1.0, 2.0)))
        for k in (4, 6, 8)
    ]


def _long_or_one(random: Random) -> list[Case]:
    """Long gradients in tensors of all shapes, even empty ones, and one just above the limit."""
    single = (whole(random, (1,), 256, 1024) * 2.0**-3).half()
    shapes = [single.reshape(()), single[:0]]
    return [*_long(random), ([single], 2.0**4, 0.5), (shapes, 2.0**4, 0.5), *_near(random)[2:]]


def _short(random: Random) -> list[Case]:
    """Elements below 2, so norms below 6."""
    return [
        (_scaled(random, 16, 1024, k - 9), 2.0**k, random.choice((10.0, 20.0))) for k in (4, 6, 8)
    ]


def _near(random: Random) -> list[Case]:
    """Limits half a percent above the norm, at it, and half a percent below."""
    cases: list[Case] = []
    for part in (1.005, 1.0, 0.995):
        scaled = _scaled(random, 128, 1024, -1)
        scale = 2.0**6
        norm = torch.stack([(gradient.float() / scale).norm() for gradient in scaled]).norm()
        cases.append((scaled, scale, float(norm) * part))
    return cases


def _spoiled(random: Random, *elements: float) -> list[Case]:
    """Long and short gradients with one of two elements in turn, and one of them alone."""
    cases = _long(random) + _short(random)
    # A gradient without dimensions cannot be looped over.
    without = (whole(random, (1,), 256, 1024) * 2.0**-3).half().reshape(())
    cast("list[Tensor]", cases[0][0]).append(without)
    for at, ((gradients, *_), element) in enumerate(zip(cases, elements * 3, strict=True)):
        spoiled = random.choice(cast("list[Tensor]", gradients))
        place = 0 if at % 2 == 0 else -1
        spoiled.view(-1)[place] = element
    alone = torch.tensor(elements[0]).half()
    return [*cases, ([alone, *_scaled(random, 16, 1024, -5)], 2.0**4, 1.0)]


CLIP = Exercise(
    id="scaling.clip",
    notes="""`max_norm` is about the gradient of the loss, so unscale first (in FP32), then measure
    one norm over all tensors, and only ever shorten.

    Tolerance: a learner may or may not add torch's 1e-6 to the norm, and may sum in another order.
    Wherever a case clips, the norm is above 1, so the 1e-6 moves the result by at most 1e-6 / 2^-24
    < 17 ulps, and a sum of 9 squares by fewer than 9: 64 ulps accept both. The nearest mistake, a
    norm rounded to FP16, is up to 2^12 ulps away.""",
    checks=(
        Check("long gradients are shortened to max_norm, all by the same factor", 2, _long_or_one),
        Check(
            "short gradients stay as they are", 1, lambda random: _short(random) + _near(random)[:2]
        ),
        # elements below 2^-26, which FP16 would round to 0 if it unscaled them
        Check(
            "gradients too small for FP16 arrive",
            1,
            lambda random: [(_scaled(random, 1, 1024, k - 36), 2.0**k, 1.0) for k in (22, 23, 24)],
        ),
        Check("inf skips the step", 1, lambda random: _spoiled(random, torch.inf, -torch.inf)),
        Check("NaN skips the step", 1, lambda random: _spoiled(random, torch.nan, torch.nan)),
        # elements from 1/2 to 5/8: by Pythagoras all together are longer than max_norm
        Check(
            "no tensor is too long by itself, but all together are",
            1,
            lambda random: [(_scaled(random, 512, 640, k - 10), 2.0**k, 1.3) for k in (4, 6, 8)],
        ),
        # scaled elements from 28,800 to 32,736: finite each, but the norm of the nine is above
        # 86,400
        Check(
            "the norm of large scaled gradients",
            2,
            lambda random: [(_scaled(random, 900, 1024, 5), 2.0**k, 1.0) for k in (10, 11, 12)],
        ),
        Check(
            "gradients of zero stay zero",
            1,
            lambda random: [
                (
                    [torch.zeros(shape).half() for shape in CLIP_SHAPES],
                    2.0 ** random.randrange(4, 9),
                    1.0,
                )
            ],
        ),
    ),
    mistakes=(
        wrong(
            "clips before unscaling",
            "this is what clipping before unscaling gives: max_norm was applied to "
            "gradients `scale` times too long, and then they were divided as well.",
            replace=((" / scale", ""), ("grad * factor", "grad * factor / scale")),
        ),
        wrong(
            "forgets to unscale",
            "this is what forgetting to unscale gives: the scaled gradients were clipped and "
            "returned.",
            replace=(" / scale", ""),
        ),
        wrong(
            "unscales in FP16",
            "this is what dividing in FP16 gives: small gradients underflow. Cast to FP32 first, "
            "then divide.",
            replace=("grad.float() / scale", "(grad / scale).float()"),
        ),
        wrong(
            "measures the norm in FP16",
            "this is what a norm in FP16 gives: it rounds to 11 bits, and beyond 65504 it is inf.",
            replace=(
                (
                    "torch.sqrt(sum((grad**2).sum() for grad in grads))",
                    "torch.stack([grad.norm() for grad in scaled_grads]).norm()",
                ),
                ("float(norm)", "float(norm) / scale"),
            ),
        ),
        wrong(
            "clips each tensor by itself",
            "this is what clipping tensor by tensor gives: each gets a factor of its "
            "own, and the direction of the step changes.",
            replace=("grad * factor", "grad * min(1.0, max_norm / (float(grad.norm()) + 1e-6))"),
        ),
        wrong(
            "clamps the elements",
            "this is what clamping each element gives: the direction of the step changes.",
            replace=("grad * factor", "grad.clamp(-max_norm, max_norm)"),
        ),
        wrong(
            "adds the norms",
            "this is what adding up the tensors' norms gives. It is their squares that add up.",
            replace=(
                "torch.sqrt(sum((grad**2).sum() for grad in grads))",
                "sum(grad.norm() for grad in grads)",
            ),
        ),
        wrong(
            "forgets the square root",
            "this is what forgetting the square root gives.",
            replace=("torch.sqrt", ""),
        ),
        wrong(
            "lengthens short gradients",
            "this is what forgetting min(1, ...) gives: short gradients are stretched to max_norm.",
            replace=(
                "min(1.0, max_norm / (float(norm) + 1e-6))",
                "max_norm / (float(norm) + 1e-6)",
            ),
        ),
        wrong(
            "scales the limit as well",
            "this is what comparing unscaled gradients with max_norm x scale gives: next "
            "to nothing is clipped.",
            replace=("max_norm /", "max_norm * scale /"),
        ),
        wrong(
            "never skips",
            "this is what clipping inf gives: a factor of 0, and inf x 0 is NaN.",
            replace=(
                "    if not all(torch.isfinite(grad).all() for grad in grads):\n"
                "        return None\n",
                "",
            ),
        ),
        wrong(
            "skips on inf only",
            "this is what looking for inf alone gives: a NaN makes the norm NaN, and with it "
            "every weight.",
            replace=("not all(torch.isfinite(grad).all()", "any(torch.isinf(grad).any()"),
        ),
        wrong(
            "skips on NaN only",
            "this is what looking for NaN alone gives. An overflow makes inf.",
            replace=("not all(torch.isfinite(grad).all()", "any(torch.isnan(grad).any()"),
        ),
    ),
    ulps=64,
    provides={"torch": torch},
)

# --- scaling.order ---


def _loop(
    random: Random, batches: int = 1, max_norm: float = 1000.0, tracker: int = 0, scale: float = 0.0
) -> Case:
    """Return a step in the middle of training: the last step's gradient is still there."""
    master = whole(random, (4,), 16, 64) / 16
    loop = Loop(
        batches=[whole(random, (4,), 16, 64) / 16 for _ in range(batches)],
        master_weight=master + 2.0**-13,  # FP16 does not hold it
        model_weight=(master + 2.0**-13).half(),
        gradient=(whole(random, (4,), 16, 64) / 16).half(),
        scale=scale or 2.0 ** random.randrange(5, 10),
        max_norm=max_norm,
        growth_tracker=tracker,
    )
    return (loop,)


ORDER = Exercise(
    id="scaling.order",
    notes="""A training step is taken apart into seven calls, each of which does what its name says
    to whatever stands there, right or wrong. A wrong order is not refused: its consequences are
    computed, and they are those of the real thing.

    Every call is deterministic, so two answers with the same calls agree bit for bit, and each
    known mistake has its own consequence in some case.""",
    checks=(
        Check("one batch", 2, lambda random: [_loop(random) for _ in range(3)]),
        Check(
            "several batches, accumulated",
            1,
            lambda random: [_loop(random, batches=n) for n in (2, 4)],
        ),
        Check(
            "a gradient longer than max_norm",
            1,
            lambda random: [_loop(random, max_norm=n) for n in (0.5, 0.25)],
        ),
        # elements from 1 up, times 2^17: inf in FP16
        Check(
            "a step that overflows",
            2,
            lambda random: [_loop(random, scale=2.0**17, batches=n) for n in (1, 2)],
        ),
        # the third clean step: the scale doubles, and must not do so before it has been divided by
        Check(
            "a step after which the scale grows",
            2,
            lambda random: [
                _loop(random, tracker=2, batches=n, max_norm=m) for n, m in ((1, 1000.0), (2, 0.5))
            ],
        ),
    ),
    mistakes=(
        wrong(
            "clips before unscaling",
            "this is what clipping before unscaling gives: max_norm was compared with a "
            "gradient `scale` times too long.",
            replace=("loop.unscale()\n    loop.clip()", "loop.clip()\n    loop.unscale()"),
        ),
        wrong(
            "never unscales",
            "this is what stepping with the scaled gradient gives; and no line looked for inf.",
            replace=("    loop.unscale()\n", ""),
        ),
        wrong(
            "steps before unscaling",
            "this is what stepping before unscaling gives: the step is `scale` times too "
            "long, and no line had looked for inf.",
            replace=(
                ("    loop.step()\n", ""),
                ("loop.unscale()", "loop.step()\n    loop.unscale()"),
            ),
        ),
        wrong(
            "updates the scale first",
            "this is what moving the scale before unscaling gives: the gradient is "
            "divided by another scale than it was multiplied by, or an old found_inf moves it.",
            replace=(
                ("    loop.update()\n", ""),
                ("loop.unscale()", "loop.update()\n    loop.unscale()"),
            ),
        ),
        wrong(
            "updates before the step",
            "this is what update() before step() gives: what unscale() found is "
            "forgotten, and inf reaches the weights.",
            replace=(
                ("    loop.update()\n", ""),
                ("loop.step()", "loop.update()\n    loop.step()"),
            ),
        ),
        wrong(
            "never updates the scale",
            "this is what forgetting update() gives: a scale that is too high skips every "
            "step from now on.",
            replace=("    loop.update()\n", ""),
        ),
        wrong(
            "zeroes after the backward pass",
            "this is what zero_grad() after backward() gives: the gradient is gone "
            "before it was used.",
            replace=(
                ("    loop.zero_grad()\n", ""),
                ("loop.unscale()", "loop.zero_grad()\n    loop.unscale()"),
            ),
        ),
        wrong(
            "never zeroes",
            "this is what forgetting zero_grad() gives: the last step's gradient is still in the "
            "sum.",
            replace=("    loop.zero_grad()\n", ""),
        ),
        wrong(
            "unscales after every batch",
            "this is what unscaling after every batch gives: what was accumulated is "
            "divided again each time. Unscale once, after the last batch.",
            replace=("    loop.unscale()", "        loop.unscale()"),
        ),
        wrong(
            "steps after every batch",
            "this is what a step after every batch gives. Accumulation means one step for "
            "all of them.",
            replace=[
                (f"    loop.{call}()", f"        loop.{call}()")
                for call in ("unscale", "clip", "step", "copy_back", "update")
            ],
        ),
        wrong(
            "updates after every batch",
            "this is what update() after every batch gives: batches of one step are "
            "added under different scales.",
            replace=(
                ("    loop.update()\n", ""),
                ("(batch)\n", "(batch)\n        loop.update()\n"),
            ),
        ),
        wrong(
            "uses the first batch only",
            "this is what using one batch gives: run backward for each of loop.batches.",
            replace=("in loop.batches", "in loop.batches[:1]"),
        ),
        wrong(
            "never copies back",
            "this is what forgetting copy_back() gives, or calling it before step(): the master "
            "moves, and the model computes with old weights.",
            replace=("    loop.copy_back()\n", ""),
        ),
        wrong(
            "never clips",
            "this is what forgetting clip() gives.",
            replace=("    loop.clip()\n", ""),
        ),
    ),
    may_change=("loop",),
    provides={"torch": torch},
)

# --- scaling.repair ---


def _grads(random: Random, low: int = 1, high: int = 1024, unit: float = 1.0) -> list[Tensor]:
    numbers = torch.tensor([float(random.randrange(low, high)) * unit for _ in range(9)]).half()
    return [numbers[:3].clone(), numbers[3:].reshape(2, 3).clone()]


def _scale(random: Random) -> float:
    return 2.0 ** random.randrange(4, 20)


def _clean(random: Random) -> list[Case]:
    """Counting, growing at the interval, counting again: what the faulty scaler does well.

    A large scale grows like any other; an interval of 1 grows at every clean step; what is empty
    holds no inf.
    """
    usual: list[Case] = [(_scale(random), tracker, _grads(random), 10) for tracker in (0, 4, 8, 9)]
    empty = [torch.zeros(0).half(), *_grads(random)]
    large = [(2.0**k, 9, _grads(random), 10) for k in (20, 24, 32, 60, 100)]
    return [*usual, *large, (_scale(random), 0, _grads(random), 1), (_scale(random), 2, empty, 10)]


def _not_finite(random: Random) -> list[Case]:
    cases: list[Case] = []
    for element in (torch.inf, -torch.inf, torch.nan):
        grads = _grads(random)
        flat = random.choice(grads).view(-1)
        flat[random.randrange(len(flat))] = element
        cases.append((_scale(random), random.randrange(1, 9), grads, 10))
    return cases


def _at_the_floor(random: Random) -> list[Case]:
    """Steps with inf at the floor and above it; half of 1.5 is below, so 1 comes next, whatever the
    count was.
    """
    cases: list[Case] = []
    for scale, tracker in ((1.0, 0), (2.0, 0), (4.0, 0), (1.5, 12)):
        grads = _grads(random)
        grads[0][0] = torch.inf
        cases.append((scale, tracker, grads, 10))
    return cases


# the three faults of the lesson's scaler
SUMS = ("torch.isfinite(grad).all()", "torch.isfinite(grad.sum())")
EQUALS = (">=", "==")
SINKS = ("max(scale * 0.5, 1.0)", "scale * 0.5")

REPAIR = Exercise(
    id="scaling.repair",
    notes="""A repair may call the lab's own scaler. Its author has to find all three faults
    nevertheless: the sum of the gradients, the comparison and the floor.

    The scaler of the lesson is short, plausible and wrong in three places: it asks the FP16 sum of
    the gradients whether they are finite, it compares the count with `==`, so an interval that was
    lowered in the meantime is never met, and nothing keeps the scale from becoming 0. One repaired,
    two left, is a known mistake; so is each repair that breaks something else.

    Factors and scales are powers of two, so answers are compared bit for bit. Oracle in the tests:
    a torch.amp.GradScaler, where it is sound.

    Source: torch 2.13, torch/amp/grad_scaler.py and ATen/native/cuda/AmpKernels.cu (the count
    compared with ==; no floor).""",
    checks=(
        Check("clean steps are counted, and the interval grows the scale", 1, _clean),
        Check("inf and NaN skip the step and halve the scale", 1, _not_finite),
        # finite elements whose FP16 sum is inf
        Check(
            "large but finite gradients are no reason to skip",
            2,
            lambda random: [
                (_scale(random), 3, _grads(random, 900, 1024, 32.0), 10) for _ in range(2)
            ],
        ),
        # the interval was 2,000 when the count began; since then it was made shorter
        Check(
            "an interval lowered below the count",
            2,
            lambda random: [
                (_scale(random), tracker, _grads(random), interval)
                for tracker, interval in ((700, 100), (50, 10))
            ],
        ),
        Check("the scale never falls below 1", 2, _at_the_floor),
        Check(
            "from 1 the scale grows again",
            1,
            lambda random: [(1.0, tracker, _grads(random), 10) for tracker in (3, 9, 25)],
        ),
    ),
    mistakes=(
        wrong(
            "not repaired", "this is the faulty scaler as it was.", replace=(SUMS, EQUALS, SINKS)
        ),
        wrong(
            "only the floor is repaired",
            "this still has a sum that overflows in FP16 although every term is finite, and a "
            "count compared with ==, so a lowered interval is never met and growth stops.",
            replace=(SUMS, EQUALS),
        ),
        wrong(
            "only the comparison is repaired",
            "this still has a sum that overflows in FP16 although every term is finite, and a "
            "scale that sinks without a floor: after enough skipped steps it is 0, and 1 / 0 is "
            "inf.",
            replace=(SUMS, SINKS),
        ),
        wrong(
            "only the sum is repaired",
            "this still has a count compared with ==, so a lowered interval is never met and "
            "growth stops. It also has a scale that sinks without a floor: after enough skipped "
            "steps it is 0, and 1 / 0 is inf.",
            replace=(EQUALS, SINKS),
        ),
        wrong(
            "the sum is left",
            "this still has a sum that overflows in FP16 although every term is finite.",
            replace=SUMS,
        ),
        wrong(
            "the comparison is left",
            "this still has a count compared with ==, so a lowered interval is never met "
            "and growth stops.",
            replace=EQUALS,
        ),
        wrong(
            "the floor is left",
            "this still has a scale that sinks without a floor: after enough skipped steps it "
            "is 0, and 1 / 0 is inf.",
            replace=SINKS,
        ),
        wrong(
            "looks for inf alone",
            "this is what a repair with isinf gives: the sum found NaN too. torch.isfinite "
            "finds both.",
            replace=(
                "all(bool(torch.isfinite(grad).all())",
                "not any(bool(torch.isinf(grad).any())",
            ),
        ),
        wrong(
            "stuck at the floor",
            "this is what refusing to move at the floor gives: the scale could never grow again.",
            replace=("return scale * 2.0", "return scale if scale == 1.0 else scale * 2.0"),
        ),
        wrong(
            "stays above the floor",
            "this halves the scale only where the half is still allowed: 1.5 stays 1.5. It "
            "goes down to the floor.",
            replace=("max(scale * 0.5, 1.0)", "(scale * 0.5 if scale >= 2.0 else scale)"),
        ),
        wrong(
            "gives up at the floor",
            "this is what stepping at the floor whatever was found gives: inf reaches the weights.",
            replace=("0, False", "0, scale <= 1.0"),
        ),
        wrong(
            "grows one step late",
            "this is what > gives where >= was needed: the step that completes the interval "
            "grows the scale.",
            replace=(">=", ">"),
        ),
    ),
    provides={"torch": torch},
)

EXERCISES = (STATIC_STEP, UNSCALE, ADVANCE, CLIP, ORDER, REPAIR)
