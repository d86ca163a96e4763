"""Answers that are right but for one edge of what the text asks: each earned full marks once, and loses a check now.

A row names the check that must refuse it. Most are the reference itself, changed at that edge alone, so no other check
could.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from labkit.formats import FP16, round_to
from labkit.grading import EXERCISES, Grade, judge
from labkit.grading.judge import Paper, answers_of, paper_of, visible_paper

Answer = Callable[..., object]
ROWS: list[Any] = []


def wrong(exercise_id: str, check: str) -> Callable[[Answer], Answer]:
    """Put an answer into the table, with the check that refuses it."""

    def keep(answer: Answer) -> Answer:
        ROWS.append(pytest.param(exercise_id, check, answer, id=f"{exercise_id}: {answer.__name__}"))
        return answer

    return keep


def right(exercise_id: str) -> Any:
    return EXERCISES[exercise_id].reference


def graded(paper: Paper, answer: Answer) -> Grade:
    """Return the grade; a reference may be called here, so nothing is withheld."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return judge(paper, answers_of(paper, answer))


# --- numbers and rounding ---

next_up = right("numbers.next_up")


@wrong("numbers.next_up", "-0, the largest number and the infinities")
def stays_at_the_lowest_number(code: int) -> object:
    return code if code == 0xFBFF else next_up(code)


@wrong("numbers.next_up", "negative numbers")
def goes_beyond_zero(code: int) -> object:
    return 1 if code == 0x8001 else next_up(code)


@wrong("numbers.next_up", "negative numbers")
def loses_the_borrow(code: int) -> object:
    return 0x87FF if code == 0x8400 else next_up(code)


@wrong("numbers.next_up", "from one binade into the next, and out of zero")
def skips_from_the_smallest_number(code: int) -> object:
    return 0x400 if code == 1 else next_up(code)


@wrong("numbers.first_gap", "any format with room above")
def ends_a_binade_early(exponent_bits: int, significand_bits: int) -> object:
    bias = 2 ** (exponent_bits - 1) - 1
    return min(2 ** (significand_bits + 1) + 1, 2**bias if bias == significand_bits + 1 else 2 ** (bias + 1))


@wrong("numbers.first_gap", "formats that end before they get gaps")
def knows_the_end_of_three_bits(exponent_bits: int, significand_bits: int) -> object:
    gap = 2 ** (significand_bits + 1) + 1
    return min(gap, {3: 16, 4: 256}.get(exponent_bits, gap))


@wrong("numbers.first_gap", "any format with room above")
def in_a_float(exponent_bits: int, significand_bits: int) -> object:
    return int(min(2.0 ** (significand_bits + 1) + 1, 2.0 ** min(2 ** (exponent_bits - 1), 1000)))


@wrong("numbers.bytes", "formats of 8, 6 and 4 bits, and of any")
def by_a_table_of_formats(shape: Any, bits: int) -> object:
    each = {4: 0.5, 6: 0.75, 8: 1, 16: 2, 32: 4}
    return math.ceil(math.prod(shape) * each.get(bits, 4))


@wrong("numbers.bytes", "tensors in 16 and in 32 bits")
def counts_in_32_bits(shape: Any, bits: int) -> object:
    with np.errstate(over="ignore"):
        return int(np.ceil(np.prod(shape, dtype=np.int32) * bits / 8))


@wrong("numbers.bytes", "tensors in 16 and in 32 bits")
def as_a_torch_tensor(shape: Any, bits: int) -> object:
    return math.ceil(float(torch.tensor(shape, dtype=torch.float32).prod()) * bits / 8)


@wrong("numbers.bytes", "a single number, and an empty tensor")
def an_empty_tensor_has_a_byte(shape: Any, bits: int) -> object:
    return max(1, math.ceil(math.prod(shape) * bits / 8)) if 0 in shape[:1] else right("numbers.bytes")(shape, bits)


@wrong("numbers.bytes", "a single number, and an empty tensor")
def a_number_has_two_bytes(shape: Any, bits: int) -> object:
    return max(2, math.ceil(math.prod(shape) * bits / 8)) if not shape else right("numbers.bytes")(shape, bits)


@wrong("start.smallest", "any format")
def not_below_2_to_the_minus_200(exponent_bits: int, significand_bits: int) -> object:
    return max(2.0**-200, right("start.smallest")(exponent_bits, significand_bits))


@wrong("start.smallest", "any format")
def three_exponent_bits_at_least(exponent_bits: int, significand_bits: int) -> object:
    return right("start.smallest")(max(3, exponent_bits), significand_bits)


nearest_even = right("rounding.nearest_even")


@wrong("rounding.nearest_even", "at the upper end")
def inf_is_no_number(x: float) -> object:
    return math.nan if math.isinf(x) else nearest_even(x)


@wrong("rounding.nearest_even", "at the upper end")
def inf_without_its_sign(x: float) -> object:
    return math.inf if math.isinf(x) else nearest_even(x)


@wrong("rounding.nearest_even", "among the subnormal numbers")
def nothing_below_2_to_the_minus_60(x: float) -> object:
    return 2.0**-24 if 0 < x < 2.0**-60 else nearest_even(x)


@wrong("rounding.nearest_even", "among the subnormal numbers")
def keeps_the_negative_tie(x: float) -> object:
    return -(2.0**-24) if x == -(2.0**-25) else nearest_even(x)


@wrong("rounding.nearest_even", "among the subnormal numbers")
def the_last_subnormal_number_stays_one(x: float) -> object:
    return 2.0**-14 - 2.0**-24 if 2.0**-14 - 2.0**-24 < x < 2.0**-14 else nearest_even(x)


# --- Tensor Cores ---

block = right("tensor.block")


@wrong("tensor.block", "sums of which nothing is cut, and terms of 0")
def all_zeros_are_nan(a: Any, b: Any, c: float, fraction_bits: int) -> object:
    return block(a, b, c, fraction_bits) if any(map(lambda x, y: x * y, a, b)) or c else math.nan


@wrong("tensor.block", "sums of which nothing is cut, and terms of 0")
def zeros_have_an_exponent(a: Any, b: Any, c: float, fraction_bits: int) -> object:
    def exponent(x: float) -> int:
        return math.frexp(x)[1] - 1

    terms = [(x * y, exponent(x) + exponent(y)) for x, y in zip(a, b, strict=True)] + [(c, exponent(c))]
    unit = 2.0 ** (max(e for _, e in terms) - fraction_bits)
    total = sum(math.trunc(value / unit) for value, _ in terms)
    spare = max(0, total.bit_length() - 24)
    return math.trunc(total / 2**spare) * 2**spare * unit


intensity = right("tensor.intensity")


@wrong("tensor.intensity", "close to the ridge")
def to_three_digits(batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float) -> object:
    flops, moved, _ = intensity(batch, inputs, outputs, bytes_each, ridge)
    return flops, moved, "bandwidth" if round(flops / moved, 3) < round(ridge, 3) else "compute"


@wrong("tensor.intensity", "small batches")
def never_compute_at_a_batch_of_one(batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float) -> object:
    flops, moved, bound = intensity(batch, inputs, outputs, bytes_each, ridge)
    return flops, moved, "bandwidth" if batch == 1 else bound


standstill = right("tensor.standstill")


@wrong("tensor.standstill", "other products, and those that end at inf")
def stops_before_inf(a: float, b: float) -> object:
    k, total = standstill(a, b)
    return (k - 1, float(np.copysign(65504.0, total))) if math.isinf(total) else (k, total)


@wrong("tensor.standstill", "other products, and those that end at inf")
def inf_has_no_sign(a: float, b: float) -> object:
    k, total = standstill(a, b)
    return k, abs(total) if math.isinf(total) else total


@wrong("tensor.standstill", "tiny products")
def counts_products_of_zero(a: float, b: float) -> object:
    return (1, 0.0) if a * b == 0 else standstill(a, b)


# --- gradients ---

binades = right("gradients.binades")


@wrong("gradients.binades", "numbers between two powers of two")
def counts_equal_values_once(values: Any) -> object:
    return binades(list(dict.fromkeys(values)))


@wrong("gradients.binades", "numbers between two powers of two")
def counts_equal_magnitudes_once(values: Any) -> object:
    return binades(list({abs(x): x for x in values}.values()))


culprit = right("gradients.culprit")


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


lost = right("gradients.lost")


@wrong("gradients.lost", "element by element, by what arrived")
def asks_the_product(in_fp32: Any, in_fp16: Any) -> object:
    return lost(in_fp32, [exact * half.float() for exact, half in zip(in_fp32, in_fp16, strict=True)])


@wrong("gradients.lost", "element by element, by what arrived")
def takes_inf_and_nan_for_lost(in_fp32: Any, in_fp16: Any) -> object:
    return lost(in_fp32, [half.nan_to_num(0, 0, 0) for half in in_fp16])


@wrong("gradients.lost", "element by element, by what arrived")
def flushes_subnormals_of_fp32(in_fp32: Any, in_fp16: Any) -> object:
    return lost([torch.where(t.abs() < 2.0**-126, 0.0, t) for t in in_fp32], in_fp16)


# --- autocast ---

dtypes = right("autocast.dtypes")


@wrong("autocast.dtypes", "older values, and names that are assigned again")
def inputs_keep_their_dtype(steps: Any, given: Any) -> object:
    known, found = dict(given), []
    for result, rule, operands in steps:
        (dtype,) = dtypes([("r", rule, operands)], known)
        found.append(dtype)
        known.setdefault(result, dtype)
        known[result] = given.get(result, dtype)
    return found


@wrong("autocast.dtypes", "older values, and names that are assigned again")
def one_dtype_for_each_name(steps: Any, given: Any) -> object:
    found = dtypes(steps, given)
    return found or [given["x"]]


# --- loss scaling ---

clip = right("scaling.clip")


def norm_of(scaled_grads: Any, scale: float) -> float:
    return float(torch.cat([g.double().flatten() for g in scaled_grads]).norm()) / scale


@wrong("scaling.clip", "long gradients are shortened to max_norm, all by the same factor")
def allows_one_percent_more(scaled_grads: Any, scale: float, max_norm: float) -> object:
    norm = norm_of(scaled_grads, scale)
    return clip(scaled_grads, scale, math.inf if norm < 1.01 * max_norm else max_norm)


@wrong("scaling.clip", "short gradients stay as they are")
def clips_one_percent_early(scaled_grads: Any, scale: float, max_norm: float) -> object:
    norm = norm_of(scaled_grads, scale)
    return clip(scaled_grads, scale, 0.99 * max_norm if 0.99 * max_norm < norm <= max_norm else max_norm)


@wrong("scaling.clip", "long gradients are shortened to max_norm, all by the same factor")
def leaves_empty_tensors_out(scaled_grads: Any, scale: float, max_norm: float) -> object:
    return clip([g for g in scaled_grads if g.numel()], scale, max_norm)


unscale = right("scaling.unscale")


@wrong("scaling.unscale", "the gradients of the loss, in FP32")
def nothing_is_bad(scaled_grads: Any, scale: float) -> object:
    return unscale(scaled_grads, scale) if scaled_grads else ([], True)


@wrong("scaling.unscale", "the gradients of the loss, in FP32")
def one_long_tensor(scaled_grads: Any, scale: float) -> object:
    together = torch.cat([g.flatten() for g in scaled_grads]).float() / scale
    parts = together.split([g.numel() for g in scaled_grads])
    grads = [part.reshape(g.shape) for part, g in zip(parts, scaled_grads, strict=True)]
    return grads, not bool(together.isfinite().all())


@wrong("scaling.unscale", "the gradients of the loss, in FP32")
def scales_of_1_at_least(scaled_grads: Any, scale: float) -> object:
    return unscale(scaled_grads, max(1.0, scale))


repair = right("scaling.repair")


@wrong("scaling.repair", "clean steps are counted, and the interval grows the scale")
def has_a_cap(scale: float, tracker: int, grads: Any, growth_interval: int) -> object:
    after, count, stepped = repair(scale, tracker, grads, growth_interval)
    return min(after, max(scale, 2.0**24)), count, stepped


@wrong("scaling.repair", "clean steps are counted, and the interval grows the scale")
def what_is_empty_is_bad(scale: float, tracker: int, grads: Any, growth_interval: int) -> object:
    return (
        (scale / 2, 0, False) if not all(g.numel() for g in grads) else repair(scale, tracker, grads, growth_interval)
    )


@wrong("scaling.repair", "clean steps are counted, and the interval grows the scale")
def waits_two_steps_at_least(scale: float, tracker: int, grads: Any, growth_interval: int) -> object:
    return repair(scale, tracker, grads, max(2, growth_interval))


# --- master weights ---


@wrong("master.step", "a master that FP16 does not hold")
def needs_a_gradient(master: Any, scaled_grads: Any, scale: float, lr: float) -> object:
    for scaled in scaled_grads:
        finite = bool(scaled.isfinite().all())
        new = master - lr * (scaled.float() / scale) if finite else master
        master = new
    return new.half(), new


@wrong("master.step", "a step with inf or NaN is left out, the next one is not")
def never_looks_at_the_first(master: Any, scaled_grads: Any, scale: float, lr: float) -> object:
    first, *others = scaled_grads or [torch.zeros_like(master).half()]
    return right("master.step")(master - lr * (first.float() / scale), others, scale, lr)


@wrong("master.step", "a step with inf or NaN is left out, the next one is not")
def never_looks_at_the_last(master: Any, scaled_grads: Any, scale: float, lr: float) -> object:
    *others, last = scaled_grads or [torch.zeros_like(master).half()]
    _, after = right("master.step")(master, others, scale, lr)
    after = after - lr * (last.float() / scale)
    return after.half(), after


@wrong("master.memory", "a model with master weights")
def an_fp32_model_is_its_own_master(parameters: int, model_bits: int, master: bool, moments: int) -> object:
    return right("master.memory")(parameters, model_bits, master and model_bits == 16, moments)


groups = right("master.groups")


@wrong("master.groups", "an empty group, sizes of 1, names that mislead")
def leaves_empty_groups_out(parameters: Any) -> object:
    return {name: names for name, names in groups(parameters).items() if names}


@wrong("master.groups", "an empty group, sizes of 1, names that mislead")
def squeezes(parameters: Any) -> object:
    return groups([(name, tuple(n for n in shape if n != 1), trained) for name, shape, trained in parameters])


@wrong("master.groups", "an empty group, sizes of 1, names that mislead")
def asks_the_name_too(parameters: Any) -> object:
    return groups([(n, (1,) if "bias" in n else shape, trained) for n, shape, trained in parameters])


@wrong("master.groups", "an empty group, sizes of 1, names that mislead")
def without_elements_no_group(parameters: Any) -> object:
    return groups([row for row in parameters if math.prod(row[1])])


# --- recipes ---

which = right("recipes.which")


@wrong("recipes.which", "BF16, and other formats")
def takes_what_is_not_bf16_for_fp32(*given: torch.dtype) -> object:
    known = (torch.float16, torch.bfloat16)
    return which(*(d if d in known else torch.float32 for d in given))


@wrong("recipes.which", "mixtures of FP16 that have no name")
def all_but_two_mixtures_have_a_name(*given: torch.dtype) -> object:
    weight, norm, stepped, output = given
    if torch.bfloat16 in given or (weight == torch.float16 and (norm == torch.float16) != (stepped == torch.float16)):
        return which(*given)
    names = {(16, 16): "O2" if norm == torch.float32 else "O3", (32, 16): "O1", (32, 32): "O0"}
    bits = tuple(16 if d == torch.float16 else 32 for d in (weight, output))
    return names.get(bits, "none of them") if {*given} <= {torch.float16, torch.float32} else which(*given)


@wrong("recipes.epsilon", "where FP16 ends")
def rounds_the_thousandth_first(gradient: float, epsilon: float) -> object:
    v = float(round_to(float(round_to(0.001, FP16)) * gradient**2, FP16))
    return "finite" if v or float(round_to(epsilon, FP16)) else "nan" if gradient == 0 else "inf"


@wrong("recipes.epsilon", "where FP16 ends")
def rounds_each_product(gradient: float, epsilon: float) -> object:
    v = float(round_to(float(round_to(0.001 * gradient, FP16)) * gradient, FP16))
    return "finite" if v or float(round_to(epsilon, FP16)) else "nan" if gradient == 0 else "inf"


KNOBS: dict[str, dict[str, object]] = {}


@wrong("recipes.levels", "O2, nearly all of it")
def changes_stay_for_the_next_call(level: str, changed: Any) -> object:
    knobs = KNOBS.setdefault(level, right("recipes.levels")(level, {}))
    knobs.update(changed)
    return dict(knobs)


@wrong("recipes.levels", "O1, by operation")
def only_one_knob_is_turned(level: str, changed: Any) -> object:
    return right("recipes.levels")(level, dict(list(changed.items())[:1]))


@wrong("autocast.lists", "several operands that must agree")
def knows_addcmul_alone(op: str) -> object:
    found = right("autocast.lists")(op)
    return "keep" if found == "promote" and op != "addcmul" else found


# --- frameworks ---


def skipped(largest: Any, config: Any, **changed: Any) -> list[int]:
    """Play the rule, with a part of it changed: the count of overflows at the cap, or how the scale reaches it."""
    scale, clean, overflows, found = config.init_scale, 0, 0, []
    for step, gradient in enumerate(largest, start=1):
        looks = not config.steps_at_floor or scale > config.floor
        if looks and scale * gradient >= 65520:
            found.append(step)
            clean, overflows = 0, overflows + 1
            if overflows >= config.hysteresis:
                scale = max(scale / 2, config.floor)
        else:
            clean += 1
            if clean >= config.growth_interval:
                grown = scale if changed.get("doubles") and scale * 2 > config.cap else min(scale * 2, config.cap)
                overflows = 0 if grown != scale or changed.get("at_cap", True) else overflows
                scale, clean = grown, 0
    return found


@wrong("frameworks.skips", "at the cap, and without one")
def counts_go_on_at_the_cap(largest: Any, config: Any) -> object:
    return skipped(largest, config, at_cap=False)


@wrong("frameworks.skips", "at the cap, and without one")
def doubles_or_stays_below_the_cap(largest: Any, config: Any) -> object:
    return skipped(largest, config, doubles=True)


casts = right("frameworks.casts")


@wrong("frameworks.casts", "a tensor that several need")
def casts_each_place_of_an_input(given: Any, nodes: Any) -> object:
    formats, made, found = dict(given), set[tuple[str, str]](), []
    for name, rule, inputs in nodes:
        held = [formats[source] for source in inputs]
        wanted = {"allow": "FP16", "deny": "FP32", "promote": max(held), "keep": held[0]}[rule]
        needed = [(s, wanted) for s in inputs if rule != "keep" and formats[s] != wanted and (s, wanted) not in made]
        found += needed
        made.update(needed)
        formats[name] = wanted
    return found


# --- many workers ---

agree, predivide = right("workers.agree"), right("workers.predivide")


@wrong("workers.agree", "clean gradients, on 1 to 5 ranks")
def who_holds_nothing_overflows(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    return agree(parts, gradients, scale, lr) if all(g.numel() for g in gradients) else (list(parts), scale / 2)


@wrong("workers.agree", "clean gradients, on 1 to 5 ranks")
def leaves_empty_ranks_out(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    kept = [(p, g) for p, g in zip(parts, gradients, strict=True) if len(p)]
    return agree([p for p, _ in kept], [g for _, g in kept], scale, lr)


@wrong("workers.agree", "clean gradients, on 1 to 5 ranks")
def asks_the_largest_of_each(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    found = any(not math.isfinite(float(g.abs().max())) for g in gradients)
    return (list(parts), scale / 2) if found else agree(parts, gradients, scale, lr)


@wrong("workers.predivide", "inf where nothing helps")
def many_infs_are_one_nan(gradients: Any, before: int) -> object:
    many = torch.stack(gradients).isinf().sum(0) > 2
    return torch.where(many, math.nan, predivide(gradients, before))


@wrong("workers.predivide", "inf where nothing helps")
def opposite_infs_cancel(gradients: Any, before: int) -> object:
    signs = torch.stack([g.isinf() * g.sign() for g in gradients]).sum(0)
    both = torch.stack(gradients).isinf().sum(0) > 2
    return torch.where(both & (signs == 0), 0.0, predivide(gradients, before))


@wrong("workers.predivide", "inf where nothing helps")
def in_the_order_of_size(gradients: Any, before: int) -> object:
    return (
        predivide(sorted(gradients, key=lambda g: -float(g[0])), before)
        if len(gradients[0]) == 1
        else predivide(gradients, before)
    )


# --- beyond FP16 ---

keep_parts = right("beyond.keep")


@wrong("beyond.keep", "numbers that change")
def what_never_changes_may_be_short(parts: Any) -> object:
    return [name for name in keep_parts(parts) if (name, "changes", 0.0) not in parts]


# --- the reference, but for one kind of case: (exercise, check, what the kind is called, changed answer) ---


def but(exercise_id: str, when: Callable[..., Any], says: Callable[..., Any]) -> Answer:
    """Return the reference with another answer to such cases: `says` is called with the right one and the case."""

    def answer(*case: Any) -> object:
        found = right(exercise_id)(*case)
        return says(found, *case) if when(*case) else found

    return answer


def of_other(exercise_id: str, change: Callable[..., Any]) -> Answer:
    """Return the reference, called with another case."""
    return lambda *case: right(exercise_id)(*change(*case))


BUT: list[tuple[str, str, str, Answer]] = [
    ("numbers.decode", "infinities and NaN", "the last NaN is inf",
     but("numbers.decode", lambda c: c == 0x7FFF, lambda *_: math.inf)),
    ("numbers.decode", "zero and the subnormal numbers", "the last subnormal number is normal",
     but("numbers.decode", lambda c: c == 0x3FF, lambda *_: 2.0**-14)),
    ("numbers.ulp", "subnormal numbers and zero", "-0 has no distance",
     but("numbers.ulp", lambda x: not x and math.copysign(1, x) < 0, lambda *_: 0.0)),
    ("rounding.smallest_update", "a dozen weights anywhere", "the last odd weights",
     but("rounding.smallest_update", lambda w: w > 1984 and int(w) % 2, lambda found, _: found * 2)),
    ("rounding.stochastic", "positive numbers", "spacings up to 1",
     of_other("rounding.stochastic", lambda x, spacing, random: (x, min(spacing, 1.0), random))),
    ("rounding.stochastic", "multiples of the spacing stay", "0 moves",
     but("rounding.stochastic", lambda x, *_: x == 0, lambda _, x, spacing, random: spacing)),
    ("rounding.kahan", "numbers of either sign", "flushes subnormal numbers",
     of_other("rounding.kahan", lambda v: (np.where(np.abs(v) < 2.0**-14, 0, v).astype(np.float16),))),
    ("rounding.epsilon", "large numbers", "clamps to 32768", of_other("rounding.epsilon", lambda x: (x.clamp(-32768, 32768),))),
    ("rounding.epsilon", "ordinary numbers, answered in FP16", "eight numbers",
     but("rounding.epsilon", lambda x: len(x) > 8, lambda found, x: right("rounding.epsilon")(x[:8]))),
    ("tensor.padding", "one row, one input, one output; and 7, 9, 17", "y ends at 65504",
     but("tensor.padding", lambda *_: True, lambda found, *_: (*found[:2], found[2].clamp(-65504, 65504)))),
    ("tensor.backward", "one row, one input, one output", "a single number",
     but("tensor.backward", lambda x, w, g: x.numel() == w.numel() == 1, lambda found, x, w, g: (g, g, found[2]))),
    ("gradients.fate", "at other scales", "no scale below 2^-8", of_other("gradients.fate", lambda c, k: (c, max(k, -8)))),
    ("gradients.window", "k from -40 to 60", "one gradient alone has no window",
     but("gradients.window", lambda a, b: a == b, lambda *_: None)),
    ("gradients.window", "k from -40 to 60", "goes on below -40",
     but("gradients.window", lambda a, b: b > 2.0**56, lambda *_: (-42, -42))),
    ("autocast.linear", "operands that FP16 must round", "y ends at 65504",
     but("autocast.linear", lambda *_: True, lambda found, *_: (found[0].clamp(-65504, 65504), *found[1:]))),
    ("autocast.linear", "operands that FP16 must round", "gradients end at 65504",
     but("autocast.linear", lambda *_: True, lambda found, *_: (found[0], *(g.clamp(-65504, 65504) for g in found[1:])))),
    ("autocast.softmax", "logits above 89, where exp leaves FP32", "logits from -10000 on",
     of_other("autocast.softmax", lambda x: (x.clamp(min=-10000),))),
    ("autocast.softmax", "small logits", "flushes subnormal probabilities",
     but("autocast.softmax", lambda _: True, lambda found, _: torch.where(found < 2.0**-14, 0.0, found.float()).half())),
    ("autocast.cache", "a weight that is used again is not cast again", "nothing was used",
     but("autocast.cache", lambda w, events: not events, lambda *_: (None, 0))),
    ("autocast.cache", "a weight that is used again is not cast again", "eight weights are kept",
     but("autocast.cache", lambda w, events: len(w) > 8, lambda found, *_: (found[0], len(found[0])))),
    ("scaling.static_step", "large gradients that are finite are no reason to skip", "65504 is an overflow",
     but("scaling.static_step", lambda w, g, s, lr: g(s).abs().max() >= 65504, lambda _, w, *rest: w)),
    ("scaling.static_step", "ordinary gradients move the weight by lr times the gradient", "no scale of 1",
     but("scaling.static_step", lambda w, g, scale, lr: scale == 1, lambda _, w, *rest: w)),
    ("scaling.advance", "the clean step that completes the interval grows the scale", "a cap of 2^32",
     but("scaling.advance", lambda state, *_: state.scale >= 2.0**32, lambda found, state, *_: state)),
    ("master.flat", "filters, a single number, one tensor alone", "leaves empty tensors out",
     of_other("master.flat", lambda flat, grads, scale, lr: (flat, [g for g in grads if g.numel()], scale, lr))),
    ("master.flat", "filters, a single number, one tensor alone", "as it lies in memory",
     of_other("master.flat", lambda flat, grads, *rest: (
         flat, [g if g.is_contiguous() else g.T.reshape(g.shape) for g in grads], *rest))),
    ("master.ema", "before the first step", "all steps were skipped",
     but("master.ema", lambda h, _: len(h) > 1 and not any(s for _, s in h[1:]), lambda found, h, _: found * 0)),
    ("master.ema", "a few large steps", "a decay of 1", but("master.ema", lambda h, d: d == 1, lambda _, h, d: h[-1][0])),
    ("recipes.cheapest", "a cheap one that fails, two that pass", "a range of 0",
     but("recipes.cheapest", lambda fp32, _: max(fp32) == min(fp32), lambda *_: "FP32")),
    ("recipes.cheapest", "a cheap one that fails, two that pass", "as many seeds as FP32",
     of_other("recipes.cheapest", lambda fp32, c: (fp32, [(name, size, m[: len(fp32)]) for name, size, m in c]))),
    ("workers.parts", "ranks that hold nothing", "sixteen ranks",
     but("workers.parts", lambda rows, world: world > 16, lambda found, *_: found[:16])),
    ("workers.parts", "a last part that is shorter", "a thousand rows",
     but("workers.parts", lambda rows, world: rows > 1000, lambda found, *_: [*found[:-1], (found[-1][0], found[-1][1] - 1)])),
    ("beyond.frozen", "updates far from the limit", "a number without dimensions",
     but("beyond.frozen", lambda *_: True, lambda found, w, _: [n for n in found if w[n].dim()])),
    ("beyond.frozen", "updates far from the limit", "nothing is not frozen",
     but("beyond.frozen", lambda *_: True, lambda found, w, _: [n for n in found if w[n].numel()])),
    ("beyond.history", "what is older than the history is forgotten", "at most 32 steps",
     of_other("beyond.history", lambda largest, length, top: (largest, min(length, 32), top))),
    ("beyond.history", "a run shorter than its history", "equal magnitudes",
     but("beyond.history", lambda largest, *_: len(set(largest)) == 1, lambda found, *_: [1.0] * len(found))),
    ("beyond.mx_scale", "blocks whose largest number is positive", "32 numbers",
     of_other("beyond.mx_scale", lambda block, top: (block[:32], top))),
    ("beyond.mx_scale", "blocks whose largest number is positive", "formats by name",
     of_other("beyond.mx_scale", lambda block, top: (block, top if top in (6.0, 448.0, 57344.0) else 6.0))),
    ("beyond.block", "numbers of the format, and beyond its end", "small numbers are 0",
     but("beyond.block", lambda *_: True, lambda found, block, scale, _: [
         0.0 if abs(x) < scale / 1024 else y for x, y in zip(block, found, strict=True)])),
    ("beyond.orders", "small numbers after a large one", "two numbers",
     but("beyond.orders", lambda n: len(n) == 2, lambda _, n: (sum(n), sum(n)))),
    ("beyond.unit", "layers as wide as what comes in", "5000 inputs at most",
     of_other("beyond.unit", lambda fan_in, width, size: (min(fan_in, 5000), width, size))),
    ("beyond.unit", "layers as wide as what comes in", "a whole root",
     of_other("beyond.unit", lambda fan_in, width, size: (math.isqrt(fan_in) ** 2, width, size))),
    ("numbers.first_gap", "formats that end before they get gaps", "the end of two bits",
     but("numbers.first_gap", lambda e, s: e == 2 and s > 1, lambda _, e, s: 2 ** (s + 1) + 1)),
    ("rounding.stochastic", "multiples of the spacing stay", "spacings that are powers of two",
     of_other("rounding.stochastic", lambda x, spacing, random: (x, 2.0 ** (math.frexp(spacing)[1] - 1), random))),
    ("rounding.kahan", "sums that FP16 alone cannot get quite right", "from the last to the first",
     of_other("rounding.kahan", lambda v: (v[::-1],))),
    ("rounding.kahan", "sums that FP16 alone cannot get quite right", "the smallest first",
     of_other("rounding.kahan", lambda v: (v[np.argsort(abs(v), kind="stable")],))),
    ("tensor.intensity", "small batches", "two bytes or four",
     of_other("tensor.intensity", lambda n, i, o, each, ridge: (n, i, o, 2 if each < 4 else 4, ridge))),
    ("gradients.binades", "a power of two opens its binade", "a quotient of logarithms",
     lambda values: dict(Counter(math.floor(math.log(abs(x), 2)) for x in values if x and math.isfinite(x)))),
    ("gradients.lost", "all tensors together", "a mean of each tensor",
     lambda a, b: sum(float(((h == 0) & (t != 0)).float().mean()) * t.numel() for t, h in zip(a, b, strict=True))
     / max(1, sum(int(t.count_nonzero()) for t in a))),
    ("gradients.culprit", "the first inf", "the first row",
     lambda tensors: next(((name, float(tensors[i - 1][1].abs().max()) if i else 0.0)
                           for i, (name, t) in enumerate(tensors) if not t.flatten()[:3].isfinite().all()), None)),
    ("autocast.lists", "exponentials, reductions and losses", "losses by name",
     but("autocast.lists", lambda op: op.endswith("_loss"), lambda *_: "keep")),
    ("autocast.linear", "operands that FP16 must round", "y ends at -65504",
     but("autocast.linear", lambda *_: True, lambda found, *_: (found[0].clamp(min=-65504), *found[1:]))),
    ("autocast.linear", "operands that FP16 must round", "gradients end at -65504",
     but("autocast.linear", lambda *_: True, lambda found, *_: (found[0], *(g.clamp(min=-65504) for g in found[1:])))),
    ("autocast.linear", "operands that FP16 must round", "x ends at 65504",
     of_other("autocast.linear", lambda x, *rest: (x.clamp(-65504, 65504), *rest))),
    ("autocast.linear", "operands that FP16 must round", "a bias ends at 65504",
     of_other("autocast.linear", lambda x, w, bias, g: (x, w, bias.clamp(-65504, 65504), g))),
    ("autocast.linear", "operands that FP16 must round", "an inf that arrives is 65504",
     of_other("autocast.linear", lambda x, w, bias, g: (x, w, bias, g.nan_to_num()))),
    ("autocast.linear", "gradients that underflow, underflow", "flushes subnormal operands",
     of_other("autocast.linear", lambda x, *rest: (torch.where(x.abs() < 2.0**-14, 0.0, x), *rest))),
    ("autocast.softmax", "logits above 89, where exp leaves FP32", "logits up to 10000",
     of_other("autocast.softmax", lambda x: (x.clamp(max=10000),))),
    ("autocast.softmax", "logits above 89, where exp leaves FP32", "logits up to 60000",
     of_other("autocast.softmax", lambda x: (x.clamp(max=60000),))),
    *[("autocast.softmax", "a masked logit of -inf", f"a mask of {low}",
       of_other("autocast.softmax", lambda x, low=low: (x.clamp(min=low),))) for low in (-10000, -65504)],
    ("autocast.softmax", "a masked logit of -inf", "masks but in the last column",
     of_other("autocast.softmax", lambda x: (torch.cat([x[:, :-1], x[:, -1:].clamp(min=-10)], 1),))),
    ("scaling.advance", "inf or NaN backs off and starts the count again", "a floor of 1",
     but("scaling.advance", lambda state, found_inf, _: found_inf and state.scale <= 1, lambda _, state, *rest: (
         replace(state, growth_tracker=0)))),
    ("scaling.advance", "the clean step that completes the interval grows the scale", "a cap of 2^41",
     but("scaling.advance", lambda state, *_: state.scale > 2.0**41, lambda _, state, *rest: state)),
    *[("scaling.clip", f"{what} skips the step", "never looks at first elements",
       of_other("scaling.clip", lambda grads, *rest: (
           [torch.cat([g.flatten()[:1].nan_to_num(0, 0, 0), g.flatten()[1:]]).reshape(g.shape) for g in grads], *rest)))
      for what in ("inf", "NaN")],
    ("scaling.repair", "clean steps are counted, and the interval grows the scale", "a cap of 2^64",
     but("scaling.repair", lambda scale, *_: scale >= 2.0**64, lambda found, scale, *_: (scale, *found[1:]))),
    ("master.ema", "skipped steps do not count", "starts with the first step that was taken",
     of_other("master.ema", lambda history, decay: ([row for row in history if row[1]] or history[:1], decay))),
    ("recipes.epsilon", "gradients whose square FP16 holds", "a v of inf",
     but("recipes.epsilon", lambda g, _: 0.001 * g * g >= 65520, lambda *_: "inf")),
    ("recipes.which", "mixtures of FP16 that have no name", "any norm in O1",
     but("recipes.which", lambda w, n, s, o: (w, s, o) == (torch.float32, torch.float32, torch.float16), lambda *_: "O1")),
    ("recipes.which", "mixtures of FP16 that have no name", "any norm in O0",
     but("recipes.which", lambda w, n, s, o: (w, s, o) == (torch.float32,) * 3 and n != torch.bfloat16, lambda *_: "O0")),
    ("recipes.cheapest", "a cheap one that fails, two that pass", "no more seeds than FP32",
     of_other("recipes.cheapest", lambda fp32, c: (fp32, [row for row in c if len(row[2]) <= len(fp32)]))),
    ("workers.parts", "ranks that hold nothing", "rounds up from 0.01 on",
     lambda rows, world: [(min(i * each, rows), min((i + 1) * each, rows))
                          for each in [round(rows / world + 0.49)] for i in range(world)]),
    ("beyond.frozen", "updates far from the limit", "compares bits",
     lambda w, u: [n for n in w if (w[n] + u[n]).bfloat16().view(torch.int16).equal(w[n].view(torch.int16))]),
    ("beyond.frozen", "updates far from the limit", "beyond BF16 is frozen",
     lambda w, u: [n for n in w for x in [(w[n] + u[n]).bfloat16()] if bool(((x == w[n]) | ~x.isfinite()).all())]),
    ("beyond.clipped", "equal programs, and no texts", "looks up a text's place",
     but("beyond.clipped", lambda *_: True, lambda found, learner, *_: [learner.index(learner[i]) for i in found])),
    ("beyond.block", "numbers of the format, and beyond its end", "inf stays",
     but("beyond.block", lambda *_: True, lambda found, block, *_: [
         x if math.isinf(x) else y for x, y in zip(block, found, strict=True)])),
]  # fmt: skip
ROWS += [pytest.param(id, check, answer, id=f"{id}: {name}") for id, check, name, answer in BUT]


@pytest.mark.parametrize(("exercise_id", "check", "answer"), ROWS)
def test_it_loses_the_check_whose_case_it_fails(exercise_id: str, check: str, answer: Answer) -> None:
    """In the notebook and at grading; and a counter-example says what was expected."""
    exercise = EXERCISES[exercise_id]
    for paper in (visible_paper(exercise), paper_of(exercise, 1)):
        (verdict,) = [verdict for verdict in graded(paper, answer).verdicts if verdict.check.name == check]
        assert verdict.counter_example is not None
        assert verdict.counter_example.difference
