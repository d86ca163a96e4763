"""The exercises of lesson 09: what their references answer, numpy answers too, and frameworks' own rules."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from labkit.grading import EXERCISES
from labkit.grading.judge import cases_of

SEEDS = (0, 1, 2)


def cases(id: str, seed: int) -> list[tuple[Any, ...]]:
    exercise = EXERCISES[id]
    return [case for check in exercise.checks for case in cases_of(exercise, check, seed)]


def halves(numbers: Any) -> Any:
    """Round to FP16 and go on in FP64, as a GPU goes on in FP32."""
    with np.errstate(over="ignore"):
        return np.asarray(numbers, dtype=np.float32).astype(np.float16).astype(np.float64)


def trained(weight: Any, batches: Any, max_norm: float) -> tuple[Any, float, int]:
    """Train a linear layer in numpy: FP16 operands and results, an FP32 weight, and a scale that is halved at inf."""
    master, scale, skipped = weight.numpy().astype(np.float64), 2.0**16, 0
    for x, y in batches:
        inputs, target = halves(x.numpy()), y.numpy().astype(np.float64)
        output = halves(inputs @ halves(master).T)
        with np.errstate(over="ignore", invalid="ignore"):
            back = halves(2 * (output - target) / target.size * scale)
            gradient = halves(back.T @ inputs) / scale
        if not np.isfinite(gradient).all():
            scale, skipped = scale / 2, skipped + 1
            continue
        master = master - 0.125 * gradient * min(1.0, max_norm / (np.linalg.norm(gradient) + 1e-6))
    return master, scale, skipped


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("id", ["frameworks.translate", "frameworks.repair", "frameworks.callback"])
def test_a_training_is_numpys(id: str, seed: int) -> None:
    skips = set()
    for weight, batches, max_norm in cases(id, seed):
        got, scale = EXERCISES[id].reference(weight, batches, max_norm)  # type: ignore[misc]
        master, numpys_scale, skipped = trained(weight, batches, max_norm)
        assert scale == numpys_scale
        np.testing.assert_allclose(got.numpy(), master, rtol=0, atol=2e-3 * max(1.0, np.abs(master).max()))
        assert not np.allclose(got.numpy(), weight.numpy())
        skips.add(skipped)
    assert {0, 1, 2} <= skips


def test_references_asked_in_several_threads_do_not_meet() -> None:
    """apex keeps one state for a process, and a class is graded in threads."""
    drawn = [case for case in cases("frameworks.repair", 0) if len(case[1]) > 2]
    alone = [EXERCISES["frameworks.repair"].reference(*case) for case in drawn]
    with ThreadPoolExecutor(4) as threads:
        beside = list(threads.map(lambda case: EXERCISES["frameworks.repair"].reference(*case), drawn * 4))
    for (weight, scale), (other, other_scale) in zip(alone * 4, beside, strict=True):  # type: ignore[misc]
        assert scale == other_scale
        assert weight.equal(other)


@pytest.mark.parametrize("seed", SEEDS)
def test_translated_and_called_back_are_one_training(seed: int) -> None:
    for case in cases("frameworks.translate", seed)[::2]:
        one, other = (EXERCISES[f"frameworks.{id}"].reference(*case) for id in ("translate", "callback"))
        assert one[1] == other[1]  # type: ignore[index]
        assert one[0].equal(other[0])  # type: ignore[index]


def skipped_by(largest: list[float], config: Any) -> list[int]:
    """Say the rule in DeepSpeed's words: what is left of hysteresis is counted down, and filled up by growth."""
    scale, left, last_overflow, found = config.init_scale, config.hysteresis, -1, []
    for i, gradient in enumerate(largest):
        if scale * gradient >= 65520 and (scale > config.floor or not config.steps_at_floor):
            found.append(i + 1)
            if left == 1:
                scale = max(scale / 2, config.floor)
            left, last_overflow = max(left - 1, 1), i
        elif (i - last_overflow) % config.growth_interval == 0:
            scale, left = min(scale * 2, config.cap), config.hysteresis
    return found


@pytest.mark.parametrize("seed", range(10))
def test_skips_are_those_of_another_way_to_count(seed: int) -> None:
    for largest, config in cases("frameworks.skips", seed):
        assert EXERCISES["frameworks.skips"].reference(largest, config) == skipped_by(largest, config)


@pytest.mark.parametrize("seed", SEEDS)
def test_with_the_casts_in_place_each_node_finds_what_it_needs(seed: int) -> None:
    """Each cast is needed by some node, none is made twice, and without any one of them a node goes without."""
    for given, nodes in cases("frameworks.casts", seed):
        casts = EXERCISES["frameworks.casts"].reference(given, nodes)
        assert len(set(casts)) == len(casts)  # type: ignore[arg-type]
        assert all(needs_met(given, nodes, casts))
        for left_out in casts:  # type: ignore[attr-defined]
            assert not all(needs_met(given, nodes, [cast for cast in casts if cast != left_out]))  # type: ignore[attr-defined]


def needs_met(given: Any, nodes: Any, casts: Any) -> list[bool]:
    """Return for each node whether all of its inputs are there in the format that it computes in."""
    there, met = dict(given), []
    for name, rule, inputs in nodes:
        own = [there[source] for source in inputs]
        computes = {"allow": "FP16", "deny": "FP32", "promote": max(own), "keep": own[0]}[rule]
        met.append(rule == "keep" or all(there[s] == computes or (s, computes) in casts for s in inputs))
        there[name] = computes
    return met
