"""Unscaling of gradients, against torch.amp.GradScaler and exact values."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from labkit.amp import unscale
from labkit.amp.loss_scaling.magnitudes import largest_magnitudes
from labkit.amp.loss_scaling.readings import read_scalars

LOW = (torch.float16, torch.bfloat16)
WIDE = (torch.float32, torch.float64)


@pytest.mark.parametrize("in_place", [False, True])
def test_unscaling_keeps_values_and_narrows_no_dtype(in_place: bool) -> None:
    for dtype in (*LOW, *WIDE):
        scaled = torch.tensor([3.0, -0.5, 0.0], dtype=dtype) * 2**8
        before = scaled.clone()
        (gradient,), found_inf = unscale([scaled], 2.0**8, in_place=in_place)
        assert gradient.dtype == (torch.float32 if dtype in LOW else dtype)
        assert gradient.tolist() == [3.0, -0.5, 0.0], dtype
        assert not found_inf
        assert (gradient.data_ptr() == scaled.data_ptr()) == (in_place and dtype in WIDE)
        assert torch.equal(scaled, gradient if in_place and dtype in WIDE else before), dtype


def nonfinite_after_unscaling(
    gradients: list[Tensor], scale: float = 8.0, **options: bool
) -> tuple[bool, list[int]]:
    """Return found_inf, and the indices of the unscaled gradients that hold inf or NaN."""
    unscaled, found_inf = unscale(gradients, scale, **options)
    return found_inf, [
        i
        for i, size in enumerate(read_scalars(largest_magnitudes(unscaled)))
        if not math.isfinite(size)
    ]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_one_bad_element_anywhere_is_found_and_named(bad: float) -> None:
    for dtype, position in itertools.product((*LOW, *WIDE), range(4)):
        gradients = [
            torch.ones(3).half(),
            torch.ones(2, 2),
            torch.ones(()),
            torch.full((37,), 60000.0, dtype=dtype),
        ]
        assert nonfinite_after_unscaling(gradients) == (False, [])
        gradients[position].view(-1)[-1] = bad
        assert nonfinite_after_unscaling(gradients) == (True, [position]), dtype


def test_overflow_by_unscaling_is_found() -> None:
    # Finite before unscaling, which a scale below 1 makes a multiplication by 2^126. torch checks
    # before it multiplies, and misses this overflow.
    for dtype in WIDE:
        huge = torch.tensor([torch.finfo(dtype).max / 2], dtype=dtype)
        assert nonfinite_after_unscaling([huge], 2.0**-126) == (True, [0]), dtype


def test_large_finite_gradients_are_finite() -> None:
    # The sums of these elements overflow, but no element does.
    gradients = [torch.full((4,), 60000.0).half(), torch.full((4,), 3e38)]
    assert nonfinite_after_unscaling(gradients) == (False, [])


@pytest.mark.parametrize("in_place", [False, True])
def test_fp32_gradients_equal_torch_amps_bit_for_bit(in_place: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    for scale in (2.0**13, 2.0**127, 1000.0, 1.1, 0.3):
        gradients = [torch.randn(50, generator=generator) * 2.0**e for e in range(-20, 20)]
        parameters = [torch.nn.Parameter(torch.zeros(50)) for _ in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.zeros(()))
        scaler.unscale_(torch.optim.SGD(parameters))
        ours, _ = unscale(gradients, torch.tensor(scale).item(), in_place=in_place)
        assert all(torch.equal(mine, p.grad) for mine, p in zip(ours, parameters, strict=True)), (
            scale
        )


def test_fp64_gradients_keep_their_precision() -> None:
    # torch's kernel multiplies by a reciprocal in FP32; 1/3 would be right to 8 digits only.
    (gradient,), _ = unscale([torch.tensor([1.0], dtype=torch.float64)], 3.0)
    assert gradient.item() == 1 / 3


def test_shapes_and_strides_of_all_kinds() -> None:
    gradients = [
        torch.ones(()),
        torch.ones(0),
        torch.ones(4, 6).T,
        torch.ones(4, 6)[:, ::2],
        torch.ones(1).expand(5),
    ]
    for gradient, unscaled in zip(gradients, unscale(gradients, 4.0)[0], strict=True):
        assert torch.equal(unscaled, torch.full(gradient.shape, 0.25))
    assert unscale([], 4.0) == ([], False)


@pytest.mark.parametrize("in_place", [False, True])
def test_sparse_gradients_are_added_up_in_fp32_then_unscaled(in_place: bool) -> None:
    # Row 1 occurs twice: 40000 + 40000 is beyond FP16, but not beyond the FP32 of the result.
    for dtype in (*LOW, *WIDE):
        rows = torch.tensor([[40000.0, 8.0], [16.0, 0.0], [40000.0, 8.0]], dtype=dtype)
        sparse = torch.sparse_coo_tensor(
            torch.tensor([[1, 3, 1]]), rows, (5, 2), check_invariants=True
        )
        expected = sparse.to(torch.float64).to_dense() / 8
        (unscaled,), found_inf = unscale([sparse], 8.0, in_place=in_place)
        assert unscaled.is_sparse
        assert not found_inf
        assert torch.equal(unscaled.to_dense().double(), expected), dtype
        sparse._values()[0, 0] = math.nan
        assert nonfinite_after_unscaling([sparse], in_place=in_place) == (True, [0])


def test_duplicates_that_overflow_only_together_are_found() -> None:
    twice = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([3e38, 3e38]), (2,), check_invariants=True
    )
    (unscaled,), found_inf = unscale([twice], 8.0)
    # Duplicates are added up before they are unscaled, and 6e38 is beyond FP32.
    assert found_inf
    assert unscaled.is_coalesced()


@pytest.mark.parametrize(("in_place", "value_after"), [(False, 1.0), (True, 0.25)])
def test_sparse_gradients_change_in_place_only(in_place: bool, value_after: float) -> None:
    gradient = torch.eye(3).to_sparse()
    unscale([gradient], 4.0, in_place=in_place)
    assert torch.equal(gradient.to_dense(), torch.eye(3) * value_after)


def test_tensors_that_are_not_floating_point_are_refused() -> None:
    for dtype, in_place in itertools.product((torch.complex64, torch.int32), (False, True)):
        with pytest.raises(TypeError, match="floating-point"):
            unscale([torch.ones(2, dtype=dtype)], 4.0, in_place=in_place)


def test_scales_outside_of_the_normal_range_are_refused() -> None:
    for scale in (0.0, -2.0, 2.0**-128, 2.0**128, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"from 2\^-126 to 3.4e38"):
            unscale([torch.ones(1)], scale)
