"""Answers that people gave: right ones in another dress than the reference's, and ones that are right but for one edge.

The right ones earn everything, in the notebook and at grading. The others earned full marks once, and lose a check now:
a row names the check that must refuse it. Most are the reference itself, changed at that edge alone, so no other check
could.
"""

import math
import statistics
import warnings
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

from labkit.amp import ScalerState
from labkit.formats import FP16, round_to
from labkit.grading import EXERCISES, Grade, check, judge
from labkit.grading.judge import CaseSet, answers_of, grading_cases, visible_cases

Answer = Callable[..., object]
ROWS: list[tuple[str, str, str, Answer]] = []


def wrong(exercise_id: str, check: str) -> Callable[[Answer], Answer]:
    """Put an answer into the table, with the check that refuses it."""

    def keep(answer: Answer) -> Answer:
        ROWS.append((exercise_id, check, answer.__name__, answer))
        return answer

    return keep


def right(exercise_id: str) -> Any:
    return EXERCISES[exercise_id].reference


def graded(paper: CaseSet, answer: Answer) -> Grade:
    """Return the grade; a reference may be called here, so nothing is withheld."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return judge(paper, answers_of(paper, answer))


# --- answers of their own ---


@wrong("tensor.block", "sums of which nothing is cut, and terms of 0")
def zeros_have_an_exponent(a: Any, b: Any, c: float, fraction_bits: int) -> object:
    def exponent(x: float) -> int:
        return math.frexp(x)[1] - 1

    terms = [(x * y, exponent(x) + exponent(y)) for x, y in zip(a, b, strict=True)] + [(c, exponent(c))]
    unit = 2.0 ** (max(e for _, e in terms) - fraction_bits)
    total = sum(math.trunc(value / unit) for value, _ in terms)
    spare = max(0, total.bit_length() - 24)
    return math.trunc(total / 2**spare) * 2**spare * unit


def bad_at(tensors: Any) -> int | None:
    return next((i for i, (_, t) in enumerate(tensors) if not t.isfinite().all()), None)


@wrong("gradients.culprit", "the first tensor, or none")
def looks_for_the_place_of_a_name(tensors: Any) -> object:
    at = bad_at(tensors)
    if at is None:
        return None
    place = [name for name, _ in tensors].index(tensors[at][0])
    return tensors[at][0], float(tensors[place - 1][1].abs().max()) if place else 0.0


@wrong("gradients.culprit", "the first tensor, or none")
def looks_for_the_last_place_of_a_name(tensors: Any) -> object:
    at = bad_at(tensors)
    if at is None:
        return None
    place = max(i for i, (name, _) in enumerate(tensors) if name == tensors[at][0])
    return tensors[at][0], float(tensors[place - 1][1].abs().max()) if place and place != at + 1 else 0.0


@wrong("autocast.dtypes", "older values, and names that are assigned again")
def inputs_keep_their_dtype(steps: Any, given: Any) -> object:
    known, found = dict(given), []
    for result, rule, operands in steps:
        (dtype,) = right("autocast.dtypes")([("r", rule, operands)], known)
        found.append(dtype)
        known.setdefault(result, dtype)
        known[result] = given.get(result, dtype)
    return found


def norm_of(scaled_grads: Any, scale: float) -> float:
    return float(torch.cat([g.double().flatten() for g in scaled_grads]).norm()) / scale


@wrong("scaling.unscale", "the gradients of the loss, in FP32")
def one_long_tensor(scaled_grads: Any, scale: float) -> object:
    together = torch.cat([g.flatten() for g in scaled_grads]).float() / scale
    parts = together.split([g.numel() for g in scaled_grads])
    grads = [part.reshape(g.shape) for part, g in zip(parts, scaled_grads, strict=True)]
    return grads, not bool(together.isfinite().all())


@wrong("master.step", "a step with inf or NaN is left out, the next one is not")
def never_looks_at_the_last(master: Any, scaled_grads: Any, scale: float, lr: float) -> object:
    *others, last = scaled_grads or [torch.zeros_like(master).half()]
    _, after = right("master.step")(master, others, scale, lr)
    after = after - lr * (last.float() / scale)
    return after.half(), after


def fp16(x: float) -> float:
    return float(round_to(x, FP16))


def fate(v: Callable[[float], float], epsilon: Callable[[float], float]) -> Answer:
    """Return an answer that rounds v and epsilon in another way."""

    def answer(gradient: float, given: float) -> str:
        if v(gradient) != 0 or epsilon(given) != 0:
            return "finite"
        return "nan" if gradient == 0 else "inf"

    return answer


def at_least(limit: float) -> Callable[[float], float]:
    return lambda x: x if x >= limit else 0.0


KNOBS: dict[str, dict[str, object]] = {}


@wrong("recipes.levels", "O2, nearly all of it")
def changes_stay_for_the_next_call(level: str, changed: Any) -> object:
    knobs = KNOBS.setdefault(level, right("recipes.levels")(level, {}))
    knobs.update(changed)
    return dict(knobs)


def skipped(largest: Any, config: Any, **changed: Any) -> list[int]:
    """Play the rule, with a part of it changed: the count of overflows at the cap, or how the scale reaches it."""
    scale, clean, overflows, found = config.init_scale, 0, 0, []
    for step, gradient in enumerate(largest, start=1):
        looks = not config.steps_at_floor or scale > config.floor
        if looks and scale * gradient >= 65520:
            found.append(step)
            clean, overflows = 0, overflows + 1
            if overflows >= config.hysteresis:
                stops = changed.get("stops") and scale / 2 < config.floor
                scale = scale if stops else max(scale / 2, config.floor)
        else:
            clean += 1
            if clean >= config.growth_interval:
                grown = scale if changed.get("doubles") and scale * 2 > config.cap else min(scale * 2, config.cap)
                overflows = 0 if grown != scale or changed.get("at_cap", True) else overflows
                scale, clean = grown, 0
    return found


def casts(given: Any, nodes: Any, widest: Callable[[list[str]], str] = max, once: bool = True) -> list[tuple[str, str]]:
    """Return the casts of a program, with another widest format of an operation, or one for each place of an input."""
    formats, found = dict(given), list[tuple[str, str]]()
    for name, rule, inputs in nodes:
        held = [formats[source] for source in inputs]
        wanted = {"allow": "FP16", "deny": "FP32", "promote": widest(held), "keep": held[0]}[rule]
        needed = [(s, wanted) for s in inputs if rule != "keep" and formats[s] != wanted and (s, wanted) not in found]
        found += dict.fromkeys(needed) if once else needed
        formats[name] = wanted
    return found


def dtypes(arriving: Callable[..., list[str]], at_the_end: bool = False) -> Answer:
    """Return an answer that looks at other dtypes than those of all operands, or looks names up when all is done."""

    def answer(steps: Any, given: Any) -> list[str]:
        known, found = dict(given), list[str]()
        for result, rule, operands in steps:
            wide = rule == "deny" or (rule != "allow" and "FP32" in arriving(rule, [known[n] for n in operands], found))
            known[result] = "FP32" if wide else "FP16"
            found.append(known[result])
        return [known[result] for result, _, _ in steps] if at_the_end else found

    return answer


def verdict(spread: Callable[[list[float], list[float], list[float]], float]) -> Answer:
    """Return an answer that takes something else for the standard deviation over the root of n."""

    def answer(fp32: list[float], other: list[float], margin: float, t_90: float, t_95: float) -> str:
        other = [0.0 if math.isnan(b) else b for b in other]
        d = [b - a for a, b in zip(fp32, other, strict=True)]
        mean, error = statistics.mean(d), spread(fp32, other, d)
        if abs(mean) + t_90 * error < margin:
            return "as good"
        if abs(mean) <= max(max(fp32) - min(fp32), t_95 * error):
            return "cannot tell"
        return "worse" if mean < 0 else "better"

    return answer


def first_with(bad: Callable[[Any], object]) -> Answer:
    """Return an answer that takes other tensors for bad."""

    def answer(tensors: Any) -> object:
        before = 0.0
        for name, tensor in tensors:
            if bad(tensor):
                return name, before
            before = float(tensor.abs().max())
        return None

    return answer


def agreed(bad: Callable[[Any], Any], halved: Callable[[float], float] = lambda scale: scale / 2) -> Answer:
    """Return an answer that takes other gradients for bad, or halves the scale in another way."""

    def answer(parts: Any, gradients: Any, scale: float, lr: float) -> object:
        if any(bool(bad(g)) for g in gradients):
            return list(parts), halved(scale)
        return [part - lr * (g.float() / scale) for part, g in zip(parts, gradients, strict=True)], scale

    return answer


def not_finite(gradient: torch.Tensor) -> bool:
    return not gradient.isfinite().all()


@wrong("beyond.history", "what is older than the history is forgotten")
def each_magnitude_once(largest: Any, length: int, top: float) -> object:
    found, window = [], set[float]()
    for i, magnitude in enumerate(largest):
        if i > length:
            window.discard(largest[i - length - 1])
        found.append(top / max(window) if window and max(window) else 1.0)
        window.add(magnitude)
    return found


@wrong("tensor.padding", "sizes that fit nowhere")
def padded_with_an_fp16_accumulator(x: torch.Tensor, weight: torch.Tensor) -> Any:
    wide, tall, _ = right("tensor.padding")(x, weight)
    y = torch.zeros(len(x), len(weight)).half()
    for k in range(x.shape[1]):
        y = y + x[:, k : k + 1] * weight[:, k]
    return wide, tall, y


@wrong("recipes.cheapest", "one that is behind by less than seeds scatter")
def cheapest_by_the_median(fp32: list[float], candidates: Any) -> str:
    lowest = statistics.median(fp32) - (max(fp32) - min(fp32))
    passing = [(size, name) for name, size, metrics in candidates if statistics.mean(metrics) >= lowest]
    return min(passing, default=(0, "FP32"))[1]


# --- the reference, but for one kind of case: (exercise, check, what the kind is called, changed answer) ---

Change = Callable[[Answer], Answer]


def but(when: Callable[..., Any], says: Callable[..., Any]) -> Change:
    """Give another answer to such cases: `says` is called with the right one and the case."""

    def changed(right: Answer) -> Answer:
        def answer(*case: Any) -> object:
            found = right(*case)
            return says(found, *case) if when(*case) else found

        return answer

    return changed


def then(says: Callable[..., Any]) -> Change:
    """Give another answer to every case."""
    return but(lambda *_: True, says)


def of_other(change: Callable[..., Any]) -> Change:
    """Answer another case."""
    return lambda right: lambda *case: right(*change(*case))


def its_own(answer: Answer) -> Change:
    """Answer without the reference."""
    return lambda right: answer


BUT: list[tuple[str, str, str, Change]] = [
    ("recipes.epsilon", "where FP16 ends", "rounds the thousandth first", its_own(fate(lambda g: fp16(fp16(0.001) * g**2), fp16))),
    ("recipes.epsilon", "where FP16 ends", "epsilon from 2^-24", its_own(fate(lambda g: fp16(0.001 * g**2), at_least(2.0**-24)))),
    ("recipes.epsilon", "where FP16 ends", "epsilon at 2^-25", its_own(fate(lambda g: fp16(0.001 * g**2), at_least(2.0**-25)))),
    ("recipes.epsilon", "where FP16 ends", "v from 2^-24", its_own(fate(lambda g: at_least(2.0**-24)(0.001 * g**2), fp16))),
    ("recipes.verdict", "differences that anybody sees", "a constant", its_own(lambda *_: "cannot tell")),
    ("recipes.verdict", "differences just inside and just beyond a limit", "the spread of FP32", its_own(verdict(lambda a, b, d: statistics.stdev(a) / math.sqrt(len(d))))),
    ("recipes.verdict", "runs that ended in NaN", "worse if any broke", but(lambda a, b, *_: any(map(math.isnan, b)), lambda *_: "worse")),
    ("autocast.dtypes", "operations of several operands", "two operands", its_own(dtypes(lambda rule, held, found: held[:2]))),
    ("autocast.dtypes", "older values, and names that are assigned again", "a name assigned twice", its_own(dtypes(lambda rule, held, found: held, at_the_end=True))),
    ("autocast.dtypes", "older values, and names that are assigned again", "keep of the latest", its_own(dtypes(lambda rule, held, found: found[-1:] if rule == "keep" and found else held))),
    ("rounding.stochastic", "positive numbers", "flushes what is small", but(lambda x, spacing, _: abs(x) < spacing, lambda *_: 0.0)),
    ("autocast.linear", "operands that FP16 must round", "a bias in FP32", then(lambda found, x, w, bias, _: ((x.half().float() @ w.half().float().T + bias).half(), *found[1:]))),
    ("frameworks.skips", "at the cap, and without one", "counts go on at the cap", its_own(lambda largest, config: skipped(largest, config, at_cap=False))),
    ("frameworks.skips", "at the cap, and without one", "doubles or stays below the cap", its_own(lambda largest, config: skipped(largest, config, doubles=True))),
    ("frameworks.skips", "at the floor, skipped or stepped", "stays above the floor", its_own(lambda largest, config: skipped(largest, config, stops=True))),
    ("frameworks.casts", "a tensor that several need", "casts each place of an input", its_own(lambda given, nodes: casts(given, nodes, once=False))),
    ("frameworks.casts", "promote and keep", "promotes two", its_own(lambda given, nodes: casts(given, nodes, widest=lambda held: max(held[:2])))),
    ("gradients.binades", "numbers between two powers of two", "down to 2^-60", then(lambda found, _: {e: n for e, n in found.items() if -60 < e < 60})),
    ("gradients.fate", "at other scales", "scales up to 2^16", of_other(lambda counts, k: (counts, min(k, 16)))),
    ("gradients.culprit", "the first inf", "asks the largest", its_own(first_with(lambda t: not t.max().isfinite()))),
    ("gradients.culprit", "the first tensor, or none", "takes 65504 for an overflow", its_own(first_with(lambda t: bool(t.isnan().any()) or bool((t.abs() >= 65504).any())))),
    ("beyond.frozen", "updates far from the limit", "vectors only", but(lambda w, _: any(t.dim() != 1 for t in w.values()), lambda *_: None)),
    ("beyond.frozen", "updates near half the distance, and there", "rounds half up", its_own(lambda w, u: [
         n for n, t in w.items()
         if ((t.float() + u[n]).view(torch.int32) + 0x8000 >> 16 << 16).view(torch.float32).equal(t.float())])),
    ("beyond.frozen", "updates far from the limit", "in the order of updates", then(lambda found, w, u: [n for n in u if n in found])),
    ("beyond.history", "one outlier", "never below 1", then(lambda found, *_: [max(1.0, scale) for scale in found])),
    ("beyond.mx_scale", "blocks whose largest number is positive", "to 100 at most", then(lambda found, *_: min(found, 100))),
    ("beyond.mx_scale", "blocks whose largest number is positive", "takes tiny for zero", of_other(lambda block, top: ([x if abs(x) > 1e-30 else 0.0 for x in block], top))),
    ("beyond.block", "large numbers, where the steps are 1 and 2", "sixteen at most", of_other(lambda block, scale, random: (block[:16], scale, random[:16]))),
    ("beyond.keep", "a training with both", "what changes first", then(lambda found, parts: (sorted(found, key=lambda name: (name, "changes") not in {part[:2] for part in parts})))),
    ("workers.agree", "inf on one rank", "asks for plus inf", its_own(agreed(lambda g: ((g == math.inf) | g.isnan()).any()))),
    ("workers.agree", "inf on several ranks", "asks the sums for inf", its_own(agreed(lambda g: g.float().sum().isinf() or g.isnan().any()))),
    ("workers.agree", "inf on one rank", "halves whole numbers", its_own(agreed(not_finite, lambda scale: scale // 2))),
    ("workers.agree", "NaN on one rank", "keeps the scale above 1", its_own(agreed(not_finite, lambda scale: max(1.0, scale / 2)))),
    ("numbers.next_up", "-0, the largest number and the infinities", "stays at the lowest number", but(lambda c: c == 0xFBFF, lambda _, c: c)),
    ("numbers.next_up", "negative numbers", "goes beyond zero", but(lambda c: c == 0x8001, lambda *_: 1)),
    ("numbers.next_up", "negative numbers", "loses the borrow", but(lambda c: c == 0x8400, lambda *_: 0x87FF)),
    ("numbers.next_up", "from one binade into the next, and out of zero", "skips from the smallest number", but(lambda c: c == 1, lambda *_: 0x400)),
    ("numbers.first_gap", "any format with room above", "ends a binade early", its_own(lambda e, s: min(2 ** (s + 1) + 1, 2 ** (s + 1) if 2 ** (e - 1) - 1 == s + 1 else 2 ** 2 ** (e - 1)))),
    ("numbers.first_gap", "any format with room above", "in a float", its_own(lambda e, s: int(min(2.0 ** (s + 1) + 1, 2.0 ** min(2 ** (e - 1), 1000))))),
    ("numbers.bytes", "formats of 8, 6 and 4 bits, and of any", "by a table of formats", its_own(lambda shape, bits: math.ceil(math.prod(shape) * {4: 0.5, 6: 0.75, 8: 1, 16: 2}.get(bits, 4)))),
    ("numbers.bytes", "tensors in 16 and in 32 bits", "counts in 32 bits", its_own(lambda shape, bits: int(np.ceil(np.prod(shape, dtype=np.int32) * bits / 8)))),
    ("numbers.bytes", "a single number, and an empty tensor", "an empty tensor has a byte", but(lambda shape, _: 0 in shape[:1], lambda *_: 1)),
    ("numbers.bytes", "a single number, and an empty tensor", "a number has two bytes", but(lambda shape, _: not shape, lambda found, *_: max(2, found))),
    ("start.smallest", "any format", "not below 2^-200", then(lambda found, *_: max(2.0**-200, found))),
    ("start.smallest", "any format", "three exponent bits at least", of_other(lambda e, s: (max(3, e), s))),
    ("rounding.nearest_even", "at the upper end", "inf without its sign", but(math.isinf, lambda *_: math.inf)),
    ("rounding.nearest_even", "among the subnormal numbers", "nothing below 2^-60", but(lambda x: 0 < x < 2.0**-60, lambda *_: 2.0**-24)),
    ("rounding.nearest_even", "among the subnormal numbers", "keeps the negative tie", but(lambda x: x == -(2.0**-25), lambda *_: -(2.0**-24))),
    ("rounding.nearest_even", "among the subnormal numbers", "the last subnormal number stays one", but(lambda x: 2.0**-14 - 2.0**-24 < x < 2.0**-14, lambda *_: 2.0**-14 - 2.0**-24)),
    ("tensor.block", "sums of which nothing is cut, and terms of 0", "all zeros are nan", but(lambda a, b, c, _: not c and not any(x * y for x, y in zip(a, b, strict=True)), lambda *_: math.nan)),
    ("tensor.intensity", "close to the ridge", "to three digits", then(lambda found, *case: (*found[:2], "bandwidth" if round(found[0] / found[1], 3) < round(case[-1], 3) else "compute"))),
    ("tensor.intensity", "small batches", "never compute at a batch of one", but(lambda n, *_: n == 1, lambda found, *_: (*found[:2], "bandwidth"))),
    ("tensor.standstill", "other products, and those that end at inf", "inf has no sign", but(lambda a, b: abs(a * b) > 8, lambda found, *_: (found[0], abs(found[1]) if math.isinf(found[1]) else found[1]))),
    ("tensor.standstill", "tiny products", "counts products of zero", but(lambda a, b: a * b == 0, lambda *_: (1, 0.0))),
    ("gradients.binades", "numbers between two powers of two", "counts equal values once", of_other(lambda values: (list(dict.fromkeys(values)),))),
    ("gradients.lost", "element by element, by what arrived", "asks the product", of_other(lambda a, b: (a, [x * y.float() for x, y in zip(a, b, strict=True)]))),
    ("gradients.lost", "element by element, by what arrived", "takes inf and nan for lost", of_other(lambda a, b: (a, [half.nan_to_num(0, 0, 0) for half in b]))),
    ("autocast.dtypes", "older values, and names that are assigned again", "one dtype for each name", but(lambda steps, _: not steps, lambda found, _, given: [given["x"]])),
    ("scaling.clip", "long gradients are shortened to max_norm, all by the same factor", "allows one percent more", of_other(lambda g, scale, m: (g, scale, math.inf if norm_of(g, scale) < 1.01 * m else m))),
    ("scaling.clip", "short gradients stay as they are", "clips one percent early", of_other(lambda g, scale, m: (g, scale, 0.99 * m if 0.99 * m < norm_of(g, scale) <= m else m))),
    ("scaling.clip", "long gradients are shortened to max_norm, all by the same factor", "leaves empty tensors out", of_other(lambda grads, *rest: ([g for g in grads if g.numel()], *rest))),
    ("scaling.unscale", "the gradients of the loss, in FP32", "scales of 1 at least", of_other(lambda grads, scale: (grads, max(1.0, scale)))),
    ("scaling.repair", "clean steps are counted, and the interval grows the scale", "what is empty is bad", but(lambda scale, tracker, grads, _: not all(g.numel() for g in grads), lambda _, scale, *rest: (scale / 2, 0, False))),
    ("scaling.repair", "clean steps are counted, and the interval grows the scale", "waits two steps at least", of_other(lambda scale, tracker, grads, interval: (scale, tracker, grads, max(2, interval)))),
    ("master.step", "a master that FP16 does not hold", "needs a gradient", but(lambda master, grads, *_: not grads, lambda *_: None)),
    ("master.step", "a step with inf or NaN is left out, the next one is not", "never looks at the first", of_other(lambda m, grads, scale, lr: (m - lr * (grads[0].float() / scale) if grads else m, grads[1:], scale, lr))),
    ("master.memory", "a model with master weights", "an FP32 model is its own master", of_other(lambda n, bits, master, moments: (n, bits, master and bits == 16, moments))),
    ("master.groups", "an empty group, sizes of 1, names that mislead", "leaves empty groups out", then(lambda found, _: {name: names for name, names in found.items() if names})),
    ("master.groups", "an empty group, sizes of 1, names that mislead", "asks the name too", of_other(lambda rows: ([(n, (1,) if "bias" in n else shape, trained) for n, shape, trained in rows],))),
    ("master.groups", "an empty group, sizes of 1, names that mislead", "without elements no group", of_other(lambda rows: ([row for row in rows if math.prod(row[1])],))),
    ("recipes.which", "BF16, and other formats", "takes what is not BF16 for FP32", of_other(lambda *d: (x if x in (torch.float16, torch.bfloat16) else torch.float32 for x in d))),
    ("recipes.levels", "O1, by operation", "only one knob is turned", of_other(lambda level, changed: (level, dict(list(changed.items())[:1])))),
    ("autocast.lists", "several operands that must agree", "knows addcmul alone", but(lambda op: op != "addcmul", lambda found, _: "keep" if found == "promote" else found)),
    ("workers.agree", "clean gradients, on 1 to 5 ranks", "who holds nothing overflows", but(lambda parts, grads, *_: not all(g.numel() for g in grads), lambda _, parts, grads, scale, lr: (list(parts), scale / 2))),
    ("workers.predivide", "inf where nothing helps", "many infs are one nan", then(lambda found, grads, _: torch.where(torch.stack(grads).isinf().sum(0) > 2, math.nan, found))),
    ("workers.predivide", "inf where nothing helps", "in the order of size", of_other(lambda grads, before: (sorted(grads, key=lambda g: -float(g[0])) if len(grads[0]) == 1 else grads, before))),
    ("beyond.keep", "numbers that change", "what never changes may be short", then(lambda found, parts: [name for name in found if (name, "changes", 0.0) not in parts])),
    ("numbers.decode", "infinities and NaN", "the last NaN is inf", but(lambda c: c == 0x7FFF, lambda *_: math.inf)),
    ("numbers.decode", "zero and the subnormal numbers", "the last subnormal number is normal", but(lambda c: c == 0x3FF, lambda *_: 2.0**-14)),
    ("numbers.ulp", "subnormal numbers and zero", "-0 has no distance", but(lambda x: not x and math.copysign(1, x) < 0, lambda *_: 0.0)),
    ("rounding.smallest_update", "a dozen weights anywhere", "the last odd weights", but(lambda w: w > 1984 and int(w) % 2, lambda found, _: found * 2)),
    ("rounding.stochastic", "positive numbers", "spacings up to 1", of_other(lambda x, spacing, random: (x, min(spacing, 1.0), random))),
    ("rounding.stochastic", "multiples of the spacing stay", "0 moves", but(lambda x, *_: x == 0, lambda _, x, spacing, random: spacing)),
    ("rounding.kahan", "numbers of either sign", "flushes subnormal numbers", of_other(lambda v: (np.where(np.abs(v) < 2.0**-14, 0, v).astype(np.float16),))),
    ("rounding.epsilon", "large numbers", "clamps to 32768", of_other(lambda x: (x.clamp(-32768, 32768),))),
    ("rounding.epsilon", "ordinary numbers, answered in FP16", "eight numbers", but(lambda x: len(x) > 8, lambda found, x: right("rounding.epsilon")(x[:8]))),
    ("tensor.padding", "one row, one input, one output; and 7, 9, 17", "y ends at 65504", then(lambda found, *_: (*found[:2], found[2].clamp(-65504, 65504)))),
    ("tensor.backward", "one row, one input, one output", "a single number", but(lambda x, w, g: x.numel() == w.numel() == 1, lambda found, x, w, g: (g, g, found[2]))),
    ("gradients.fate", "at other scales", "no scale below 2^-8", of_other(lambda c, k: (c, max(k, -8)))),
    ("gradients.window", "k from -40 to 60", "one gradient alone has no window", but(lambda a, b: a == b, lambda *_: None)),
    ("gradients.window", "k from -40 to 60", "goes on below -40", but(lambda a, b: b > 2.0**56, lambda *_: (-42, -42))),
    ("autocast.softmax", "logits above 89, where exp leaves FP32", "logits from -10000 on", of_other(lambda x: (x.clamp(min=-10000),))),
    ("autocast.softmax", "small logits", "flushes subnormal probabilities", then(lambda found, _: torch.where(found < 2.0**-14, 0.0, found.float()).half())),
    ("autocast.cache", "a weight that is used again is not cast again", "nothing was used", but(lambda w, events: not events, lambda *_: (None, 0))),
    ("autocast.cache", "a weight that is used again is not cast again", "eight weights are kept", but(lambda w, events: len(w) > 8, lambda found, *_: (found[0], len(found[0])))),
    ("scaling.static_step", "large gradients that are finite are no reason to skip", "65504 is an overflow", but(lambda w, g, s, lr: g(s).abs().max() >= 65504, lambda _, w, *rest: w)),
    ("scaling.static_step", "ordinary gradients move the weight by lr times the gradient", "no scale of 1", but(lambda w, g, scale, lr: scale == 1, lambda _, w, *rest: w)),
    ("master.flat", "filters, a single number, one tensor alone", "leaves empty tensors out", of_other(lambda flat, grads, scale, lr: (flat, [g for g in grads if g.numel()], scale, lr))),
    ("master.flat", "filters, a single number, one tensor alone", "as it lies in memory", of_other(lambda flat, grads, *rest: (flat, [g if g.is_contiguous() else g.T.reshape(g.shape) for g in grads], *rest))),
    ("master.ema", "before the first step", "all steps were skipped", but(lambda h, _: len(h) > 1 and not any(s for _, s in h[1:]), lambda found, h, _: found * 0)),
    ("master.ema", "a few large steps", "a decay of 1", but(lambda h, d: d == 1, lambda _, h, d: h[-1][0])),
    ("recipes.cheapest", "a cheap one that fails, two that pass", "as many seeds as FP32", of_other(lambda fp32, c: (fp32, [(name, size, m[: len(fp32)]) for name, size, m in c]))),
    ("workers.parts", "a last part that is shorter", "a thousand rows", but(lambda rows, world: rows > 1000, lambda found, *_: [*found[:-1], (found[-1][0], found[-1][1] - 1)])),
    ("beyond.history", "what is older than the history is forgotten", "at most 32 steps", of_other(lambda largest, length, top: (largest, min(length, 32), top))),
    ("beyond.history", "a run shorter than its history", "equal magnitudes", but(lambda largest, *_: len(set(largest)) == 1, lambda found, *_: [1.0] * len(found))),
    ("beyond.mx_scale", "blocks whose largest number is positive", "32 numbers", of_other(lambda block, top: (block[:32], top))),
    ("beyond.mx_scale", "blocks whose largest number is positive", "formats by name", of_other(lambda block, top: (block, top if top in (6.0, 448.0, 57344.0) else 6.0))),
    ("beyond.block", "numbers of the format, and beyond its end", "small numbers are 0", then(lambda found, block, scale, _: [0.0 if abs(x) < scale / 1024 else y for x, y in zip(block, found, strict=True)])),
    ("beyond.orders", "small numbers after a large one", "two numbers", but(lambda n: len(n) == 2, lambda _, n: (sum(n), sum(n)))),
    ("beyond.unit", "layers as wide as what comes in", "5000 inputs at most", of_other(lambda fan_in, width, size: (min(fan_in, 5000), width, size))),
    ("beyond.unit", "layers as wide as what comes in", "a whole root", of_other(lambda fan_in, width, size: (math.isqrt(fan_in) ** 2, width, size))),
    ("numbers.first_gap", "formats that end before they get gaps", "the end of two bits", but(lambda e, s: e == 2 and s > 1, lambda _, e, s: 2 ** (s + 1) + 1)),
    ("rounding.stochastic", "multiples of the spacing stay", "spacings that are powers of two", of_other(lambda x, spacing, random: (x, 2.0 ** (math.frexp(spacing)[1] - 1), random))),
    ("rounding.kahan", "sums that FP16 alone cannot get quite right", "from the last to the first", of_other(lambda v: (v[::-1],))),
    ("tensor.intensity", "small batches", "two bytes or four", of_other(lambda n, i, o, each, ridge: (n, i, o, 2 if each < 4 else 4, ridge))),
    ("gradients.binades", "a power of two opens its binade", "a quotient of logarithms", its_own(lambda values: dict(Counter(math.floor(math.log(abs(x), 2)) for x in values if x and math.isfinite(x))))),
    ("gradients.lost", "all tensors together", "a mean of each tensor", its_own(lambda a, b: sum(float(((h == 0) & (t != 0)).float().mean()) * t.numel() for t, h in zip(a, b, strict=True))
     / max(1, sum(int(t.count_nonzero()) for t in a)))),
    ("gradients.culprit", "the first inf", "the first row", its_own(lambda tensors: next(((name, float(tensors[i - 1][1].abs().max()) if i else 0.0)
                           for i, (name, t) in enumerate(tensors) if not t.flatten()[:3].isfinite().all()), None))),
    ("autocast.lists", "exponentials, reductions and losses", "losses by name", but(lambda op: op.endswith("_loss"), lambda *_: "keep")),
    ("autocast.linear", "operands that FP16 must round", "gradients end at -65504", then(lambda found, *_: (found[0], *(g.clamp(min=-65504) for g in found[1:])))),
    ("autocast.linear", "operands that FP16 must round", "x ends at 65504", of_other(lambda x, *rest: (x.clamp(-65504, 65504), *rest))),
    ("autocast.linear", "operands that FP16 must round", "a bias ends at 65504", of_other(lambda x, w, bias, g: (x, w, bias.clamp(-65504, 65504), g))),
    ("autocast.linear", "operands that FP16 must round", "an inf that arrives is 65504", of_other(lambda x, w, bias, g: (x, w, bias, g.nan_to_num()))),
    ("autocast.linear", "gradients that underflow, underflow", "flushes subnormal operands", of_other(lambda x, *rest: (torch.where(x.abs() < 2.0**-14, 0.0, x), *rest))),
    ("autocast.softmax", "a masked logit of -inf", "a mask of -65504", of_other(lambda x: (x.clamp(min=-65504),))),
    ("scaling.advance", "inf or NaN backs off and starts the count again", "a floor of 1", but(lambda state, found_inf, _: found_inf and state.scale <= 1, lambda _, state, *rest: (replace(state, growth_tracker=0)))),
    ("scaling.advance", "the clean step that completes the interval grows the scale", "a cap of 2^41", but(lambda state, *_: state.scale > 2.0**41, lambda _, state, *rest: state)),
    *[("scaling.clip", f"{what} skips the step", "never looks at first elements",
       of_other(lambda grads, *rest: (
           [torch.cat([g.flatten()[:1].nan_to_num(0, 0, 0), g.flatten()[1:]]).reshape(g.shape) for g in grads], *rest)))
      for what in ("inf", "NaN")],
    ("scaling.repair", "clean steps are counted, and the interval grows the scale", "a cap of 2^64", but(lambda scale, *_: scale >= 2.0**64, lambda found, scale, *_: (scale, *found[1:]))),
    ("master.ema", "skipped steps do not count", "starts with the first step that was taken", of_other(lambda history, decay: ([row for row in history if row[1]] or history[:1], decay))),
    ("recipes.epsilon", "gradients whose square FP16 holds", "a v of inf", but(lambda g, _: 0.001 * g * g >= 65520, lambda *_: "inf")),
    ("recipes.which", "mixtures of FP16 that have no name", "any norm in O1", but(lambda w, n, s, o: (w, s, o) == (torch.float32, torch.float32, torch.float16), lambda *_: "O1")),
    ("recipes.which", "mixtures of FP16 that have no name", "any norm in O0", but(lambda w, n, s, o: (w, s, o) == (torch.float32,) * 3 and n != torch.bfloat16, lambda *_: "O0")),
    ("recipes.cheapest", "a cheap one that fails, two that pass", "no more seeds than FP32", of_other(lambda fp32, c: (fp32, [row for row in c if len(row[2]) <= len(fp32)]))),
    ("workers.parts", "ranks that hold nothing", "rounds up from 0.01 on", its_own(lambda rows, world: [(min(i * each, rows), min((i + 1) * each, rows)) for each in [round(rows / world + 0.49)] for i in range(world)])),
    ("beyond.frozen", "updates far from the limit", "compares bits", its_own(lambda w, u: [n for n in w if (w[n] + u[n]).bfloat16().view(torch.int16).equal(w[n].view(torch.int16))])),
    ("beyond.clipped", "equal programs, and no texts", "looks up a text's place", then(lambda found, learner, *_: [learner.index(learner[i]) for i in found])),
    ("beyond.block", "numbers of the format, and beyond its end", "inf stays", then(lambda found, block, *_: [x if math.isinf(x) else y for x, y in zip(block, found, strict=True)])),
]  # fmt: skip
ROWS += [(id, check, name, change(right(id))) for id, check, name, change in BUT]


@pytest.mark.parametrize("exercise_id", dict.fromkeys(id for id, *_ in ROWS))
def test_each_loses_the_check_whose_case_it_fails(exercise_id: str) -> None:
    """In the notebook and at grading; and a counter-example says what was expected."""
    exercise, kept = EXERCISES[exercise_id], []
    for _, refuses, name, answer in (row for row in ROWS if row[0] == exercise_id):
        for paper in (visible_cases(exercise), grading_cases(exercise, 1)):
            (verdict,) = [verdict for verdict in graded(paper, answer).verdicts if verdict.check.name == refuses]
            if verdict.counter_example is None or not verdict.counter_example.difference:
                kept.append((name, refuses, "grading" if paper.complete else "notebook"))
    assert kept == []


@pytest.mark.slow  # every FP16 number
def test_rounding_the_square_first_changes_no_answer_of_epsilon() -> None:
    """v rounded twice looks like a mistake, and is none for any gradient that FP16 holds."""
    twice = fate(lambda g: fp16(0.001 * fp16(g**2)), fp16)
    for gradient in np.arange(0x7C00, dtype=np.uint16).view(np.float16).tolist():
        assert twice(gradient, 1e-8) == right("recipes.epsilon")(gradient, 1e-8)


# --- right answers in another dress ---

RIGHT: list[tuple[str, Answer]] = []


def earns(exercise_id: str) -> Callable[[Answer], Answer]:
    return lambda answer: (RIGHT.append((exercise_id, answer)), answer)[1]


GRID = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # of FP4


@earns("gradients.lost")
def a_mean_in_fp32(in_fp32: Any, in_fp16: Any) -> object:
    exact, half = (torch.cat([torch.zeros(1), *(t.float().flatten() for t in some)]) for some in (in_fp32, in_fp16))
    lost = half[exact != 0] == 0
    return lost.float().mean().item() if len(lost) else 0


@earns("beyond.history")
def times_the_reciprocal(largest: Any, length: int, top: float) -> object:
    window, found = deque([0.0], maxlen=length), []
    for magnitude in largest:
        found.append(top * (1 / max(window)) if max(window) else 1)
        window.append(magnitude)
    return tuple(found)


@earns("beyond.history")
def by_recursion(largest: Any, length: int, top: float) -> object:
    if not largest:
        return []
    *before, _ = largest
    highest = max(before[-length:], default=0.0)
    return [*by_recursion(before, length, top), top / highest if highest else 1.0]  # type: ignore[misc]


@earns("beyond.block")
def whole_arrays(block: Any, scale: float, random: Any) -> object:
    x = np.array(block, dtype=float)
    size = np.minimum(np.abs(x) / scale, 6)
    place = np.clip(np.searchsorted(GRID, size, side="right") - 1, 0, 6)
    lower, upper = GRID[place], GRID[place + 1]
    return list(np.sign(x) * scale * np.where(np.array(random) < (size - lower) / (upper - lower), upper, lower))


def in_turn(part: Any) -> Any:
    return reduce(lambda a, b: np.float32(a + b), part) if part else 0.0


@earns("workers.agree")
def as_one_tensor(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    gradient = torch.cat(gradients).float() / scale
    if not gradient.isfinite().all():
        return [part.clone() for part in parts], scale * 0.5
    return (torch.cat(parts) - lr * gradient).split([len(part) for part in parts]), scale


@earns("workers.predivide")
def element_by_element(gradients: Any, before: int) -> object:
    means = []
    for column in zip(*(g.tolist() for g in gradients), strict=True):
        total = np.float16(0)
        for x in column:
            with np.errstate(over="ignore", invalid="ignore"):
                total = np.float16(total + np.float16(x) / np.float16(before))
        means.append(total / np.float16(len(gradients) / before))
    return torch.tensor(np.array(means))


Pair = namedtuple("Pair", ["grads", "found_inf"])


@earns("scaling.unscale")
def unscale_in_torch(scaled_grads: Any, scale: float) -> Any:
    grads = [grad.float() / scale for grad in scaled_grads]
    return Pair(grads, ~torch.tensor([bool(torch.isfinite(grad).all()) for grad in grads]).all())


def advance_by(complete: Callable[[int, int], bool], number: Any = float, count: Any = int) -> Answer:
    """Return the scaler's rule with another question for "the interval is complete", or with other types."""

    def answer(state: Any, found_inf: bool, config: Any) -> ScalerState:
        if found_inf:
            return ScalerState(number(state.scale * config.backoff_factor), count(0))
        if complete(state.growth_tracker + 1, config.growth_interval):
            return ScalerState(number(state.scale * config.growth_factor), count(0))
        return ScalerState(state.scale, count(state.growth_tracker + 1))

    return answer


def groups(kind: Callable[[], Any]) -> Answer:
    def answer(parameters: Any) -> Any:
        found = kind()
        found["decay"], found["no decay"] = [], []
        for name, shape, trainable in parameters:
            if trainable:
                found["decay" if len(shape) > 1 else "no decay"].append(name)
        return found

    return answer


def layer(computes: Callable[[int, int, float], bool]) -> Answer:
    """Return the bill of a layer, with another question for "the ridge is reached"."""

    def answer(batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float) -> Any:
        flops, moved = 2 * batch * inputs * outputs, bytes_each * (batch * inputs + inputs * outputs + batch * outputs)
        return flops, moved, "compute" if computes(flops, moved, ridge) else "bandwidth"

    return answer


@earns("numbers.decode")
def decode_in_fractions(code: int) -> Any:
    sign, exponent, significand = -1 if code >> 15 else 1, code >> 10 & 31, code & 1023
    if exponent == 31:
        return math.nan if significand else sign * math.inf
    if exponent == 0:
        return sign * Fraction(significand, 1 << 24)
    return sign * Fraction(1024 + significand, 1024) * Fraction(2) ** (exponent - 15)


@earns("recipes.lines")
def lines_that_look_first(masters: bool, scaling: bool, batches: int) -> list[str]:
    """The scale is above 1, so dividing by it makes no inf: FP16 gradients may be looked at as they come."""
    lines = ["forward"] * batches + ["scale loss"] * scaling * batches + ["backward"] * batches
    lines += ["look for inf"] * scaling
    lines += ["gradients to masters"] * masters + ["unscale"] * scaling + ["step"]
    return lines + ["update scale"] * scaling + ["masters to model"] * masters


RIGHT += [
    ("master.groups", groups(lambda: defaultdict(list))),
    ("master.groups", groups(OrderedDict)),
    ("scaling.advance", advance_by(lambda count, interval: count == interval)),
    ("scaling.advance", advance_by(lambda count, interval: count % interval == 0)),
    ("scaling.advance", advance_by(lambda count, interval: count >= interval, np.float64, np.int64)),
    ("tensor.intensity", layer(lambda flops, moved, ridge: flops >= ridge * moved)),
    ("tensor.intensity", layer(lambda flops, moved, ridge: Fraction(flops, moved) >= Fraction(ridge))),
    ("gradients.binades", lambda values: Counter(math.frexp(x)[1] - 1 for x in values if x and math.isfinite(x))),
    ("gradients.fate", lambda counts, k: 1 - (
        sum(n / sum(counts.values()) for e, n in counts.items() if e + k >= -25) if sum(counts.values()) else 1.0)),
    ("beyond.frozen", lambda weights, updates: tuple(
        name for name, weight in weights.items() if not bool((weight.clone().add_(updates[name]) != weight).any()))),
    ("beyond.mx_scale", lambda block, top: (
        max(-127, math.ceil(math.log2(max(map(abs, block)) / top))) if any(block) else -127)),
    ("beyond.mx_scale", lambda block, top: next(  # in FP32, as the numbers are
        k for k in range(-127, 129) if torch.tensor(block).abs().max() <= top * 2.0**k)),
    ("beyond.orders", lambda n: [
        in_turn(n), np.float32(in_turn(n[: len(n) // 2]) + in_turn(n[len(n) // 2 :]))]),
]  # fmt: skip


def test_a_right_answer_earns_everything_whatever_its_style() -> None:
    for id, answer in RIGHT:
        assert "Solved" in str(check(id, answer)), (id, answer.__name__, str(check(id, answer)))
        for seed in (1, 2):
            paper = grading_cases(EXERCISES[id], seed)
            grade = judge(paper, answers_of(paper, answer, EXERCISES[id].withheld))
            assert grade.points == EXERCISES[id].points, (answer.__name__, str(grade))
