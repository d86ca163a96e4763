"""Master weights: what FP32 remembers and FP16 forgets."""

from functools import partial

import pytest
import torch
from torch import nn

from labkit.amp import Weights, to_model_format
from labkit.formats import FP16


def one_weight(value: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    to_model_format(model, FP16)
    return model


def test_worked_example_a_thousand_small_updates() -> None:
    # The spacing of FP16 at 1 is 2^-10; an update of 2^-12 is lost alone, and a thousand of them make a quarter.
    sgd = partial(torch.optim.SGD, lr=1.0)
    update = [torch.tensor([[2.0**-12]])]
    with_master, without = one_weight(1.0), one_weight(1.0)
    remembering, forgetting = Weights(with_master, sgd), Weights(without, sgd, master=False)
    for _ in range(1000):
        remembering.step(update)
        forgetting.step(update)
    assert with_master.weight.item() == 0.755859375  # 1 - 1000 * 2^-12 = 0.755859375, which FP16 holds
    assert without.weight.item() == 1.0


def test_model_weights_are_the_rounded_master_weights_after_every_step() -> None:
    torch.manual_seed(0)
    model = to_model_format(nn.Linear(5, 3), FP16)
    weights = Weights(model, partial(torch.optim.Adam, lr=1e-2))
    for _ in range(5):
        weights.step([torch.randn_like(m) for m in weights.master_weights])
        assert all(torch.equal(p, m.half()) for p, m in zip(weights.model_weights, weights.master_weights, strict=True))


@pytest.mark.parametrize(
    "optimizer", [partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.Adam, lr=1e-2)]
)
def test_equal_to_a_plain_loop_written_out(optimizer: object) -> None:
    torch.manual_seed(0)
    model = to_model_format(nn.Linear(4, 4), FP16)
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    theirs = optimizer(masters)  # type: ignore[operator]
    weights = Weights(model, optimizer)  # type: ignore[arg-type]
    for _ in range(20):
        gradients = [torch.randn_like(m) for m in masters]
        for m, g in zip(masters, gradients, strict=True):
            m.grad = g.clone()
        theirs.step()
        weights.step(gradients)
    assert all(torch.equal(p, m.half()) for p, m in zip(model.parameters(), masters, strict=True))


def test_an_fp32_parameter_is_its_own_master() -> None:
    model = to_model_format(nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4)), FP16)
    weights = Weights(model, partial(torch.optim.SGD, lr=0.1))
    own = [p is m for p, m in zip(weights.model_weights, weights.master_weights, strict=True)]
    assert own == [False, False, True, True]


def test_frozen_parameters_stay_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert len(Weights(model, partial(torch.optim.SGD, lr=0.1)).master_weights) == 2


def test_an_fp16_optimizer_is_o3() -> None:
    # Adam's epsilon of 1e-8 is 0 in FP16: a gradient too small to be squared there divides 0 by 0.
    model = one_weight(1.0)
    weights = Weights(model, partial(torch.optim.Adam, lr=1e-3), master=False, optimizer_dtype=torch.float16)
    weights.step([torch.tensor([[1e-5]])])
    assert weights.master_weights[0] is model.weight
    assert not torch.isfinite(model.weight).item()
