"""The later exercises of lesson 06: their references against torch.amp's scaler and plain torch training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.grading import EXERCISES
from labkit.grading.judge import cases_of

SEEDS = (0, 1, 2)


def cases(id: str, seed: int) -> list[tuple[Any, ...]]:
    exercise = EXERCISES[id]
    return [case for check in exercise.checks for case in cases_of(exercise, check, seed)]


def torchs(scale: float, tracker: int = 0, growth_interval: int = 2000) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)
    scaler.scale(torch.zeros(1))  # creates the state
    scaler._growth_tracker.fill_(tracker)  # type: ignore[union-attr]
    return scaler


def parameters_with(gradients: list[torch.Tensor]) -> list[torch.nn.Parameter]:
    """torch.amp unscales FP32 gradients only; casting is exact."""
    found = [torch.nn.Parameter(torch.zeros_like(gradient, dtype=torch.float32)) for gradient in gradients]
    for parameter, gradient in zip(found, gradients, strict=True):
        parameter.grad = gradient.float()
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_unscale_is_what_torch_does(seed: int) -> None:
    for grads, scale in cases("scaling.unscale", seed):
        if not grads:
            continue  # torch has no optimizer of nothing
        scaler, parameters = torchs(scale), parameters_with(grads)
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        scaler.unscale_(optimizer)
        found = sum(v.item() for v in scaler._found_inf_per_device(optimizer).values())  # type: ignore[attr-defined]
        ours, found_inf = EXERCISES["scaling.unscale"].reference(grads, scale)  # type: ignore[misc]
        assert found_inf == bool(found)
        for mine, parameter in zip(ours, parameters, strict=True):
            torch.testing.assert_close(mine, parameter.grad, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_repaired_scaler_is_torchs_where_torchs_is_sound(seed: int) -> None:
    compared = 0
    for scale, tracker, grads, interval in cases("scaling.repair", seed):
        if tracker >= interval or scale <= 1.0:
            continue  # torch's holes: no growth any more, and no floor
        scaler, parameters = torchs(scale, tracker, interval), parameters_with(grads)
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        before = optimizer.state_dict()
        scaler.step(optimizer)
        scaler.update()
        answer = EXERCISES["scaling.repair"].reference(scale, tracker, grads, interval)
        assert answer[:2] == (scaler.get_scale(), scaler._get_growth_tracker())  # type: ignore[index]
        assert answer[2] == all(bool(torch.isfinite(g).all()) for g in grads)  # type: ignore[index]
        assert before == optimizer.state_dict()
        compared += 1
    assert compared >= 8


@pytest.mark.parametrize("seed", SEEDS)
def test_the_ordered_loop_is_a_plain_torch_training_step(seed: int) -> None:
    """Linear model, SGD, accumulation and clipping in FP32: within FP16's rounding of the gradient it is the same."""
    for (loop,) in cases("scaling.order", seed):
        weight = torch.nn.Parameter(loop.master_weight.clone())
        for batch in loop.batches:
            (weight @ batch / len(loop.batches)).backward()
        torch.nn.utils.clip_grad_norm_([weight], loop.max_norm)
        torch.optim.SGD([weight], lr=0.25).step()
        overflows = any(bool(((b / len(loop.batches) * loop.scale).half()).isinf().any()) for b in loop.batches)
        before = loop.master_weight.clone()
        after: Any = EXERCISES["scaling.order"].reference(loop)
        expected = before if overflows else weight.detach()
        torch.testing.assert_close(after.master_weight, expected, rtol=2.0**-9, atol=2.0**-9)
        assert torch.equal(after.model_weight, after.master_weight.half())
