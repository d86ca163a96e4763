"""Clipping gradients to a common length: held against numpy's extended precision, far beyond FP32's squares."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from labkit.amp import RECIPES, Engine
from labkit.amp.scaling.clip import clip_


def length(tensors: list[Tensor], norm_type: float) -> np.longdouble:
    """The norm, written out in extended precision, whose range nothing here leaves."""
    sizes = np.abs(np.concatenate([t.numpy().ravel() for t in tensors]).astype(np.longdouble))
    if math.isinf(norm_type):
        return np.longdouble(sizes.max())
    return np.longdouble((sizes**norm_type).sum() ** (1 / np.longdouble(norm_type)))


def test_worked_example_a_norm_beyond_fp32() -> None:
    # 3 and 4 make 5, and at 1e30 their squares are beyond FP32.
    gradients = [torch.tensor([3e30]), torch.tensor([4e30])]
    assert clip_(gradients, 10.0).item() == pytest.approx(5e30, rel=1e-6)
    assert [g.item() for g in gradients] == pytest.approx([6, 8], rel=1e-6)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, 10.0, math.inf])
def test_the_length_and_the_shortened_gradients_are_those_of_extended_precision(norm_type: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (1e-40, 1e-30, 1e-20, 1e-3, 1.0, 1e10, 1e20, 1e30, 3e38):
        shapes = ((40, 3), (1,), (0,), (500,))
        gradients = [(torch.rand(shape, generator=generator) * 2 - 1) * size for shape in shapes]
        before = [g.clone() for g in gradients]
        expected = length(before, norm_type)
        max_norm = float(expected) / 8
        assert float(clip_(gradients, max_norm, norm_type)) == pytest.approx(float(expected), rel=1e-5), size
        shorter = max_norm / (expected + np.longdouble(1e-6))  # torch's rule
        for ours, old in zip(gradients, before, strict=True):
            theirs = (old.numpy().astype(np.longdouble) * shorter).astype(np.float32)
            torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=1e-5, atol=1e-44)


def test_what_is_short_enough_is_left_as_it_is_and_so_are_inf_and_nan() -> None:
    for size in (1e-30, 1.0, 1e30):
        gradient = torch.tensor([3.0, 1.2345]) * size
        before = gradient.clone()
        clip_([gradient], max(10.0 * size, 1.0))
        assert torch.equal(gradient, before), size
    for bad in (math.inf, math.nan):
        gradients = [torch.tensor([1.0, bad]), torch.tensor([3e38])]
        assert not math.isfinite(clip_(gradients, 1.0).item())
        assert gradients[0][0] == 1
        assert gradients[1][0] == torch.tensor(3e38)


def test_a_length_that_fp32_does_not_hold_comes_in_fp64() -> None:
    gradients = [torch.full((10_000,), 3e38)]
    assert clip_(gradients, 1.0).item() == pytest.approx(100 * 3e38)
    assert gradients[0].norm().item() == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("flat", [False, True])
def test_an_engine_steps_with_gradients_whose_length_is_beyond_fp32(flat: bool) -> None:
    layer = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(layer.weight)
    engine = Engine(layer, partial(torch.optim.SGD, lr=1.0), RECIPES["FP32"], flat=flat)
    engine.backward(engine(torch.tensor([[3e30, 4e30]])).sum())
    assert engine.clip(1.0).item() == pytest.approx(5e30, rel=1e-6)
    assert engine.step().stepped
    assert layer.weight.flatten().tolist() == pytest.approx([-0.6, -0.8], rel=1e-6)


def test_an_engine_skips_what_is_not_finite_clipped_or_not() -> None:
    engine = Engine(nn.Linear(2, 1), partial(torch.optim.SGD, lr=1.0), RECIPES["O2"])
    with engine.forward():
        engine.backward(engine(torch.full((1, 2), 60000.0)).sum())
    assert not math.isfinite(engine.clip(1.0).item())
    assert not engine.step().stepped
