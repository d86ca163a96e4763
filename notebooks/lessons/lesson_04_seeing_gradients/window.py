"""Which scales lose nothing at either end?

The point: both ends, to the number. What is rounded to zero is 2^-25 and below (the tie goes to zero), what is rounded
to inf is 65520 and above. Where the two ends meet there is no scale at all.

Invariant: magnitudes are floats of few digits and scales powers of two, so every product is exact.
Oracle in the tests: numpy's float16.
"""

from __future__ import annotations

from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

RANGE = range(-40, 61)
Window = tuple[int, int] | None


def _window(smallest: float, largest: float, above: float, below: float, inclusive: bool = False) -> Window:
    """Return the first and last k that keep all between two limits."""
    low = [k for k in RANGE if smallest * 2.0**k > above or (inclusive and smallest * 2.0**k == above)]
    fitting = [k for k in low if largest * 2.0**k < below]
    return (fitting[0], fitting[-1]) if fitting else None


def reference(smallest: float, largest: float) -> Window:
    """Return (lowest, highest) k for which 2^k makes neither zero nor inf of any gradient in FP16; None if there is
    none.

    >>> reference(2.0**-30, 1.0), reference(2.0**-30, 2.0**20)
    ((6, 15), None)
    """
    return _window(smallest, largest, 2.0**-25, 65520.0)


def _some(random: Random, low: int, high: int) -> float:
    return random.randrange(1025, 2047) / 1024 * 2.0 ** random.randrange(low, high)


def _low_end(random: Random) -> list[Case]:
    """The smallest is a power of two, whose tie goes to zero; or just above or below one."""
    e = random.randrange(-34, -26)
    return [(2.0**e * part, 2.0**-8) for part in (1.0, 1 + 2.0**-20, 1 - 2.0**-20, 1.5)]


def _high_end(random: Random) -> list[Case]:
    """The largest lands on 65504, between it and 65520, on 65520, and on 65536, at some scale."""
    e = random.randrange(4, 14)
    return [(2.0**-30, top * 2.0**-e) for top in (65504.0, 65519.0, 65519.5, 65520.0, 65530.0, 65536.0, 32768.0)]


def _narrow(random: Random) -> list[Case]:
    """One scale, or none: the distance is what FP16 can hold, or a little more."""
    e = random.randrange(-20, 0)
    return [
        (2.0**e * 1.5, 2.0 ** (e + 40)),
        (2.0**e, 2.0 ** (e + 40)),
        (2.0**e * 1.5, 2.0 ** (e + 41)),
        (2.0**e, 2.0**30 + e),
    ]


def _below_one(random: Random) -> list[Case]:
    """Gradients so large that only a scale below 1 will do."""
    return [(_some(random, -4, 0), _some(random, 18, 24)), (2.0**-2, 2.0**30)]


def _ends(random: Random) -> list[Case]:
    """Windows that go on beyond -40 and beyond 60: the answer ends there."""
    same = _some(random, -9, 9)
    return [
        (same, same),
        (2.0**30, _some(random, 57, 60)),
        (_some(random, 17, 19), _some(random, 20, 24)),
        (_some(random, -84, -82), _some(random, -60, -50)),
    ]


@mistake
def never_says_None(smallest: float, largest: float) -> Window:
    """This gives two numbers where no scale will do, the lower above the higher. Return None there."""
    low = [k for k in RANGE if smallest * 2.0**k > 2.0**-25]
    high = [k for k in RANGE if largest * 2.0**k < 65520]
    return (low[0], high[-1])


@mistake
def never_scales_down(smallest: float, largest: float) -> Window:
    """This begins at 2^0. Large gradients need a scale below 1: k may be negative."""
    found = reference(smallest, largest)
    return None if found is None or found[1] < 0 else (max(found[0], 0), found[1])


@mistake
def gives_the_scales(smallest: float, largest: float) -> tuple[float, float] | None:
    """This gives the scales. Their exponents were asked for: k, not 2^k."""
    found = reference(smallest, largest)
    return found and (2.0 ** found[0], 2.0 ** found[1])


@mistake
def turns_the_ends_round(smallest: float, largest: float) -> Window:
    """This has the two ends in the wrong order: the lowest first."""
    found = reference(smallest, largest)
    return found and (found[1], found[0])


# fmt: off
MISTAKES = (
    wrong("keeps the tie", "this keeps 2^-25 itself. It lies half-way to 2^-24 and goes to the even neighbour, which "
          "is 0: more than 2^-25 is needed.",
          lambda smallest, largest: _window(smallest, largest, 2.0**-25, 65520.0, inclusive=True)),
    wrong("asks for the smallest number", "this asks for 2^-24, FP16's smallest number. What is above half of it is "
          "rounded up to it, and not lost.",
          lambda smallest, largest: _window(smallest, largest, 2.0**-24, 65520.0, inclusive=True)),
    wrong("asks for normal numbers", "this asks for full precision, 2^-14. A subnormal number is not lost.",
          lambda smallest, largest: _window(smallest, largest, 2.0**-14, 65520.0, inclusive=True)),
    wrong("ends at 65504", "this ends at 65504, the largest number. Up to 65520, half-way to 65536, numbers are "
          "rounded down to it.", lambda smallest, largest: _window(smallest, largest, 2.0**-25, 65504.0)),
    wrong("keeps 65520", "this keeps 65520 itself: the first number that becomes inf.",
          lambda smallest, largest: _window(smallest, largest, 2.0**-25, 65520.5)),
    wrong("ends at 65536", "this ends at 65536. Infinity begins half-way from 65504, at 65520.",
          lambda smallest, largest: _window(smallest, largest, 2.0**-25, 65536.0)),
    never_says_None,
    never_scales_down,
    gives_the_scales,
    turns_the_ends_round,
)
# fmt: on

EXERCISE = Exercise(
    id="gradients.window",
    title="Which scales lose nothing?",
    entry="my_window",
    difficulty=3,
    minutes=12,
    reference=reference,
    checks=(
        Check("both ends", 1, lambda random: [(_some(random, -36, -26), _some(random, -16, 0)) for _ in range(3)]),
        Check("2^-25 and what is next to it", 2, _low_end),
        Check("65504, 65520 and what is next to them", 2, _high_end),
        Check("one scale, or none", 1, _narrow),
        Check("scales below 1", 1, _below_one),
        Check("k from -40 to 60", 1, _ends),
    ),
    mistakes=MISTAKES,
)
