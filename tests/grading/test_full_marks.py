"""Edge cases of exercises: answers with one fault, claims of the texts, unusual right answers.

ROWS has wrong answers, most of which differ from the reference in one kind of case only, and the
check that must fail each. CLAIMS has sentences of the exercises' texts, and the cases that test
them. RIGHT has correct answers in unusual styles, which must earn full marks.
"""

import math
import re
import warnings
from collections import Counter, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from heapq import nlargest
from typing import Any

import numpy as np
import pytest
import torch

from labkit.amp import ScalerState
from labkit.grading import EXERCISES, Grade, check, judge
from labkit.grading.judge import CaseSet, answers_of, draw_cases, grading_cases, visible_cases
from notebooks import build

Answer = Callable[..., object]
Change = Callable[[Answer], Answer]


def graded(case_set: CaseSet, answer: Answer) -> Grade:
    """Return the grade; a reference may be called here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return judge(case_set, answers_of(case_set, answer))


def norm_of(scaled_grads: Any, scale: float) -> float:
    return float(torch.cat([g.double().flatten() for g in scaled_grads]).norm()) / scale


# --- wrong answers that differ from the reference in one kind of case ---


def but(when: Callable[..., Any], says: Callable[..., Any]) -> Change:
    """Give another answer to some cases.

    Args:
        when: Called with a case; whether it gets the other answer.
        says: Called with the right answer and the case; returns the other answer.
    """

    def changed(right: Answer) -> Answer:
        def answer(*case: Any) -> object:
            expected = right(*case)
            return says(expected, *case) if when(*case) else expected

        return answer

    return changed


def then(says: Callable[..., Any]) -> Change:
    """Give another answer to every case: `says` is called as by `but`."""
    return but(lambda *_: True, says)


def of_other(change: Callable[..., Any]) -> Change:
    """Give the right answer to another case: `change` returns the arguments of that case."""
    return lambda right: lambda *case: right(*change(*case))


def its_own(answer: Answer) -> Change:
    """Replace the reference by this answer."""
    return lambda right: answer


def plain_or_split(a: Any, b: Any, products: int) -> Any:
    """Return the plain product of FP32 in place of six products."""
    return a @ b if products == 6 else EXERCISES["tensor.split"].reference(a, b, products)


def good_ranks(gradients: Any, before: int) -> Any:
    """Return the gradients of the ranks without inf and NaN, and the divisor.

    If all ranks have inf or NaN, the gradients of all are returned.
    """
    return [g for g in gradients if g.isfinite().all()] or gradients, before


def repeated(scores: Any) -> int:
    """Return how many scores equal an earlier one, without masked tokens."""
    seen = [score for score in scores if score > -math.inf]
    return len(seen) - len(set(seen))


# (exercise, check that must fail, what is wrong with the answer, change of the reference)
ROWS: list[tuple[str, str, str, Change]] = [
    (
        "attend.scale",
        "the largest number of a format",
        "below 1 the factor is 1/2",
        but(
            lambda scores, largest, smallest: largest < 1,
            lambda found, scores, largest, smallest: (-1, found[1]),
        ),
    ),
    (
        "attend.scale",
        "at half of the smallest number",
        "equal scores count once",
        then(lambda found, scores, *_: (found[0], max(0, found[1] - repeated(scores)))),
    ),
    ("workers.predivide", "inf where nothing helps", "leaves out a bad rank", of_other(good_ranks)),
    (
        "master.accumulator",
        "sums that are too large for all",
        "2^128 is FP32's largest number",
        but(lambda n, size: 3.40282347e38 < n * size < 2.0**128, lambda *_: "FP32"),
    ),
    (
        "master.accumulator",
        "sums that are too large for all",
        "nothing fits from 2^127 on",
        but(lambda n, size: n * size > 1.71e38, lambda *_: None),
    ),
    (
        "master.accumulator",
        "sums that are too large for all",
        "BF16 as large as FP32",
        but(lambda n, size: n <= 256 and 3.38953139e38 < n * size < 3.402e38, lambda *_: "BF16"),
    ),
    (
        "gradients.fate",
        "without a scale",
        "a single number is none",
        but(lambda counts, *_: sum(counts.values()) == 1, lambda *_: 0.0),
    ),
    (
        "tensor.split",
        "six products",
        "plain FP32",
        its_own(lambda a, b, n: plain_or_split(a, b, n)),
    ),
    (
        "numbers.bytes",
        "formats of 8, 6 and 4 bits, and of any",
        "elements counted in FP32",
        but(
            lambda shape, bits: bits < 16,
            lambda found, shape, bits: math.ceil(float(np.float32(math.prod(shape))) * bits / 8),
        ),
    ),
    (
        "scaling.clip",
        "inf skips the step",
        "runs over elements, and a single one has none",
        but(
            lambda grads, *_: any(g.dim() == 0 and not g.isfinite() for g in grads),
            lambda found, grads, *_: [g.float() for g in grads],
        ),
    ),
    (
        "recipes.verdict",
        "differences that anybody sees",
        "a constant",
        its_own(lambda *_: "cannot tell"),
    ),
    (
        "recipes.verdict",
        "runs that ended in NaN",
        "worse if any broke",
        but(lambda a, b, *_: any(map(math.isnan, b)), lambda *_: "worse"),
    ),
    (
        "rounding.stochastic",
        "positive numbers",
        "flushes what is small",
        but(lambda x, spacing, _: abs(x) < spacing, lambda *_: 0.0),
    ),
    (
        "autocast.linear",
        "operands that FP16 must round",
        "a bias in FP32",
        then(
            lambda found, x, w, bias, _: (
                (x.half().float() @ w.half().float().T + bias).half(),
                *found[1:],
            )
        ),
    ),
    (
        "gradients.fate",
        "at other scales",
        "scales up to 2^16",
        of_other(lambda counts, k, smallest: (counts, min(k, 16), smallest)),
    ),
    (
        "beyond.frozen",
        "updates far from the limit",
        "vectors only",
        but(lambda w, _: any(t.dim() != 1 for t in w.values()), lambda *_: None),
    ),
    (
        "beyond.frozen",
        "updates near half the distance, and there",
        "rounds half up",
        its_own(
            lambda w, u: [
                n
                for n, t in w.items()
                if ((t.float() + u[n]).view(torch.int32) + 0x8000 >> 16 << 16)
                .view(torch.float32)
                .equal(t.float())
            ]
        ),
    ),
    (
        "beyond.frozen",
        "updates far from the limit",
        "in the order of updates",
        then(lambda found, w, u: [n for n in u if n in found]),
    ),
    (
        "beyond.history",
        "one outlier",
        "never below 1",
        then(lambda found, *_: [max(1.0, scale) for scale in found]),
    ),
    (
        "beyond.mx_scale",
        "blocks whose largest number is positive",
        "takes tiny for zero",
        of_other(lambda block, top: ([x if abs(x) > 1e-30 else 0.0 for x in block], top)),
    ),
    (
        "beyond.keep",
        "a training with both",
        "what changes first",
        then(
            lambda found, parts: sorted(
                found, key=lambda name: (name, "changes") not in {part[:2] for part in parts}
            )
        ),
    ),
    (
        "numbers.first_gap",
        "any format with room above",
        "ends a binade early",
        its_own(
            lambda e, s: min(
                2 ** (s + 1) + 1, 2 ** (s + 1) if 2 ** (e - 1) - 1 == s + 1 else 2**2 ** (e - 1)
            )
        ),
    ),
    (
        "numbers.first_gap",
        "any format with room above",
        "in a float",
        its_own(lambda e, s: int(min(2.0 ** (s + 1) + 1, 2.0 ** min(2 ** (e - 1), 1000)))),
    ),
    (
        "numbers.bytes",
        "formats of 8, 6 and 4 bits, and of any",
        "by a table of formats",
        its_own(
            lambda shape, bits: math.ceil(
                math.prod(shape) * {4: 0.5, 6: 0.75, 8: 1, 16: 2}.get(bits, 4)
            )
        ),
    ),
    (
        "numbers.bytes",
        "tensors in 16 and in 32 bits",
        "counts in 32 bits",
        its_own(lambda shape, bits: int(np.ceil(np.prod(shape, dtype=np.int32) * bits / 8))),
    ),
    (
        "numbers.bytes",
        "a single number, and an empty tensor",
        "an empty tensor has a byte",
        but(lambda shape, _: 0 in shape[:1], lambda *_: 1),
    ),
    (
        "numbers.bytes",
        "a single number, and an empty tensor",
        "a number has two bytes",
        but(lambda shape, _: not shape, lambda found, *_: max(2, found)),
    ),
    (
        "start.smallest",
        "any format",
        "not below 2^-200",
        then(lambda found, *_: max(2.0**-200, found)),
    ),
    (
        "start.smallest",
        "any format",
        "three exponent bits at least",
        of_other(lambda e, s: (max(3, e), s)),
    ),
    (
        "rounding.nearest_even",
        "at the upper end",
        "inf without its sign",
        but(lambda x, *_: math.isinf(x), lambda *_: math.inf),
    ),
    (
        "rounding.nearest_even",
        "among the subnormal numbers",
        "the last subnormal number stays one",
        but(
            lambda x, bits, *_: bits == 10 and 2.0**-14 - 2.0**-24 < x < 2.0**-14,
            lambda *_: 2.0**-14 - 2.0**-24,
        ),
    ),
    (
        "tensor.block",
        "sums of which nothing is cut, and terms of 0",
        "all zeros are nan",
        but(
            lambda a, b, c, *_: not c and not any(x * y for x, y in zip(a, b, strict=True)),
            lambda *_: math.nan,
        ),
    ),
    (
        "tensor.intensity",
        "close to the ridge",
        "to three digits",
        then(
            lambda found, *case: (
                *found[:2],
                "bandwidth" if round(found[0] / found[1], 3) < round(case[-1], 3) else "compute",
            )
        ),
    ),
    (
        "tensor.intensity",
        "small batches",
        "never compute at a batch of one",
        but(lambda n, *_: n == 1, lambda found, *_: (*found[:2], "bandwidth")),
    ),
    (
        "tensor.standstill",
        "other products, and those that end at inf",
        "inf has no sign",
        but(
            lambda a, b: abs(a * b) > 8,
            lambda found, *_: (found[0], abs(found[1]) if math.isinf(found[1]) else found[1]),
        ),
    ),
    (
        "tensor.standstill",
        "tiny products",
        "counts products of zero",
        but(lambda a, b: a * b == 0, lambda *_: (1, 0.0)),
    ),
    (
        "gradients.binades",
        "numbers between two powers of two",
        "counts equal values once",
        of_other(lambda values, width: (list(dict.fromkeys(values)), width)),
    ),
    (
        "gradients.lost",
        "element by element, by what arrived",
        "asks the product",
        of_other(lambda a, b, n: (a, [x * y.float() for x, y in zip(a, b, strict=True)], n)),
    ),
    (
        "gradients.lost",
        "element by element, by what arrived",
        "takes inf and nan for lost",
        of_other(lambda a, b, n: (a, [half.nan_to_num(0, 0, 0) for half in b], n)),
    ),
    (
        "autocast.dtypes",
        "older values, and names that are assigned again",
        "one dtype for each name",
        but(lambda steps, _: not steps, lambda found, _, given: [given["x"]]),
    ),
    (
        "scaling.clip",
        "long gradients are shortened to max_norm, all by the same factor",
        "allows one percent more",
        of_other(lambda g, scale, m: (g, scale, math.inf if norm_of(g, scale) < 1.01 * m else m)),
    ),
    (
        "scaling.clip",
        "short gradients stay as they are",
        "clips one percent early",
        of_other(
            lambda g, scale, m: (g, scale, 0.99 * m if 0.99 * m < norm_of(g, scale) <= m else m)
        ),
    ),
    (
        "scaling.clip",
        "long gradients are shortened to max_norm, all by the same factor",
        "leaves empty tensors out",
        of_other(lambda grads, *rest: ([g for g in grads if g.numel()], *rest)),
    ),
    (
        "scaling.unscale",
        "the gradients of the loss, in FP32",
        "scales of 1 at least",
        of_other(lambda grads, scale, limit: (grads, max(1.0, scale), limit)),
    ),
    (
        "scaling.repair",
        "clean steps are counted, and the interval grows the scale",
        "what is empty is bad",
        but(
            lambda scale, tracker, grads, _: not all(g.numel() for g in grads),
            lambda _, scale, *rest: (scale / 2, 0, False),
        ),
    ),
    (
        "scaling.repair",
        "clean steps are counted, and the interval grows the scale",
        "waits two steps at least",
        of_other(lambda scale, tracker, grads, interval: (scale, tracker, grads, max(2, interval))),
    ),
    (
        "master.step",
        "a master that FP16 does not hold",
        "needs a gradient",
        but(lambda master, grads, *_: not grads, lambda *_: None),
    ),
    (
        "master.step",
        "a step with inf or NaN is left out, the next one is not",
        "never looks at the first",
        of_other(
            lambda m, grads, scale, lr: (
                m - lr * (grads[0].float() / scale) if grads else m,
                grads[1:],
                scale,
                lr,
            )
        ),
    ),
    (
        "master.memory",
        "a model with master weights",
        "an FP32 model is its own master",
        of_other(lambda n, bits, master, moments: (n, bits, master and bits == 16, moments)),
    ),
    (
        "master.groups",
        "an empty group, sizes of 1, names that mislead",
        "leaves empty groups out",
        then(lambda found, _: {name: names for name, names in found.items() if names}),
    ),
    (
        "master.groups",
        "an empty group, sizes of 1, names that mislead",
        "asks the name too",
        of_other(
            lambda rows: (
                [(n, (1,) if "bias" in n else shape, trained) for n, shape, trained in rows],
            )
        ),
    ),
    (
        "master.groups",
        "an empty group, sizes of 1, names that mislead",
        "without elements no group",
        of_other(lambda rows: ([row for row in rows if math.prod(row[1])],)),
    ),
    (
        "recipes.which",
        "BF16, and other formats",
        "takes what is not BF16 for FP32",
        of_other(
            lambda *d: (x if x in (torch.float16, torch.bfloat16) else torch.float32 for x in d)
        ),
    ),
    (
        "recipes.levels",
        "O1, by operation",
        "only one knob is turned",
        of_other(lambda level, changed: (level, dict(list(changed.items())[:1]))),
    ),
    (
        "autocast.lists",
        "several operands that must agree",
        "knows addcmul alone",
        but(lambda op: op != "addcmul", lambda found, _: "keep" if found == "promote" else found),
    ),
    (
        "workers.agree",
        "clean gradients, on 1 to 5 ranks",
        "who holds nothing overflows",
        but(
            lambda parts, grads, *_: not all(g.numel() for g in grads),
            lambda _, parts, grads, scale, lr: (list(parts), scale / 2),
        ),
    ),
    (
        "workers.predivide",
        "inf where nothing helps",
        "many infs are one nan",
        then(
            lambda found, grads, _: torch.where(
                torch.stack(grads).isinf().sum(0) > 2, math.nan, found
            )
        ),
    ),
    (
        "workers.predivide",
        "inf where nothing helps",
        "in the order of size",
        of_other(
            lambda grads, before: (
                sorted(grads, key=lambda g: -float(g[0])) if len(grads[0]) == 1 else grads,
                before,
            )
        ),
    ),
    (
        "beyond.keep",
        "numbers that change",
        "what never changes may be short",
        then(lambda found, parts: [name for name in found if (name, "changes", 0.0) not in parts]),
    ),
    (
        "rounding.stochastic",
        "positive numbers",
        "spacings up to 1",
        of_other(lambda x, spacing, random: (x, min(spacing, 1.0), random)),
    ),
    (
        "rounding.stochastic",
        "multiples of the spacing stay",
        "0 moves",
        but(lambda x, *_: x == 0, lambda _, x, spacing, random: spacing),
    ),
    (
        "rounding.kahan",
        "numbers of either sign",
        "flushes subnormal numbers",
        of_other(lambda v, *rest: (np.where(np.abs(v) < 2.0**-14, 0, v).astype(np.float16), *rest)),
    ),
    (
        "tensor.padding",
        "one row, one input, one output; and 7, 9, 17",
        "y ends at 65504",
        then(lambda found, *_: (*found[:2], found[2].clamp(-65504, 65504))),
    ),
    (
        "tensor.backward",
        "one row, one input, one output",
        "a single number",
        but(lambda x, w, g: x.numel() == w.numel() == 1, lambda found, x, w, g: (g, g, found[2])),
    ),
    (
        "gradients.fate",
        "at other scales",
        "no scale below 2^-8",
        of_other(lambda c, k, smallest: (c, max(k, -8), smallest)),
    ),
    (
        "gradients.window",
        "k from -40 to 60",
        "one gradient alone has no window",
        but(lambda a, b: a == b, lambda *_: None),
    ),
    (
        "gradients.window",
        "k from -40 to 60",
        "goes on below -40",
        but(lambda a, b: b > 2.0**56, lambda *_: (-42, -42)),
    ),
    (
        "autocast.softmax",
        "small logits",
        "flushes subnormal probabilities",
        then(lambda found, _: torch.where(found < 2.0**-14, 0.0, found.float()).half()),
    ),
    (
        "autocast.cache",
        "a weight that is used again is not cast again",
        "nothing was used",
        but(lambda w, events: not events, lambda *_: (None, 0)),
    ),
    (
        "scaling.static_step",
        "large gradients that are finite are no reason to skip",
        "65504 is an overflow",
        but(lambda w, g, s, lr: g(s).abs().max() >= 65504, lambda _, w, *rest: w),
    ),
    (
        "scaling.static_step",
        "ordinary gradients move the weight by lr times the gradient",
        "no scale of 1",
        but(lambda w, g, scale, lr: scale == 1, lambda _, w, *rest: w),
    ),
    (
        "master.flat",
        "filters, a single number, one tensor alone",
        "leaves empty tensors out",
        of_other(lambda flat, grads, scale, lr: (flat, [g for g in grads if g.numel()], scale, lr)),
    ),
    (
        "master.flat",
        "filters, a single number, one tensor alone",
        "as it lies in memory",
        of_other(
            lambda flat, grads, *rest: (
                flat,
                [g if g.is_contiguous() else g.T.reshape(g.shape) for g in grads],
                *rest,
            )
        ),
    ),
    (
        "master.ema",
        "before the first step",
        "all steps were skipped",
        but(
            lambda h, _: len(h) > 1 and not any(s for _, s in h[1:]), lambda found, h, _: found * 0
        ),
    ),
    (
        "master.ema",
        "a few large steps",
        "a decay of 1",
        but(lambda h, d: d == 1, lambda _, h, d: h[-1][0]),
    ),
    (
        "recipes.cheapest",
        "a cheap one that fails, two that pass",
        "as many seeds as FP32",
        of_other(lambda fp32, c: (fp32, [(name, size, m[: len(fp32)]) for name, size, m in c])),
    ),
    (
        "beyond.history",
        "a run shorter than its history",
        "equal magnitudes",
        but(lambda largest, *_: len(set(largest)) == 1, lambda found, *_: [1.0] * len(found)),
    ),
    (
        "beyond.mx_scale",
        "blocks whose largest number is positive",
        "formats by name",
        of_other(lambda block, top: (block, top if top in (6.0, 448.0, 57344.0) else 6.0)),
    ),
    (
        "beyond.block",
        "numbers of the format, and beyond its end",
        "small numbers are 0",
        then(
            lambda found, block, scale, _: [
                0.0 if abs(x) < scale / 1024 else y for x, y in zip(block, found, strict=True)
            ]
        ),
    ),
    (
        "beyond.unit",
        "layers as wide as what comes in",
        "a whole root",
        of_other(lambda fan_in, width, size: (math.isqrt(fan_in) ** 2, width, size)),
    ),
    (
        "rounding.stochastic",
        "multiples of the spacing stay",
        "spacings that are powers of two",
        of_other(lambda x, spacing, random: (x, 2.0 ** (math.frexp(spacing)[1] - 1), random)),
    ),
    (
        "rounding.kahan",
        "sums that FP16 alone cannot get quite right",
        "from the last to the first",
        of_other(lambda v, *rest: (v[::-1], *rest)),
    ),
    (
        "tensor.intensity",
        "small batches",
        "two bytes or four",
        of_other(lambda n, i, o, each, ridge: (n, i, o, 2 if each < 4 else 4, ridge)),
    ),
    (
        "gradients.binades",
        "a power of two opens its binade",
        "a quotient of logarithms",
        its_own(
            lambda values, width: dict(
                Counter(
                    math.floor(math.log(abs(x), 2)) // width
                    for x in values
                    if x and math.isfinite(x)
                )
            )
        ),
    ),
    (
        "gradients.lost",
        "all tensors together",
        "a mean of each tensor",
        its_own(
            lambda a, b, noise: (
                sum(
                    float(((h == 0) & (t.abs() > noise)).float().mean()) * t.numel()
                    for t, h in zip(a, b, strict=True)
                )
                / max(1, sum(int((t.abs() > noise).sum()) for t in a))
            )
        ),
    ),
    (
        "gradients.culprit",
        "the first inf",
        "the first row",
        its_own(
            lambda tensors: next(
                (
                    (name, float(tensors[i - 1][1].abs().max()) if i else 0.0)
                    for i, (name, t) in enumerate(tensors)
                    if not t.flatten()[:3].isfinite().all()
                ),
                None,
            )
        ),
    ),
    (
        "autocast.lists",
        "exponentials, reductions and losses",
        "losses by name",
        but(lambda op: op.endswith("_loss"), lambda *_: "keep"),
    ),
    (
        "autocast.linear",
        "operands that FP16 must round",
        "gradients end at -65504",
        then(lambda found, *_: (found[0], *(g.clamp(min=-65504) for g in found[1:]))),
    ),
    (
        "autocast.linear",
        "operands that FP16 must round",
        "x ends at 65504",
        of_other(lambda x, *rest: (x.clamp(-65504, 65504), *rest)),
    ),
    (
        "autocast.linear",
        "operands that FP16 must round",
        "a bias ends at 65504",
        of_other(lambda x, w, bias, g: (x, w, bias.clamp(-65504, 65504), g)),
    ),
    (
        "autocast.linear",
        "operands that FP16 must round",
        "an inf that arrives is 65504",
        of_other(lambda x, w, bias, g: (x, w, bias, g.nan_to_num())),
    ),
    (
        "autocast.linear",
        "gradients that underflow, underflow",
        "flushes subnormal operands",
        of_other(lambda x, *rest: (torch.where(x.abs() < 2.0**-14, 0.0, x), *rest)),
    ),
    (
        "autocast.softmax",
        "a masked logit of -inf",
        "a mask of -65504",
        of_other(lambda x: (x.clamp(min=-65504),)),
    ),
    (
        "scaling.advance",
        "inf or NaN backs off and starts the count again",
        "a floor of 1",
        but(
            lambda state, found_inf, _: found_inf and state.scale <= 1,
            lambda _, state, *rest: replace(state, growth_tracker=0),
        ),
    ),
    *[
        (
            "scaling.clip",
            f"{what} skips the step",
            "never looks at first elements",
            of_other(
                lambda grads, *rest: (
                    [
                        torch.cat([g.flatten()[:1].nan_to_num(0, 0, 0), g.flatten()[1:]]).reshape(
                            g.shape
                        )
                        for g in grads
                    ],
                    *rest,
                )
            ),
        )
        for what in ("inf", "NaN")
    ],
    (
        "master.ema",
        "skipped steps do not count",
        "starts with the first step that was taken",
        of_other(lambda history, decay: ([row for row in history if row[1]] or history[:1], decay)),
    ),
    (
        "recipes.epsilon",
        "gradients whose square FP16 holds",
        "a v of inf",
        but(lambda g, _: 0.001 * g * g >= 65520, lambda *_: "inf"),
    ),
    (
        "recipes.which",
        "mixtures of FP16 that have no name",
        "any norm in O1",
        but(
            lambda w, n, s, o: (w, s, o) == (torch.float32, torch.float32, torch.float16),
            lambda *_: "O1",
        ),
    ),
    (
        "recipes.which",
        "mixtures of FP16 that have no name",
        "any norm in O0",
        but(
            lambda w, n, s, o: (w, s, o) == (torch.float32,) * 3 and n != torch.bfloat16,
            lambda *_: "O0",
        ),
    ),
    (
        "recipes.cheapest",
        "a cheap one that fails, two that pass",
        "no more seeds than FP32",
        of_other(lambda fp32, c: (fp32, [row for row in c if len(row[2]) <= len(fp32)])),
    ),
    (
        "workers.parts",
        "ranks that hold nothing",
        "rounds up from 0.01 on",
        its_own(
            lambda rows, world, block: [
                (min(i * each, rows), min((i + 1) * each, rows))
                for each in [round(rows / (world * block) + 0.49) * block]
                for i in range(world)
            ]
        ),
    ),
    (
        "beyond.frozen",
        "updates far from the limit",
        "compares bits",
        its_own(
            lambda w, u: [
                n
                for n in w
                if (w[n] + u[n]).bfloat16().view(torch.int16).equal(w[n].view(torch.int16))
            ]
        ),
    ),
    (
        "beyond.clipped",
        "equal programs, and no texts",
        "looks up a text's place",
        then(lambda found, learner, *_: [learner.index(learner[i]) for i in found]),
    ),
    (
        "beyond.block",
        "numbers of the format, and beyond its end",
        "inf stays",
        then(
            lambda found, block, *_: [
                x if math.isinf(x) else y for x, y in zip(block, found, strict=True)
            ]
        ),
    ),
]


@pytest.mark.parametrize("exercise_id", dict.fromkeys(id for id, *_ in ROWS))
def test_each_loses_the_check_whose_case_it_fails(exercise_id: str) -> None:
    """In the notebook and at grading, with a counter-example that states the difference."""
    exercise = EXERCISES[exercise_id]
    kept = []
    for _, refuses, name, change in (row for row in ROWS if row[0] == exercise_id):
        answer = change(exercise.reference)
        for case_set in (visible_cases(exercise), grading_cases(exercise, 1)):
            (verdict,) = [
                verdict
                for verdict in graded(case_set, answer).verdicts
                if verdict.check.name == refuses
            ]
            if verdict.counter_example is None or not verdict.counter_example.difference:
                kept.append((name, refuses, "grading" if case_set.complete else "notebook"))
    assert kept == []


# --- what a text says about an edge case is tested by a case ---
#
# A row of CLAIMS: exercise, words of its text, name of a check, whether a case tests these words.
# Such a case must be drawn in the notebook and at grading. Edge cases that ROWS, a known mistake or
# several cases of one check test already have no row.


def has(value: Any, of: Callable[[Any], Any]) -> bool:
    """Return whether `of` is true of some element of a tensor, or of a list of tensors."""
    tensors = [value] if isinstance(value, torch.Tensor) else value
    return any(bool(of(tensor).any()) for tensor in tensors)


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


def test_demands_of_a_text_are_checked_at_grading_too() -> None:
    for id, words, name, is_it in CLAIMS:
        assert words in text_of(id), (id, words)
        checks = [check for check in EXERCISES[id].checks if name == check.name]
        for seed in (0, 1):
            cases = [case for check in checks for case in draw_cases(EXERCISES[id], check, seed)]
            assert any(is_it(*case) for case in cases), (id, words, seed)


# --- right answers in unusual styles ---

RIGHT: list[tuple[str, Answer]] = []


def earns(exercise_id: str) -> Callable[[Answer], Answer]:
    """Add the decorated function to RIGHT, as an answer to this exercise."""

    def add(answer: Answer) -> Answer:
        RIGHT.append((exercise_id, answer))
        return answer

    return add


@earns("gradients.lost")
def a_mean_in_fp32(in_fp32: Any, in_fp16: Any, noise: float) -> object:
    exact, half = (
        torch.cat([torch.zeros(1), *(t.float().flatten() for t in some)])
        for some in (in_fp32, in_fp16)
    )
    lost = half[exact.abs() > noise] == 0
    return lost.float().mean().item() if len(lost) else 0


@earns("beyond.history")
def times_the_reciprocal(largest: Any, length: int, top: float) -> object:
    window = deque([0.0], maxlen=length)
    found = []
    for magnitude in largest:
        found.append(top * (1 / max(window)) if max(window) else 1)
        window.append(magnitude)
    return tuple(found)


Pair = namedtuple("Pair", ["grads", "found_inf"])


@earns("scaling.unscale")
def unscale_in_torch(scaled_grads: Any, scale: float, limit: float) -> Any:
    grads = [grad.float() / scale for grad in scaled_grads]
    good = [bool((torch.isfinite(grad) & (grad.abs() <= limit)).all()) for grad in grads]
    return Pair(grads, ~torch.tensor(good).all())


@earns("scaling.advance")
def advance_in_numpys_numbers(state: Any, found_inf: bool, config: Any) -> ScalerState:
    if found_inf:
        return ScalerState(np.float64(state.scale * config.backoff_factor), np.int64(0))
    if (state.growth_tracker + 1) % config.growth_interval == 0:
        return ScalerState(np.float64(state.scale * config.growth_factor), np.int64(0))
    return ScalerState(state.scale, np.int64(state.growth_tracker + 1))


@earns("master.groups")
def groups_in_a_defaultdict(parameters: Any) -> Any:
    found = defaultdict(list, {"decay": [], "no decay": []})
    for name, shape, trainable in parameters:
        if trainable:
            found["decay" if len(shape) > 1 else "no decay"].append(name)
    return found


@earns("tensor.intensity")
def intensity_in_fractions(
    batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float
) -> Any:
    flops = 2 * batch * inputs * outputs
    moved = bytes_each * (batch * inputs + inputs * outputs + batch * outputs)
    return flops, moved, "compute" if Fraction(flops, moved) >= Fraction(ridge) else "bandwidth"


@earns("numbers.decode")
def decode_in_fractions(code: int, exponent_bits: int, significand_bits: int, bias: int) -> Any:
    code, significand = divmod(code, 1 << significand_bits)
    negative, exponent = divmod(code, 1 << exponent_bits)
    sign = -1 if negative else 1
    unit = Fraction(2) ** (1 - bias - significand_bits)
    if exponent == (1 << exponent_bits) - 1:
        return math.nan if significand else sign * math.inf
    if exponent == 0:
        return sign * significand * unit
    return sign * ((1 << significand_bits) + significand) * unit * 2 ** (exponent - 1)


@earns("numbers.decode")
def decode_from_letters(code: int, exponent_bits: int, significand_bits: int, bias: int) -> Any:
    bits = format(code, f"0{1 + exponent_bits + significand_bits}b")
    exponent = int(bits[1 : 1 + exponent_bits], 2)
    rest = int(bits[1 + exponent_bits :] or "0", 2)
    sign = (-1.0) ** int(bits[0])
    if "0" not in bits[1 : 1 + exponent_bits]:
        return sign * float("nan" if rest else "inf")
    hidden = 1 if exponent else 0
    value = hidden + rest / (1 << significand_bits)
    return math.copysign(math.ldexp(value, max(exponent, 1) - bias), sign)


@earns("numbers.ulp")
def ulp_by_frexp(x: float, significand_bits: int, emin: int) -> float:
    exponent = math.frexp(x)[1] - 1 if x else emin
    return math.ldexp(1.0, max(exponent, emin) - significand_bits)


@earns("numbers.next_up")
def next_up_by_cases(code: int, exponent_bits: int, significand_bits: int, steps: int) -> int:
    top = 1 << (exponent_bits + significand_bits)
    infinity = ((1 << exponent_bits) - 1) << significand_bits
    below = code - top if code & top else 0
    if below and steps <= below:
        return code - steps
    start = 0 if code & top else code
    return min(start + steps - below, infinity)


@earns("rounding.nearest_even")
def round_in_fractions(x: float, significand_bits: int, emin: int, largest: float) -> float:
    if math.isinf(x):
        return x
    exponent = max(math.frexp(x)[1] - 1 if x else emin, emin)
    found = round(Fraction(x) / Fraction(2) ** (exponent - significand_bits))
    value = float(found * Fraction(2) ** (exponent - significand_bits))
    return value if -largest <= value <= largest else math.copysign(math.inf, x)


@earns("rounding.kahan")
def kahan_backwards(values: Any, total: Any, lost: Any) -> Any:
    missing = -lost
    for value in values:
        meant = value + missing
        before = total
        total = total + meant
        missing = meant - (total - before)
    return total


@earns("tensor.block")
def block_in_fractions(a: Any, b: Any, c: float, fraction_bits: int, result_bits: int) -> float:
    terms = [(x * y, math.frexp(x)[1] + math.frexp(y)[1] - 2) for x, y in zip(a, b, strict=True)]
    terms = [(v, e) for v, e in [*terms, (c, math.frexp(c)[1] - 1)] if v]
    if not terms:
        return 0.0
    unit = Fraction(2) ** (max(e for _, e in terms) - fraction_bits)
    total = sum(int(Fraction(v) / unit) for v, _ in terms)
    cut = 1 << max(0, abs(total).bit_length() - result_bits)
    return float(int(Fraction(total, cut)) * cut * unit)


@earns("scaling.unscale")
def unscale_all_at_once(scaled_grads: Any, scale: float, limit: float) -> Any:
    grads = [grad.to(torch.float32).div(scale) for grad in scaled_grads]
    flat = torch.cat([torch.zeros(1), *(grad.flatten() for grad in grads)])
    return grads, not bool(flat.isfinite().all()) or bool(flat.abs().max() > limit)


@earns("frameworks.skips")
def skips_with_an_end_of_the_pause(largest: Any, config: Any, pause: int) -> list[int]:
    scale = config.init_scale
    clean = 0
    overflows = 0
    rest = 0
    found = []
    for number, gradient in enumerate(largest):
        blind = config.steps_at_floor and scale <= config.floor
        if gradient * scale >= 65520 and not blind:
            found.append(number + 1)
            clean = 0
            overflows = overflows + 1
            rest = 0
            if overflows >= config.hysteresis:
                scale = max(scale / 2, config.floor)
                rest = pause
        elif rest:
            rest -= 1
        else:
            clean += 1
            if clean >= config.growth_interval:
                scale = min(2 * scale, config.cap)
                clean = 0
                overflows = 0
    return found


@earns("workers.parts")
def parts_by_walking(rows: int, world: int, block: int) -> list[tuple[int, int]]:
    blocks = math.ceil(rows / block)
    each = math.ceil(blocks / world) * block
    found = []
    begin = 0
    for _ in range(world):
        end = min(begin + each, rows)
        found.append((begin, end))
        begin = end
    return found


RIGHT += [
    (
        "gradients.binades",
        lambda values, width: Counter(
            math.floor((math.frexp(x)[1] - 1) / width) for x in values if x and math.isfinite(x)
        ),
    ),
    (
        "gradients.fate",
        lambda counts, k, smallest: (
            1
            - (
                sum(n / sum(counts.values()) for e, n in counts.items() if e + k >= smallest - 1)
                if sum(counts.values())
                else 1.0
            )
        ),
    ),
    (
        "beyond.frozen",
        lambda weights, updates: tuple(
            name
            for name, weight in weights.items()
            if not bool((weight.clone().add_(updates[name]) != weight).any())
        ),
    ),
    (
        "beyond.mx_scale",
        lambda block, top: (
            max(-127, math.ceil(math.log2(max(map(abs, block)) / top))) if any(block) else -127
        ),
    ),
    (
        "beyond.mx_scale",
        # In FP32, as the numbers are.
        lambda block, top: next(
            k for k in range(-127, 129) if torch.tensor(block).abs().max() <= top * 2.0**k
        ),
    ),
]


@earns("route.sets")
def numpys_stable_order(scores: Any, chosen: int, bits: int) -> object:
    exact = np.array(scores, np.float64)
    significands, exponents = np.frexp(exact)
    rounded = np.ldexp(np.rint(significands * 2.0**bits), exponents - bits)
    orders = (np.argsort(-values, kind="stable")[:chosen] for values in (exact, rounded))
    return tuple(np.sort(order).tolist() for order in orders)


@earns("route.sets")
def torchs_stable_sort(scores: Any, chosen: int, bits: int) -> object:
    exact = torch.tensor(scores, dtype=torch.float64)
    significands, exponents = torch.frexp(exact)
    rounded = torch.ldexp(torch.round(significands * 2**bits), exponents - bits)
    best = []
    for values in (exact, rounded):
        order = torch.sort(values, descending=True, stable=True).indices
        best.append(sorted(order[:chosen].tolist()))
    return best


@earns("route.sets")
def fractions_that_count_who_is_better(scores: Any, chosen: int, bits: int) -> object:
    def rounded(score: float) -> Fraction:
        exact = Fraction(score)
        unit = Fraction(1)
        if exact == 0:
            return exact
        while abs(exact) >= unit * 2**bits:
            unit *= 2
        while abs(exact) < unit * 2 ** (bits - 1):
            unit /= 2
        return round(exact / unit) * unit

    def best(values: list[Fraction]) -> list[int]:
        found = []
        for expert, own in enumerate(values):
            better = sum(value > own for value in values) + sum(v == own for v in values[:expert])
            if better < chosen:
                found.append(expert)
        return found

    return best([Fraction(score) for score in scores]), best([rounded(score) for score in scores])


@earns("route.sets")
def a_heap_and_a_base_2_logarithm(scores: Any, chosen: int, bits: int) -> object:
    def rounded(score: float) -> float:
        if score == 0:
            return 0.0
        unit = 2.0 ** (math.floor(math.log2(abs(score))) - bits + 1)
        return round(score / unit) * unit

    chosen_by_each = []
    for values in (list(scores), [rounded(score) for score in scores]):
        chosen_by_each.append(nlargest(chosen, range(len(values)), key=values.__getitem__))
    return [sorted(experts) for experts in chosen_by_each]


@earns("route.sets")
def one_best_after_another(scores: Any, chosen: int, bits: int) -> object:
    def best(values: list[float]) -> list[int]:
        found = []
        for _ in range(chosen):
            found.append(values.index(max(values)))
            values[found[-1]] = -math.inf
        return sorted(found)

    parts = [math.frexp(score) for score in scores]
    rounded = [math.ldexp(round(math.ldexp(m, bits)), e - bits) for m, e in parts]
    return best(list(scores)), best(rounded)


@earns("attend.scale")
def a_loop_over_the_seen_tokens(scores: Any, largest: float, smallest: float) -> object:
    log2_factor = math.floor(math.log2(largest))
    lost = 0
    for score in scores:
        if score == -math.inf:
            continue
        if 2.0 ** (score - max(scores)) * 2.0**log2_factor <= smallest / 2:
            lost += 1
    return log2_factor, lost


@earns("attend.scale")
def numpys_powers_of_two(scores: Any, largest: float, smallest: float) -> object:
    log2_factor = math.frexp(largest)[1] - 1
    seen = np.array(scores)[np.isfinite(scores)]
    return log2_factor, int((np.exp2(seen - seen.max()) * 2.0**log2_factor <= smallest / 2).sum())


@earns("attend.scale")
def compares_logarithms(scores: Any, largest: float, smallest: float) -> object:
    log2_factor = math.frexp(largest)[1] - 1
    limit = math.log2(smallest) - 1 - log2_factor + max(scores)
    return log2_factor, sum(-math.inf < score <= limit for score in scores)


@earns("attend.scale")
def doubles_a_factor(scores: Any, largest: float, smallest: float) -> object:
    log2_factor = 0
    while 2.0 ** (log2_factor + 1) <= largest:
        log2_factor += 1
    while 2.0**log2_factor > largest:
        log2_factor -= 1
    seen = [score for score in scores if not math.isinf(score)]
    kept = [s for s in seen if 2.0**log2_factor * 2.0 ** (s - max(seen)) > smallest / 2]
    return log2_factor, len(seen) - len(kept)


@earns("attend.scale")
def rounds_multiples_of_the_smallest(scores: Any, largest: float, smallest: float) -> object:
    log2_factor = math.floor(math.log2(largest))
    powers = (2.0 ** (s - max(scores) + log2_factor) for s in scores if s != -math.inf)
    return [log2_factor, sum(round(power / smallest) == 0 for power in powers)]


def test_a_right_answer_earns_everything_whatever_its_style() -> None:
    for id, answer in RIGHT:
        assert "Solved" in str(check(id, answer)), (id, answer.__name__, str(check(id, answer)))
        for seed in (1, 2):
            case_set = grading_cases(EXERCISES[id], seed)
            grade = judge(case_set, answers_of(case_set, answer))
            assert grade.points == EXERCISES[id].points, (answer.__name__, str(grade))
