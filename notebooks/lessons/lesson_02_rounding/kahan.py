"""Can you carry along what an addition loses?

The point: after t = total + y, the difference (t - total) - y is what the addition got wrong, and FP16 holds it
exactly. Take it off the next number.
Source: W. Kahan, Further remarks on reducing truncation errors, CACM 8(1), 1965.
Oracles in the tests: labkit.formats.sum_compensated, built from integer arithmetic, and math.fsum.
"""

from __future__ import annotations

from random import Random

import numpy as np
from numpy.typing import NDArray

from labkit.formats import sum_compensated
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Halves = NDArray[np.float16]
ZERO = np.float16(0.0)


def kahan(values: Halves) -> np.float16:
    """Return the compensated sum of FP16 numbers, each operation rounded to FP16.

    >>> float(kahan(np.ones(2100, np.float16))), float(plain(np.ones(2100, np.float16)))
    (2100.0, 2048.0)
    """
    total, lost = ZERO, ZERO
    for x in values:
        y = x - lost
        t = total + y
        lost = (t - total) - y
        total = t
    return total


def plain(values: Halves) -> np.float16:
    """Return the sum of FP16 numbers, one after another."""
    total = ZERO
    for x in values:
        total = total + x
    return total


def _once(values: Halves) -> np.float16:
    """Return the sum, rounded only at the end."""
    return np.float16(values.astype(np.float64).sum())


def _small_ones(random: Random) -> list[Case]:
    """A large number, then many that are a quarter of its spacing: one after another, each is swallowed."""
    exponents = [random.randrange(6, 10) for _ in range(2)]
    return [(np.array([2.0**e] + [2.0 ** (e - 12)] * random.randrange(40, 80), np.float16),) for e in exponents]


def _positive(random: Random) -> list[Case]:
    return [
        (np.array([random.randrange(1, 2048) / 512 for _ in range(60)], np.float16),),
        (np.array([random.uniform(0, 1) ** 3 for _ in range(60)], np.float16),),
    ]


def _signed(random: Random) -> list[Case]:
    tiny = np.array([random.choice((-1, 1)) * random.randrange(1, 1024) for _ in range(9)], np.float16) * np.float16(
        2.0**-24
    )
    ends = [tiny, np.array([3.5, -3.5], np.float16), np.array([-1.0, -2.5], np.float16)]
    return [
        *((np.array([random.uniform(-1, 3) for _ in range(60)], np.float16),) for _ in range(2)),
        *((v,) for v in ends),
    ]


def _short(random: Random) -> list[Case]:
    return [(np.array([], np.float16),), (np.array([random.randrange(1, 99) / 16], np.float16),)]


def _not_once(random: Random) -> list[Case]:
    """Sums for which Kahan in FP16 is a spacing off the sum rounded once, and off his sum in two other orders."""
    cases: list[Case] = []
    while len(cases) < 2:
        values = np.array([random.uniform(-1, 3) for _ in range(60)], np.float16)
        others = (values[::-1], values[np.argsort(abs(values), kind="stable")])
        if kahan(values) not in (_once(values), *map(kahan, others)):
            cases.append((values,))
    return cases


def _pairwise(values: Halves) -> np.float16:
    if len(values) < 3:
        return plain(values)
    middle = len(values) // 2
    return _pairwise(values[:middle]) + _pairwise(values[middle:])


@mistake
@np.errstate(all="ignore")  # the error feeds on itself, up to infinity
def adds_the_loss(values: Halves) -> np.float16:
    """This is what y = x + lost gives: what was too much is added once more. (t - total) - y is arrived minus meant, so
    it has to be subtracted."""
    total, lost = ZERO, ZERO
    for x in values:
        y = x + lost
        t = total + y
        lost = (t - total) - y
        total = t
    return total


@mistake
def forgets_what_it_corrected(values: Halves) -> np.float16:
    """This is what (t - total) - x gives. It was y that was added; with x the earlier loss is counted as new."""
    total, lost = ZERO, ZERO
    for x in values:
        t = total + (x - lost)
        lost = (t - total) - x
        total = t
    return total


@mistake
def moves_the_total_too_early(values: Halves) -> np.float16:
    """This is what total = t before computing the loss gives: t - total is then 0. Compute lost first."""
    total, lost = ZERO, ZERO
    for x in values:
        y = x - lost
        t = total + y
        total = t
        lost = (t - total) - y
    return total


@mistake
def returns_the_loss(values: Halves) -> np.float16:
    """This is the last loss. Return the total."""
    total, lost = ZERO, ZERO
    for x in values:
        y = x - lost
        t = total + y
        lost = (t - total) - y
        total = t
    return lost


# fmt: off
MISTAKES = (
    wrong("one after another", "this is what total = total + x gives: what each addition loses is gone. (So is it "
          "with lost = t - (total + y), which is always 0.)", lambda values: plain(values)),
    adds_the_loss,
    forgets_what_it_corrected,
    moves_the_total_too_early,
    wrong("counts the first number twice", "this is what starting with values[0] and then running over all values "
          "gives: the first counts twice.", lambda values: kahan(np.concatenate([values[:1], values]))),
    wrong("sorts first", "this is what adding from small to large gives: better than before, but each addition still "
          "loses.", lambda values: plain(values[np.argsort(np.abs(values), kind="stable")])),
    wrong("adds in pairs", "this is what adding in pairs gives: a good sum as well, but not Kahan's.",
          lambda values: _pairwise(values)),
    returns_the_loss,
    wrong("sums in FP32", "this is what a wider sum, rounded once, gives (values.sum() does that inside). It is "
          "better, and what hardware does where it can; here use FP16 only.", lambda values: _once(values)),
)
# fmt: on

EXERCISE = Exercise(
    id="rounding.kahan",
    title="Kahan's sum",
    entry="my_kahan",
    difficulty=2,
    minutes=6,
    reference=kahan,
    checks=(
        Check("many small numbers after a large one", 2, _small_ones),
        Check("positive numbers", 1, _positive),
        Check("numbers of either sign", 1, _signed),
        Check("one number, and none", 1, _short),
        Check("sums that FP16 alone cannot get quite right", 1, _not_once),
    ),
    mistakes=MISTAKES,
    provides={"np": np},
    withheld=(sum_compensated,),
)
