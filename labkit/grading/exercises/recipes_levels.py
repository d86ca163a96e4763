"""Can you write O0 to O3 as positions of the same knobs?

Idea: apex named four mixtures in 2018, and each is five answers: what the model is in, whether operations are cast one
by one, whether norms stay behind, whether FP32 masters are kept, how the loss is scaled.

Oracle in the tests: the properties that apex.amp.frontend set for each level, typed from its source.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, Mistake

Levels = dict[str, tuple[int, bool, bool, bool, bool]]
KNOBS = ("model_bits", "casts_by_operation", "norms_in_fp32", "master_weights", "dynamic_scaling")
LEVELS: Levels = {
    "O0": (32, False, True, False, False),
    "O1": (32, True, True, False, True),
    "O2": (16, False, True, True, True),
    "O3": (16, False, False, False, False),
}


def reference(level: str) -> dict[str, object]:
    """Return the knobs of a level.

    >>> reference("O3")["norms_in_fp32"]
    False
    """
    return dict(zip(KNOBS, LEVELS[level], strict=True))


def _but(**changes: tuple[int, bool, bool, bool, bool]) -> Callable[[str], dict[str, object]]:
    levels = LEVELS | changes
    return lambda level: dict(zip(KNOBS, levels[level], strict=True))


def _of(*levels: str) -> Callable[[Random], list[Case]]:
    return lambda _: [(level,) for level in levels]


EXERCISE = Exercise(
    id="recipes.levels",
    lesson="08_recipes",
    title="Four settings of the same knobs",
    entry="my_knobs",
    difficulty=1,
    minutes=6,
    reference=reference,
    checks=(
        Check("O3, all of it", 1, _of("O3")),
        Check("O1, by operation", 1, _of("O1")),
        Check("O2, nearly all of it", 1, _of("O2")),
        Check("O0, none of it", 1, _of("O0"), hidden=True),
    ),
    mistakes=(
        Mistake(
            "O1 converts the model",
            _but(O1=(16, True, True, False, True)),
            "this is O1 with a 16-bit model. Its weights stay in FP32; autocast casts a copy for each operation.",
        ),
        Mistake(
            "O1 keeps masters",
            _but(O1=(32, True, True, True, True)),
            "this is O1 with masters beside weights that are FP32 already: they are their own masters.",
        ),
        Mistake(
            "O2 without masters",
            _but(O2=(16, False, True, False, True)),
            "this is O2 without masters; it would swallow every update below half an ulp.",
        ),
        Mistake(
            "O2 converts the norms",
            _but(O2=(16, False, False, True, True)),
            "this is O2 with norms in 16 bits. They are what the 'nearly' in 'nearly all' is about.",
        ),
        Mistake(
            "O2 casts by operation",
            _but(O2=(16, True, True, True, True)),
            "this is O2 with casts by operation on top. Its model is converted once, and computes in what it is.",
        ),
        Mistake(
            "O3 keeps the norms",
            _but(O3=(16, False, True, False, False)),
            "this is O3 with norms in FP32. In pure FP16 nothing stays behind.",
        ),
        Mistake(
            "O3 scales",
            _but(O3=(16, False, False, False, True)),
            "this is O3 with dynamic scaling. It is the speed baseline: no safety at all.",
        ),
        Mistake(
            "O0 scales",
            _but(O0=(32, False, True, False, True)),
            "this is O0 with scaling. FP32 has no need of it.",
        ),
    ),
)
