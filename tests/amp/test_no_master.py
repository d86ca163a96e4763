"""Optimizers without master weights: stochastic and compensated updates of a half weight."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from labkit.amp import WeightRounding, Weights, to_model_format
from labkit.amp.masters.without_master import stochastic_bf16, store_rounded
from labkit.formats import BF16, FP16, Rounding, round_to
from tests.amp.test_weights import one_weight


def drift(rounding: WeightRounding, steps: int = 1024, seed: int = 0) -> torch.Tensor:
    """Return 1,000 weights of 1 after steps of 2^-13 each, an eighth of FP16's spacing there."""
    model = to_model_format(nn.Linear(1000, 1, bias=False), FP16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    weights = Weights(
        model, partial(torch.optim.SGD, lr=1.0), master=False, rounding=rounding, seed=seed
    )
    for _ in range(steps):
        weights.step([torch.full((1, 1000), -(2.0**-13))])
    return model.weight.detach().double().squeeze()


def test_drift_of_many_small_updates_by_rounding() -> None:
    assert (drift(WeightRounding.NEAREST) == 1.0).all()
    # 1 + 1024 * 2^-13, exactly
    assert (drift(WeightRounding.KAHAN) == 1.125).all()


def test_stochastic_drift_is_binomial() -> None:
    ulps = (drift(WeightRounding.STOCHASTIC) - 1) * 2**10
    assert torch.equal(ulps, ulps.round())
    # Each of 1024 steps goes up by 2^-10 with probability 1/8: the mean is 128, and the variance
    # 1024 * 1/8 * 7/8 = 112. The mean of 1,000 weights may be off by five standard errors, and
    # their deviation, whose standard error is sqrt(112 / 2000) = 0.24, by six.
    assert abs(ulps.mean().item() - 128) < 5 * (112 / 1000) ** 0.5
    assert abs(ulps.std().item() - 112**0.5) < 1.5


def test_stochastic_rounding_follows_from_its_seed() -> None:
    a, b, other = (drift(WeightRounding.STOCHASTIC, 20, seed) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, other)


def test_stochastic_rounding_to_bf16_equals_round_to() -> None:
    numbers = np.random.default_rng(0)
    codes = numbers.integers(0, 2**32, 10**5, dtype=np.uint32)
    # A NaN whose significand would carry into the sign, infinity, the largest negative number, the
    # smallest subnormal and -0.
    codes[:5] = (0x7FFFFFFF, 0x7F800000, 0xFF7FFFFF, 0x00000001, 0x80000000)
    values = codes.view(np.float32)
    bits = numbers.integers(0, 2**32, codes.size)
    ours = stochastic_bf16(torch.from_numpy(values), torch.from_numpy(bits)).numpy()
    assert np.array_equal(
        ours, round_to(values, BF16, Rounding.STOCHASTIC, random_bits=bits), equal_nan=True
    )
    assert np.array_equal(np.signbit(ours[3:5]), [False, True])


def test_compensation_of_kahan_fits_the_model_s_format() -> None:
    for rounding in WeightRounding:
        torch.manual_seed(0)
        model = to_model_format(nn.Linear(50, 3), FP16)
        weights = Weights(
            model, partial(torch.optim.Adam, lr=1e-3), master=False, rounding=rounding
        )
        for _ in range(5):
            weights.step([torch.randn_like(m) for m in weights.master_weights])
            for weight, wide in zip(weights.model_weights, weights.master_weights, strict=True):
                # Only Kahan summation keeps what rounding cut off, in one FP16 number per weight.
                compensation = wide - weight.float()
                assert torch.equal(compensation, compensation.half().float())
                assert bool((compensation != 0).any()) == (rounding is WeightRounding.KAHAN)


@pytest.mark.parametrize("rounding", WeightRounding)
def test_a_weight_in_the_dtype_of_its_result_is_stored_exactly(rounding: WeightRounding) -> None:
    wide = torch.tensor([1 + 2.0**-20, -3.0])
    weight = torch.zeros(2)
    store_rounded(wide, weight, rounding)
    assert weight.tolist() == [1 + 2.0**-20, -3.0]
    assert wide.tolist() == [1 + 2.0**-20, -3.0]


def test_overflow_under_kahan_stays_infinite() -> None:
    overflowing = one_weight(65504.0)
    weights = Weights(
        overflowing, partial(torch.optim.SGD, lr=1.0), master=False, rounding=WeightRounding.KAHAN
    )
    weights.step([torch.tensor([[-1e5]])])
    assert torch.isinf(overflowing.weight).all()
    assert torch.isinf(weights.master_weights[0]).all()
