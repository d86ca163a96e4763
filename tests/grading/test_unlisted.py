"""Answers that no exercise lists: plausible wrong ones, which all earned full marks once, and unusual right ones.

Each wrong one stands for a kind of input that the draws lacked: a matrix, a minus sign, a tie, an order, an extreme.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, deque
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

from labkit.grading import EXERCISES, judge
from labkit.grading.judge import Paper, answers_of, paper_of, visible_paper

Answer = Callable[..., object]
WRONG: list[tuple[str, Answer]] = []
RIGHT: list[tuple[str, Answer]] = []


def wrong(exercise_id: str) -> Callable[[Answer], Answer]:
    return lambda answer: (WRONG.append((exercise_id, answer)), answer)[1]


def right(exercise_id: str) -> Callable[[Answer], Answer]:
    return lambda answer: (RIGHT.append((exercise_id, answer)), answer)[1]


def passes(paper: Paper, answer: Answer) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grade = judge(paper, answers_of(paper, answer, paper.exercise.withheld))
    return all(verdict.passed for verdict in grade.verdicts)


def named(table: list[tuple[str, Answer]]) -> list[Any]:
    return [pytest.param(*row, id=f"{row[0]}: {row[1].__name__}") for row in table]


# --- gradients ---


@wrong("gradients.binades")
def down_to_2_to_the_minus_60(values: Any) -> object:
    exponents = [math.frexp(x)[1] - 1 for x in values if x and math.isfinite(x)]
    return {e: exponents.count(e) for e in exponents if -60 < e < 60}


@right("gradients.binades")
def by_a_counter(values: Any) -> object:
    return Counter(math.frexp(x)[1] - 1 for x in values if x and math.isfinite(x))


@wrong("gradients.fate")
def scales_up_to_2_to_the_16(counts: Any, log2_scale: int) -> object:
    return 1 - kept_share(counts, min(log2_scale, 16))


@wrong("gradients.fate")
def takes_overflow_for_lost(counts: Any, log2_scale: int) -> object:
    return 1 - kept_share(counts, log2_scale, highest=15)


def kept_share(counts: Any, log2_scale: int, highest: float = math.inf) -> float:
    total = sum(counts.values())
    return sum(n / total for e, n in counts.items() if -25 <= e + log2_scale <= highest) if total else 1.0


@right("gradients.fate")
def one_minus_the_rest(counts: Any, log2_scale: int) -> object:
    return 1 - kept_share(counts, log2_scale)


@right("gradients.lost")
def a_mean_in_fp32(in_fp32: Any, in_fp16: Any) -> object:
    exact, half = (torch.cat([torch.zeros(1), *(t.float().flatten() for t in some)]) for some in (in_fp32, in_fp16))
    lost = half[exact != 0] == 0
    return lost.float().mean().item() if len(lost) else 0


@wrong("gradients.culprit")
def asks_the_largest(tensors: Any) -> object:
    return first_with(tensors, lambda tensor: not tensor.max().isfinite())


@wrong("gradients.culprit")
def takes_65504_for_an_overflow(tensors: Any) -> object:
    return first_with(tensors, lambda tensor: bool(tensor.isnan().any()) or bool((tensor.abs() >= 65504).any()))


@wrong("gradients.culprit")
def looks_up_by_name(tensors: Any) -> object:
    return first_with(list(dict(tensors).items()), lambda tensor: not tensor.isfinite().all())


@wrong("gradients.culprit")
def rows_of_a_matrix(tensors: Any) -> object:
    return first_with(tensors, lambda tensor: any(not math.isfinite(x) for row in tensor for x in row))


def first_with(tensors: Any, bad: Callable[[Any], object]) -> object:
    before = 0.0
    for name, tensor in tensors:
        if bad(tensor):
            return name, before
        before = float(tensor.abs().max())
    return None


# --- frameworks ---


@wrong("frameworks.skips")
def stays_above_the_floor(largest: Any, config: Any) -> object:
    scale, clean, overflows, skipped = config.init_scale, 0, 0, []
    for step, gradient in enumerate(largest, start=1):
        if (scale > config.floor or not config.steps_at_floor) and scale * gradient >= 65520:
            skipped.append(step)
            clean, overflows = 0, overflows + 1
            if overflows >= config.hysteresis and scale / 2 >= config.floor:  # or else scale = floor
                scale /= 2
        else:
            clean += 1
            if clean == config.growth_interval:
                scale, clean, overflows = min(scale * 2, config.cap), 0, 0
    return skipped


@wrong("frameworks.casts")
def promotes_two(given: Any, nodes: Any) -> object:
    formats, casts = dict(given), dict[tuple[str, str], None]()
    for name, rule, inputs in nodes:
        held = [formats[source] for source in inputs]
        widest = {"allow": "FP16", "deny": "FP32", "promote": max(held[:2]), "keep": held[0]}[rule]
        casts.update(((s, widest), None) for s in inputs if rule != "keep" and formats[s] != widest)
        formats[name] = widest
    return list(casts)


# --- beyond.frozen ---


def after(weight: Any, update: Any) -> Any:
    return (weight.float() + update).bfloat16()


@wrong("beyond.frozen")
def vectors_only(weights: Any, updates: Any) -> object:
    def stays(name: str, i: int) -> bool:
        return bool(after(weights[name][i], updates[name][i]).item() == weights[name][i].item())

    return [name for name, weight in weights.items() if all(stays(name, i) for i in range(len(weight)))]


@wrong("beyond.frozen")
def rounds_half_up(weights: Any, updates: Any) -> object:
    def rounded(x: Any) -> Any:
        return (((x.view(torch.int32) + 0x8000) >> 16) << 16).view(torch.float32)

    return [name for name, weight in weights.items() if rounded(weight.float() + updates[name]).equal(weight.float())]


@wrong("beyond.frozen")
def in_the_order_of_updates(weights: Any, updates: Any) -> object:
    return [name for name in updates if after(weights[name], updates[name]).equal(weights[name])]


@wrong("beyond.frozen")
def pairs_by_place(weights: Any, updates: Any) -> object:
    pairs = zip(weights.items(), updates.values(), strict=True)
    return [name for (name, weight), update in pairs if after(weight, update).equal(weight)]


@wrong("beyond.frozen")
def compares_sums(weights: Any, updates: Any) -> object:
    return [n for n, w in weights.items() if after(w, updates[n]).float().sum() == w.float().sum()]


@wrong("beyond.frozen")
def positive_weights_only(weights: Any, updates: Any) -> object:
    return [name for name, weight in weights.items() if after(weight.clamp(min=0), updates[name]).equal(weight)]


@wrong("beyond.frozen")
def zero_is_always_frozen(weights: Any, updates: Any) -> object:
    return [n for n, w in weights.items() if after(w, updates[n]).equal(w) or bool((w == 0).all())]


@right("beyond.frozen")
def copies_into_place(weights: Any, updates: Any) -> object:
    def stays(name: str) -> bool:
        return not bool((weights[name].clone().add_(updates[name]) != weights[name]).any())

    return tuple(filter(stays, weights))


# --- beyond.history ---


def scales(largest: Any, length: int, top: float, least: float = 0.0) -> list[float]:
    windows = [max(largest[max(0, i - length) : i], default=0.0) for i in range(len(largest))]
    return [top / m if m > least else 1.0 for m in windows]


@wrong("beyond.history")
def with_an_epsilon(largest: Any, length: int, top: float) -> object:
    return scales(largest, length, top, 1e-8)


@wrong("beyond.history")
def at_most_16_steps(largest: Any, length: int, top: float) -> object:
    return scales(largest, min(length, 16), top)


@wrong("beyond.history")
def never_below_1(largest: Any, length: int, top: float) -> object:
    return [max(1.0, scale) for scale in scales(largest, length, top)]


@wrong("beyond.history")
def each_magnitude_once(largest: Any, length: int, top: float) -> object:
    found, window = [], set[float]()
    for i, magnitude in enumerate(largest):
        if i > length:
            window.discard(largest[i - length - 1])
        found.append(top / max(window) if window and max(window) else 1.0)
        window.add(magnitude)
    return found


@right("beyond.history")
def times_the_reciprocal(largest: Any, length: int, top: float) -> object:
    window, found = deque([0.0], maxlen=length), []
    for magnitude in largest:
        found.append(top * (1 / max(window)) if max(window) else 1)
        window.append(magnitude)
    return tuple(found)


@right("beyond.history")
def by_recursion(largest: Any, length: int, top: float) -> object:
    if not largest:
        return []
    *before, _ = largest
    highest = max(before[-length:], default=0.0)
    return [*by_recursion(before, length, top), top / highest if highest else 1.0]  # type: ignore[misc]


# --- beyond.mx_scale ---


def exponent(block: Any, top: float, last: int = 200) -> int:
    return next(k for k in range(-127, last + 1) if k == last or max(map(abs, block)) <= top * 2.0**k)


@wrong("beyond.mx_scale")
def to_100_at_most(block: Any, top: float) -> object:
    return exponent(block, top, 100)


@wrong("beyond.mx_scale")
def takes_tiny_for_zero(block: Any, top: float) -> object:
    return exponent([x if abs(x) > 1e-30 else 0.0 for x in block], top)


@right("beyond.mx_scale")
def by_a_logarithm(block: Any, top: float) -> object:
    largest = max(abs(x) for x in block)
    return max(-127, math.ceil(math.log2(largest / top))) if largest else -127


@right("beyond.mx_scale")
def in_torch(block: Any, top: float) -> object:
    largest = torch.tensor(block).abs().max()  # FP32, as the numbers are
    return next(k for k in range(-127, 129) if largest <= top * 2.0**k)


# --- beyond.block ---

GRID = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@wrong("beyond.block")
def sixteen_at_most(block: Any, scale: float, random: Any) -> object:
    return list(whole_arrays(block[:16], scale, random[:16]))  # type: ignore[call-overload]


@right("beyond.block")
def whole_arrays(block: Any, scale: float, random: Any) -> object:
    x = np.array(block, dtype=float)
    size = np.minimum(np.abs(x) / scale, 6)
    place = np.clip(np.searchsorted(GRID, size, side="right") - 1, 0, 6)
    lower, upper = GRID[place], GRID[place + 1]
    return list(np.sign(x) * scale * np.where(np.array(random) < (size - lower) / (upper - lower), upper, lower))


# --- beyond.orders ---


@right("beyond.orders")
def begins_with_the_first(numbers: Any) -> object:
    def in_turn(part: Any) -> Any:
        return reduce(lambda a, b: np.float32(a + b), part) if part else 0.0

    half = len(numbers) // 2
    return [in_turn(numbers), np.float32(in_turn(numbers[:half]) + in_turn(numbers[half:]))]


# --- beyond.keep ---


@wrong("beyond.keep")
def what_changes_first(parts: Any) -> object:
    changes = [name for name, kind, x in parts if kind == "changes" and x < 2**-9]
    return changes + [name for name, kind, x in parts if kind == "counts" and x > 256]


@wrong("beyond.keep")
def tiny_changes_are_none(parts: Any) -> object:
    return [name for name, kind, x in parts if (x > 256 if kind == "counts" else 1e-7 < x < 2**-9)]


# --- workers.agree ---


def step(bad: bool, parts: Any, gradients: Any, scale: float, lr: float, halved: float | None = None) -> object:
    if bad:
        return list(parts), scale / 2 if halved is None else halved
    return [part - lr * (g.float() / scale) for part, g in zip(parts, gradients, strict=True)], scale


def bad(gradients: Any) -> bool:
    return not all(bool(g.isfinite().all()) for g in gradients)


@wrong("workers.agree")
def asks_first_elements(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    return step(bad([g.flatten()[0] for g in gradients]), parts, gradients, scale, lr)


@wrong("workers.agree")
def asks_the_norm_in_fp16(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    return step(bad([g.norm() for g in gradients]), parts, gradients, scale, lr)


@wrong("workers.agree")
def asks_for_plus_inf(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    found = any(bool(((g == math.inf) | g.isnan()).any()) for g in gradients)
    return step(found, parts, gradients, scale, lr)


@wrong("workers.agree")
def asks_the_sums_for_inf(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    found = any(bool(g.float().sum().isinf()) or bool(g.isnan().any()) for g in gradients)
    return step(found, parts, gradients, scale, lr)


@wrong("workers.agree")
def takes_65504_for_inf(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    found = any(bool(((g.abs() >= 65504) | g.isnan()).any()) for g in gradients)
    return step(found, parts, gradients, scale, lr)


@wrong("workers.agree")
def halves_whole_numbers(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    return step(bad(gradients), parts, gradients, scale, lr, halved=scale // 2)


@wrong("workers.agree")
def keeps_the_scale_above_1(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    return step(bad(gradients), parts, gradients, scale, lr, halved=max(1.0, scale / 2))


@wrong("workers.agree")
def vectors(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    if bad(gradients):
        return parts, scale / 2
    pairs = [zip(part.tolist(), g.tolist(), strict=True) for part, g in zip(parts, gradients, strict=True)]
    return [torch.tensor([w - lr * x / scale for w, x in pair]) for pair in pairs], scale


@wrong("workers.agree")
def four_ranks(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    return step(bad(gradients[:4]), parts, gradients, scale, lr)


@right("workers.agree")
def as_one_tensor(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    gradient = torch.cat(gradients).float() / scale
    if not gradient.isfinite().all():
        return [part.clone() for part in parts], scale * 0.5
    return (torch.cat(parts) - lr * gradient).split([len(part) for part in parts]), scale


# --- workers.predivide ---


@wrong("workers.predivide")
def masks_nan(gradients: Any, before: int) -> object:
    return element_by_element(gradients, before).nan_to_num(0, math.inf, -math.inf)  # type: ignore[attr-defined]


@right("workers.predivide")
def element_by_element(gradients: Any, before: int) -> object:
    means = []
    for column in zip(*(g.tolist() for g in gradients), strict=True):
        total = np.float16(0)
        for x in column:
            total = np.float16(total + np.float16(x) / np.float16(before))
        means.append(total / np.float16(len(gradients) / before))
    return torch.tensor(np.array(means))


@pytest.mark.parametrize(("exercise_id", "answer"), named(WRONG))
def test_a_wrong_answer_that_no_exercise_lists_is_refused_in_the_notebook(exercise_id: str, answer: Answer) -> None:
    assert not passes(visible_paper(EXERCISES[exercise_id]), answer)


@pytest.mark.parametrize(("exercise_id", "answer"), named(RIGHT))
def test_an_unusual_right_answer_earns_all_at_grading(exercise_id: str, answer: Answer) -> None:
    assert passes(paper_of(EXERCISES[exercise_id], 1), answer)
