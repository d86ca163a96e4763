"""What a text says of an edge is asked at that edge: a row for each claim, with the check and the case that hold it.

A row: the exercise, the words of its text (quoted from the lesson's source), the check, and whether a case is the one
that the words are about. Such a case must be drawn in the notebook and by a seed of grading. An edge has no row where an
answer that is wrong there alone is a known mistake, or in test_full_marks: its test fails when the case is gone.
"""

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from labkit.grading import EXERCISES
from labkit.grading.judge import draw_cases
from notebooks import build


def has(value: Any, of: Callable[[Any], Any]) -> bool:
    """Return whether some element of a tensor, or of a list of tensors, is such a one."""
    tensors = [value] if isinstance(value, torch.Tensor) else value
    return any(bool(of(tensor).any()) for tensor in tensors)


CLAIMS: list[tuple[str, str, str, Callable[..., Any]]] = [
    ("start.smallest", "with this many bits of exponent and of significand", "any format", lambda e, s: e == 11 and s == 52),
    ("numbers.decode", "code` is an integer of 16 bits", "codes of every kind", lambda c: c == 0xFBFF),
    ("numbers.decode", "Infinity is `math.inf`, NaN is `math.nan`", "infinities and NaN", lambda c: c == 0xFC00),
    ("numbers.decode", "my_decode(0x3C00) is 1.0", "normal numbers", lambda c: c == 0x3C00),
    ("numbers.ulp", "Take care below 2^-14", "subnormal numbers and zero", lambda x: 0 < x < 2.0**-14),
    ("numbers.first_gap", "odd numbers are missing", "any format with room above", lambda e, s: (e, s) == (5, 14)),
    ("numbers.next_up", "+inf stays +inf", "-0, the largest number and the infinities", lambda c: c == 0x7C00),
    ("numbers.next_up", "Be careful around zero and at both infinities", "-0, the largest number and the infinities", lambda c: c == 0x8000),
    ("numbers.bytes", "Formats of 6 and 4 bits exist too", "formats of 8, 6 and 4 bits, and of any", lambda s, b: b == 6),
    ("numbers.bytes", "the last byte counts as a whole one", "formats of 8, 6 and 4 bits, and of any", lambda s, b: math.prod(s) * b % 8),
    ("rounding.nearest_even", "ties to even", "half-way to the even one", lambda x: x == 1 + 2.0**-11),
    ("rounding.nearest_even", "from 65520 on there is infinity", "at the upper end", lambda x: x == 65520),
    ("rounding.smallest_update", "The weight is positive and below 2048", "subnormal weights", lambda w: 0 < w < 2.0**-14),
    ("rounding.smallest_update", "The weight is positive and below 2048", "powers of two", lambda w: w == 1),
    ("rounding.stochastic", "Up is towards +inf, for negative numbers too", "negative numbers", lambda x, *_: x < 0),
    ("rounding.kahan", "0 if it is empty", "one number, and none", lambda values: len(values) == 0),
    ("rounding.epsilon", "Keep the formula and the 1e-8", "zeros stay zeros", lambda x: not x.any()),
    ("tensor.standstill", "If the sum overflows, it stays at inf", "other products, and those that end at inf", lambda a, b: abs(a * b) > 65504),
    ("tensor.block", "A term of 0 has no exponent", "sums of which nothing is cut, and terms of 0", lambda a, b, c, n: 0 in a and 1024 in b),
    ("tensor.block", "FP32 keeps 24", "the sum is cut to FP32, not rounded", lambda a, b, c, n: n == 25),
    ("tensor.intensity", 'At the ridge itself, say "compute"', "close to the ridge", lambda n, i, o, b, r: r * b * (n * i + i * o + n * o) == 2 * n * i * o),
    ("kernels.allowed", "An empty sum is 0.", "one product, or none", lambda a, b, precision: a == []),
    ("kernels.allowed", "they may be subnormal, or inf after an overflow", "subnormal results, and those beyond 65504", lambda a, b, precision: sum(map(lambda x, y: x * y, a, b)) > 65504),
    ("tensor.padding", "y has its own size", "only the number of classes does not fit", lambda x, w: len(w) == 10),
    ("gradients.binades", "zeros, infinities and NaN are in no binade", "zeros, infinities and NaN are in no binade", lambda v: any(x != x for x in v)),
    ("gradients.fate", "0.0 if there is none", "of nothing, nothing is lost", lambda c, k: not c),
    ("gradients.window", "at 2^-25 itself it becomes 0", "2^-25 and what is next to it", lambda s, _: math.log2(s) % 1 == 0),
    ("gradients.window", "k goes from -40 to 60", "k from -40 to 60", lambda s, g: g < 2.0**-49),
    ("gradients.window", "None if there is no such k", "one scale, or none", lambda s, g: g / s > 2.0**41),
    ("gradients.lost", "0.0 if none is non-zero", "where nothing is non-zero, nothing is lost", lambda a, b: not has(a, lambda t: t)),
    ("gradients.culprit", "None if all are finite", "the first tensor, or none", lambda t: t == []),
    ("autocast.linear", "rounded to FP16 *once*, at the end", "the bias belongs into the FP32 sum", lambda x, *_: x.max() == 32),
    ("autocast.softmax", "It should work for logits of 6,000 and of -500", "one row far below another", lambda x: (x < -499).any()),
    ("autocast.softmax", "It should work for logits of 6,000 and of -500", "logits above 89, where exp leaves FP32", lambda x: (x >= 6000).all()),
    ("autocast.cache", "the autocast block ends, and the cache is emptied", "closing the region empties the cache", lambda w, e: ("close", "") in e),
    ("autocast.cache", "never use a cast that is out of date", "an edited weight is cast anew, the other one is not", lambda w, e: ("edit", "w1") in e),
    ("scaling.advance", "the clean step that completes the interval grows", "an interval of one step", lambda s, f, c: c.growth_interval == 1),
    ("scaling.clip", "all tensors together", "no tensor is too long by itself, but all together are", lambda g, *_: len(g) == 3),
    ("scaling.order", "once for each of `loop.batches`", "several batches, accumulated", lambda loop: len(loop.batches) > 1),
    ("scaling.unscale", "*any* element of *any* tensor is inf or NaN", "NaN is found, in whichever tensor", lambda g, _: has(g[1:], torch.isnan)),
    ("master.step", "If one holds inf or NaN, its step is left out", "a step with inf or NaN is left out, the next one is not", lambda m, g, *_: has(g, torch.isnan)),
    ("master.memory", "0 for SGD, 1 with momentum, 2 for Adam", "FP32 training: SGD, with momentum, Adam", lambda n, b, m, k: k == 0),
    ("master.groups", "Frozen parameters belong to neither", "frozen parameters are in no group", lambda p: any(not t for *_, t in p)),
    ("master.groups", "single numbers", "embeddings, a single number, frozen layers", lambda p: any(s == () for _, s, _ in p)),
    ("master.flat", "Each weight has its gradient's shape", "filters, a single number, one tensor alone", lambda f, g, *_: any(t.dim() == 4 for t in g)),
    ("master.ema", "It starts as the first weights", "before the first step", lambda h, _: len(h) == 1),
    ("recipes.levels", "{} where the level is left as it is", "O2, nearly all of it", lambda level, changed: not changed),
    ("recipes.levels", "and win over the level", "O2, nearly all of it", lambda level, changed: changed),
    ("recipes.lines", "Masters add `gradients to masters`", "masters alone, as BF16 takes them", lambda m, s, n: m and not s),
    ("recipes.lines", "run once for each batch", "both, as in O2", lambda m, s, n: n > 1),
    ("recipes.epsilon", "A step whose denominator is not 0 is finite", "a gradient of zero", lambda g, e: g == 0 and e == 1e-4),
    ("recipes.cheapest", 'if none does, "FP32"', "none that passes", lambda a, c: c == []),
    ("frameworks.translate", "as `apex_training` does", "an overflow skips its step and halves the scale", lambda w, b, n: len(b) == 4),
    ("frameworks.callback", "skip, move the scale", "an overflow skips its step and halves the scale", lambda w, b, n: len(b) == 3),
    ("frameworks.casts", "else all are FP16", "promote and keep", lambda g, n: any(row[1:] == ("promote", ["mask", "mask"]) for row in n)),
    ("workers.predivide", "inf and NaN are added like numbers", "inf where nothing helps", lambda g, _: has(g, torch.isnan)),
    ("workers.parts", "both are `rows` where it holds none", "ranks that hold nothing", lambda rows, world: rows < world),
    ("tensor.split", "the first one, the first three, or the first six", "numbers with few bits, and zeros", lambda a, b, products: products == 3),
    ("tensor.split", "Split both matrices into three parts each", "six products", lambda a, b, products: a.shape[0] != b.shape[1]),
    ("master.accumulator", "`count` is at most $2^b$", "few numbers and many", lambda count, size: count == 2**11),
    ("master.accumulator", "`size` is at least its smallest normal number", "numbers that are small", lambda count, size: size == 2.0**-14),
    ("master.accumulator", "is at most its largest number", "sums that are large for FP16", lambda count, size: count * size == 65504),
    ("master.accumulator", "or None if there is none", "sums that are too large for all", lambda count, size: count * size > 3.5e38),
    ("beyond.rescue", "divided by $2^k$ is at most `limit`", "magnitudes at the limit, and around it", lambda up, down, largest, limit: limit in largest),
    ("beyond.rescue", "the smallest whole number, from 0 on", "channels that fit already", lambda up, down, largest, limit: 0.0 in largest),
    ("beyond.mx_scale", "from -127 on", "blocks of zeros, and of next to nothing", lambda block, _: not any(block)),
    ("beyond.block", "A number of the grid stays", "numbers of the format, and beyond its end", lambda b, s, r: r == [0.0] * 8),
    ("beyond.orders", "an empty sum is 0", "small numbers after a large one", lambda n: n == []),
    ("beyond.orders", "The first half of 41 numbers has 20", "an odd number of them", lambda n: len(n) == 41),
    ("beyond.unit", "one number for the whole network", "losses of any size", lambda f, w, size: size > 16),
]  # fmt: skip


def plain(text: str) -> str:
    """Return a text as one line, without the marks of comments."""
    return re.sub(r"\s+", " ", re.sub(r"(?m)^# ?", "", text))


@cache
def text_of(exercise_id: str) -> str:
    """Return what a learner reads of an exercise: the text before its cell, and the cell without the solution."""
    exercise = EXERCISES[exercise_id]
    cells = re.split(r"(?m)^(?=# %%)", build.lesson(exercise.lesson).text.read_text())
    at = next(i for i, cell in enumerate(cells) if f'tags=["{exercise.tag}"]' in cell)
    before = next(i for i in reversed(range(at)) if "[markdown]" in cells[i])
    own = re.sub(r"(?s)### BEGIN SOLUTION.*?### END SOLUTION", "", cells[at])
    return plain("".join(cells[before:at]) + own)


def test_every_demand_of_a_text_is_checked_in_the_notebook_and_at_grading() -> None:
    for id, words, name, is_it in CLAIMS:
        assert words in text_of(id), (id, words)
        checks = [check for check in EXERCISES[id].checks if name in (check.name, "any")]
        for seed in (0, 1):
            cases = [case for check in checks for case in draw_cases(EXERCISES[id], check, seed)]
            assert any(is_it(*case) for case in cases), (id, words, seed)


def test_what_an_answer_may_not_call_is_in_its_text() -> None:
    """A whole family may be named as one: the FP16 of numpy and torch; torch's own softmax; `struct`."""
    families = {
        "FP16 of numpy and torch": ("float16", "half", "HalfTensor"),
        "torch's own softmax": ("softmax", "log_softmax", "special_softmax", "special_log_softmax"),
        "`struct`": ("pack", "unpack"),
    }
    for exercise in EXERCISES.values():
        text = text_of(exercise.id) if exercise.withheld else ""
        named = {name for words, names in families.items() if words in text for name in names}
        for name in (str(getattr(thing, "__name__", thing)).split(".")[-1] for thing in exercise.withheld):
            assert name in named or re.search(rf"\b{name}`", text), (exercise.id, name)
