"""Can you find the three faults in a loss scaler that looks right?

Idea: the scaler of the lesson is short, plausible and wrong in three places: it asks the FP16 sum of the gradients
whether they are finite, it compares the count with `==`, so an interval that was lowered in the meantime is never met,
and nothing keeps the scale from becoming 0. One repaired, two left, is a known mistake; so is each repair that breaks
something else.

Invariant: factors and scales are powers of two, so answers are compared bit for bit. Oracle in the tests: a
torch.amp.GradScaler, where it is sound.

Source: torch 2.13, torch/amp/grad_scaler.py and ATen/native/cuda/AmpKernels.cu (the count compared with ==; no floor).
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from labkit.amp import advance
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Answer = tuple[float, int, bool]
FLOOR = 1.0


def scaler_step(
    scale: float,
    tracker: int,
    grads: list[Tensor],
    growth_interval: int,
    *,
    sums: bool = False,
    equals: bool = False,
    sinks: bool = False,
) -> Answer:
    """Return (scale, tracker, stepped) after a step; each of the flags plants one of the faults.

    >>> scaler_step(8.0, 1, [torch.ones(2).half()], 2)
    (16.0, 0, True)
    """
    if sums:
        found_inf = not all(bool(torch.isfinite(grad.sum())) for grad in grads)
    else:
        found_inf = not all(bool(torch.isfinite(grad).all()) for grad in grads)
    if found_inf:
        halved = scale * 0.5
        return (halved if sinks else max(halved, FLOOR)), 0, False
    tracker += 1
    if tracker == growth_interval if equals else tracker >= growth_interval:
        return scale * 2.0, 0, True
    return scale, tracker, True


def _grads(random: Random, low: int = 1, high: int = 1024, unit: float = 1.0) -> list[Tensor]:
    numbers = torch.tensor([float(random.randrange(low, high)) * unit for _ in range(9)]).half()
    return [numbers[:3].clone(), numbers[3:].reshape(2, 3).clone()]


def _scale(random: Random) -> float:
    return 2.0 ** random.randrange(4, 20)


def _usual(random: Random) -> list[Case]:
    """Counting, growing at the interval, counting again: what the faulty scaler does well."""
    return [(_scale(random), tracker, _grads(random), 10) for tracker in (0, 4, 8, 9)]


def _spoiled(random: Random) -> list[Case]:
    cases: list[Case] = []
    for element in (torch.inf, -torch.inf, torch.nan):
        grads = _grads(random)
        random.choice(grads).view(-1)[1] = element
        cases.append((_scale(random), random.randrange(1, 9), grads, 10))
    return cases


def _heavy(random: Random) -> list[Case]:
    """Finite elements whose FP16 sum is inf; and large ones of both signs."""
    return [(_scale(random), 3, _grads(random, 900, 1024, 32.0), 10) for _ in range(2)]


def _lowered(random: Random) -> list[Case]:
    """The interval was 2,000 when the count began; since then somebody asked for less."""
    return [(_scale(random), tracker, _grads(random), interval) for tracker, interval in ((700, 100), (50, 10))]


def _bottom(random: Random) -> list[Case]:
    """Steps with inf at the floor and just above it."""
    cases: list[Case] = []
    for scale in (FLOOR, 2 * FLOOR, 4 * FLOOR):
        grads = _grads(random)
        grads[0][0] = torch.inf
        cases.append((scale, 0, grads, 10))
    return cases


def _growth_at_the_floor(random: Random) -> list[Case]:
    """Clean steps at the floor: the scale comes up again."""
    return [(FLOOR, tracker, _grads(random), 10) for tracker in (3, 9, 25)]


def _no_cap(random: Random) -> list[Case]:
    """A large scale grows like any other; an interval of 1 grows at every clean step; what is empty holds no inf."""
    empty = [torch.zeros(0).half(), *_grads(random)]
    large = [(2.0**k, 9, _grads(random), 10) for k in (20, 24, 32, 60, 100)]
    return [*large, (_scale(random), 0, _grads(random), 1), (_scale(random), 2, empty, 10)]


def reference(scale: float, tracker: int, grads: list[Tensor], growth_interval: int) -> Answer:
    """Return what a sound scaler does."""
    return scaler_step(scale, tracker, grads, growth_interval)


@mistake
def not_repaired(scale: float, tracker: int, grads: list[Tensor], growth_interval: int) -> Answer:
    """This is the faulty scaler as it was."""
    return scaler_step(scale, tracker, grads, growth_interval, sums=True, equals=True, sinks=True)


@mistake
def only_the_floor_is_repaired(scale: float, tracker: int, grads: list[Tensor], growth_interval: int) -> Answer:
    """This still has a sum that overflows in FP16 although every term is finite, and a count compared with ==, so a
    lowered interval is never met and growth stops for ever."""
    return scaler_step(scale, tracker, grads, growth_interval, sums=True, equals=True)


@mistake
def only_the_comparison_is_repaired(scale: float, tracker: int, grads: list[Tensor], growth_interval: int) -> Answer:
    """This still has a sum that overflows in FP16 although every term is finite, and a scale that sinks without a
    floor: after enough skipped steps it is 0, and 1 / 0 is inf."""
    return scaler_step(scale, tracker, grads, growth_interval, sums=True, sinks=True)


@mistake
def only_the_sum_is_repaired(scale: float, tracker: int, grads: list[Tensor], growth_interval: int) -> Answer:
    """This still has a count compared with ==, so a lowered interval is never met and growth stops for ever; and a
    scale that sinks without a floor: after enough skipped steps it is 0, and 1 / 0 is inf."""
    return scaler_step(scale, tracker, grads, growth_interval, equals=True, sinks=True)


@mistake
def the_sum_is_left(scale: float, tracker: int, grads: list[Tensor], growth_interval: int) -> Answer:
    """This still has a sum that overflows in FP16 although every term is finite."""
    return scaler_step(scale, tracker, grads, growth_interval, sums=True)


@mistake
def the_comparison_is_left(scale: float, tracker: int, grads: list[Tensor], growth_interval: int) -> Answer:
    """This still has a count compared with ==, so a lowered interval is never met and growth stops for ever."""
    return scaler_step(scale, tracker, grads, growth_interval, equals=True)


@mistake
def the_floor_is_left(scale: float, tracker: int, grads: list[Tensor], growth_interval: int) -> Answer:
    """This still has a scale that sinks without a floor: after enough skipped steps it is 0, and 1 / 0 is inf."""
    return scaler_step(scale, tracker, grads, growth_interval, sinks=True)


@mistake
def looks_for_inf_alone(scale: float, tracker: int, grads: list[Tensor], growth_interval: int) -> Answer:
    """This is what a repair with isinf gives: the sum found NaN too. torch.isfinite finds both."""
    return reference(scale, tracker, [torch.where(grad.isnan(), 0.0, grad) for grad in grads], growth_interval)


@mistake
def stuck_at_the_floor(scale: float, tracker: int, grads: list[Tensor], growth_interval: int) -> Answer:
    """This is what refusing to move at the floor gives: the scale could never grow again."""
    after = reference(scale, tracker, grads, growth_interval)
    return (FLOOR, *after[1:]) if scale == FLOOR else after


@mistake
def gives_up_at_the_floor(scale: float, tracker: int, grads: list[Tensor], growth_interval: int) -> Answer:
    """This is what stepping at the floor whatever was found gives: inf reaches the weights."""
    new, count, stepped = reference(scale, tracker, grads, growth_interval)
    return new, count, stepped or scale <= FLOOR


# fmt: off
MISTAKES = (
    not_repaired,
    only_the_floor_is_repaired,
    only_the_comparison_is_repaired,
    only_the_sum_is_repaired,
    the_sum_is_left,
    the_comparison_is_left,
    the_floor_is_left,
    looks_for_inf_alone,
    stuck_at_the_floor,
    gives_up_at_the_floor,
    wrong("grows one step late", "this is what > gives where >= was needed: the step that completes the interval "
          "grows the scale.",
          lambda scale, tracker, grads, growth_interval: reference(scale, tracker, grads, growth_interval + 1)),
)
# fmt: on

EXERCISE = Exercise(
    id="scaling.repair",
    title="Repair a scaler",
    entry="my_repaired_step",
    difficulty=3,
    minutes=12,
    reference=reference,
    checks=(
        Check(
            "clean steps are counted, and the interval grows the scale",
            1,
            lambda random: _usual(random) + _no_cap(random),
        ),
        Check("inf and NaN skip the step and halve the scale", 1, _spoiled),
        Check("large but finite gradients are no reason to skip", 2, _heavy),
        Check("an interval lowered below the count", 2, _lowered),
        Check("the scale never falls below 1", 2, _bottom),
        Check("from 1 the scale grows again", 1, _growth_at_the_floor),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
    withheld=(advance,),
)
