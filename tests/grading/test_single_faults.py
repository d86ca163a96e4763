"""Wrong answers that differ from the reference in one kind of case.

ROWS has the answers, and for each the check that must fail.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from labkit.grading import EXERCISES, Grade, judge
from labkit.grading.judge import CaseSet, answers_of, grading_cases, visible_cases

Answer = Callable[..., object]
Change = Callable[[Answer], Answer]


def graded(case_set: CaseSet, answer: Answer) -> Grade:
    """Return the grade; a reference may be called here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return judge(case_set, answers_of(case_set, answer))


def norm_of(scaled_grads: Any, scale: float) -> float:
    return float(torch.cat([g.double().flatten() for g in scaled_grads]).norm()) / scale


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
