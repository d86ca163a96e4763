"""Sentences of the exercises' texts, and the checks that test them."""

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from labkit.grading import EXERCISES
from labkit.grading.judge import draw_cases
from notebooks import build


def has(value: Any, of: Callable[[Any], Any]) -> bool:
    """Return whether `of` is true of some element of a tensor, or of a list of tensors."""
    tensors = [value] if isinstance(value, torch.Tensor) else value
    return any(bool(of(tensor).any()) for tensor in tensors)


# Exercise, words of its text, name of a check, and whether a case tests these words. Such a case
# must be drawn in the notebook and at grading. Edge cases that a known mistake, a single fault or
# several cases of one check test already have no row.
CLAIMS: list[tuple[str, str, str, Callable[..., Any]]] = [
    (
        "start.smallest",
        "with these bits of exponent and significand",
        "any format",
        lambda e, s: e == 11 and s == 52,
    ),
    (
        "numbers.decode",
        "Write your function for any of these three",
        "codes of every kind",
        lambda c, *fields: fields != (5, 10, 15),
    ),
    (
        "numbers.decode",
        "Infinity is `math.inf`, NaN is `math.nan`",
        "infinities and NaN",
        lambda c, *_: c == 0xFC00,
    ),
    (
        "numbers.decode",
        "my_decode(0x3C00, 5, 10, 15) is 1.0",
        "normal numbers",
        lambda *case: case == (0x3C00, 5, 10, 15),
    ),
    (
        "numbers.first_gap",
        "odd numbers are missing",
        "any format with room above",
        lambda e, s: (e, s) == (5, 14),
    ),
    (
        "numbers.next_up",
        "+inf stays +inf",
        "-0, the largest number and the infinities",
        lambda c, *_: c == 0x7C00,
    ),
    (
        "numbers.next_up",
        "Be careful around zero and at both infinities",
        "-0, the largest number and the infinities",
        lambda c, *_: c == 0x8000,
    ),
    (
        "numbers.bytes",
        "Formats of 6 and 4 bits exist too",
        "formats of 8, 6 and 4 bits, and of any",
        lambda s, b: b == 6,
    ),
    (
        "rounding.nearest_even",
        "ties to even",
        "half-way to the even one",
        lambda x, *_: x == 1 + 2.0**-11,
    ),
    (
        "rounding.nearest_even",
        "a result beyond `largest` is",
        "at the upper end",
        lambda x, *_: x == 65520,
    ),
    (
        "rounding.smallest_update",
        "The weight is positive and below 2048",
        "powers of two",
        lambda w: w == 1,
    ),
    (
        "rounding.kahan",
        "Your sum goes on where an earlier one ended",
        "one number, and none",
        lambda values, total, lost: len(values) == 0 and total != 0 and lost != 0,
    ),
    (
        "rounding.epsilon",
        "Keep the formula and the 1e-8",
        "zeros stay zeros",
        lambda x: not x.any(),
    ),
    (
        "tensor.standstill",
        "If the sum overflows, it stays at inf",
        "other products, and those that end at inf",
        lambda a, b: abs(a * b) > 65504,
    ),
    (
        "tensor.block",
        "A term of 0 has no exponent",
        "sums of which nothing is cut, and terms of 0",
        lambda a, b, *_: 0 in a and 1024 in b,
    ),
    (
        "tensor.intensity",
        'At the ridge itself, say "compute"',
        "close to the ridge",
        lambda n, i, o, b, r: r * b * (n * i + i * o + n * o) == 2 * n * i * o,
    ),
    (
        "kernels.allowed",
        "An empty sum is 0.",
        "one product, or none",
        lambda a, b, precision: a == [],
    ),
    (
        "kernels.allowed",
        "they may be subnormal, or inf after an overflow",
        "subnormal results, and those beyond 65504",
        lambda a, b, precision: sum(map(lambda x, y: x * y, a, b)) > 65504,
    ),
    (
        "tensor.padding",
        "y has its own size",
        "only the number of classes does not fit",
        lambda x, w: len(w) == 10,
    ),
    (
        "gradients.binades",
        "zeros, infinities and NaN are in no binade",
        "zeros, infinities and NaN are in no binade",
        lambda v, _: any(x != x for x in v),
    ),
    (
        "gradients.window",
        "at 2^-25 itself it becomes 0",
        "2^-25 and what is next to it",
        lambda s, _: math.log2(s) % 1 == 0,
    ),
    ("gradients.window", "k goes from -40 to 60", "k from -40 to 60", lambda s, g: g < 2.0**-49),
    (
        "gradients.window",
        "None if there is no k",
        "one scale, or none",
        lambda s, g: g / s > 2.0**41,
    ),
    ("gradients.culprit", "None if all are finite", "the first tensor, or none", lambda t: t == []),
    (
        "autocast.softmax",
        "It should work for logits of 6,000 and of -500",
        "one row far below another",
        lambda x: (x < -499).any(),
    ),
    (
        "autocast.softmax",
        "It should work for logits of 6,000 and of -500",
        "logits above 89, where exp leaves FP32",
        lambda x: (x >= 6000).all(),
    ),
    (
        "scaling.unscale",
        "*any* element of *any* tensor is inf or NaN",
        "NaN is found, in whichever tensor",
        lambda g, *_: has(g[1:], torch.isnan),
    ),
    (
        "master.step",
        "If one holds inf or NaN, its step is left out",
        "a step with inf or NaN is left out, the next one is not",
        lambda m, g, *_: has(g, torch.isnan),
    ),
    (
        "master.memory",
        "0 for SGD, 1 with momentum, 2 for Adam",
        "FP32 training: SGD, with momentum, Adam",
        lambda n, b, m, k: k == 0,
    ),
    (
        "master.groups",
        "Frozen parameters belong to neither",
        "frozen parameters are in no group",
        lambda p: any(not t for *_, t in p),
    ),
    (
        "master.flat",
        "Each weight has its gradient's shape",
        "filters, a single number, one tensor alone",
        lambda f, g, *_: any(t.dim() == 4 for t in g),
    ),
    (
        "master.ema",
        "It starts as the first weights",
        "before the first step",
        lambda h, _: len(h) == 1,
    ),
    (
        "recipes.epsilon",
        "A step whose denominator is not 0 is finite",
        "a gradient of zero",
        lambda g, e: g == 0 and e == 1e-4,
    ),
    ("recipes.cheapest", 'if none does, "FP32"', "none that passes", lambda a, c: c == []),
    (
        "frameworks.translate",
        "as `apex_training` does",
        "an overflow skips its step and halves the scale",
        lambda w, b, n: len(b) == 4,
    ),
    (
        "frameworks.callback",
        "skip, move the scale",
        "an overflow skips its step and halves the scale",
        lambda w, b, n: len(b) == 3,
    ),
    (
        "frameworks.casts",
        "else all are FP16",
        "promote and keep",
        lambda g, n: any(row[1:] == ("promote", ["mask", "mask"]) for row in n),
    ),
    (
        "tensor.split",
        "the first one, the first three, or the first six",
        "numbers with few bits, and zeros",
        lambda a, b, products: products == 3,
    ),
    (
        "master.accumulator",
        "`count` is at most $2^b$",
        "few numbers and many",
        lambda count, size: count == 2**11,
    ),
    (
        "beyond.rescue",
        "divided by $2^k$ is at most `limit`",
        "magnitudes at the limit, and around it",
        lambda up, down, largest, limit: limit in largest,
    ),
    (
        "beyond.rescue",
        "the smallest whole number, from 0 on",
        "channels that fit already",
        lambda up, down, largest, limit: 0.0 in largest,
    ),
    (
        "beyond.mx_scale",
        "from -127 on",
        "blocks of zeros, and of next to nothing",
        lambda block, _: not any(block),
    ),
    (
        "beyond.block",
        "A number of the grid stays",
        "numbers of the format, and beyond its end",
        lambda b, s, r: r == [0.0] * 8,
    ),
    ("beyond.orders", "an empty sum is 0", "small numbers after a large one", lambda n: n == []),
    (
        "beyond.orders",
        "The first half of 41 numbers has 20",
        "an odd number of them",
        lambda n: len(n) == 41,
    ),
    (
        "beyond.unit",
        "one number for the whole network",
        "losses of any size",
        lambda f, w, size: size > 16,
    ),
]


def plain(text: str) -> str:
    """Return a text as one line, without the marks of comments."""
    return re.sub(r"\s+", " ", re.sub(r"(?m)^# ?", "", text))


@cache
def text_of(exercise_id: str) -> str:
    """Return the text before an exercise's cell, and the cell without the solution."""
    exercise = EXERCISES[exercise_id]
    cells = re.split(r"(?m)^(?=# %%)", build.lesson(exercise.lesson).text.read_text())
    at = next(i for i, cell in enumerate(cells) if f'tags=["{exercise.tag}"]' in cell)
    before = next(i for i in reversed(range(at)) if "[markdown]" in cells[i])
    own = re.sub(r"(?s)### BEGIN SOLUTION.*?### END SOLUTION", "", cells[at])
    return plain("".join(cells[before:at]) + own)


@pytest.mark.parametrize(
    ("id", "words", "check_name", "is_it"),
    CLAIMS,
    ids=[id for id, *_ in CLAIMS],
)
def test_a_demand_of_a_text_is_checked_at_grading_too(
    id: str, words: str, check_name: str, is_it: Callable[..., Any]
) -> None:
    assert words in text_of(id)
    checks = [check for check in EXERCISES[id].checks if check.name == check_name]
    for seed in (0, 1):
        cases = [case for check in checks for case in draw_cases(EXERCISES[id], check, seed)]
        assert any(is_it(*case) for case in cases), seed
