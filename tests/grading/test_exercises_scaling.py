"""The exercises of lesson 06: their references against torch.amp's scaler, its SGD, and plain torch training."""

from __future__ import annotations

from typing import Any

import torch

from labkit.amp import ScalerState
from labkit.grading import EXERCISES
from labkit.grading.judge import cases_of
from tests.grading.cases import SEEDS, cases, reference


def torchs(scale: float, tracker: int = 0, growth_interval: int = 2000, **factors: float) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval, **factors)
    scaler.scale(torch.zeros(1))  # creates the state
    scaler._growth_tracker.fill_(tracker)  # type: ignore[union-attr]
    return scaler


def parameters_with(gradients: list[torch.Tensor]) -> list[torch.nn.Parameter]:
    """torch.amp unscales FP32 gradients only; casting is exact."""
    found = [torch.nn.Parameter(torch.zeros_like(gradient, dtype=torch.float32)) for gradient in gradients]
    for parameter, gradient in zip(found, gradients, strict=True):
        parameter.grad = gradient.float()
    return found


def checked_cases(id: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the calls of an exercise, each with the name of its check."""
    drawn = [(check, seed) for check in EXERCISES[id].checks for seed in SEEDS]
    return [(check.name, case) for check, seed in drawn for case in cases_of(EXERCISES[id], check, seed)]


def test_advance_is_what_torch_does() -> None:
    for state, found_inf, config in cases("scaling.advance"):
        factors = {"growth_factor": config.growth_factor, "backoff_factor": config.backoff_factor}
        scaler = torchs(state.scale, state.growth_tracker, config.growth_interval, **factors)
        (weight,) = parameters_with([torch.tensor([torch.inf if found_inf else 0.0])])
        scaler.step(torch.optim.SGD([weight], lr=0.0))
        scaler.update()
        # torch keeps the scale in FP32, where 1.5 or 3 to these powers is exact: both are equal, not close.
        expected = ScalerState(scaler.get_scale(), scaler._get_growth_tracker())
        assert reference("scaling.advance")(state, found_inf, config) == expected


def test_static_step_is_what_torchs_sgd_does_with_the_true_gradient() -> None:
    for check, (weight, gradient_of, scale, lr) in checked_cases("scaling.static_step"):
        parameter = torch.nn.Parameter(weight.clone())
        parameter.grad = gradient_of.gradient.clone()
        if not check.endswith("skips the step"):
            torch.optim.SGD([parameter], lr=lr).step()
        assert torch.equal(reference("scaling.static_step")(weight, gradient_of, scale, lr), parameter.detach()), check


def test_clip_is_what_clip_grad_norm_does_after_unscaling() -> None:
    for check, (scaled_grads, scale, max_norm) in checked_cases("scaling.clip"):
        parameters = parameters_with([gradient.float() / scale for gradient in scaled_grads])
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        answer = reference("scaling.clip")(scaled_grads, scale, max_norm)
        if check.endswith("skips the step"):
            assert answer is None
            assert not torch.isfinite(norm)
        else:
            for ours, parameter in zip(answer, parameters, strict=True):
                torch.testing.assert_close(ours, parameter.grad, rtol=64 * 2.0**-24, atol=0)


def test_clip_cases_are_what_their_tolerance_was_derived_for() -> None:
    """Near the limit and beyond the norm is above 1, so torch's 1e-6 stays below 17 ulps; see the exercise's notes."""
    for scaled_grads, scale, max_norm in cases("scaling.clip", range(20)):
        flat = torch.cat([gradient.double().flatten() for gradient in scaled_grads]) / scale
        norm = float(flat.norm())
        assert len(flat) <= 9
        assert norm > 1.0 or norm < 0.9 * max_norm or not flat.isfinite().all(), (scaled_grads, scale, max_norm)


def test_unscale_is_what_torch_does() -> None:
    for grads, scale in cases("scaling.unscale"):
        if not grads:
            continue  # torch has no optimizer of nothing
        scaler, parameters = torchs(scale), parameters_with(grads)
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        scaler.unscale_(optimizer)
        found = sum(v.item() for v in scaler._found_inf_per_device(optimizer).values())  # type: ignore[attr-defined]
        ours, found_inf = reference("scaling.unscale")(grads, scale)
        assert found_inf == bool(found)
        for mine, parameter in zip(ours, parameters, strict=True):
            torch.testing.assert_close(mine, parameter.grad, rtol=0, atol=0, equal_nan=True)


def test_the_repaired_scaler_is_torchs_where_torchs_is_sound() -> None:
    compared = 0
    for scale, tracker, grads, interval in cases("scaling.repair"):
        if tracker >= interval or scale <= 1.0:
            continue  # torch's holes: no growth any more, and no floor
        scaler, parameters = torchs(scale, tracker, interval), parameters_with(grads)
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        before = optimizer.state_dict()
        scaler.step(optimizer)
        scaler.update()
        finite = all(bool(torch.isfinite(g).all()) for g in grads)
        answer = reference("scaling.repair")(scale, tracker, grads, interval)
        assert answer == (scaler.get_scale(), scaler._get_growth_tracker(), finite)
        assert before == optimizer.state_dict()
        compared += 1
    assert compared >= 8 * len(SEEDS)


def test_the_ordered_loop_is_a_plain_torch_training_step() -> None:
    """Linear model, SGD, accumulation and clipping in FP32: within FP16's rounding of the gradient it is the same."""
    for (loop,) in cases("scaling.order"):
        weight = torch.nn.Parameter(loop.master_weight.clone())
        for batch in loop.batches:
            (weight @ batch / len(loop.batches)).backward()
        torch.nn.utils.clip_grad_norm_([weight], loop.max_norm)
        torch.optim.SGD([weight], lr=0.25).step()
        overflows = any(bool(((b / len(loop.batches) * loop.scale).half()).isinf().any()) for b in loop.batches)
        before = loop.master_weight.clone()
        after = reference("scaling.order")(loop)
        expected = before if overflows else weight.detach()
        torch.testing.assert_close(after.master_weight, expected, rtol=2.0**-9, atol=2.0**-9)
        assert torch.equal(after.model_weight, after.master_weight.half())
