"""Can you say what Adam's first step does when all of it is FP16?

Idea: the step divides by sqrt(v) + epsilon. At the first step v is 0.001 g^2, which FP16 loses for gradients below
about 2^-8, and 1e-8 is zero in FP16. Then the division is g / 0 or 0 / 0.

Oracle in the tests: torch.optim.Adam stepping an FP16 parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from labkit.formats import FP16, round_to
from labkit.grading.exercise import Case, Check, Exercise, Mistake

BETA2 = 0.999


def reference(gradient: float, epsilon: float) -> str:
    """Return what becomes of the weight: "finite", "inf" or "nan".

    >>> reference(0.001, 1e-8), reference(0.0, 1e-8), reference(0.001, 1e-4)
    ('inf', 'nan', 'finite')
    """
    v = float(round_to((1 - BETA2) * gradient**2, FP16))
    held = float(round_to(epsilon, FP16))
    if v != 0 or held != 0:
        return "finite"
    return "nan" if gradient == 0 else "inf"


def _power(random: Random, low: int, high: int) -> float:
    return random.choice((-1.0, 1.0)) * random.uniform(1.1, 1.9) * 2.0 ** random.randrange(low, high)


def _held(random: Random) -> list[Case]:
    """Gradients between 2^-7 and 1: their squares survive. (From 2^-8 to 2^-7 the answer is a matter of one ulp.)"""
    return [(_fp16(_power(random, -6, 0)), epsilon) for epsilon in (1e-8, 1e-4)]


def _lost(random: Random) -> list[Case]:
    return [(_fp16(_power(random, *ends)), 1e-8) for ends in ((-11, -9), (-11, -9), (-20, -14))]


def _raised(random: Random) -> list[Case]:
    return [(_fp16(_power(random, -20, -10)), epsilon) for epsilon in (1e-4, 1e-7)]


def _zero(_: Random) -> list[Case]:
    return [(0.0, 1e-8), (0.0, 1e-4)]


def _fp16(value: float) -> float:
    return float(round_to(value, FP16))


def _fate(square: Callable[[float], float], epsilon: Callable[[float], float]) -> Callable[[float, float], str]:
    def answer(gradient: float, given: float) -> str:
        if square(gradient) != 0 or epsilon(given) != 0:
            return "finite"
        return "nan" if gradient == 0 else "inf"

    return answer


def _v(gradient: float) -> float:
    return _fp16((1 - BETA2) * gradient**2)


EXERCISE = Exercise(
    id="recipes.epsilon",
    lesson="08_recipes",
    title="An epsilon that FP16 can hold",
    entry="my_fate",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=(
        Check("gradients whose square FP16 holds", 1, _held),
        Check("small gradients and the usual epsilon", 2, _lost),
        Check("a gradient of zero", 1, _zero),
        Check("small gradients and a larger epsilon", 1, _raised, hidden=True),
    ),
    mistakes=(
        Mistake(
            "epsilon in FP32",
            _fate(_v, lambda e: e),
            "this keeps epsilon in FP32. In an FP16 step it is rounded to FP16 too, and 1e-8 becomes 0.",
        ),
        Mistake(
            "v in FP32",
            _fate(lambda g: (1 - BETA2) * g**2, _fp16),
            "this keeps v in FP32. In an FP16 step v is stored in FP16, where 0.001 g^2 is soon 0.",
        ),
        Mistake(
            "forgets 0.001",
            _fate(lambda g: _fp16(g**2), _fp16),
            "this asks whether g^2 survives. What is stored after the first step is 0.001 g^2, a thousand times less.",
        ),
        Mistake(
            "subnormals are zero",
            _fate(_v, lambda e: _fp16(e) if e >= 2.0**-14 else 0.0),
            "this takes every subnormal for zero. FP16 holds numbers down to 2^-24; 1e-7 is 2 of those.",
        ),
        Mistake(
            "always inf",
            lambda g, e: "finite" if _v(g) != 0 or _fp16(e) != 0 else "inf",
            "this is inf even where the gradient is 0, but 0 / 0 is NaN.",
        ),
        Mistake(
            "always NaN",
            lambda g, e: "finite" if _v(g) != 0 or _fp16(e) != 0 else "nan",
            "this is NaN everywhere, but a number other than 0, divided by 0, is inf. NaN comes one step later.",
        ),
        Mistake(
            "epsilon decides alone",
            lambda g, e: "finite" if _fp16(e) != 0 else "nan" if g == 0 else "inf",
            "this asks epsilon alone. Where v survives, it needs no help.",
        ),
    ),
    provides={"round_to": round_to, "FP16": FP16},
)
