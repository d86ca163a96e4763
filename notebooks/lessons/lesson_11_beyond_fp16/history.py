"""Can you keep a history of largest magnitudes?

The point: delayed scaling looks back, never at the tensor in hand; and it takes the largest of a few steps.
"""

from __future__ import annotations

from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong


def reference(largest: list[float], length: int, top: float) -> list[float]:
    """Return the scale of each step: top / the largest of the `length` steps before; 1 where that is none, or 0.

    >>> reference([2.0, 8.0, 4.0, 4.0], length=2, top=8.0)
    [1.0, 4.0, 1.0, 1.0]
    """
    scales = []
    for step in range(len(largest)):
        before = largest[max(0, step - length) : step]
        scales.append(top / max(before) if any(before) else 1.0)
    return scales


def _steps(random: Random, count: int) -> list[float]:
    """Return magnitudes that are all different, none of them a power of two."""
    return [random.uniform(1.01, 1.99) * 2.0 ** random.randrange(-6, 6) for _ in range(count)]


def _short(random: Random) -> list[Case]:
    """Fewer steps than the history is long."""
    drawn = [(_steps(random, count), length, 448.0) for count, length in ((3, 4), (6, 8), (4, 16))]
    return [*drawn, ([3.0] * 4, 8, 448.0)]


def _long(random: Random) -> list[Case]:
    """Falling magnitudes, so that what leaves the history is felt; random ones; equal ones; and a long history."""
    falling = sorted(_steps(random, 9), reverse=True)
    a, b, c = sorted(_steps(random, 3))
    alike = [c, a, b, c, a, a, b, a, a]
    return [
        (falling, 3, 57344.0), (falling, 1, 448.0), (_steps(random, 12), 2, 448.0), (_steps(random, 9), 4, 57344.0),
        (alike, 3, 448.0), (sorted(_steps(random, 30), reverse=True), 20, 448.0),
        (sorted(_steps(random, 90), reverse=True), 64, 448.0),
    ]  # fmt: skip


def _outlier(random: Random) -> list[Case]:
    """One step far larger than the others, and than the format's largest number."""
    steps = _steps(random, 8)
    steps[3] = 1000 * max(steps)
    return [(steps, 2, 448.0), (steps, 16, 448.0), (steps, 2, 6.0)]


def _zeros(random: Random) -> list[Case]:
    """A tensor of zeros: first, for longer than the history, and beside others; and one that is nearly zero."""
    a, b = _steps(random, 2)
    tiny = [x * 2.0**-60 for x in (a, b, b)]
    runs: list[tuple[list[float], int]] = [
        ([0.0, a, b], 1),
        ([a, 0.0, 0.0, b, a], 2),
        (tiny, 2),
        ([0.0] * 2, 4),
        ([], 4),
    ]
    return [(largest, length, 448.0) for largest, length in runs]


@mistake
def takes_the_mean(largest: list[float], length: int, top: float) -> list[float]:
    """This is what the mean of the history gives: everything above it saturates."""
    before = [largest[max(0, i - length) : i] for i in range(len(largest))]
    return [top * len(b) / sum(b) if any(b) else 1.0 for b in before]


@mistake
def begins_with_its_own(largest: list[float], length: int, top: float) -> list[float]:
    """This is what reading the first tensor first gives. In the first step nothing is known yet: its scale is 1."""
    return [top / largest[0] if largest[0] else 1.0, *reference(largest, length, top)[1:]] if largest else []


@mistake
def divides_by_zero_less(largest: list[float], length: int, top: float) -> list[float]:
    """This is what passing over zeros by keeping the last scale gives. Where the history holds nothing but zeros, the
    scale is 1."""
    scales: list[float] = []
    for i, scale in enumerate(reference(largest, length, top)):
        scales.append(scale if i == 0 or any(largest[max(0, i - length) : i]) else scales[-1])
    return scales


# fmt: off
MISTAKES = (
    wrong("looks at the tensor in hand", "this is what counting the step itself gives: current scaling, which has to "
          "read the tensor twice.",
          lambda largest, length, top: reference([*largest, 0.0], length, top)[1:] if largest else []),
    wrong("takes the last alone", "this is what the step before alone gives. The history is there for the steps that "
          "were larger.", lambda largest, length, top: reference(largest, 1, top)),
    wrong("forgets nothing", "this is what looking back to the first step gives: one outlier keeps the scale too "
          "small until the end.", lambda largest, length, top: reference(largest, max(1, len(largest)), top)),
    wrong("takes tiny for zero", "this is what a threshold gives, below which all counts as zero. Gradients are "
          "often that small; only 0 has no scale.",
          lambda largest, length, top: reference([x if x > 1e-8 else 0.0 for x in largest], length, top)),
    wrong("one step too many", "this is what a history one step longer gives.",
          lambda largest, length, top: reference(largest, length + 1, top)),
    takes_the_mean,
    wrong("turned round", "this is 1 / scale, by which the result is multiplied afterwards.",
          lambda largest, length, top: [1 / scale for scale in reference(largest, length, top)]),
    begins_with_its_own,
    divides_by_zero_less,
)
# fmt: on

EXERCISE = Exercise(
    id="beyond.history",
    title="A history of largest magnitudes",
    entry="my_scales",
    difficulty=2,
    minutes=8,
    reference=reference,
    ulps=2,  # top * (1 / largest) rounds twice
    checks=(
        Check("a run shorter than its history", 1, _short),
        Check("what is older than the history is forgotten", 2, _long),
        Check("one outlier", 1, _outlier),
        Check("tensors of zeros", 1, _zeros),
    ),
    mistakes=MISTAKES,
)
