"""Unscaling: convert first, divide then, and find what is not finite."""

import math

import pytest
import torch

from labkit.amp import unscale


def test_worked_example() -> None:
    # 2^-24 is FP16's smallest subnormal; unscaled by 2^10 it is 2^-34, which only FP32 holds.
    (gradient,), found_inf = unscale([torch.tensor([2.0**-24]).half()], 2.0**10)
    assert gradient.dtype == torch.float32
    assert gradient.item() == 2.0**-34
    assert not found_inf


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("position", [0, 1])
def test_one_bad_element_anywhere_is_found(bad: float, position: int) -> None:
    gradients = [torch.ones(3).half(), torch.ones(2, 2)]
    gradients[position].view(-1)[-1] = bad
    assert unscale(gradients, 8.0)[1] is True


def test_a_sum_that_overflows_is_no_overflow_of_a_gradient() -> None:
    assert unscale([torch.full((4,), 60000.0).half()], 8.0)[1] is False


def test_what_overflows_by_unscaling_is_found_too() -> None:
    # Finite as it arrives: a scale below 1 makes it larger. torch looks before it multiplies, and lets this through.
    for dtype in (torch.float32, torch.float64):
        (unscaled,), found_inf = unscale([torch.tensor([torch.finfo(dtype).max / 2], dtype=dtype)], 2.0**-126)
        assert torch.isinf(unscaled).all()
        assert found_inf


def test_equal_to_torch() -> None:
    g = torch.Generator().manual_seed(0)
    gradients = [torch.randn(50, generator=g) * 2.0**e for e in range(-20, 20)]
    theirs = [x.clone() for x in gradients]
    torch._amp_foreach_non_finite_check_and_unscale_(theirs, torch.zeros(1), torch.tensor([2.0**-13]))
    ours, _ = unscale(gradients, 2.0**13)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_inputs_stay_as_they_are_and_none_is_fine() -> None:
    gradient = torch.ones(2).half()
    unscale([gradient], 4.0)
    assert torch.equal(gradient, torch.ones(2).half())
    assert unscale([], 4.0) == ([], False)


@pytest.mark.parametrize("scale", [0.0, -2.0, 2.0**-128, 2.0**128, math.inf, math.nan])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="positive finite"):
        unscale([torch.ones(1)], scale)
