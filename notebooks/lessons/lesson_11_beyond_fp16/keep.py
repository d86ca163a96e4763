"""What must stay in FP32?

The point: BF16 has 8 significant bits, and two facts follow. It counts to 2^8. And a number that changes by less than
2^-9 of itself in a step never changes: half the distance of numbers is at least that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Part = tuple[str, str, float]
COUNTS, STEP = 2.0**8, 2.0**-9


def reference(parts: list[Part]) -> list[str]:
    """Return the names of the parts that BF16 cannot keep: they count beyond 2^8, or change by less than 2^-9 a step.

    >>> reference([("positions", "counts", 4096.0), ("moment", "changes", 0.001), ("mean", "changes", 0.1)])
    ['positions', 'moment']
    """
    return _where(parts, lambda x: x > COUNTS, lambda x: x < STEP)


def _where(parts: list[Part], counts: Callable[[float], bool], changes: Callable[[float], bool]) -> list[str]:
    return [name for name, kind, x in parts if (counts(x) if kind == "counts" else changes(x))]


def _parts(random: Random, kind: str, numbers: list[float]) -> list[Case]:
    """Return one call: parts of one kind, in any order."""
    shuffled = random.sample(numbers, len(numbers))
    return [([(f"part {i}", kind, x) for i, x in enumerate(shuffled)],)]


def _count(random: Random) -> list[Case]:
    far = [float(random.randrange(2, 200)), float(random.randrange(300, 2000)), 2048.0, 4096.0, 65536.0]
    return _parts(random, "counts", far) + _parts(random, "counts", [0.0, 255.0, 256.0, 257.0, 258.0])


def _change(random: Random) -> list[Case]:
    drawn = [random.uniform(0.01, 0.5), random.uniform(0, 1e-4), random.uniform(0, 1e-9)]
    far = [*drawn, 1 - 0.9, 1 - 0.95, 1 - 0.999, 2.0**-10, 2.0**-11, 2.0**-12]
    near = [0.0, 2.0**-9, math.nextafter(2.0**-9, 0), 1.01 * 2.0**-9, 2.0**-8]
    return _parts(random, "changes", far) + _parts(random, "changes", near)


def _both(random: Random) -> list[Case]:
    """A training: some of each kind, in two orders; a change of 300 is no count, and a count of 1 no change."""
    numbers = [("counts", 1.0), ("changes", 300.0), ("counts", 50257.0), ("changes", 1e-5), ("counts", 12.0)]
    drawn = random.sample(numbers, 5)
    orders = (drawn, drawn[::-1])
    return [*(([(f"{kind} {i}", kind, x) for i, (kind, x) in enumerate(order)],) for order in orders), ([],)]


@mistake
def takes_one_kind_after_the_other(parts: list[Part]) -> list[str]:
    """This is first what counts and then what changes. The order of the parts was asked."""
    return reference([p for p in parts if p[1] == "counts"]) + reference([p for p in parts if p[1] == "changes"])


# fmt: off
MISTAKES = (
    wrong("with the limits of FP16", "this is what FP16's eleven bits keep: it counts to 2^11, and notices changes "
          "down to 2^-12. BF16 has eight.",
          lambda parts: _where(parts, lambda x: x > 2.0**11, lambda x: x < 2.0**-12)),
    wrong("counts to 255", "this is what counts >= 256 gives: 256 itself is a number of BF16. The first that is "
          "missing is 257.", lambda parts: _where(parts, lambda x: x >= COUNTS, lambda x: x < STEP)),
    wrong("forbids the limit", "this is what changes <= 2^-9 gives. *Less* than that never arrives.",
          lambda parts: _where(parts, lambda x: x > COUNTS, lambda x: x <= STEP)),
    wrong("takes a whole step", "this is what changes below 2^-8 gives: some of those do arrive, where the weight is "
          "just below a power of two.", lambda parts: _where(parts, lambda x: x > COUNTS, lambda x: x < 2.0**-8)),
    wrong("forgets what changes", "this is what counts alone need. A moment that changes little stands still in "
          "BF16.", lambda parts: _where(parts, lambda x: x > COUNTS, lambda _: False)),
    wrong("forgets what counts", "this is what changes alone need. Whole numbers beyond 2^8 melt together in BF16.",
          lambda parts: _where(parts, lambda _: False, lambda x: x < STEP)),
    takes_one_kind_after_the_other,
    wrong("names those that may", "this is the parts that BF16 can keep. Asked are the others.",
          lambda parts: _where(parts, lambda x: x <= COUNTS, lambda x: x >= STEP)),
    wrong("one limit for both", "this is what both limits give for every part, whatever its kind.",
          lambda parts: [name for name, _, x in parts if x > COUNTS or x < STEP]),
)
# fmt: on

EXERCISE = Exercise(
    id="beyond.keep",
    title="What must stay in FP32?",
    entry="my_fp32_parts",
    difficulty=1,
    minutes=6,
    reference=reference,
    checks=(
        Check("whole numbers", 2, _count),
        Check("numbers that change", 2, _change),
        Check("a training with both", 1, _both),
    ),
    mistakes=MISTAKES,
)
