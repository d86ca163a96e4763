"""Exercises of lesson 03: sums of Tensor Cores, and the sizes and limits of a layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import numpy as np
import torch
from torch import Tensor

from labkit.formats import FP16, round_to
from labkit.grading.draws import always, whole
from labkit.grading.exercise import Case, Check, Exercise, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)

# --- tensor.standstill ---


def _powers(random: Random) -> list[Case]:
    exponents = random.sample(range(-6, 3), 3)
    return [(1.0, 1.0), *((2.0**e, 1.0) for e in exponents), (2.0**-3, 2.0**3)]


def _number(random: Random) -> float:
    return random.randrange(1025, 2048) / 1024


def _others(random: Random) -> list[Case]:
    """Products of 11 bits, and one of them negative."""
    return [(_number(random), 1.0), (-_number(random), 2.0), (3.0, 1.0)]


def _huge(random: Random) -> list[Case]:
    """Products of more than half the last spacing, so the sum grows until it is inf."""
    return [
        (4.0, 8.0),
        (16.0 + random.randrange(1, 9) / 8, 1.0),
        (-256.0, 200.0 + random.randrange(9)),
        (256.0, 256.0),
    ]


def _long_products(random: Random) -> list[Case]:
    """Products of up to 22 bits: their sum differs if they are rounded before the addition."""
    found: list[Case] = []
    while len(found) < 3:
        a = _number(random)
        b = _number(random)
        if solution.my_standstill(a, b) != solution.my_standstill(float(np.float16(a * b)), 1.0):
            found.append((a, b))
    return found + [_just_above_one(random) for _ in range(2)]


def _just_above_one(random: Random) -> Case:
    """Return a product that is less than 2^-13 above a power of two.

    At a sum of 2048 times that power, one more lies just above the tie and moves the sum. Rounded
    to FP32 first, it lies at the tie, and the sum stands still.
    """
    while True:
        a = random.randrange(1025, 2048)
        # 2^21 / a, rounded up
        b = -(-(2**21) // a)
        if 0 < a * b - 2**21 < 2**8:
            return random.choice((-1, 1)) * a / 1024 * 2.0 ** random.randrange(-4, 3), b / 2048


_TINY: list[Case] = [
    (2.0**-13, 2.0**-12),
    (2.0**-14, 2.0**-14),
    (2.0**-12, 2.0**-11 * 1.5),
    (2.0**-10, 2.0**-10),
    (0.0, 5.0),
]
"""Products that round to 0, or that FP16 holds as subnormals."""

STANDSTILL = Exercise(
    id="tensor.standstill",
    notes="""Where an FP16 accumulator stops counting. The count is what no call gives: the lab's
    `accumulate` adds, and does not say which addition was the last that changed something.

    The point: a running sum grows until one more product is no more than half its spacing; from
    there on every further product is swallowed, and more data change nothing.
    Oracles in the tests: numpy's float16 running sum, and gfloat's rounding.""",
    checks=(
        Check("powers of two", 1, _powers),
        Check(
            "other products, and those that end at inf",
            1,
            lambda random: _others(random) + _huge(random),
        ),
        Check("products longer than FP16: added first, rounded once", 2, _long_products),
        Check("tiny products", 1, always(*_TINY)),
    ),
    mistakes=(
        wrong(
            "always 2048",
            "this is 2048 of them whatever they are. That is the answer for powers of two; "
            "others go on past it.",
            lambda a, b: (2048, float(round_to(2048 * a * b, FP16))),
        ),
        wrong(
            "counts the lost one",
            "this is one too many: the product that changed nothing was not counted.",
            replace=("return k,", "return k + 1,"),
        ),
        wrong(
            "the exact total",
            "this is k * a * b. The accumulator rounded after each addition, and stands elsewhere.",
            replace=("return k, float(total)", "return k, k * a * b"),
        ),
        wrong(
            "rounds the products first",
            "this is what rounding a * b to FP16 before adding gives. The product is "
            "exact; only the sum is rounded.",
            replace=("float(total) + a * b", "total + np.float16(a * b)"),
        ),
        wrong(
            "rounds to FP32 on the way",
            "this is what a sum in FP32, then rounded to FP16, gives. The first rounding can "
            "end in the middle of two FP16 numbers, and the second then goes the wrong way. "
            "torch's half() of FP64 does this, np.float16 rounds once.",
            replace=("float(total) + a * b", "np.float32(float(total) + a * b)"),
        ),
        wrong(
            "waits for 65504",
            "this is where FP16 ends. The accumulator stops growing long before, where its "
            "spacing is too wide.",
            lambda a, b: (int(65504 / abs(a * b)) if a * b else 0, math.copysign(65504, a * b)),
        ),
        wrong(
            "a whole spacing",
            "this is what stopping below a whole spacing gives. Down to half a spacing the sum is "
            "still rounded up.",
            replace=("longer == total", "longer == total or abs(a * b) < np.spacing(abs(total))"),
        ),
    ),
    provides={"np": np},
)

# --- tensor.block ---


def _magnitudes(random: Random, count: int, low: int = 1024) -> list[float]:
    """FP16 numbers from 1 up to 2."""
    return [abs(x) for x in _signed(random, count, low)]


def _signed(random: Random, count: int, low: int = 1024) -> list[float]:
    """FP16 numbers from 1 up to 2, times a sign."""
    return [random.choice((-1, 1)) * random.randrange(low, 2048) / 1024 for _ in range(count)]


def _exact(random: Random) -> list[Case]:
    """Terms of few bits, none of which is cut."""
    cases: list[Case] = []
    for count in (4, 8):
        a = [random.randrange(1, 32) / 8 for _ in range(count)]
        b = [random.randrange(1, 32) / 8 for _ in range(count)]
        cases.append((a, b, 1.5, 23))
    return cases


def _zeros(random: Random) -> list[Case]:
    """Terms of 0 with a large operand, a C of 0, terms that cancel, and nothing but zeros."""
    a, b = ([x * 2.0**-12 for x in _magnitudes(random, 4)] for _ in range(2))
    cancelling = [a[0], a[1], -a[0], -a[1]]
    return [
        ([0.0, *a, 1024.0], [1024.0, *b, -0.0], 2.0**-20, 23),
        (a, b, 0.0, 23),
        (cancelling, b[:2] * 2, 0.0, 24),
        ([0.0] * 4, [*b[:2], 0.0, -0.0], 0.0, 23),
    ]


def _beside_c(random: Random, sign: int, bits: int) -> Case:
    """A large C, and products that lie on both sides of the last place kept."""
    a, b = ([factor * x for x in _magnitudes(random, 8)] for factor in (sign, 2.0**-13))
    return a, b, 512.0 + random.randrange(1, 512), bits


def _small_beside_large(random: Random) -> list[Case]:
    cases: list[Case] = [([2.0**-12] * 16, [2.0**-12] * 16, 1.0, bits) for bits in (23, 24)]
    cases += [_beside_c(random, 1, bits) for bits in (23, 25)]
    a, b = ([x * scale for x in _magnitudes(random, 14)] for scale in (1.0, 2.0**-13))
    # C is the largest term, by little; then a product is.
    cases.append(([2.0, *a], [1.0, *b], 4.0 + random.randrange(1, 8) / 8, 23))
    cases.append(([32.0, *a], [32.0, *(1024 * x for x in b)], 1.0, 23))
    return cases


def _not_normalised(random: Random) -> list[Case]:
    """A product of 2 or more counts with the exponent that its operands' exponents add up to."""
    cases: list[Case] = []
    for bits in (23, 24):
        tiny = 2.0 ** -(bits // 2), 2.0 ** -(bits - bits // 2)
        big = random.randrange(1536, 2000) / 1024
        cases.append(([big] + [tiny[0]] * 3, [1.5] + [tiny[1]] * 3, 0.5, bits))
    return cases


def _long_sums(random: Random) -> list[Case]:
    """Sums of more bits than FP32 holds: cut, not rounded."""
    cases: list[Case] = []
    for sign in (1, -1):
        a = [sign * x for x in _magnitudes(random, 15, 1536)]
        b = _magnitudes(random, 15, 1536)
        cases.append(([*a, sign * 2.0**-11], [*b, 2.0**-11 * 1.75], 0.0, 25))
    return cases


def _any_block(random: Random) -> list[Case]:
    cases: list[Case] = []
    for count, bits in ((4, 23), (8, 24), (16, 25), (16, 23), (16, 24)):
        a = [x * 2.0 ** random.randrange(-6, 6) for x in _signed(random, count)]
        b = [x * 2.0 ** random.randrange(-6, 6) for x in _signed(random, count)]
        c = float(np.float32(random.gauss(0, 50)))
        cases.append((a, b, c, bits))
    return cases


FP32_BITS = 24


def _results(draw: Callable[[Random], list[Case]]) -> Callable[[Random], list[Case]]:
    """Return a drawer of the same blocks, with results in FP32 and in two widths of no GPU."""

    def drawn(random: Random) -> list[Case]:
        widths = random.sample((7, 9, 10, 12, 13), 2)
        return [(*block, bits) for bits in (FP32_BITS, *widths) for block in draw(random)]

    return drawn


BLOCK = Exercise(
    id="tensor.block",
    notes="""One block is added up as a Tensor Core does it, to the bit.

    The point: products are exact and not normalised, every term is cut at the same place, the sum
    is exact, and only then is it cut, to FP32 or to another width. The lab emulates blocks that end
    in FP32 or FP16.
    Oracles in the tests: Python's decimal numbers for the sum, gfloat for the last rounding.""",
    checks=(
        Check(
            "sums of which nothing is cut, and terms of 0",
            1,
            _results(lambda random: _exact(random) + _zeros(random)),
        ),
        Check("small terms beside a large one", 2, _results(_small_beside_large)),
        Check(
            "negative terms are cut toward zero",
            1,
            _results(lambda random: [_beside_c(random, -1, bits) for bits in (23, 24)]),
        ),
        Check("products are not normalised", 2, _results(_not_normalised)),
        Check("the sum is cut, not rounded", 1, _results(_long_sums)),
        Check("any block, to the bit", 2, _results(_any_block)),
    ),
    mistakes=(
        wrong(
            "adds in FP32 one by one",
            "this is a loop in FP32, one rounding for each addition. A Tensor Core cuts "
            "all terms first, then adds exactly.",
            lambda a, b, c, fraction_bits, result_bits: float(
                np.cumsum([c, *np.multiply(a, b)], dtype=np.float32)[-1]
            ),
        ),
        wrong(
            "always FP32",
            "this keeps 24 bits of every sum. The result has `result_bits`.",
            replace=("total.bit_length() - result_bits", "total.bit_length() - 24"),
        ),
        wrong(
            "cuts nothing",
            "this is the exact sum, cut at its end. Each term loses what lies behind "
            "`fraction_bits` first.",
            replace=("largest - fraction_bits", "largest - 48"),
        ),
        wrong(
            "rounds the terms",
            "this is what rounding the aligned terms gives. They are cut: what lies behind the "
            "last place is dropped.",
            replace=("sum(math.trunc(", "sum(round("),
        ),
        wrong(
            "cuts downwards",
            "this is what `floor`, or `//`, gives: negative terms go the wrong way. `math.trunc` "
            "cuts toward zero.",
            replace=("sum(math.trunc(", "sum(math.floor("),
        ),
        wrong(
            "normalises the products",
            "this is what the exponent of the product itself gives. 1.5 * 1.5 counts with "
            "exponent 0: those of its operands, added up.",
            replace=("exponent(x) + exponent(y)", "exponent(x * y)"),
        ),
        wrong(
            "leaves C out of the alignment",
            "this is what aligning to the largest product gives. C is a term like the others.",
            replace=("in terms if value", "in terms[:-1] if value"),
        ),
        wrong(
            "aligns to C",
            "this is what aligning everything to C gives. The largest exponent decides, whichever "
            "term has it.",
            replace=("max((e for value, e in terms if value), default=0)", "exponent(c)"),
        ),
        wrong(
            "counts the leading bit",
            "this is one bit too few: `fraction_bits` are behind the point, the leading "
            "bit comes on top.",
            replace=("largest - fraction_bits", "largest - (fraction_bits - 1)"),
        ),
        wrong(
            "rounds the result",
            "this is what rounding the sum to the nearest number gives. It is cut, too.",
            replace=("math.trunc(total", "round(total"),
        ),
        wrong(
            "leaves the sum too long",
            "this is the sum before it is cut: it has more than `result_bits` significant bits.",
            replace=("math.trunc(total / 2**spare) * 2**spare", "total"),
        ),
    ),
    provides={"math": math, "np": np},
    former=(FP32_BITS,),
)

# --- tensor.padding ---


def _matrix(random: Random, rows: int, columns: int) -> Tensor:
    """Return eighths, none of them zero, whose products FP32 adds exactly and FP16 does not."""
    return (whole(random, (rows, columns), 1, 128) / 8).half()


def _linear(random: Random, n: int, inputs: int, outputs: int) -> Case:
    return _matrix(random, n, inputs), _matrix(random, outputs, inputs)


def _odd(random: Random) -> list[Case]:
    cases: list[Case] = []
    for _ in range(2):
        n, inputs, outputs = (8 * random.randrange(3) + random.randrange(1, 7) for _ in range(3))
        cases.append(_linear(random, n, inputs, outputs))
    return cases


def _classes(random: Random) -> list[Case]:
    """The usual case: a batch and features that fit, and ten classes, or 33 of them."""
    return [_linear(random, 16, 24, 10), _linear(random, 8, 40, 33)]


def _ones(random: Random) -> list[Case]:
    # y is beyond FP16
    large = (torch.full((3, 10), 128.0).half(), torch.full((5, 10), -128.0).half())
    return [_linear(random, 1, 1, 1), _linear(random, 7, 9, 17), _linear(random, 2, 70, 3), large]


PADDING = Exercise(
    id="tensor.padding",
    notes="""A layer gets sizes that Tensor Cores like, and its result back.

    The point: zeros behind every dimension change no sum, so the padded layer holds the old one in
    its corner. Oracle in the tests: torch.nn.functional.linear and pad.""",
    checks=(
        Check("sizes that fit nowhere", 1, _odd),
        Check("only the number of classes does not fit", 1, _classes),
        Check(
            "sizes that fit already",
            1,
            lambda random: [_linear(random, 8, 16, 24), _linear(random, 16, 8, 8)],
        ),
        Check("one row, one input, one output; and 7, 9, 17", 2, _ones),
    ),
    mistakes=(
        wrong(
            "leaves the result padded",
            "this is y with the padding still on it. Cut it back: the next layer expects "
            "the layer's own sizes.",
            replace=("y[:n, :outputs]", "y"),
        ),
        wrong(
            "pads with ones",
            "this is what padding with something other than 0 gives: padded inputs join every sum.",
            replace=(
                ("more_n))", "more_n), value=1.0)"),
                ("more_outputs))", "more_outputs), value=1.0)"),
            ),
        ),
        wrong(
            "pads in front",
            "this is zeros in front. The old numbers belong into the first rows and columns.",
            replace=(
                ("(0, more_inputs, 0, more_n)", "(more_inputs, 0, more_n, 0)"),
                ("(0, more_inputs, 0, more_outputs)", "(more_inputs, 0, more_outputs, 0)"),
            ),
        ),
        wrong(
            "pads the inputs only",
            "this is padding of the inputs alone. All three sizes of the product count: "
            "rows, inputs and outputs.",
            replace=((", 0, more_n", ""), (", 0, more_outputs", "")),
        ),
        wrong(
            "always adds some",
            "this is 8 more even where the size is a multiple of 8 already.",
            replace=("-size % 8", "8 - size % 8"),
        ),
        wrong(
            "to a power of two",
            "this is the next power of two: 1025 would become 2048. The next multiple of 8 is "
            "enough.",
            replace=("-size % 8", "max(8, 1 << (size - 1).bit_length()) - size"),
        ),
        wrong(
            "cuts down",
            "this is what rounding the sizes down gives: inputs and classes are cut off.",
            replace=(("-size % 8", "max(8, size // 8 * 8) - size"), ("y[:n, :outputs]", "y")),
        ),
        wrong(
            "pads in FP32",
            "this is FP32 padding. torch.zeros makes FP32 unless you pass a dtype.",
            replace=("return wide, tall,", "return wide.float(), tall.float(),"),
        ),
    ),
    provides={"torch": torch},
)

# --- tensor.intensity ---


def _size(random: Random, low: int, high: int) -> int:
    return 8 * random.randrange(low // 8, high // 8)


def _layers(random: Random) -> list[Case]:
    """Large batches: far above the ridge."""
    return [
        (_size(random, 2048, 4096), _size(random, 2048, 4096), _size(random, 512, 1024), 2, 50.0)
        for _ in range(3)
    ]


def _small_batches(random: Random) -> list[Case]:
    drawn = [
        (batch, _size(random, 1024, 4096), _size(random, 512, 1000), 2, 100.0)
        for batch in (1, 16, 64)
    ]
    return [*drawn, (1, 1, 1, 4, 100.0), (1, 1, 1, 2, 0.25), (16, 1024, 1024, 1, 30.0)]


def _in_fp32(random: Random) -> list[Case]:
    """Twice the bytes: these layers are above the ridge in FP16 and below it in FP32."""
    return [(batch, 4096, _size(random, 2048, 4000), 4, 0.75 * batch) for batch in (128, 256)]


def _beside_the_ridge(random: Random) -> list[Case]:
    """One layer on devices whose ridge is just above, exactly at, and just below its intensity.

    The intensity is a whole number of 64ths, so a float holds it exactly.
    """
    while True:
        batch, inputs, outputs = (_size(random, 64, 512) for _ in range(3))
        flops, moved, _ = solution.my_layer(batch, inputs, outputs, 2, 1.0)
        # Not a whole number either, so an answer that rounds it differs.
        if 64 * flops % moved == 0 and flops % moved:
            parts = (1.01, 1 + 2.0**-30, 1.0, 1 - 2.0**-30, 0.99)
            return [(batch, inputs, outputs, 2, flops / moved * part) for part in parts]


INTENSITY = Exercise(
    id="tensor.intensity",
    notes="""What limits a linear layer, before anything is timed. The lab's `intensity` gives the
    quotient; the FLOPs and the bytes of the answer are what is counted here.

    The point: FLOPs grow with the product of three sizes, bytes with the products of two, so a
    large layer waits for the multipliers and a small batch for the memory. Oracle in the tests:
    torch's FLOP counter, and its tensors' bytes.""",
    checks=(
        Check("large layers", 1, _layers),
        Check("small batches", 1, _small_batches),
        Check("the same in FP32", 1, _in_fp32),
        Check("close to the ridge", 2, _beside_the_ridge),
    ),
    mistakes=(
        wrong(
            "one FLOP for each product",
            "this is one FLOP for each product. A product is multiplied and added: two.",
            replace=("2 * batch", "batch"),
        ),
        wrong(
            "forgets the weight",
            "this is without the weight, which is read too; with a small batch it is nearly "
            "all there is to move.",
            replace=(" + inputs * outputs", ""),
        ),
        wrong(
            "forgets the result",
            "this is without Y, which is written.",
            replace=(" + batch * outputs", ""),
        ),
        wrong(
            "two bytes always",
            "this is two bytes for every element. FP32 has four: `bytes_each` says how many.",
            replace=("bytes_each *", "2 *"),
        ),
        wrong(
            "elements for bytes",
            "this is the number of elements. Each has `bytes_each` bytes.",
            replace=("bytes_each * ", ""),
        ),
        wrong(
            "the bounds the wrong way round",
            "this is the wrong way round: few FLOPs for each byte means that the "
            "memory is the limit.",
            replace=("< ridge", ">= ridge"),
        ),
        wrong(
            "compares FLOPs with the ridge",
            "this is what comparing FLOPs with the ridge gives. The ridge is FLOPs "
            "for each byte: divide first.",
            replace=("flops / moved", "flops"),
        ),
    ),
)

# --- tensor.backward ---


def _layer(random: Random, batch: int, inputs: int, outputs: int) -> Case:
    """Whole numbers whose sums FP32 holds exactly, and FP16 does not."""
    return tuple(
        whole(random, shape, 16, 128)
        for shape in ((batch, inputs), (outputs, inputs), (batch, outputs))
    )


def _rectangles(random: Random) -> list[Case]:
    sizes = [random.sample(range(2, 8), 3) for _ in range(3)]
    return [_layer(random, batch, inputs, outputs) for batch, inputs, outputs in sizes]


def _thin(random: Random) -> list[Case]:
    """One row; one input; one output."""
    p, q = random.sample(range(2, 8), 2)
    return [_layer(random, *sizes) for sizes in ((1, p, q), (p, 1, q), (p, q, 1), (1, 1, 1))]


BACKWARD = Exercise(
    id="tensor.backward",
    notes="""The backward pass of a linear layer is the two matrix products that it is.

    The point: training a layer is three GEMMs of the same work, and each of them sums over another
    of the three sizes. Where matrices are square, every transposition fits, and only one is right.
    Oracle in the tests: torch's autograd, and its FLOP counter.""",
    checks=(
        Check("three different sizes", 2, _rectangles),
        Check("square matrices", 1, lambda random: [_layer(random, n, n, n) for n in (2, 3)]),
        Check("one row, one input, one output", 2, _thin),
    ),
    mistakes=(
        wrong(
            "transposes the gradient of the weight",
            "this is the gradient of W^T. torch stores W as [outputs, "
            "inputs], and its gradient has the same shape.",
            replace=("grad_y.T @ x", "x.T @ grad_y"),
        ),
        wrong(
            "weight as books write it",
            "this is what books write for a weight of [inputs, outputs]. torch's layer "
            "computes X W^T: transpose back.",
            replace=("grad_y @ weight, grad_y.T @ x", "grad_y @ weight.T, x.T @ grad_y"),
        ),
        wrong(
            "the two swapped",
            "this is the weight's gradient first, and x's second.",
            replace=("grad_y @ weight, grad_y.T @ x", "grad_y.T @ x, grad_y @ weight"),
        ),
        wrong(
            "the mean over the batch",
            "this is divided by the batch. If the loss is a mean, that is in grad_y "
            "already; here rows are added up.",
            replace=("grad_y.T @ x", "grad_y.T @ x / batch"),
        ),
        wrong(
            "sizes of the forward product",
            "this is (m, n, k) of the forward product. k is what is summed over: "
            "outputs for dX, the batch for dW.",
            replace=(
                "[(batch, inputs, outputs), (outputs, inputs, batch)]",
                "2 * [(batch, outputs, inputs)]",
            ),
        ),
        wrong(
            "n and k swapped",
            "this is (m, k, n). The result is m by n, and k is what is summed over.",
            replace=(
                "[(batch, inputs, outputs), (outputs, inputs, batch)]",
                "[(batch, outputs, inputs), (outputs, batch, inputs)]",
            ),
        ),
        wrong(
            "multiplies by y",
            "this is what y gives. What comes back from the loss is grad_y.",
            lambda x, weight, grad_y: solution.my_backward(x, weight, x @ weight.T),
        ),
    ),
    provides={"torch": torch},
)


# --- tensor.split ---


def _matrices(random: Random, m: int, k: int, n: int, exponent: int = 0) -> tuple[Tensor, Tensor]:
    """Return FP32 matrices whose elements use all 24 bits.

    No sum cancels, so errors stay small relative to the result.
    """

    def full(rows: int, columns: int, sign: int) -> Tensor:
        odd = [
            [sign * (2**23 + 2 * random.randrange(2**22) + 1) for _ in range(columns)]
            for _ in range(rows)
        ]
        return torch.tensor(odd, dtype=torch.float32) * 2.0 ** (exponent - 23)

    return full(m, k, random.choice((-1, 1))), full(k, n, 1)


def _split_cases(products: int) -> Callable[[Random], list[Case]]:
    """Return a drawer of matrices of several shapes and magnitudes, for a number of products."""

    def draw(random: Random) -> list[Case]:
        shapes = ((4, 3, 5), (1, 1, 7), (3, 4, 2), (6, 2, 6))
        pairs = [_matrices(random, *shape, random.choice((0, -30, 30))) for shape in shapes]
        return [(a, b, products) for a, b in pairs]

    return draw


def _few_bits(random: Random) -> list[Case]:
    """Numbers that BF16 holds, for which one product is enough; zeros; an empty middle part."""
    a, b = (
        torch.tensor([[float(random.randrange(1, 200)) for _ in range(3)] for _ in range(3)])
        for _ in range(2)
    )
    gap = torch.tensor([[1 + 2.0**-20, 3.0]])
    return [
        *((a, b, products) for products in (1, 3, 6)),
        (torch.zeros(2, 2), b[:2], 6),
        (gap, gap.T, 6),
        (gap, gap.T, 1),
    ]


def _lost_parts(random: Random) -> list[Case]:
    """Small numbers: BF16 holds two of their parts and rounds the third, 31 * 2^-139, to 0."""
    high = [2.0**-116 * (1 + random.randrange(32) / 128) for _ in range(4)]
    middle = [2.0**-125 * (1 + random.randrange(128) / 128) for _ in range(4)]
    small = torch.tensor([[h + m + 31 * 2.0**-139] for h, m in zip(high, middle, strict=True)])
    large = torch.tensor([[(1 + random.randrange(32) / 128) * 2.0**100 for _ in range(3)]])
    return [(small, large, 6), (large.T, small.T, 6)]


SPLIT = Exercise(
    id="tensor.split",
    notes="""Each part is the rounding of what the parts before it leave. Products of BF16 numbers
    are exact in FP32. The order of FP32's sums changes the last bits, so 16 ulps are allowed; three
    products for six differ by more. Six products are as exact as FP32, but for numbers whose third
    part BF16 has not: there they differ by 31 ulps.""",
    checks=(
        Check("one product", 1, _split_cases(1)),
        Check("three products", 1, _split_cases(3)),
        Check(
            "six products",
            2,
            lambda random: _split_cases(6)(random) + _lost_parts(random),
        ),
        Check("numbers with few bits, and zeros", 1, _few_bits),
    ),
    mistakes=(
        wrong(
            "the same part three times",
            "this is what rounding x three times gives. The second part is the "
            "rounding of what the first one leaves.",
            replace=("x = x - found[-1]", "pass"),
        ),
        wrong(
            "one product always",
            "this is the product of the high parts alone, in BF16's accuracy.",
            replace=("[:products]", "[:1]"),
        ),
        wrong(
            "parts in FP16",
            "this is what parts in FP16 give: 11 bits each, and a smaller range.",
            replace=(".bfloat16()", ".half()"),
        ),
        wrong(
            "the diagonal",
            "this is high·high, middle·middle and low·low. The product high·middle is larger "
            "than the second of these.",
            replace=(
                "(0, 1), (1, 0), (1, 1), (0, 2), (2, 0)",
                "(1, 1), (2, 2), (0, 1), (1, 0), (0, 2)",
            ),
        ),
        wrong(
            "splits one side",
            "this is a split of a alone, with b rounded to BF16. Both matrices have three parts.",
            replace=("second[j]", "second[0]"),
        ),
        wrong(
            "rounds the products",
            "this is what rounding each product to BF16 gives. The sums stay in FP32.",
            replace=("first[i] @ second[j]", "(first[i] @ second[j]).bfloat16().float()"),
        ),
        wrong(
            "plain FP32",
            "this is the product of the whole matrices. Multiply their BF16 parts.",
            lambda a, b, products: a @ b,
        ),
        wrong(
            "subtracts",
            "this is what subtracting the small products gives.",
            replace=("first[i] @ second[j]", "(first[i] @ second[j]) * (1 if i == j == 0 else -1)"),
        ),
    ),
    ulps=16,
    provides={"torch": torch},
)

EXERCISES = (STANDSTILL, BLOCK, PADDING, INTENSITY, BACKWARD, SPLIT)
