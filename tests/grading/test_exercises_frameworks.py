"""The exercises of lessons 09 and 09b: their references against numpy, torch and DeepSpeed."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Shard

from tests.grading.cases import SEEDS, cases, reference


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


@pytest.mark.parametrize("id", ["frameworks.translate", "frameworks.repair", "frameworks.callback"])
def test_a_training_is_numpys(id: str) -> None:
    skips = Counter[int]()
    for weight, batches, max_norm in cases(id):
        got, scale = reference(id)(weight, batches, max_norm)
        master, numpys_scale, skipped = trained(weight, batches, max_norm)
        assert scale == numpys_scale
        np.testing.assert_allclose(got.numpy(), master, rtol=0, atol=2e-3 * max(1.0, np.abs(master).max()))
        assert not np.allclose(got.numpy(), weight.numpy())
        skips[skipped] += 1
    assert min(skips[times] for times in (0, 1, 2)) >= len(SEEDS), skips


def test_references_asked_in_several_threads_do_not_meet() -> None:
    """apex keeps one state for a process, and a class is graded in threads."""
    drawn = [case for case in cases("frameworks.repair", [0]) if len(case[1]) > 2]
    alone = [reference("frameworks.repair")(*case) for case in drawn]
    with ThreadPoolExecutor(4) as threads:
        beside = list(threads.map(lambda case: reference("frameworks.repair")(*case), drawn * 4))
    for (weight, scale), (other, other_scale) in zip(alone * 4, beside, strict=True):
        assert scale == other_scale
        assert weight.equal(other)


def test_translated_and_called_back_are_one_training() -> None:
    for case in cases("frameworks.translate")[::2]:
        weight, scale = reference("frameworks.translate")(*case)
        other, other_scale = reference("frameworks.callback")(*case)
        assert scale == other_scale
        assert weight.equal(other)


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


def test_skips_are_those_of_another_way_to_count() -> None:
    for largest, config in cases("frameworks.skips", range(10)):
        assert reference("frameworks.skips")(largest, config) == skipped_by(largest, config)


def test_with_the_casts_in_place_each_node_finds_what_it_needs() -> None:
    """Each cast is needed by some node, none is made twice, and without any one of them a node goes without."""
    for given, nodes in cases("frameworks.casts"):
        casts = reference("frameworks.casts")(given, nodes)
        assert len(set(casts)) == len(casts)
        assert all(needs_met(given, nodes, casts))
        for left_out in casts:
            assert not all(needs_met(given, nodes, [cast for cast in casts if cast != left_out]))


def needs_met(given: Any, nodes: Any, casts: Any) -> list[bool]:
    """Return for each node whether all of its inputs are there in the format that it computes in."""
    there, met = dict(given), []
    for name, rule, inputs in nodes:
        own = [there[source] for source in inputs]
        computes = {"allow": "FP16", "deny": "FP32", "promote": max(own), "keep": own[0]}[rule]
        met.append(rule == "keep" or all(there[s] == computes or (s, computes) in casts for s in inputs))
        there[name] = computes
    return met


# --- many workers ---


def test_an_agreed_step_is_that_of_one_process_with_all_parts() -> None:
    for parts, gradients, scale, lr in cases("workers.agree"):
        weight = torch.nn.Parameter(torch.cat(parts))
        optimizer, scaler = torch.optim.SGD([weight], lr=lr), torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.zeros(()))
        weight.grad = torch.cat(gradients).float()
        scaler.step(optimizer)
        scaler.update()
        after, new_scale = reference("workers.agree")(parts, gradients, scale, lr)
        assert torch.equal(torch.cat(after), weight.detach())
        assert new_scale == scaler.get_scale()


def test_a_mean_in_fp16_is_numpys() -> None:
    for gradients, before in cases("workers.predivide"):
        with np.errstate(over="ignore", invalid="ignore"):
            total, *others = (gradient.numpy() / np.float16(before) for gradient in gradients)
            for quotient in others:
                total = total + quotient
            expected = total / np.float16(len(gradients) / before)
        np.testing.assert_array_equal(reference("workers.predivide")(gradients, before).numpy(), expected)


def test_rows_are_those_of_torch_chunk_and_of_a_dtensor() -> None:
    for rows, world in cases("workers.parts"):
        parts = reference("workers.parts")(rows, world)
        chunks = [chunk.tolist() for chunk in torch.arange(rows).chunk(world)]
        assert [list(range(*part)) for part in parts if part[0] < part[1]] == chunks
        shards = [Shard.local_shard_size_and_offset(rows, world, rank) for rank in range(world)]
        assert [(last - first, first) for first, last in parts] == shards
