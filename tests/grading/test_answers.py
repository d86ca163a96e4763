"""Right answers in another dress than the reference's: they earn everything, in the notebook and at grading."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import torch

from labkit.amp import ScalerState
from labkit.grading import EXERCISES, check, judge
from labkit.grading.judge import answers_of, paper_of

Answer = Callable[..., object]
RIGHT: list[tuple[str, Answer]] = []


def right(exercise_id: str) -> Callable[[Answer], Answer]:
    return lambda answer: (RIGHT.append((exercise_id, answer)), answer)[1]


GRID = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # of FP4


@right("gradients.lost")
def a_mean_in_fp32(in_fp32: Any, in_fp16: Any) -> object:
    exact, half = (torch.cat([torch.zeros(1), *(t.float().flatten() for t in some)]) for some in (in_fp32, in_fp16))
    lost = half[exact != 0] == 0
    return lost.float().mean().item() if len(lost) else 0


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


@right("beyond.block")
def whole_arrays(block: Any, scale: float, random: Any) -> object:
    x = np.array(block, dtype=float)
    size = np.minimum(np.abs(x) / scale, 6)
    place = np.clip(np.searchsorted(GRID, size, side="right") - 1, 0, 6)
    lower, upper = GRID[place], GRID[place + 1]
    return list(np.sign(x) * scale * np.where(np.array(random) < (size - lower) / (upper - lower), upper, lower))


def in_turn(part: Any) -> Any:
    return reduce(lambda a, b: np.float32(a + b), part) if part else 0.0


@right("workers.agree")
def as_one_tensor(parts: Any, gradients: Any, scale: float, lr: float) -> object:
    gradient = torch.cat(gradients).float() / scale
    if not gradient.isfinite().all():
        return [part.clone() for part in parts], scale * 0.5
    return (torch.cat(parts) - lr * gradient).split([len(part) for part in parts]), scale


@right("workers.predivide")
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


@right("scaling.unscale")
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


@right("numbers.decode")
def decode_in_fractions(code: int) -> Any:
    sign, exponent, significand = -1 if code >> 15 else 1, code >> 10 & 31, code & 1023
    if exponent == 31:
        return math.nan if significand else sign * math.inf
    if exponent == 0:
        return sign * Fraction(significand, 1 << 24)
    return sign * Fraction(1024 + significand, 1024) * Fraction(2) ** (exponent - 15)


@right("recipes.lines")
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
            paper = paper_of(EXERCISES[id], seed)
            grade = judge(paper, answers_of(paper, answer, EXERCISES[id].withheld))
            assert grade.points == EXERCISES[id].points, (answer.__name__, str(grade))
