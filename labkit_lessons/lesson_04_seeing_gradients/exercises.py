"""Exercises of lesson 04: histograms of gradients, what FP16 loses, and the window of scales."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import cast

import torch
from torch import Tensor

from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)


def _number(random: Random, lowest: int = -30, highest: int = 20) -> float:
    """Return a number with an exponent lowest <= e < highest that is not a power of two."""
    return random.randrange(1025, 2047) / 1024 * 2.0 ** random.randrange(lowest, highest)


# --- gradients.binades ---


def _inside(random: Random) -> list[Case]:
    """Numbers between powers of two, crowded and spread out; FP32's ends; and equal numbers."""
    ends = [_number(random, at, at + 1) for at in (-149 + 10, -127, -126, 126, 127)]
    x = _number(random)
    return [
        *(([_number(random, -k, k) for _ in range(12)],) for k in (1, 3, 8)),
        (ends,),
        ([x, 3.0, x, x, -x, 3.0],),
    ]


def _powers(random: Random) -> list[Case]:
    """Powers of two open a binade; the FP32 number before each ends the one below."""
    # math.log(x, 2) of 2^-29 and of 2^-31 is rounded down.
    powers = [2.0**k for k in (*random.sample(range(-24, 16), 6), -29, -31)]
    return [(powers,), ([p * (1 - 2.0**-24) for p in powers],)]


def _signs(random: Random) -> list[Case]:
    found = [_number(random) for _ in range(8)]
    return [([-x for x in found],), ([x * random.choice((-1, 1)) for x in found] + [-(2.0**-20)],)]


def _without(random: Random) -> list[Case]:
    """Zeros of both signs, infinities and NaN are in no binade; of an empty list nothing is."""
    some = [_number(random) for _ in range(3)]
    return [
        ([0.0, *some, -0.0],),
        ([math.inf, *some],),
        ([-math.inf, *some],),
        ([math.nan, *some],),
        ([],),
    ]


def _in_widths(draw: Callable[[Random], list[Case]]) -> Callable[[Random], list[Case]]:
    """Return a drawer of the same numbers in bins of one binade, and in two other widths."""

    def drawn(random: Random) -> list[Case]:
        cases = draw(random)
        widths = (1, *random.sample(range(2, 9), 2))
        return [(*case, width) for width in widths for case in cases]

    return drawn


BINADES = Exercise(
    id="gradients.binades",
    notes="""The histogram that every picture of this lesson is made of: the exponent of |x|, and
    what has none; in bins of a width that the lab's histogram does not have.

    The numbers are FP32 numbers, so the logarithm that a learner may take is far from a whole
    number or exact.
    Oracle in the tests: numpy.frexp.""",
    checks=(
        Check("numbers between two powers of two", 2, _in_widths(_inside)),
        Check("a power of two opens its binade", 1, _in_widths(_powers)),
        Check("a magnitude has no sign", 1, _in_widths(_signs)),
        Check("zeros, infinities and NaN are in no binade", 1, _in_widths(_without)),
    ),
    mistakes=(
        wrong(
            "takes frexp s exponent",
            "this is frexp's exponent as it is: frexp gives a fraction from 0.5 to 1. Subtract 1.",
            replace=("(math.frexp(x)[1] - 1)", "math.frexp(x)[1]"),
        ),
        wrong(
            "one binade for each bin",
            "this makes a bin of each binade. `width` of them share one.",
            replace=(" // width", ""),
        ),
        wrong(
            "bins that meet at zero",
            "this cuts the quotient towards zero: bin 0 then holds binades on both sides of 1. "
            "Round down.",
            replace=("(math.frexp(x)[1] - 1) // width", "int((math.frexp(x)[1] - 1) / width)"),
        ),
        wrong(
            "cuts the logarithm",
            "this is what int() makes of the logarithm: it cuts towards zero, so numbers below "
            "1 land one too high. Take floor.",
            replace=("(math.frexp(x)[1] - 1)", "int(math.log2(abs(x)))"),
        ),
        wrong(
            "rounds the logarithm",
            "this is the power of two that is nearest. A binade goes from one power up to "
            "the next: round down.",
            replace=("(math.frexp(x)[1] - 1)", "round(math.log2(abs(x)))"),
        ),
        wrong(
            "closes binades above",
            "this puts a power of two into the binade that ends there. It opens one: 2^e <= |x|.",
            replace=("math.frexp(x)[1] - 1", "math.ceil(math.log2(abs(x))) - 1"),
        ),
        wrong(
            "leaves negative numbers out",
            "this counts positive numbers only. A magnitude has no sign: take abs(x).",
            replace=("x != 0", "x > 0"),
        ),
        wrong(
            "counts zeros",
            "this is frexp's exponent of 0, which is 0: zero lies in no binade. Leave it out.",
            replace=("x != 0 and ", ""),
        ),
        wrong(
            "counts infinities",
            "this is frexp's exponent of inf and NaN, which means nothing. Leave out what "
            "math.isfinite denies.",
            replace=(" and math.isfinite(x)", ""),
        ),
        wrong(
            "counts each binade once",
            "this says which binades are used. How many numbers are in each? Add 1 for "
            "every number.",
            replace=("counts.get(number, 0) + 1", "1"),
        ),
    ),
    provides={"math": math},
    former=(1,),
)

# --- gradients.fate ---


def _counts(random: Random, low: int, high: int) -> dict[int, int]:
    exponents = random.sample(range(low, high), 6)
    return {exponent: random.randrange(1, 100) for exponent in exponents}


def _unscaled(random: Random) -> list[Case]:
    drawn: list[Case] = [(_counts(random, -36, -6), 0) for _ in range(2)]
    single: list[Case] = [({random.randrange(low, low + 9): 1}, 0) for low in (-40, -12)]
    return [*drawn, ({-40: random.randrange(2, 9)}, 0), *single]


def _scaled(random: Random) -> list[Case]:
    """Up and down: what a scale saves, and what one below 1 loses."""
    drawn: list[Case] = [(_counts(random, -40, -16), k) for k in (3, 7, 10)]
    return [
        *drawn,
        (_counts(random, -28, -14), -6),
        ({-10: 3, -3: 4, 8: random.randrange(2, 9)}, -20),
        ({-50: 2, -45: random.randrange(3, 9), -3: 1}, 24),
        ({-27: 1}, 2),
        ({-24: 1}, -2),
    ]


def _edges(random: Random) -> list[Case]:
    """The binades on both sides of 2^-25, of 2^-24 and of 2^-14, at several scales."""
    return [
        ({edge - 1 - k: random.randrange(2, 50), edge - k: random.randrange(51, 99)}, k)
        for edge in (-25, -24, -14)
        for k in (0, random.randrange(1, 12))
    ]


def _in_formats(draw: Callable[[Random], list[Case]]) -> Callable[[Random], list[Case]]:
    """Return a drawer of counts for FP16 and for two formats with other smallest numbers."""

    def drawn(random: Random) -> list[Case]:
        cases: list[Case] = []
        for smallest in (FP16_SMALLEST, *random.sample((-37, -33, -29, -19, -15, -11), 2)):
            moved = smallest - FP16_SMALLEST
            for counts, log2_scale in cast("list[tuple[dict[int, int], int]]", draw(random)):
                own = {exponent + moved: n for exponent, n in counts.items()}
                cases.append((own, log2_scale, smallest))
        return cases

    return drawn


FP16_SMALLEST = -24

FATE = Exercise(
    id="gradients.fate",
    notes="""The counterfactual: scaling by 2^k adds k to every exponent, so no tensor is looked at
    again; and FP16 loses what lies below 2^-25, half of its smallest number, not what is merely
    subnormal. Formats are drawn that the lab does not have.

    Oracle in the tests: numpy's float16, number by number.""",
    checks=(
        Check("without a scale", 1, _in_formats(_unscaled)),
        Check("at other scales", 2, _in_formats(_scaled)),
        Check("both sides of half the smallest number", 2, _in_formats(_edges)),
        Check(
            "of nothing, nothing is lost",
            1,
            _in_formats(
                lambda random: [
                    ({}, 0),
                    ({}, 8),
                    ({-3: 0, -30: 0}, 0),
                    ({-26: random.randrange(1, 9), -3: 0}, 0),
                ]
            ),
        ),
    ),
    mistakes=(
        wrong(
            "forgets the scale",
            "this is what is lost without a scale. Times 2^log2_scale adds log2_scale to each "
            "exponent.",
            replace=(" + log2_scale", ""),
        ),
        wrong(
            "scales down",
            "this subtracts log2_scale: it divides. A product adds exponents.",
            replace=("+ log2_scale", "- log2_scale"),
        ),
        wrong(
            "multiplies exponents",
            "this multiplies exponents. 2^e times 2^k is 2^(e + k).",
            replace=("+ log2_scale", "* 2**log2_scale"),
        ),
        wrong(
            "loses subnormal numbers too",
            "this counts subnormal numbers as lost. They keep fewer bits, but they "
            "are not zero: what is lost lies below half of the smallest number.",
            replace=("smallest - 1", "smallest + 10"),
        ),
        wrong(
            "ends at the smallest number",
            "this loses all below the smallest number. From half of it on, "
            "numbers are rounded up to it.",
            replace=("smallest - 1", "smallest"),
        ),
        wrong(
            "ends a binade too low",
            "this keeps the binade below half of the smallest number. All its numbers are "
            "nearer to zero.",
            replace=("smallest - 1", "smallest - 2"),
        ),
        wrong(
            "answers for FP16",
            "this is what FP16 loses. The smallest number is an argument.",
            replace=("smallest - 1", "-25"),
        ),
        wrong(
            "counts binades",
            "this is the share of the binades. A binade counts as often as it has numbers.",
            replace=(
                ("counts.values()", "n > 0 for n in counts.values()"),
                ("sum(n for", "sum(n > 0 for"),
            ),
        ),
        wrong(
            "counts numbers",
            "this is how many are lost. Divide by how many there are.",
            replace=("lost / total if total else 0.0", "float(lost)"),
        ),
        wrong("says what is kept", "this is the share that is kept.", replace=("<", ">=")),
        wrong(
            "divides by zero",
            "this divides by 0 where nothing was counted. The share is then 0.",
            replace=(" if total else 0.0", ""),
        ),
    ),
    ulps=2**30,  # a share may be had in FP32, or as 1 minus the rest
    former=(-24,),
)

# --- gradients.lost ---


def _pair(random: Random, n: int, zeros: int, lost: int) -> tuple[Tensor, Tensor]:
    """Return gradients in FP32 and in FP16: n non-zero ones, `lost` of them zero in FP16 alone.

    A further `zeros` of them are zero in both.
    """
    exact = whole(random, (n + zeros,), 1, 512) * 2.0**-12
    half = exact.clone()
    places = random.sample(range(n + zeros), zeros + lost)
    half[places] = 0
    exact[places[:zeros]] = 0
    return exact, half.half()


def _case(*pairs: tuple[Tensor, Tensor]) -> Case:
    return [exact for exact, _ in pairs], [half for _, half in pairs]


def _several(random: Random) -> list[Case]:
    """Tensors of different sizes and dimensions, so the mean of shares is not the share of all."""
    matrix = [part.reshape(4, 5) for part in _pair(random, 16, 4, 1)]
    number = torch.tensor(2.0**-30), torch.tensor(0.0).half()
    return [
        _case(_pair(random, 3, 2, 2), _pair(random, 20, 4, 1), _pair(random, 5, 0, 0)),
        _case(
            _pair(random, 2, 1, 0),
            (matrix[0], matrix[1]),
            _pair(random, 6, 1, 6),
            number,
            _pair(random, 0, 0, 0),
        ),
    ]


def _other_zeros(random: Random) -> list[Case]:
    """Gradients whose FP16 value does not follow from the FP32 value.

    Some could be held and were lost on the way, and some tiny ones arrived. -0 counts as zero;
    inf and NaN do not. FP32's smallest numbers are non-zero, although their products are 0.
    """
    tiny = torch.tensor([2.0**-30, -(2.0**-27), 2.0**-10, 2.0**-40])
    arrived = torch.tensor([2.0**-24, -(2.0**-24), 0.0, -0.0]).half()
    appeared = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([2.0**-20, 0.0, -1.0]).half()
    # Times FP16's smallest number, these are 0.
    smallest = torch.tensor([2.0**-149, -(2.0**-140), 2.0**-149, 2.0**-126])
    reached = torch.tensor([2.0**-24, 2.0**-24, 0.0, -(2.0**-24)]).half()
    spoiled = (
        torch.tensor([1.0, 2.0, 3.0, 4.0]),
        torch.tensor([math.inf, -math.inf, math.nan, 0.0]).half(),
    )
    return [
        _case((tiny, arrived)),
        _case(appeared, _pair(random, 5, 1, 2)),
        _case((smallest, reached)),
        _case(spoiled),
    ]


def _above_noise(draw: Callable[[Random], list[Case]]) -> Callable[[Random], list[Case]]:
    """Return a drawer of the same gradients without noise, and with gradients around a noise."""

    def drawn(random: Random) -> list[Case]:
        cases: list[Case] = []
        for in_fp32, in_fp16 in cast("list[tuple[list[Tensor], list[Tensor]]]", draw(random)):
            cases.append((in_fp32, in_fp16, 0.0))
            # One more tensor, with gradients below the noise, at it and above it.
            noise = 2.0**-9 * random.randrange(1, 9)
            exact = torch.tensor([noise / 2, -noise, noise * 1.5, -noise * 2, noise * 4, 0.0])
            half = torch.tensor([0.0, 0.0, 0.0, 1.0, random.choice((0.0, 1.0)), 0.0]).half()
            cases.append(([*in_fp32, exact], [*in_fp16, half], noise))
        return cases

    return drawn


def _nothing(_: Random) -> list[Case]:
    zeros = torch.zeros(3)
    return [
        _case((zeros, zeros.half())),
        _case((zeros, torch.tensor([0.0, 1.0, 0.0]).half())),
        ([], []),
    ]


LOST = Exercise(
    id="gradients.lost",
    notes="""A zero inside an FP16 pass may have been a zero in FP32 (a ReLU made it). Lost is what
    is above the noise in FP32 and zero in FP16, as a share of what is above it in FP32, over all
    tensors together. The lab's `underflow` knows no noise.

    Oracle in the tests: numpy, on one long array.""",
    checks=(
        Check(
            "the share of one tensor",
            1,
            _above_noise(lambda random: [_case(_pair(random, 8, 0, lost)) for lost in (2, 0, 8)]),
        ),
        Check(
            "what is zero in FP32 cannot be lost",
            2,
            _above_noise(
                lambda random: [_case(_pair(random, 8, zeros, 3)) for zeros in (2, 5, 24)]
            ),
        ),
        Check("all tensors together", 1, _above_noise(_several)),
        Check("element by element, by what arrived", 1, _above_noise(_other_zeros)),
        Check("where nothing is non-zero, nothing is lost", 1, _above_noise(_nothing)),
    ),
    mistakes=(
        wrong(
            "counts zeros inside",
            "this is the share of zeros inside the FP16 pass: it counts what was zero in FP32 too.",
            replace=(
                ("int(above.sum())", "half.numel()"),
                ("(above & (half == 0))", "(half == 0)"),
            ),
        ),
        wrong(
            "divides by all",
            "this divides by all elements. Only what is non-zero in FP32 can be lost.",
            replace=("int(above.sum())", "exact.numel()"),
        ),
        wrong(
            "counts the noise",
            "this counts gradients up to the noise, too. They count as zero.",
            replace=("exact.abs() > noise", "exact != 0"),
        ),
        wrong(
            "leaves out what is at the noise",
            "this counts a gradient that is just as large as the noise. Up to it all count as "
            "zero.",
            replace=("> noise", ">= noise"),
        ),
        wrong(
            "subtracts the counts",
            "this subtracts two numbers of zeros. A gradient that appeared in FP16 then "
            "hides one that was lost: compare element by element.",
            replace=(
                "(above & (half == 0)).sum()",
                "(half == 0).sum() - (~above).sum()",
            ),
        ),
        wrong(
            "averages the tensors",
            "this is the mean of the tensors' shares: a small tensor then counts as much as "
            "a large one. Add up the counts first.",
            lambda in_fp32, in_fp16, noise: (
                sum(
                    solution.my_lost([exact], [half], noise)
                    for exact, half in zip(in_fp32, in_fp16, strict=True)
                )
                / max(1, len(in_fp32))
            ),
        ),
        wrong(
            "looks at the first tensor",
            "this is the first tensor's share alone.",
            replace=("in_fp32, in_fp16, strict", "in_fp32[:1], in_fp16[:1], strict"),
        ),
        wrong(
            "rounds the fp32 gradients",
            "this rounds the FP32 gradients and looks at what becomes zero. An FP16 pass loses "
            "more than that: what was zero further up stays zero. Look at the FP16 gradients "
            "themselves.",
            replace=("half == 0", "exact.half() == 0"),
        ),
        wrong(
            "says what survived",
            "this is the share that survived.",
            replace=("lost / alive if alive else 0.0", "1 - (lost / alive if alive else 0.0)"),
        ),
    ),
    provides={"torch": torch},
    ulps=2**30,  # a share may be had in FP32
    former=(0.0,),
)

# --- gradients.window ---


def _low_end(random: Random) -> list[Case]:
    """The smallest is a power of two, whose tie goes to zero; or just above or below one."""
    e = random.randrange(-34, -26)
    return [(2.0**e * part, 2.0**-8) for part in (1.0, 1 + 2.0**-20, 1 - 2.0**-20, 1.5)]


def _high_end(random: Random) -> list[Case]:
    """The largest lands on 65504, between it and 65520, on 65520, and on 65536, at some scale."""
    e = random.randrange(4, 14)
    return [
        (2.0**-30, top * 2.0**-e)
        for top in (65504.0, 65519.0, 65519.5, 65520.0, 65530.0, 65536.0, 32768.0)
    ]


def _narrow(random: Random) -> list[Case]:
    """One scale, or none: the distance is what FP16 can hold, or more."""
    e = random.randrange(-20, 0)
    smallest = 2.0**e
    largest = 2.0 ** (e + 40)
    return [
        (smallest * 1.5, largest),
        (smallest, largest),
        (smallest * 1.5, largest * 2),
        # at the one scale, the largest lands on 65504
        (smallest, largest * 65504 / 65536),
        (smallest, largest * 4),
    ]


def _ends(random: Random) -> list[Case]:
    """Windows that go on beyond -40 and beyond 60: the answer ends there."""
    same = _number(random, -9, 9)
    return [
        (same, same),
        (2.0**30, _number(random, 57, 60)),
        (_number(random, 17, 19), _number(random, 20, 24)),
        (_number(random, -84, -82), _number(random, -60, -50)),
    ]


WINDOW = Exercise(
    id="gradients.window",
    notes="""Both ends, to the number: what is rounded to zero is 2^-25 and below (the tie goes to
    zero), what is rounded to inf is 65520 and above. Where the two ends meet there is no scale at
    all.

    Magnitudes are floats of few digits and scales powers of two, so every product is exact. Oracle
    in the tests: numpy's float16.""",
    checks=(
        Check(
            "both ends",
            1,
            lambda random: [(_number(random, -36, -26), _number(random, -16, 0)) for _ in range(3)],
        ),
        Check("2^-25 and what is next to it", 2, _low_end),
        Check("65504, 65520 and what is next to them", 2, _high_end),
        Check("one scale, or none", 1, _narrow),
        # gradients so large that only a scale below 1 will do
        Check(
            "scales below 1",
            1,
            lambda random: [(_number(random, -4, 0), _number(random, 18, 24)), (2.0**-2, 2.0**30)],
        ),
        Check("k from -40 to 60", 1, _ends),
    ),
    mistakes=(
        wrong(
            "keeps the tie",
            "this keeps 2^-25 itself. It lies half-way to 2^-24 and goes to the even neighbour, "
            "which is 0: more than 2^-25 is needed.",
            replace=("> 2.0**-25", ">= 2.0**-25"),
        ),
        wrong(
            "asks for the smallest number",
            "this asks for 2^-24, FP16's smallest number. What is above half of it "
            "is rounded up to it, and not lost.",
            replace=("> 2.0**-25", ">= 2.0**-24"),
        ),
        wrong(
            "asks for normal numbers",
            "this asks for full precision, 2^-14. A subnormal number is not lost.",
            replace=("> 2.0**-25", ">= 2.0**-14"),
        ),
        wrong(
            "ends at 65504",
            "this ends at 65504, the largest number. Up to 65520, half-way to 65536, numbers are "
            "rounded down to it.",
            replace=("65520", "65504"),
        ),
        wrong(
            "keeps 65520",
            "this keeps 65520 itself: the first number that becomes inf.",
            replace=("< 65520", "<= 65520"),
        ),
        wrong(
            "ends at 65536",
            "this ends at 65536. Infinity begins half-way from 65504, at 65520.",
            replace=("65520", "65536"),
        ),
        wrong(
            "never says None",
            "this gives two numbers where no scale will do, the lower above the higher. Return "
            "None there.",
            replace=(
                (" and largest", "]\n    fits = [k for k in range(-40, 61) if largest"),
                ("good[-1]) if good else None", "fits[-1])"),
            ),
        ),
        wrong(
            "never scales down",
            "this begins at 2^0. Large gradients need a scale below 1: k may be negative.",
            replace=("range(-40, 61)", "range(61)"),
        ),
        wrong(
            "gives the scales",
            "this gives the scales. Return their exponents: k, not 2^k.",
            replace=("good[0], good[-1]", "2.0 ** good[0], 2.0 ** good[-1]"),
        ),
        wrong(
            "turns the ends round",
            "this has the two ends in the wrong order: the lowest first.",
            replace=("good[0], good[-1]", "good[-1], good[0]"),
        ),
    ),
)

# --- gradients.culprit ---

Tensors = list[tuple[str, Tensor]]
NAMES = ("conv1", "norm1", "conv2", "norm2", "head", "loss")


def _healthy(random: Random) -> Tensors:
    """Return finite tensors, the largest magnitude of each negative, and a larger one early on."""
    found = [(name, whole(random, (2, 3), 1, 512)) for name in NAMES]
    for i, (_, tensor) in enumerate(found):
        largest = 4096.0 if i == 0 else 2048.0 - 128 * i
        tensor[random.randrange(2), random.randrange(3)] = -largest
    return [(name, tensor.half()) for name, tensor in found]


def _spoiled(random: Random, at: int, *elements: float) -> Tensors:
    """Return tensors of which the one at a place holds these elements, and all later ones NaN."""
    found = _healthy(random)
    flat = found[at][1].view(-1)
    flat[random.sample(range(len(flat)), len(elements))] = torch.tensor(elements).half()
    return [
        *found[: at + 1],
        *((name, torch.full_like(tensor, math.nan)) for name, tensor in found[at + 1 :]),
    ]


def _not_a_number(random: Random) -> list[Case]:
    drawn: list[Case] = [(_spoiled(random, at, math.nan),) for at in (2, 4)]
    return [*drawn, (_spoiled(random, 3, math.nan, math.inf),)]


def _cancelling(random: Random) -> list[Case]:
    """Tensors with inf beside -inf, and with large finite numbers whose FP16 sum is inf."""
    heavy = [(name, torch.full_like(tensor, 16384.0)) for name, tensor in _healthy(random)]
    return [(_spoiled(random, 2, math.inf, -math.inf),), (heavy,)]


def _first_or_none(random: Random) -> list[Case]:
    """The first tensor, none, one alone, and names that appear twice."""
    loss = ("loss", torch.tensor(math.nan).half())
    largest = [("shared", tensor.fill_(65504)) for _, tensor in _healthy(random)[:1]]
    twice = [*largest, *_healthy(random)[1:3], ("shared", torch.tensor([-3.0]).half()), loss]
    again = _spoiled(random, 4, math.inf)
    # A healthy tensor has the spoiled one's name, too: an earlier one here, a later one next.
    again[1] = (again[4][0], again[1][1])
    later = [*_spoiled(random, 2, -math.inf)[:4], _healthy(random)[2]]
    doubled = [("conv1", _healthy(random)[3][1]), *_spoiled(random, 0, math.nan)]
    named = [(again,), (later,), (doubled,)]
    return [
        (_spoiled(random, 0, math.inf),),
        (_healthy(random),),
        (_healthy(random)[:1],),
        ([],),
        (twice,),
        *named,
    ]


CULPRIT = Exercise(
    id="gradients.culprit",
    notes="""What comes later is a consequence. The first tensor that is not finite is the place to
    repair, and how large the one before it was says whether it was an overflow on its way.

    Oracle in the tests: numpy, backwards from the last tensor.""",
    checks=(
        Check(
            "the first inf",
            2,
            lambda random: [
                (_spoiled(random, at, sign * math.inf),) for at, sign in ((1, 1), (3, -1), (5, 1))
            ],
        ),
        Check("the first NaN", 1, _not_a_number),
        Check("inf and -inf do not cancel, and large numbers are no alarm", 1, _cancelling),
        Check("the first tensor, or none", 1, _first_or_none),
    ),
    mistakes=(
        wrong(
            "looks for inf alone",
            "this looks for inf alone. 0 / 0 and inf - inf give NaN, with no inf in the tensor.",
            replace=("not torch.isfinite(tensor).all()", "torch.isinf(tensor).any()"),
        ),
        wrong(
            "looks for NaN alone",
            "this looks for NaN alone, and so finds the consequence: an overflow is inf first.",
            replace=("not torch.isfinite(tensor).all()", "torch.isnan(tensor).any()"),
        ),
        wrong(
            "names the last",
            "this is the last tensor that is not finite. The first one is the cause.",
            replace=(
                ("before = 0.0", "found, before = None, 0.0"),
                ("return name", "found = name"),
                ("return None", "return found"),
            ),
        ),
        wrong(
            "names the one before",
            "this names the last tensor that was finite. Name the one after it.",
            replace=(
                ("before = 0.0", "last, before = None, 0.0"),
                ("return name", "return last or name"),
                ("before = float(", "last, before = name, float("),
            ),
        ),
        wrong(
            "takes the largest of all",
            "this is the largest magnitude of all tensors before. Only the one just "
            "before says how near the overflow was.",
            replace=("float(tensor.abs().max())", "max(before, float(tensor.abs().max()))"),
        ),
        wrong(
            "forgets the sign",
            "this is the largest number. -2048 is larger in magnitude than 511: take abs first.",
            replace=(".abs()", ""),
        ),
        wrong(
            "looks at the last row",
            "this is the largest magnitude of the last row. Look at all elements.",
            replace=("tensor.abs()", "tensor[-1:].abs()"),
        ),
        wrong(
            "looks into the bad tensor",
            "this is the largest finite magnitude of the tensor that is spoiled. Look "
            "at the one before it.",
            replace=(
                "name, before",
                "name, float(torch.nan_to_num(tensor, 0.0, 0.0, 0.0).abs().max())",
            ),
        ),
        wrong(
            "tests the sum",
            "this tests the FP16 sum: finite numbers that add up beyond 65504 raise a false alarm.",
            replace=("torch.isfinite(tensor).all()", "torch.isfinite(tensor.sum())"),
        ),
    ),
    provides={"torch": torch},
)

EXERCISES = (BINADES, FATE, LOST, WINDOW, CULPRIT)
