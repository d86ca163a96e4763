"""Exercises of lesson 11c: sums in two orders, and what BF16 can keep."""

from __future__ import annotations

import math
from random import Random

import numpy as np

from labkit.grading.exercise import Case, Check, Exercise, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)

# --- beyond.orders ---


def _numbers(random: Random, count: int, spread: int) -> list[float]:
    return [
        float(np.float32(random.uniform(-1, 1) * 2.0 ** random.randrange(spread)))
        for _ in range(count)
    ]


def _odd(random: Random) -> list[Case]:
    """Lists of odd length; in the first, two small numbers add up to what the large one notices."""
    large = 2.0 ** random.randrange(10, 40)
    return [
        ([large, large * 2.0**-24, large * 2.0**-24],),
        *((_numbers(random, count, 16),) for count in (41, 99)),
    ]


def _swallowed(random: Random) -> list[Case]:
    """A large number first, beside which most small ones are lost if added in turn; short lists."""
    large = 2.0 ** random.randrange(25, 40)
    lists = [[large, *[large * 2.0**-25] * 63], [-large, *_numbers(random, 39, 2)]]
    return [(numbers,) for numbers in (*lists, [], _numbers(random, 1, 2), [large, 1.0])]


ORDERS = Exercise(
    id="beyond.orders",
    notes="""FP32 rounds after each addition, so the order is part of the result; a GPU chooses it
    by a batch's shape.""",
    checks=(
        Check(
            "numbers of one size",
            1,
            lambda random: [(_numbers(random, count, 1),) for count in (64, 100, 200)],
        ),
        Check(
            "numbers of all sizes",
            1,
            lambda random: [(_numbers(random, 40, 24),) for _ in range(3)],
        ),
        Check("an odd number of them", 2, _odd),
        Check("small numbers after a large one", 1, _swallowed),
    ),
    mistakes=(
        wrong(
            "adds in FP64",
            "this is what Python's own floats give: FP64 rounds so finely that both orders are "
            "nearly equal. Round to FP32 after each addition.",
            replace=(
                ("np.float32(0)", "0.0"),
                ("np.float32(total + np.float32(x))", "total + x"),
                ("np.float32(first + rest)", "first + rest"),
            ),
        ),
        wrong(
            "rounds at the end",
            "this is what rounding to FP32 once at the end gives. FP32 rounds after each addition.",
            lambda numbers: (float(np.float32(math.fsum(numbers))),) * 2,
        ),
        wrong(
            "adds in FP16",
            "this is what FP16 gives. Round to FP32.",
            replace=(
                ("def in_turn", "@np.errstate(over='ignore', invalid='ignore')\n    def in_turn"),
                ("np.float32(0)", "np.float16(0)"),
                ("np.float32(total + np.float32(x))", "np.float16(total + np.float16(x))"),
                ("np.float32(first + rest)", "in_turn([first, rest])"),
            ),
        ),
        wrong(
            "takes every second",
            "this is what two sums of every second number give. The second order cuts the list "
            "in the middle.",
            replace=(("numbers[:half]", "numbers[::2]"), ("numbers[half:]", "numbers[1::2]")),
        ),
        wrong(
            "goes on with the first half",
            "this is what adding the second half onto the first gives: that is one "
            "after another again. Begin it at 0.",
            replace=("first + rest", "in_turn(numbers)"),
        ),
        wrong(
            "forgets the last rounding",
            "this is what adding the two halves in FP64 gives. That addition rounds, too.",
            replace=("np.float32(first + rest)", "float(first) + float(rest)"),
        ),
        wrong(
            "sorts first",
            "this is what sorting by magnitude first gives: it may be more exact, and is another "
            "order.",
            lambda numbers: solution.my_two_sums(sorted(numbers, key=abs)),
        ),
        wrong(
            "gives the longer half first",
            "this is what a first half that is one longer gives. Of an odd number, "
            "the rest is the longer one.",
            replace=("len(numbers) // 2", "(len(numbers) + 1) // 2"),
        ),
    ),
    provides={"np": np},
)


# --- beyond.keep ---


def _parts(random: Random, kind: str, numbers: list[float]) -> list[Case]:
    """Return one call with parts of one kind, in random order."""
    shuffled = random.sample(numbers, len(numbers))
    return [([(f"part {i}", kind, x) for i, x in enumerate(shuffled)],)]


def _count(random: Random) -> list[Case]:
    far = [
        float(random.randrange(2, 200)),
        float(random.randrange(300, 2000)),
        2048.0,
        4096.0,
        65536.0,
    ]
    return _parts(random, "counts", far) + _parts(
        random, "counts", [0.0, 255.0, 256.0, 257.0, 258.0]
    )


def _change(random: Random) -> list[Case]:
    drawn = [random.uniform(0.01, 0.5), random.uniform(0, 1e-4), random.uniform(0, 1e-9)]
    far = [*drawn, 1 - 0.9, 1 - 0.95, 1 - 0.999, 2.0**-10, 2.0**-11, 2.0**-12]
    near = [0.0, 2.0**-9, math.nextafter(2.0**-9, 0), 1.01 * 2.0**-9, 2.0**-8]
    return _parts(random, "changes", far) + _parts(random, "changes", near)


def _both(random: Random) -> list[Case]:
    """A training with parts of both kinds, in two orders, and one without parts."""
    numbers = [
        ("counts", 1.0),
        ("changes", 300.0),
        ("counts", 50257.0),
        ("changes", 1e-5),
        ("counts", 12.0),
    ]
    drawn = random.sample(numbers, 5)
    orders = (drawn, drawn[::-1])
    return [
        *(([(f"{kind} {i}", kind, x) for i, (kind, x) in enumerate(order)],) for order in orders),
        ([],),
    ]


KEEP = Exercise(
    id="beyond.keep",
    notes="""BF16 has 8 significant bits, and two facts follow. It counts to 2^8. And a number that
    changes by less than 2^-9 of itself in a step never changes: half the distance of numbers is at
    least that.""",
    checks=(
        Check("whole numbers", 2, _count),
        Check("numbers that change", 2, _change),
        Check("a training with both", 1, _both),
    ),
    mistakes=(
        wrong(
            "with the limits of FP16",
            "this is what FP16's eleven bits keep: it counts to 2^11, and notices changes "
            "down to 2^-12. BF16 has eight.",
            replace=(("2**8", "2**11"), ("2.0**-9", "2.0**-12")),
        ),
        wrong(
            "counts to 255",
            "this is what counts >= 256 gives: 256 itself is a number of BF16. The first that is "
            "missing is 257.",
            replace=("> 2**8", ">= 2**8"),
        ),
        wrong(
            "forbids the limit",
            "this is what changes <= 2^-9 gives. *Less* than that never arrives.",
            replace=("< 2.0**-9", "<= 2.0**-9"),
        ),
        wrong(
            "takes a whole step",
            "this is what changes below 2^-8 gives: some of those do arrive, where the weight "
            "is just below a power of two.",
            replace=("2.0**-9", "2.0**-8"),
        ),
        wrong(
            "forgets what changes",
            "this is what counts alone need. A moment that changes little does not change at "
            "all in BF16.",
            replace=(' or (kind == "changes" and number < 2.0**-9)', ""),
        ),
        wrong(
            "forgets what counts",
            "this is what changes alone need. Whole numbers beyond 2^8 melt together in BF16.",
            replace=('(kind == "counts" and number > 2**8) or ', ""),
        ),
        wrong(
            "takes one kind after the other",
            "this is first what counts and then what changes. Keep the order of the parts.",
            replace=("in parts", "in sorted(parts, key=lambda part: part[1] == 'changes')"),
        ),
        wrong(
            "names those that may",
            "this is the parts that BF16 can keep. Return the others.",
            replace=(
                ("number > 2**8", "number <= 2**8"),
                ("number < 2.0**-9", "number >= 2.0**-9"),
            ),
        ),
        wrong(
            "one limit for both",
            "this is what both limits give for every part, whatever its kind.",
            replace=(('kind == "counts" and ', ""), ('kind == "changes" and ', "")),
        ),
    ),
)

EXERCISES = (ORDERS, KEEP)
