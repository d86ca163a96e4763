"""What a text says of an edge is asked at that edge: a row for each claim, with the check and the case that hold it.

A row: the exercise, the words of its text (quoted from the lesson's source), the check, and whether a case is the one
that the words are about. Such a case must be drawn in the notebook and by a seed of grading.
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

TRAINED = ("clinic.", "project.")  # their texts name a training, and the judge trains it


def has(value: Any, of: Callable[[Any], Any]) -> bool:
    """Return whether some element of a tensor, or of a list of tensors, is such a one."""
    tensors = [value] if isinstance(value, torch.Tensor) else value
    return any(bool(of(tensor).any()) for tensor in tensors)


def inside(low: float, high: float) -> Callable[[Any], bool]:
    return lambda x, *_: bool(low <= x < high)


CLAIMS: list[tuple[str, str, str, Callable[..., Any]]] = [
    ("start.smallest", "with this many bits of exponent and of significand", "any format", lambda e, s: e == 11 and s == 52),
    ("numbers.decode", "code` is an integer of 16 bits", "codes of every kind", lambda c: c == 0xFBFF),
    ("numbers.decode", "Infinity is `math.inf`, NaN is `math.nan`", "infinities and NaN", lambda c: c == 0xFC00),
    ("numbers.decode", "my_decode(0x3C00) is 1.0", "normal numbers", lambda c: c == 0x3C00),
    ("numbers.ulp", "Take care below 2^-14", "subnormal numbers and zero", lambda x: 0 < x < 2.0**-14),
    ("numbers.ulp", "At 0 it is that of the smallest ones", "subnormal numbers and zero", lambda x: x == 0),
    ("numbers.first_gap", "odd numbers are missing", "any format with room above", lambda e, s: (e, s) == (5, 14)),
    ("numbers.first_gap", "All formats here are built as FP16 is", "formats that end before they get gaps", lambda e, s: e == 2),
    ("numbers.next_up", "+inf stays +inf", "-0, the largest number and the infinities", lambda c: c == 0x7C00),
    ("numbers.next_up", "below zero -0, 0x8000, comes last", "negative numbers", lambda c: c == 0x8001),
    ("numbers.next_up", "Be careful around zero and at both infinities", "-0, the largest number and the infinities", lambda c: c == 0x8000),
    ("numbers.bytes", "Formats of 6 and 4 bits exist too", "formats of 8, 6 and 4 bits, and of any", lambda s, b: b == 6),
    ("numbers.bytes", "the last byte counts as a whole one", "formats of 8, 6 and 4 bits, and of any", lambda s, b: math.prod(s) * b % 8),
    ("rounding.nearest_even", "ties to even", "half-way to the even one", lambda x: x == 1 + 2.0**-11),
    ("rounding.nearest_even", "below 2^-14 the ulp stays 2^-24", "among the subnormal numbers", inside(2.0**-24, 2.0**-14)),
    ("rounding.nearest_even", "from 65520 on there is infinity", "at the upper end", lambda x: x == 65520),
    ("rounding.nearest_even", "+-inf where FP16 overflows", "at the upper end", lambda x: x == -math.inf),
    ("rounding.smallest_update", "The weight is positive and below 2048", "subnormal weights", lambda w: 0 < w < 2.0**-14),
    ("rounding.smallest_update", "The weight is positive and below 2048", "powers of two", lambda w: w == 1),
    ("rounding.stochastic", "Up is towards +inf, for negative numbers too", "negative numbers", lambda x, *_: x < 0),
    ("rounding.stochastic", "from 0 up to but not including 1", "multiples of the spacing stay", lambda x, s, r: r == 0),
    ("rounding.kahan", "0 if it is empty", "one number, and none", lambda values: len(values) == 0),
    ("rounding.epsilon", "Keep the formula and the 1e-8", "zeros stay zeros", lambda x: not x.any()),
    ("rounding.epsilon", "wrong in three ways", "large numbers", lambda x: x.abs().max() > 256),
    ("tensor.standstill", "The product is exact", "products longer than FP16: added first, rounded once", lambda a, b: a * b * 1024 % 1),
    ("tensor.standstill", "If the sum overflows, it stays at inf", "other products, and those that end at inf", lambda a, b: abs(a * b) > 65504),
    ("tensor.block", "A term of 0 has no exponent", "sums of which nothing is cut, and terms of 0", lambda a, b, c, n: 0 in a and 1024 in b),
    ("tensor.block", "If all terms are 0, so is the sum", "sums of which nothing is cut, and terms of 0", lambda a, b, c, n: not any(a) and not c),
    ("tensor.block", "FP32 keeps 24", "the sum is cut to FP32, not rounded", lambda a, b, c, n: n == 25),
    ("tensor.backward", "a product is m by n and sums over k", "one row, one input, one output", lambda x, w, g: 1 in x.shape),
    ("tensor.intensity", 'At the ridge itself, say "compute"', "close to the ridge", lambda n, i, o, b, r: r * b * (n * i + i * o + n * o) == 2 * n * i * o),
    ("kernels.allowed", "An empty sum is 0.", "one product, or none", lambda a, b, precision: a == []),
    ("kernels.allowed", "they may be subnormal, or inf after an overflow", "subnormal results, and those beyond 65504", lambda a, b, precision: sum(map(lambda x, y: x * y, a, b)) > 65504),
    ("tensor.padding", "y has its own size", "only the number of classes does not fit", lambda x, w: len(w) == 10),
    ("gradients.binades", "zeros, infinities and NaN are in no binade", "zeros, infinities and NaN are in no binade", lambda v: any(x != x for x in v)),
    ("gradients.binades", "how many of the values lie in its binade", "numbers between two powers of two", lambda v: len(set(v)) < len(v)),
    ("gradients.fate", "The binade that begins at 2^-25 is not lost", "both sides of 2^-25, 2^-24 and 2^-14", lambda c, k: -25 - k in c),
    ("gradients.fate", "whole number, may be negative", "at other scales", lambda c, k: k < 0),
    ("gradients.fate", "0.0 if there is none", "of nothing, nothing is lost", lambda c, k: not c),
    ("gradients.window", "at 2^-25 itself it becomes 0", "2^-25 and what is next to it", lambda s, _: math.log2(s) % 1 == 0),
    ("gradients.window", "must stay below 65520", "65504, 65520 and what is next to them", lambda _, g: math.frexp(g)[0] == 65520 / 65536),
    ("gradients.window", "k goes from -40 to 60", "k from -40 to 60", lambda s, g: g < 2.0**-49),
    ("gradients.window", "None if there is no such k", "one scale, or none", lambda s, g: g / s > 2.0**41),
    ("gradients.lost", "0.0 if none is non-zero", "where nothing is non-zero, nothing is lost", lambda a, b: not has(a, lambda t: t)),
    ("gradients.lost", "lists of tensors of any shape", "all tensors together", lambda a, b: {t.dim() for t in a} >= {0, 1, 2}),
    ("gradients.culprit", "a layer that runs twice is there twice", "the first tensor, or none", lambda t: len({n for n, _ in t}) < len(t)),
    ("gradients.culprit", "None if all are finite", "the first tensor, or none", lambda t: t == []),
    ("autocast.lists", "Must several operands agree?", "several operands that must agree", lambda op: op == "addcmul"),
    ("autocast.lists", "If the answer is always no, it is on no list", "normalisation layers", lambda op: op == "batch_norm"),
    ("autocast.dtypes", '`given` holds the dtypes of the inputs', "older values, and names that are assigned again", lambda s, g: any(n in g for n, *_ in s)),
    ("autocast.linear", "rounded to FP16 *once*, at the end", "the bias belongs into the FP32 sum", lambda x, *_: x.max() == 32),
    ("autocast.softmax", "It should work for logits of 6,000 and of -500", "one row far below another", lambda x: (x < -499).any()),
    ("autocast.softmax", "It should work for logits of 6,000 and of -500", "logits above 89, where exp leaves FP32", lambda x: (x >= 6000).all()),
    ("autocast.cache", "the autocast block ends, and the cache is emptied", "closing the region empties the cache", lambda w, e: ("close", "") in e),
    ("autocast.cache", "never use a cast that is out of date", "an edited weight is cast anew, the other one is not", lambda w, e: ("edit", "w1") in e),
    ("scaling.static_step", "unchanged if the gradient holds inf or NaN", "NaN skips the step", lambda w, g, *_: has(g.gradient, torch.isnan)),
    ("scaling.advance", "the clean step that completes the interval grows", "an interval of one step", lambda s, f, c: c.growth_interval == 1),
    ("scaling.clip", "None on inf or NaN", "inf skips the step", lambda g, *_: has(g, torch.isinf)),
    ("scaling.clip", "all tensors together", "no tensor is too long by itself, but all together are", lambda g, *_: len(g) == 3),
    ("scaling.order", "once for each of `loop.batches`", "several batches, accumulated", lambda loop: len(loop.batches) > 1),
    ("scaling.unscale", "*any* element of *any* tensor is inf or NaN", "NaN is found, in whichever tensor", lambda g, _: has(g[1:], torch.isnan)),
    ("scaling.unscale", "list of FP16 tensors", "the gradients of the loss, in FP32", lambda g, _: g == []),
    ("scaling.repair", "The lowest scale allowed is 1", "the scale never falls below 1", lambda scale, *_: scale == 1),
    ("scaling.repair", "there is no highest", "clean steps are counted, and the interval grows the scale", lambda scale, *_: scale > 2.0**32),
    ("master.step", "as many steps as there are gradients", "a master that FP16 does not hold", lambda m, g, *_: g == []),
    ("master.step", "If one holds inf or NaN, its step is left out", "a step with inf or NaN is left out, the next one is not", lambda m, g, *_: has(g, torch.isnan)),
    ("master.memory", "the masters if there are any", "a model with master weights", lambda n, bits, master, k: bits == 32 and master),
    ("master.memory", "0 for SGD, 1 with momentum, 2 for Adam", "FP32 training: SGD, with momentum, Adam", lambda n, b, m, k: k == 0),
    ("master.groups", "everything with two dimensions or more", "an empty group, sizes of 1, names that mislead", lambda p: any(s == (1, 1) for _, s, _ in p)),
    ("master.groups", "Frozen parameters belong to neither", "frozen parameters are in no group", lambda p: any(not t for *_, t in p)),
    ("master.groups", "single numbers", "embeddings, a single number, frozen layers", lambda p: any(s == () for _, s, _ in p)),
    ("master.flat", "Each weight has its gradient's shape", "filters, a single number, one tensor alone", lambda f, g, *_: any(t.dim() == 4 for t in g)),
    ("master.ema", "A skipped step does not count", "skipped steps do not count", lambda h, _: not all(stepped for _, stepped in h)),
    ("master.ema", "It starts as the first weights", "before the first step", lambda h, _: len(h) == 1),
    ("recipes.levels", "{} where the level is left as it is", "O2, nearly all of it", lambda level, changed: not changed),
    ("recipes.levels", "and win over the level", "O2, nearly all of it", lambda level, changed: changed),
    ("recipes.which", "BF16, FP64 and FP8 have no O-levels", "BF16, and other formats", lambda *d: torch.bfloat16 in d),
    ("recipes.which", "not every mixture of FP16 has a name", "mixtures of FP16 that have no name", lambda *d: d == (torch.float16,) * 2 + (torch.float32, torch.float16) or d[0] == torch.float32),
    ("recipes.lines", "Masters add `gradients to masters`", "masters alone, as BF16 takes them", lambda m, s, n: m and not s),
    ("recipes.lines", "run once for each batch", "both, as in O2", lambda m, s, n: n > 1),
    ("recipes.epsilon", "rounded to FP16 once", "where FP16 ends", lambda g, e: g == 0.005458831787109375),
    ("recipes.epsilon", "A step whose denominator is not 0 is finite", "a gradient of zero", lambda g, e: g == 0 and e == 1e-4),
    ("recipes.verdict", "A run that ended in NaN counts as metric 0", "runs that ended in NaN", lambda a, b, *_: any(x != x for x in b)),
    ("recipes.cheapest", 'if none does, "FP32"', "none that passes", lambda a, c: c == []),
    ("recipes.cheapest", "no run of it ended in NaN", "one whose last seed broke", lambda a, c: any(x != x for *_, m in c for x in m)),
    ("frameworks.translate", "as `apex_training` does", "an overflow skips its step and halves the scale", lambda w, b, n: len(b) == 4),
    ("frameworks.repair", "of the gradient of the loss, not of the scaled loss", "gradients that are too long are shortened", lambda w, b, n: n < 1),
    ("frameworks.callback", "skip, move the scale", "an overflow skips its step and halves the scale", lambda w, b, n: len(b) == 3),
    ("frameworks.skips", "`scale * gradient` is 65520 or more", "65520, what is just below, and inf", lambda g, c: 65520 / c.init_scale in g),
    ("frameworks.skips", "inf is possible", "65520, what is just below, and inf", lambda g, c: math.inf in g),
    ("frameworks.skips", "It never goes below `floor`", "at the floor, skipped or stepped", lambda g, c: c.floor == 6),
    ("frameworks.skips", "both counts start again, also at the cap", "at the cap, and without one", lambda g, c: c.hysteresis > 1 and c.cap == c.init_scale),
    ("frameworks.casts", "A tensor that was cast to a format once is not cast to it again", "a tensor that several need", lambda g, n: n[0][2] == ["x", "x"]),
    ("frameworks.casts", "else all are FP16", "promote and keep", lambda g, n: any(row[1:] == ("promote", ["mask", "mask"]) for row in n)),
    ("workers.agree", "of any shape", "clean gradients, on 1 to 5 ranks", lambda p, *_: any(not len(t) for t in p)),
    ("workers.agree", "all ranks or none", "inf on one rank", lambda p, g, *_: has(g, torch.isinf)),
    ("workers.predivide", "inf and NaN are added like numbers", "inf where nothing helps", lambda g, _: has(g, torch.isnan)),
    ("workers.predivide", "add them up in order", "inf where nothing helps", lambda g, b: len(g[0]) == 1),
    ("workers.parts", "both are `rows` where it holds none", "ranks that hold nothing", lambda rows, world: rows < world),
    ("tensor.split", "the first one, the first three, or the first six", "numbers with few bits, and zeros", lambda a, b, products: products == 3),
    ("tensor.split", "Split both matrices into three parts each", "six products", lambda a, b, products: a.shape[0] != b.shape[1]),
    ("master.accumulator", "`count` is at most $2^b$", "few numbers and many", lambda count, size: count == 2**11),
    ("master.accumulator", "`size` is at least its smallest normal number", "numbers that are small", lambda count, size: size == 2.0**-14),
    ("master.accumulator", "is at most its largest number", "sums that are large for FP16", lambda count, size: count * size == 65504),
    ("master.accumulator", "or None if there is none", "sums that are too large for all", lambda count, size: count * size > 3.5e38),
    ("beyond.rescue", "divided by $2^k$ is at most `limit`", "magnitudes at the limit, and around it", lambda up, down, largest, limit: limit in largest),
    ("beyond.rescue", "the smallest whole number, from 0 on", "channels that fit already", lambda up, down, largest, limit: 0.0 in largest),
    ("beyond.frozen", "the names may come in another order", "any", lambda w, u: list(w) != list(u)),
    ("beyond.clipped", "*below* 1 - `low` or *above* 1 + `high`", "any", lambda a, b, low, high: low != high),
    ("beyond.history", "or it is 0, the scale is 1", "tensors of zeros", lambda largest, *_: 0.0 in largest),
    ("beyond.mx_scale", "from -127 on", "blocks of zeros, and of next to nothing", lambda block, _: not any(block)),
    ("beyond.block", "cut it at 6", "numbers of the format, and beyond its end", lambda block, s, _: any(x > 6 * s for x in block)),
    ("beyond.block", "A number of the grid stays", "numbers of the format, and beyond its end", lambda b, s, r: r == [0.0] * 8),
    ("beyond.orders", "an empty sum is 0", "small numbers after a large one", lambda n: n == []),
    ("beyond.orders", "The first half of 41 numbers has 20", "an odd number of them", lambda n: len(n) == 41),
    ("beyond.keep", "what changes by *less* than $2^{-9}$ of itself", "numbers that change", lambda p: any(x == 2.0**-9 for *_, x in p)),
    ("beyond.keep", "never changes", "numbers that change", lambda p: any(x == 0 for *_, x in p)),
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
    assert {id for id in EXERCISES if not id.startswith(TRAINED)} == {id for id, *_ in CLAIMS}


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
