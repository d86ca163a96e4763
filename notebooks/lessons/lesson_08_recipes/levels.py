"""Can you write O0 to O3 as positions of the same knobs?

Idea: apex named four mixtures in 2018, and each is five answers: what the model is in, whether operations are cast one
by one, whether norms stay behind, whether FP32 masters are kept, how the loss is scaled. A level is where one begins:
apex let any knob be set otherwise, `initialize(..., opt_level="O2", keep_batchnorm_fp32=False)`.

Oracle in the tests: the properties that apex.amp.frontend set for each level, typed from its source.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, wrong

Changed = dict[str, object]
Levels = dict[str, tuple[int, bool, bool, bool, bool]]
KNOBS = ("model_bits", "casts_by_operation", "norms_in_fp32", "master_weights", "dynamic_scaling")
LEVELS: Levels = {
    "O0": (32, False, True, False, False),
    "O1": (32, True, True, False, True),
    "O2": (16, False, True, True, True),
    "O3": (16, False, False, False, False),
}


def reference(level: str, changed: Changed) -> dict[str, object]:
    """Return the knobs of a level, but for those that are changed.

    >>> reference("O3", {})["norms_in_fp32"], reference("O3", {"norms_in_fp32": True})["norms_in_fp32"]
    (False, True)
    """
    return _knobs(level, changed)


def _knobs(level: str, changed: Changed, **mistaken: tuple[int, bool, bool, bool, bool]) -> dict[str, object]:
    return dict(zip(KNOBS, (LEVELS | mistaken)[level], strict=True)) | changed


def _level(level: str) -> Callable[[Random], list[Case]]:
    """Return the draw of a level as it is, with one knob turned, with some, and as it is once more."""

    def draw(random: Random) -> list[Case]:
        chosen = [random.sample(KNOBS, count) for count in (1, 2, 3)]
        variants = [{knob: _another(random, knob) for knob in knobs} for knobs in chosen]
        return [(level, {}), *((level, changed) for changed in variants), (level, {})]

    return draw


def _another(random: Random, knob: str) -> object:
    return random.choice((16, 32)) if knob == "model_bits" else random.random() < 0.5


# fmt: off
MISTAKES = (
    wrong("O1 casts the model", "this is O1 with a 16-bit model. Its weights stay in FP32; autocast casts a copy for "
          "each operation.", lambda level, changed: _knobs(level, changed, O1=(16, True, True, False, True))),
    wrong("O1 keeps masters", "this is O1 with masters beside weights that are FP32 already: they are their own "
          "masters.", lambda level, changed: _knobs(level, changed, O1=(32, True, True, True, True))),
    wrong("O2 without masters", "this is O2 without masters; it would swallow every update below half an ulp.",
          lambda level, changed: _knobs(level, changed, O2=(16, False, True, False, True))),
    wrong("O2 casts the norms", "this is O2 with norms in 16 bits. They are what the 'nearly' in 'nearly all' is "
          "about.", lambda level, changed: _knobs(level, changed, O2=(16, False, False, True, True))),
    wrong("O2 casts by operation", "this is O2 with casts by operation on top. Its model is cast once, and computes "
          "in what it is.", lambda level, changed: _knobs(level, changed, O2=(16, True, True, True, True))),
    wrong("O3 keeps the norms", "this is O3 with norms in FP32. In pure FP16 nothing stays behind.",
          lambda level, changed: _knobs(level, changed, O3=(16, False, True, False, False))),
    wrong("O3 scales", "this is O3 with dynamic scaling. It is the speed baseline: no safety at all.",
          lambda level, changed: _knobs(level, changed, O3=(16, False, False, False, True))),
    wrong("O0 scales", "this is O0 with scaling. FP32 has no need of it.",
          lambda level, changed: _knobs(level, changed, O0=(32, False, True, False, True))),
    wrong("leaves the level as it is", "this is the level as it is. A knob in `changed` is set as it says.",
          lambda level, changed: _knobs(level, {})),
)
# fmt: on

EXERCISE = Exercise(
    id="recipes.levels",
    title="Four settings of the same knobs",
    entry="my_knobs",
    difficulty=1,
    minutes=6,
    reference=reference,
    checks=(
        Check("O3, all of it", 1, _level("O3")),
        Check("O1, by operation", 1, _level("O1")),
        Check("O2, nearly all of it", 1, _level("O2")),
        Check("O0, none of it", 1, _level("O0")),
    ),
    mistakes=MISTAKES,
)
