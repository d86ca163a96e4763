"""Answers as people write them, from a task's text alone: wrong ones lose, in the notebook too; right ones never do."""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from labkit.amp import ScalerState
from labkit.formats import FP16, round_to
from labkit.grading import EXERCISES, check, judge
from labkit.grading.judge import answers_of, paper_of

SEEDS = (1, 2)
Answer = Callable[..., object]


def fp16(x: float) -> float:
    return float(round_to(x, FP16))


# --- recipes.verdict ---


Metrics = list[float]


def verdict(spread: Callable[[Metrics, Metrics, Metrics], float]) -> Answer:
    """Return an answer that takes something else for the standard deviation over the root of n."""

    def answer(fp32: Metrics, other: Metrics, margin: float, t_90: float, t_95: float) -> str:
        other = [0.0 if math.isnan(b) else b for b in other]
        d = [b - a for a, b in zip(fp32, other, strict=True)]
        mean, error = statistics.mean(d), spread(fp32, other, d)
        if abs(mean) + t_90 * error < margin:
            return "as good"
        if abs(mean) <= max(max(fp32) - min(fp32), t_95 * error):
            return "cannot tell"
        return "worse" if mean < 0 else "better"

    return answer


def verdict_without_broken_pairs(fp32: Metrics, other: Metrics, *rest: float) -> str:
    pairs = [(a, b) for a, b in zip(fp32, other, strict=True) if not math.isnan(b)]
    if len(pairs) < 2:
        return "worse"
    return str(EXERCISES["recipes.verdict"].reference([a for a, _ in pairs], [b for _, b in pairs], *rest))


def verdict_worse_if_any_broke(fp32: Metrics, other: Metrics, *rest: float) -> str:
    return "worse" if any(map(math.isnan, other)) else str(EXERCISES["recipes.verdict"].reference(fp32, other, *rest))


# --- autocast.dtypes ---


def dtypes_of_two_operands(steps: Any, given: Any) -> list[str]:
    known, answer = dict(given), []
    for result, rule, operands in steps:
        arriving = [known[name] for name in operands][:2]
        wide = rule == "deny" or (rule != "allow" and "FP32" in arriving)
        known[result] = "FP32" if wide else "FP16"
        answer.append(known[result])
    return answer


def dtypes_looked_up_at_the_end(steps: Any, given: Any) -> list[str]:
    known = dict(given)
    for result, rule, operands in steps:
        wide = rule == "deny" or (rule != "allow" and "FP32" in [known[name] for name in operands])
        known[result] = "FP32" if wide else "FP16"
    return [known[result] for result, _, _ in steps]


def dtypes_where_keep_takes_the_latest(steps: Any, given: Any) -> list[str]:
    known, answer = dict(given), list[str]()
    for result, rule, operands in steps:
        arriving = [known[name] for name in operands]
        if rule == "keep" and answer:
            arriving = answer[-1:]
        wide = rule == "deny" or (rule != "allow" and "FP32" in arriving)
        known[result] = "FP32" if wide else "FP16"
        answer.append(known[result])
    return answer


# --- recipes.epsilon ---


def fate(v: Callable[[float], float], epsilon: Callable[[float], float]) -> Answer:
    def answer(gradient: float, given: float) -> str:
        if v(gradient) != 0 or epsilon(given) != 0:
            return "finite"
        return "nan" if gradient == 0 else "inf"

    return answer


def at_least(limit: float) -> Callable[[float], float]:
    return lambda x: x if x >= limit else 0.0


# --- the others ---


def softmax_with_a_sum_in_fp16(logits: torch.Tensor) -> torch.Tensor:
    powers = torch.exp(logits.float() - logits.float().max(dim=1, keepdim=True).values)
    return (powers / powers.sum(dim=1, keepdim=True).half().float()).half()


def padded_with_an_fp16_accumulator(x: torch.Tensor, weight: torch.Tensor) -> Any:
    wide, tall, _ = EXERCISES["tensor.padding"].reference(x, weight)  # type: ignore[misc]
    y = torch.zeros(len(x), len(weight)).half()
    for k in range(x.shape[1]):
        y = y + x[:, k : k + 1] * weight[:, k]
    return wide, tall, y


def stochastic_that_flushes(x: float, spacing: float, random: float) -> float:
    if abs(x) < spacing:
        return 0.0
    lower = math.floor(x / spacing)
    return (lower + (random < x / spacing - lower)) * spacing


def static_step_that_asks_the_sum(weight: Any, gradient_of: Any, scale: float, lr: float) -> Any:
    scaled = gradient_of(scale)
    return weight - lr * (scaled.float() / scale) if torch.isfinite(scaled.sum()) else weight


def update_before_step(loop: Any) -> Any:
    loop.zero_grad()
    for batch in loop.batches:
        loop.backward(batch)
    for part in (loop.unscale, loop.clip, loop.update, loop.step, loop.copy_back):
        part()
    return loop


def linear_with_an_fp32_bias(x: Any, weight: Any, bias: Any, grad_y: Any) -> Any:
    _, grad_x, grad_weight = EXERCISES["autocast.linear"].reference(x, weight, bias, grad_y)  # type: ignore[misc]
    return (x.half().float() @ weight.half().float().T + bias).half(), grad_x, grad_weight


def cheapest_where_nan_is_zero(fp32: list[float], candidates: Any) -> str:
    lowest = statistics.mean(fp32) - (max(fp32) - min(fp32))
    means = [(n, size, statistics.mean(0.0 if math.isnan(x) else x for x in m)) for n, size, m in candidates]
    return min(((size, name) for name, size, mean in means if mean >= lowest), default=(0, "FP32"))[1]


def repaired_by(complete: Callable[[int, int], bool]) -> Answer:
    """Return the repaired scaler with another question for "the interval is complete"."""

    def answer(scale: float, tracker: int, grads: Any, growth_interval: int) -> Any:
        if not all(grad.isfinite().all() for grad in grads):
            return max(scale / 2, 1.0), 0, False
        return (scale * 2, 0, True) if complete(tracker + 1, growth_interval) else (scale, tracker + 1, True)

    return answer


def cheapest_where(mean: Callable[[Metrics], float], spread: Callable[[Metrics], float]) -> Answer:
    """Return an answer that takes something else for FP32's mean, or for how far its runs lie apart."""

    def answer(fp32: Metrics, candidates: Any) -> str:
        lowest = mean(fp32) - spread(fp32)
        passing = [(size, name) for name, size, metrics in candidates if statistics.mean(metrics) >= lowest]
        return min(passing, default=(0, "FP32"))[1]

    return answer


WRONG: dict[str, tuple[str, Answer]] = {
    "a constant": ("recipes.verdict", lambda *_: "cannot tell"),
    "the population's deviation": (
        "recipes.verdict",
        verdict(lambda a, b, d: statistics.pstdev(d) / math.sqrt(len(d))),
    ),
    "not divided by the root": ("recipes.verdict", verdict(lambda a, b, d: statistics.stdev(d))),
    "the spread of the other": (
        "recipes.verdict",
        verdict(lambda a, b, d: statistics.stdev(b) / math.sqrt(len(d))),
    ),
    "the spread of FP32": ("recipes.verdict", verdict(lambda a, b, d: statistics.stdev(a) / math.sqrt(len(d)))),
    "broken pairs left out": ("recipes.verdict", verdict_without_broken_pairs),
    "worse if any broke": ("recipes.verdict", verdict_worse_if_any_broke),
    "two operands": ("autocast.dtypes", dtypes_of_two_operands),
    "a name assigned twice": ("autocast.dtypes", dtypes_looked_up_at_the_end),
    "keep of the latest": ("autocast.dtypes", dtypes_where_keep_takes_the_latest),
    "epsilon from 2^-24": ("recipes.epsilon", fate(lambda g: fp16(0.001 * g**2), at_least(2.0**-24))),
    "epsilon at 2^-25": ("recipes.epsilon", fate(lambda g: fp16(0.001 * g**2), at_least(2.0**-25))),
    "v from 2^-24": ("recipes.epsilon", fate(lambda g: at_least(2.0**-24)(0.001 * g**2), fp16)),
    "a sum in FP16": ("autocast.softmax", softmax_with_a_sum_in_fp16),
    "an FP16 accumulator": ("tensor.padding", padded_with_an_fp16_accumulator),
    "flushes what is small": ("rounding.stochastic", stochastic_that_flushes),
    "asks the sum in FP16": ("scaling.static_step", static_step_that_asks_the_sum),
    "update before step": ("scaling.order", update_before_step),
    "a bias in FP32": ("autocast.linear", linear_with_an_fp32_bias),
    "a lowered interval and ==": ("scaling.repair", repaired_by(lambda count, interval: count == interval)),
    "a lowered interval's remainder": ("scaling.repair", repaired_by(lambda count, interval: count % interval == 0)),
    "the last less the first": ("recipes.cheapest", cheapest_where(statistics.mean, lambda a: abs(a[-1] - a[0]))),
    "the median for the mean": ("recipes.cheapest", cheapest_where(statistics.median, lambda a: max(a) - min(a))),
    "NaN counts as 0": ("recipes.cheapest", cheapest_where_nan_is_zero),
}


def test_a_wrong_answer_loses_in_the_notebook_and_at_grading() -> None:
    for name, (id, answer) in WRONG.items():
        assert "Solved" not in str(check(id, answer)), name
        for seed in SEEDS:
            paper = paper_of(EXERCISES[id], seed)
            assert judge(paper, answers_of(paper, answer)).points < EXERCISES[id].points, (name, seed)


@pytest.mark.slow  # every FP16 number
def test_rounding_the_square_first_changes_no_answer_of_epsilon() -> None:
    """v rounded twice looks like a mistake, and is none for any gradient that FP16 holds."""
    twice = fate(lambda g: fp16(0.001 * fp16(g**2)), fp16)
    for gradient in np.arange(0x7C00, dtype=np.uint16).view(np.float16).tolist():
        assert twice(gradient, 1e-8) == EXERCISES["recipes.epsilon"].reference(gradient, 1e-8)


# --- right, in another dress ---


Pair = namedtuple("Pair", ["grads", "found_inf"])


def advance_in_numpy(state: Any, found_inf: bool, config: Any) -> ScalerState:
    tracker = np.int64(0 if found_inf else state.growth_tracker + 1)
    if found_inf:
        return ScalerState(np.float64(state.scale * config.backoff_factor), tracker)
    if tracker >= config.growth_interval:
        return ScalerState(np.float64(state.scale * config.growth_factor), np.int64(0))
    return ScalerState(state.scale, tracker)


def unscale_in_torch(scaled_grads: Any, scale: float) -> Any:
    grads = [grad.float() / scale for grad in scaled_grads]
    return Pair(grads, ~torch.tensor([bool(torch.isfinite(grad).all()) for grad in grads]).all())


def advance_by(complete: Callable[[int, int], bool]) -> Answer:
    """Return the scaler's rule with another question for "the interval is complete"."""

    def answer(state: Any, found_inf: bool, config: Any) -> ScalerState:
        if found_inf:
            return ScalerState(state.scale * config.backoff_factor, 0)
        if complete(state.growth_tracker + 1, config.growth_interval):
            return ScalerState(state.scale * config.growth_factor, 0)
        return ScalerState(state.scale, state.growth_tracker + 1)

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


def layer_without_a_division(batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float) -> Any:
    flops, moved = 2 * batch * inputs * outputs, bytes_each * (batch * inputs + inputs * outputs + batch * outputs)
    return flops, moved, "compute" if flops >= ridge * moved else "bandwidth"


def layer_in_fractions(batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float) -> Any:
    flops, moved, _ = layer_without_a_division(batch, inputs, outputs, bytes_each, ridge)
    return flops, moved, "compute" if Fraction(flops, moved) >= Fraction(ridge) else "bandwidth"


def decode_in_fractions(code: int) -> Any:
    sign, exponent, significand = -1 if code >> 15 else 1, code >> 10 & 31, code & 1023
    if exponent == 31:
        return math.nan if significand else sign * math.inf
    if exponent == 0:
        return sign * Fraction(significand, 1 << 24)
    return sign * Fraction(1024 + significand, 1024) * Fraction(2) ** (exponent - 15)


def lines_that_look_first(masters: bool, scaling: bool, batches: int) -> list[str]:
    """The scale is above 1, so dividing by it makes no inf: FP16 gradients may be looked at as they come."""
    lines = ["forward"] * batches + ["scale loss"] * scaling * batches + ["backward"] * batches
    lines += ["look for inf"] * scaling
    lines += ["gradients to masters"] * masters + ["unscale"] * scaling + ["step"]
    return lines + ["update scale"] * scaling + ["masters to model"] * masters


RIGHT: dict[str, tuple[str, Answer]] = {
    "numpy's integers in a dataclass": ("scaling.advance", advance_in_numpy),
    "a named tuple, and a bool tensor": ("scaling.unscale", unscale_in_torch),
    "a defaultdict": ("master.groups", groups(lambda: defaultdict(list))),
    "an OrderedDict": ("master.groups", groups(OrderedDict)),
    "multiplied, not divided": ("tensor.intensity", layer_without_a_division),
    "a count compared with ==": ("scaling.advance", advance_by(lambda count, interval: count == interval)),
    "a count's remainder": ("scaling.advance", advance_by(lambda count, interval: count % interval == 0)),
    "compared as fractions": ("tensor.intensity", layer_in_fractions),
    "fractions": ("numbers.decode", decode_in_fractions),
    "another sound order": ("recipes.lines", lines_that_look_first),
}


def test_a_right_answer_earns_everything_whatever_its_style() -> None:
    for name, (id, answer) in RIGHT.items():
        assert "Solved" in str(check(id, answer)), (name, str(check(id, answer)))
        for seed in SEEDS:
            paper = paper_of(EXERCISES[id], seed)
            grade = judge(paper, answers_of(paper, answer))
            assert grade.points == EXERCISES[id].points, (name, str(grade))
