"""Clipping of gradients, against norms in FP64."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from labkit.amp import unscale
from labkit.amp.loss_scaling.clip import clip_


def norm_in_fp64(tensors: list[Tensor], norm_type: float) -> float:
    """Return the norm of all elements in FP64, relative to the largest: no power overflows."""
    sizes = np.abs(np.concatenate([t.double().numpy().ravel() for t in tensors]))
    largest = float(sizes.max())
    if math.isinf(norm_type):
        return largest
    return largest * float(((sizes / largest) ** norm_type).sum()) ** (1 / norm_type)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, 10.0, math.inf])
def test_clipping_equals_fp64(norm_type: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (1e-40, 1e-30, 1e-20, 1e-3, 1.0, 1e10, 1e20, 1e30, 3e38):
        shapes = ((40, 3), (1,), (0,), (500,))
        gradients = [(torch.rand(shape, generator=generator) * 2 - 1) * size for shape in shapes]
        before = [g.clone() for g in gradients]
        expected = norm_in_fp64(before, norm_type)
        max_norm = expected / 8
        norm = clip_(gradients, max_norm, norm_type).item()
        # The default of `abs` is 1e-12, above some of the norms.
        assert norm == pytest.approx(expected, rel=1e-5, abs=1e-44), size
        # torch.nn.utils.clip_grad_norm_ multiplies by this coefficient.
        coefficient = max_norm / (expected + 1e-6)
        for ours, old in zip(gradients, before, strict=True):
            theirs = (old.double() * coefficient).float()
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-44)


@pytest.mark.parametrize("large_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_several_dtypes_are_clipped_as_one(
    dtype: torch.dtype, large_first: bool
) -> None:
    # FP16 does not hold the factor 1 / 2e9, and holds 0.5.
    gradients = [torch.ones(4).to(dtype), torch.full((4,), 1e9)]
    if large_first:
        gradients.reverse()
    assert clip_(gradients, 1.0).item() == pytest.approx(2e9)
    large = next(gradient for gradient in gradients if gradient.dtype is torch.float32)
    assert large.tolist() == pytest.approx([0.5] * 4)


def test_products_of_a_small_factor_stay_in_fp16() -> None:
    gradient = torch.full((4,), 60000.0).half()
    clip_([gradient], 0.0036)
    # The factor 3e-8 is rounded to 6e-8 in FP16.
    assert gradient.tolist() == pytest.approx([0.0018] * 4, rel=1e-3)


def test_a_parameter_without_a_gradient_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a Tensor, got None"):
        unscale([torch.ones(1), None], 2.0)


def test_a_norm_type_may_be_text_as_in_torch() -> None:
    gradients = [torch.tensor([3.0, -4.0])]
    assert clip_(gradients, 1.0, "inf").item() == 4.0
    assert gradients[0].tolist() == pytest.approx([0.75, -1.0])
    theirs = nn.Parameter(torch.zeros(2))
    theirs.grad = torch.tensor([3.0, -4.0])
    torch.nn.utils.clip_grad_norm_(theirs, 1.0, "inf")
    assert torch.equal(gradients[0], theirs.grad)
    with pytest.raises(ValueError, match="norm_type: expected a number such as 2 or inf, got nan"):
        clip_(gradients, 1.0, math.nan)


def test_gradients_within_the_limit_are_not_clipped() -> None:
    for size in (1e-30, 1.0, 1e30):
        gradient = torch.tensor([3.0, 1.2345]) * size
        before = gradient.clone()
        clip_([gradient], max(10.0 * size, 1.0))
        assert torch.equal(gradient, before), size


def test_gradients_with_inf_or_nan_are_not_clipped() -> None:
    for bad in (math.inf, math.nan):
        for max_norm in (0.0, 1e-30, 1.0, math.inf):
            gradients = [torch.tensor([1.0, bad]), torch.tensor([3e38])]
            assert not math.isfinite(clip_(gradients, max_norm).item())
            assert gradients[0][0] == 1, max_norm
            assert gradients[1][0] == torch.tensor(3e38), max_norm


@pytest.mark.parametrize("max_norm", [-1.0, math.nan])
def test_an_invalid_largest_norm_changes_no_gradient(max_norm: float) -> None:
    gradient = torch.ones(2)
    with pytest.raises(ValueError, match="max_norm: expected 0 or more"):
        clip_([gradient], max_norm)
    assert gradient.tolist() == [1.0, 1.0]
