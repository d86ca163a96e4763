"""Can you say what Adam's first step does when all of it is FP16?

Idea: the step divides by sqrt(v) + epsilon. At the first step v is 0.001 g^2, which FP16 loses for gradients below
about 2^-8, and 1e-8 is zero in FP16. Then the division is g / 0 or 0 / 0. Gradients are FP16 numbers; for none of them
does it matter whether g^2 is rounded on the way to v.

Oracle in the tests: torch.optim.Adam stepping an FP16 parameter.
"""

from __future__ import annotations

from random import Random

from labkit.formats import FP16, round_to
from labkit.grading.exercise import Case, Check, Exercise, wrong

BETA2 = 0.999


def reference(gradient: float, epsilon: float) -> str:
    """Return what becomes of the weight: "finite", "inf" or "nan".

    >>> reference(0.001, 1e-8), reference(0.0, 1e-8), reference(0.001, 1e-4)
    ('inf', 'nan', 'finite')
    """
    return _fate(gradient, _v(gradient), _fp16(epsilon))


def _fate(gradient: float, v: float, epsilon: float) -> str:
    """Return what becomes of the weight if these are what the step divides by."""
    return "finite" if v != 0 or epsilon != 0 else "nan" if gradient == 0 else "inf"


def _v(gradient: float) -> float:
    return _fp16((1 - BETA2) * gradient**2)


def _fp16(value: float) -> float:
    return float(round_to(value, FP16))


def _power(random: Random, low: int, high: int) -> float:
    return random.choice((-1.0, 1.0)) * random.uniform(1.1, 1.9) * 2.0 ** random.randrange(low, high)


def _held(random: Random) -> list[Case]:
    """Gradients between 2^-7 and 1: their squares survive. (From 2^-8 to 2^-7 the answer is a matter of one ulp.)

    And one so large that v is inf: a step of 0 is finite.
    """
    return [
        (_fp16(_power(random, *ends)), epsilon)
        for ends, epsilon in (((-6, 0), 1e-8), ((-6, 0), 1e-4), ((14, 15), 1e-8))
    ]


def _lost(random: Random) -> list[Case]:
    return [(_fp16(_power(random, *ends)), 1e-8) for ends in ((-11, -9), (-11, -9), (-20, -14))]


def _raised(random: Random) -> list[Case]:
    return [(_fp16(_power(random, -20, -10)), epsilon) for epsilon in (1e-4, 1e-7)]


def _at_the_end(random: Random) -> list[Case]:
    """FP16 ends at 2^-24, and rounds to it what is above 2^-25: an epsilon there, and v from there to 2^-24."""
    small = _fp16(_power(random, -20, -14))
    epsilons = (2.0**-25, 2.0**-25 * (1 + 2.0**-20), random.uniform(3.2e-8, 5.8e-8), 2.0**-24)
    parts = ((4.5e-3, 5.4e-3), (5.44e-3, 5.455e-3), (5.465e-3, 5.48e-3), (5.6e-3, 7.6e-3))  # v is 2^-25 at 5.4592e-3
    gradients = [_fp16(random.uniform(*part)) for part in parts]
    gradients += [0.00545501708984375, 0.005458831787109375]  # 0.001, or 0.001 g, in FP16 would make 2^-24 of v
    return [*((small, epsilon) for epsilon in epsilons), *((gradient, 1e-8) for gradient in gradients)]


# fmt: off
MISTAKES = (
    wrong("epsilon in FP32", "this keeps epsilon in FP32. In an FP16 step it is rounded to FP16 too, and 1e-8 "
          "becomes 0.", lambda gradient, epsilon: _fate(gradient, _v(gradient), epsilon)),
    wrong("v in FP32", "this keeps v in FP32. In an FP16 step v is stored in FP16, where 0.001 g^2 is soon 0.",
          lambda gradient, epsilon: _fate(gradient, (1 - BETA2) * gradient**2, _fp16(epsilon))),
    wrong("forgets the thousandth", "this asks whether g^2 survives. What is stored after the first step is 0.001 "
          "g^2, a thousand times less.",
          lambda gradient, epsilon: _fate(gradient, _fp16(gradient**2), _fp16(epsilon))),
    wrong("subnormals are zero", "this takes every subnormal for zero. FP16 holds numbers down to 2^-24; 1e-7 is 2 "
          "of those.",
          lambda gradient, epsilon: _fate(gradient, _v(gradient), _fp16(epsilon) if epsilon >= 2.0**-14 else 0.0)),
    wrong("always inf", "this is inf even where the gradient is 0, but 0 / 0 is NaN.",
          lambda gradient, epsilon: "inf" if reference(gradient, epsilon) == "nan" else reference(gradient, epsilon)),
    wrong("always NaN", "this is NaN everywhere, but a number other than 0, divided by 0, is inf. NaN comes one step "
          "later.",
          lambda gradient, epsilon: "nan" if reference(gradient, epsilon) == "inf" else reference(gradient, epsilon)),
    wrong("epsilon decides alone", "this asks epsilon alone. Where v survives, it needs no help.",
          lambda gradient, epsilon: _fate(gradient, 0.0, _fp16(epsilon))),
)
# fmt: on

EXERCISE = Exercise(
    id="recipes.epsilon",
    title="An epsilon that FP16 can hold",
    entry="my_fate",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=(
        Check("gradients whose square FP16 holds", 1, _held),
        Check("small gradients and the usual epsilon", 2, _lost),
        Check("a gradient of zero", 1, lambda _: [(0.0, 1e-8), (0.0, 1e-4)]),
        Check("small gradients and a larger epsilon", 1, _raised),
        Check("where FP16 ends", 1, _at_the_end),
    ),
    mistakes=MISTAKES,
    provides={"round_to": round_to, "FP16": FP16},
)
