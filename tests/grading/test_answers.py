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


def linear_with_an_fp32_bias(x: Any, weight: Any, bias: Any, grad_y: Any) -> Any:
    _, grad_x, grad_weight = EXERCISES["autocast.linear"].reference(x, weight, bias, grad_y)  # type: ignore[misc]
    return (x.half().float() @ weight.half().float().T + bias).half(), grad_x, grad_weight


def cheapest_by_the_median(fp32: Metrics, candidates: Any) -> str:
    lowest = statistics.median(fp32) - (max(fp32) - min(fp32))
    passing = [(size, name) for name, size, metrics in candidates if statistics.mean(metrics) >= lowest]
    return min(passing, default=(0, "FP32"))[1]


WRONG: dict[str, tuple[str, Answer]] = {
    "a constant": ("recipes.verdict", lambda *_: "cannot tell"),
    "the spread of the other": (
        "recipes.verdict",
        verdict(lambda a, b, d: statistics.stdev(b) / math.sqrt(len(d))),
    ),
    "the spread of FP32": ("recipes.verdict", verdict(lambda a, b, d: statistics.stdev(a) / math.sqrt(len(d)))),
    "broken pairs left out": ("recipes.verdict", verdict_without_broken_pairs),
    "worse if any broke": ("recipes.verdict", verdict_worse_if_any_broke),
    "two operands": ("autocast.dtypes", dtypes(lambda rule, held, found: held[:2])),
    "a name assigned twice": ("autocast.dtypes", dtypes(lambda rule, held, found: held, at_the_end=True)),
    "keep of the latest": (
        "autocast.dtypes",
        dtypes(lambda rule, held, found: found[-1:] if rule == "keep" and found else held),
    ),
    "epsilon from 2^-24": ("recipes.epsilon", fate(lambda g: fp16(0.001 * g**2), at_least(2.0**-24))),
    "epsilon at 2^-25": ("recipes.epsilon", fate(lambda g: fp16(0.001 * g**2), at_least(2.0**-25))),
    "v from 2^-24": ("recipes.epsilon", fate(lambda g: at_least(2.0**-24)(0.001 * g**2), fp16)),
    "an FP16 accumulator": ("tensor.padding", padded_with_an_fp16_accumulator),
    "flushes what is small": ("rounding.stochastic", stochastic_that_flushes),
    "a bias in FP32": ("autocast.linear", linear_with_an_fp32_bias),
    "the median for the mean": ("recipes.cheapest", cheapest_by_the_median),
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
