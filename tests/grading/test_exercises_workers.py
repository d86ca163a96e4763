"""The exercises of lesson 09b: their references against torch's GradScaler, numpy's FP16 and torch.chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Shard

from labkit.grading import EXERCISES
from labkit.grading.judge import cases_of

SEEDS = (0, 1, 2)


def answers(id: str, seed: int) -> list[tuple[tuple[Any, ...], Any]]:
    exercise = EXERCISES[id]
    drawn = [case for check in exercise.checks for case in cases_of(exercise, check, seed)]
    return [(case, exercise.reference(*case)) for case in drawn]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_agreed_step_is_that_of_one_process_with_all_parts(seed: int) -> None:
    for (parts, gradients, scale, lr), (after, new_scale) in answers("workers.agree", seed):
        weight = torch.nn.Parameter(torch.cat(parts))
        optimizer, scaler = torch.optim.SGD([weight], lr=lr), torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.zeros(()))
        weight.grad = torch.cat(gradients).float()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(torch.cat(after), weight.detach())
        assert new_scale == scaler.get_scale()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mean_in_fp16_is_numpys(seed: int) -> None:
    for (gradients, before), mean in answers("workers.predivide", seed):
        with np.errstate(over="ignore", invalid="ignore"):
            quotients = [gradient.numpy() / np.float16(before) for gradient in gradients]
            total = quotients[0]
            for quotient in quotients[1:]:
                total = total + quotient
            np.testing.assert_array_equal(mean.numpy(), total / np.float16(len(gradients) / before))


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_those_of_torch_chunk_and_of_a_dtensor(seed: int) -> None:
    for (rows, world), parts in answers("workers.parts", seed):
        chunks = [chunk.tolist() for chunk in torch.arange(rows).chunk(world)]
        assert [list(range(*part)) for part in parts if part[0] < part[1]] == chunks
        assert len(parts) == world
        for rank, (first, last) in enumerate(parts):
            size, offset = Shard.local_shard_size_and_offset(rows, world, rank)
            assert (last - first, first) == (size, offset)
