"""Master weights, optimizers without them, and conversion of a network to FP16.

Updates of master weights are compared with those of plain torch optimizers in FP32. Tests of the
conversion check which tensors are cast, and that networks with buffers, norms and complex numbers
train as in FP32.
"""

import copy
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from labkit.amp import (
    RECIPES,
    Engine,
    WeightRounding,
    Weights,
    no_decay_on_norms_and_biases,
    to_fp32,
    to_model_format,
)
from labkit.amp.casting.autocast import FLAGGED_DEVICE
from labkit.amp.masters.mixed_dtype_ops import mixed_dtype_ops
from labkit.amp.masters.without_master import stochastic_bf16, store_rounded
from labkit.formats import BF16, E4M3, FP16, Format, Rounding, round_to
from labkit.gemm import SPECS


def one_weight(value: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    to_model_format(model, FP16)
    return model


def test_worked_example_a_thousand_small_updates() -> None:
    # Below 1, the spacing of FP16 is 2^-11. An update of 2^-12 goes half of the way to the next
    # number, and the tie is rounded to 1, the even one. A thousand of them sum to a quarter.
    models = one_weight(1.0), one_weight(1.0)
    for model, master in zip(models, (True, False), strict=True):
        weights = Weights(model, partial(torch.optim.SGD, lr=1.0), master=master)
        for _ in range(1000):
            weights.step([torch.tensor([[2.0**-12]])])
    # 1 - 1000 * 2^-12 = 0.755859375, which FP16 holds
    assert [model.weight.item() for model in models] == [0.755859375, 1.0]


def test_weight_decay_skips_parameters_without_a_gradient() -> None:
    model = to_model_format(nn.Linear(2, 2), FP16)
    weights = Weights(model, partial(torch.optim.SGD, lr=0.1, weight_decay=0.5))
    before = [p.clone() for p in model.parameters()]
    weights.step([None, torch.ones(2)])
    assert torch.equal(model.weight, before[0])
    assert not torch.equal(model.bias, before[1])
    bias = model.bias.clone()
    weights.step([None, None])
    assert torch.equal(model.weight, before[0])
    assert torch.equal(model.bias, bias)


OPTIMIZERS = {
    **{
        f"{name} {loop}": partial(getattr(torch.optim, name), lr=1e-2, foreach=loop == "foreach")
        for name in [
            "ASGD",
            "Adadelta",
            "Adafactor",
            "Adagrad",
            "Adam",
            "AdamW",
            "Adamax",
            "NAdam",
            "RAdam",
            "RMSprop",
            "Rprop",
            "SGD",
        ]
        for loop in ("foreach", "one by one")
    },
    "Adam fused": partial(torch.optim.Adam, lr=1e-2, fused=True),
    "AdamW amsgrad": partial(torch.optim.AdamW, lr=1e-2, amsgrad=True),
    "SGD Nesterov": partial(
        torch.optim.SGD, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
}


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return to_model_format(nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)), FP16)


def step_all(weights: Weights, number: int) -> None:
    """Take a step with gradients that follow from its number."""
    torch.manual_seed(number)
    for p in weights.model_weights:
        p.grad = torch.randn_like(p)
    weights.step(weights.scaled_gradients())
    weights.zero_grad()


def test_any_optimizer_steps_the_master() -> None:
    for name, make in OPTIMIZERS.items():
        masters = [p.detach().float().requires_grad_() for p in small_net().parameters()]
        theirs = make(masters)
        weights = Weights(small_net(), make)
        for step in range(5):
            torch.manual_seed(step)
            for m in masters:
                m.grad = torch.randn_like(m)
            theirs.step()
            weights.step([m.grad.clone() for m in masters])
            for ours, master, weight in zip(
                weights.master_weights, masters, weights.model_weights, strict=True
            ):
                assert torch.equal(ours, master), (name, step)
                assert torch.equal(weight, master.to(weight.dtype)), (name, step)


def test_unsuitable_optimizers_and_groups_are_refused() -> None:
    """An optimizer of the model's FP16 weights would step tensors that get no gradient.

    Each step would be reported as taken.
    """
    half = nn.Linear(2, 1).half()
    sgd = partial(torch.optim.SGD, lr=0.1)
    # FP32 weights are their own masters, so an optimizer of them is suitable.
    single = nn.Linear(2, 1)
    weights = Weights(single, lambda _: torch.optim.SGD(single.parameters(), lr=1.0))
    assert weights.master_weights[0] is single.weight
    model = small_net()
    lazy = nn.Sequential(nn.LazyLinear(3))
    for wrong, make, groups, expected in (
        (
            half,
            lambda _: sgd(half.parameters()),
            None,
            r"expected SGD to step the 2 masters, got 2 other.*lambda weights",
        ),
        (model, torch.optim.LBFGS, None, "LBFGS evaluates the loss several times"),
        (lazy, sgd, None, r"'0.weight' of a lazy layer has no shape yet"),
        (
            model,
            sgd,
            [{"params": model[0].parameters()}],
            r"in none, the first is '1.weight'",
        ),
        (
            model,
            sgd,
            [{"params": [nn.Parameter(torch.zeros(2))]}],
            r"got 1 other tensor, the first of shape \(2,\)",
        ),
        (
            model,
            sgd,
            [{"params": model.parameters()}, {"params": model[0].weight}],
            r"got '0.weight' twice",
        ),
    ):
        with pytest.raises(ValueError, match=expected):
            Weights(wrong, make, groups=groups)


class CheckedAdam(torch.optim.Adam):
    """Adam that checks the learning rate of each group, not that of its constructor alone."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if param_group.get("lr", 0.0) < 0:
            raise ValueError("a learning rate below 0")
        super().add_param_group(param_group)


def test_groups_of_another_type_are_refused() -> None:
    model = nn.Linear(2, 2)
    for groups, message in (
        (3, "groups: expected an Iterable, got 3"),
        (lambda _: None, "the result of groups: expected an Iterable, got None"),
        ({"params": model.parameters()}, "expected a group as a dict with 'params', got 'params'"),
        ([{"lr": 0.1}], "expected a group as a dict with 'params', got one with 'lr'"),
        ([{}], "expected a group as a dict with 'params', got one with no key"),
        (list(model.parameters()), "expected a group as a dict with 'params', got a Parameter"),
        ([{"params": model.named_parameters()}], "expected a Tensor, got a tuple. Pass model.para"),
        ([{"params": ["weight"]}], "expected a Tensor, got 'weight'. Pass model.parameters"),
    ):
        with pytest.raises(TypeError, match=message):
            Weights(model, partial(torch.optim.SGD, lr=0.1), groups=groups)


@pytest.mark.parametrize("flat", [False, True])
def test_a_group_that_the_optimizer_refuses_changes_nothing(flat: bool) -> None:
    model = to_model_format(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), FP16)
    model[0].requires_grad_(False)
    weights = Weights(model, partial(CheckedAdam, lr=0.1), flat=flat)
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match="below 0"):
        weights.add_group({"params": model[0].parameters(), "lr": -1.0})
    assert list(weights.named_masters()) == ["1.weight", "1.bias"]
    # The group can be added with another learning rate.
    weights.add_group({"params": model[0].parameters(), "lr": 0.5})
    assert list(weights.named_masters()) == ["1.weight", "1.bias", "0.weight", "0.bias"]


@pytest.mark.parametrize("flat", [False, True])
def test_groups_keep_their_options(flat: bool) -> None:
    """A frozen first layer, a norm with its own learning rate and no decay, and the rest."""
    model = small_net()
    model[0].requires_grad_(False)
    first, second, third = (list(layer.parameters()) for layer in model)
    groups = [
        {"params": first},
        {"params": second, "lr": 0.5, "weight_decay": 0.0},
        {"params": third},
    ]
    weights = Weights(
        model, partial(torch.optim.SGD, lr=0.01, weight_decay=0.25), groups=groups, flat=flat
    )
    options = [(group["lr"], group["weight_decay"]) for group in weights.optimizer.param_groups]
    assert options == [(0.01, 0.25), (0.5, 0), (0.01, 0.25)]

    def step_by_ones() -> list[torch.Tensor]:
        """Take a step with gradients of one; return the layers' weights before it."""
        for p in model.parameters():
            p.grad = torch.ones_like(p) if p.requires_grad else None
        before = [layer.weight.clone() for layer in model]
        weights.step(weights.scaled_gradients())
        return before

    frozen, norm, last = step_by_ones()
    assert torch.equal(model[0].weight, frozen)
    assert torch.equal(model[1].weight, norm - 0.5)
    expected = last.float() - np.float32(0.01) * (1 + np.float32(0.25) * last.float())
    assert torch.equal(model[2].weight, expected.half())
    model[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"'0.weight' was frozen .*add_group"):
        step_by_ones()
    weights.add_group({"params": model[0].parameters(), "lr": 0.5, "weight_decay": 0.0})
    step_by_ones()
    assert torch.equal(model[0].weight, (frozen.float() - 0.5).half())


def test_weight_decay_spares_norms_and_biases() -> None:
    model = small_net()
    groups = partial(no_decay_on_norms_and_biases, weight_decay=0.5)
    weights = Weights(model, partial(torch.optim.SGD, lr=1.0), groups=groups)
    before = {name: p.clone() for name, p in model.named_parameters()}
    weights.step([torch.zeros_like(m) for m in weights.master_weights])
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name] / (2 if name in ("0.weight", "2.weight") else 1)), name


def test_tied_weights_have_one_master() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    to_model_format(model, FP16)
    assert model[1].weight is model[0].weight
    weights = Weights(model, partial(torch.optim.SGD, lr=0.5))
    assert sorted(weights.named_masters()) == ["0.bias", "0.weight", "1.bias"]
    weights.step([torch.ones_like(m) for m in weights.master_weights])
    assert torch.equal(model[1].weight, weights.named_masters()["0.weight"].half())


def test_edited_model_keeps_the_digits_of_other_weights() -> None:
    model = small_net()
    weights = Weights(model, partial(torch.optim.SGD, lr=0.0))
    digits = weights.named_masters()["2.weight"].clone().add_(2.0**-20)
    weights.named_masters()["2.weight"].copy_(digits)
    with torch.no_grad():
        model[0].weight.fill_(0.25)
    nothing = [torch.zeros_like(m) for m in weights.master_weights]
    weights.step(nothing)
    assert (model[0].weight == 0.25).all()
    assert torch.equal(weights.named_masters()["2.weight"], digits)


def test_flat_masters_give_the_same_weights() -> None:
    for name, make in OPTIMIZERS.items():
        # Adafactor uses each parameter's shape, and is refused with flat masters.
        if "Adafactor" in name:
            continue
        separate, flat = (Weights(small_net(), make, flat=is_flat) for is_flat in (False, True))
        assert [len(w.optimizer_weights) for w in (separate, flat)] == [6, 1]
        (master,) = flat.optimizer_weights
        are_views = [
            p.untyped_storage().data_ptr() == master.untyped_storage().data_ptr()
            for p in flat.model_weights
        ]
        # The FP32 weights of the norm are views of the flat master, and are never copied back.
        assert are_views == [False, False, True, True, False, False]
        for step, weights in itertools.product(range(5), (separate, flat)):
            step_all(weights, step)
        assert all(map(torch.equal, separate.model_weights, flat.model_weights)), name
        flat_masters = flat.named_masters()
        for key, separate_master in separate.named_masters().items():
            assert torch.equal(separate_master, flat_masters[key]), (name, key)


def test_flat_and_separate_masters_load_each_other_s_state() -> None:
    for flat, name in itertools.product(
        (False, True), ("SGD Nesterov", "Adam fused", "NAdam foreach")
    ):
        whole, first, second = (
            Weights(small_net(), OPTIMIZERS[name], flat=f) for f in (flat, flat, not flat)
        )
        for step in range(3):
            step_all(whole, step)
            step_all(first, step)
        state = copy.deepcopy(first.state_dict())
        assert set(state["master"]) == {
            f"{i}.{kind}" for i in range(3) for kind in ("weight", "bias")
        }
        # Plain torch numbers the parameters of a group like this.
        assert state["optimizer"]["param_groups"][0]["params"] == list(range(6))
        second.load_state_dict(state)
        second.copy_back()
        for step in range(3, 6):
            step_all(whole, step)
            step_all(second, step)
        assert all(map(torch.equal, whole.master_weights, second.master_weights)), (flat, name)


@pytest.mark.parametrize("flat", [False, True])
def test_a_state_of_other_groups_is_refused(flat: bool) -> None:
    saved = Weights(small_net(), partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    step_all(saved, 0)
    model = small_net()
    groups = [{"params": model[0].parameters()}, {"params": list(model[1:].parameters())}]
    weights = Weights(model, partial(torch.optim.SGD, lr=0.1), groups=groups, flat=flat)
    # The first message is torch's.
    message = (
        r"a different number of parameter groups|\[2, 4\] parameters in its groups, got .*\[6\]"
    )
    with pytest.raises(ValueError, match=message):
        weights.load_state_dict(saved.state_dict())


def test_flat_refuses_what_it_would_compute_differently() -> None:
    weights = Weights(small_net(), partial(torch.optim.SGD, lr=0.1, momentum=0.9), flat=True)
    assert weights.scaled_gradients() == [None]
    weights.model_weights[0].grad = torch.ones_like(weights.model_weights[0])
    with pytest.raises(RuntimeError, match=r"'0.bias' got no gradient, and momentum would move it"):
        weights.scaled_gradients()
    with pytest.raises(ValueError, match="Adafactor uses each parameter's shape"):
        Weights(small_net(), torch.optim.Adafactor, flat=True)
    table = Weights(nn.Embedding(4, 2, sparse=True), partial(torch.optim.SGD, lr=0.1), flat=True)
    table.model_weights[0].grad = torch.eye(4, 2).to_sparse()
    with pytest.raises(RuntimeError, match="'weight' has a sparse gradient"):
        table.scaled_gradients()


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


NORMS = {
    "BatchNorm1d": nn.BatchNorm1d(4),
    "BatchNorm2d": nn.BatchNorm2d(4),
    "BatchNorm3d": nn.BatchNorm3d(4),
    "SyncBatchNorm": nn.SyncBatchNorm(4),
    "InstanceNorm2d": nn.InstanceNorm2d(4, affine=True),
    "GroupNorm": nn.GroupNorm(2, 4),
    "LayerNorm": nn.LayerNorm(4),
    "RMSNorm": nn.RMSNorm(4),
}


def test_a_sparse_buffer_of_a_layer_is_converted() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("graph", torch.eye(2).to_sparse())
    graph = to_model_format(model, FP16).graph
    assert graph.dtype is torch.float16
    assert graph.to_dense().tolist() == torch.eye(2).tolist()
    model = nn.Linear(2, 2)
    model.register_buffer("graph", (1e5 * torch.eye(2)).to_sparse())
    with pytest.raises(ValueError, match="buffer 'graph' holds 100000, which FP16 cannot"):
        to_model_format(model, FP16)


def test_a_class_with_the_apply_of_an_older_torch_is_converted() -> None:
    class Container(nn.Sequential):
        """A container that passes no `recurse`."""

        def _apply(self, fn: Callable[[Tensor], Tensor]) -> nn.Module:
            return super()._apply(fn)

    model = Container(nn.Linear(2, 2), nn.BatchNorm1d(2))
    to_model_format(model, FP16)
    dtypes = [p.dtype for p in model.parameters()]
    assert dtypes == [torch.float16] * 2 + [torch.float32] * 2
    assert model[1].running_mean.dtype is torch.float32


def test_every_normalisation_layer_stays_fp32_by_default() -> None:
    for keep, (name, norm) in itertools.product((True, False), NORMS.items()):
        to_model_format(nn.Sequential(nn.ModuleDict({"inside": norm})), FP16, keep_norms=keep)
        floats = {t.dtype for t in norm.state_dict().values() if t.is_floating_point()}
        assert floats == {torch.float32 if keep else torch.float16}, name
        assert {t.dtype for t in to_fp32(norm).state_dict().values() if t.is_floating_point()} == {
            torch.float32
        }, name


def test_conversion_keeps_parameter_objects_and_ties() -> None:
    net = nn.ModuleDict(
        {"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False), "norm": nn.LayerNorm(5)}
    )
    net["head"].weight = net["embed"].weight
    net["head"].bias = net["norm"].bias
    mask = torch.ones(3)
    net.register_buffer("mask", mask)
    net["embed"].register_buffer("mask", mask)
    ids = [id(p) for p in net.parameters()]
    to_model_format(net, BF16)
    assert [id(p) for p in net.parameters()] == ids
    assert net["head"].weight is net["embed"].weight
    assert net["head"].weight.dtype == torch.bfloat16
    assert net["norm"].bias.dtype == torch.float32, "a bias shared with a norm was cast"
    assert net["embed"].mask is net.mask, "a shared buffer was copied"
    assert net.mask.dtype == torch.float32, "a buffer of a custom module was cast"


def test_complex_integer_and_boolean_tensors_are_not_cast() -> None:
    net = nn.Module()
    net.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    for name, dtype in (("count", torch.int64), ("mask", torch.bool)):
        net.register_buffer(name, torch.ones(2, dtype=dtype))
    to_model_format(net, FP16)
    assert [t.dtype for t in net.state_dict().values()] == [
        torch.complex64,
        torch.int64,
        torch.bool,
    ]


def test_parametrized_modules_and_gradients_are_converted() -> None:
    layer = parametrizations.weight_norm(nn.Linear(3, 2))
    layer(torch.ones(1, 3)).sum().backward()
    to_model_format(layer, FP16)
    assert {p.dtype for p in layer.parameters()} == {torch.float16}
    assert {p.grad.dtype for p in layer.parameters() if p.grad is not None} == {torch.float16}
    assert layer.weight.dtype == torch.float16


def test_format_without_torch_arithmetic_is_allowed() -> None:
    assert to_model_format(nn.Linear(1, 1), E4M3).weight.dtype == torch.float8_e4m3fn


def test_format_without_a_torch_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="torch has no dtype for 1-4-7"):
        to_model_format(nn.Linear(1, 1), Format("1-4-7", exponent_bits=4, significand_bits=7))


WORDS, WIDTH, LENGTH = 16, 32, 12
LOWEST = torch.finfo(torch.float32).min


def causal_mask() -> Tensor:
    """Return an additive causal mask in which row 3 is masked completely."""
    mask = torch.full((LENGTH, LENGTH), LOWEST).triu(1)
    mask[3] = LOWEST
    return mask


def waves(positions: Tensor) -> Tensor:
    """Return the angles of sinusoidal positions, with the usual base of 10,000."""
    return torch.outer(positions, 10_000 ** -(torch.arange(0, WIDTH, 4) / WIDTH))


class Attention(nn.Module):
    """Attention with two heads; `kind` is how positions and masks enter it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", causal_mask())
        # Angles near 5000 are multiples of 4 in FP16, so a cast buffer would ruin the positions.
        self.register_buffer("angles", waves(torch.arange(LENGTH) + 5000.0))

    def rotate(self, x: Tensor) -> Tensor:
        cos = self.angles.cos()
        sin = self.angles.sin()
        even = x[..., ::2]
        odd = x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    def forward(self, x: Tensor, argument_mask: Tensor | None = None) -> Tensor:
        mask = self.mask if argument_mask is None else argument_mask
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        if self.kind == "rotary":
            q = self.rotate(q)
            k = self.rotate(k)
        if self.kind == "fused mask":
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            mixed = (q @ k.transpose(-1, -2) / 4 + mask).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Fourier(nn.Module):
    """A filter in frequencies, with real parameters for complex weights.

    Its length is not a power of two.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.filter = nn.Parameter(torch.randn(LENGTH // 2 + 1, WIDTH, 2) / 4)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.layer(x), dim=1)
        mixed = torch.einsum("bfw,fw->bfw", spectrum, torch.view_as_complex(self.filter))
        return torch.fft.irfft(mixed, LENGTH, dim=1)


class Text(nn.Module):
    def __init__(self, middle: nn.Module, *, norm: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.middle = middle
        self.head = nn.Linear(WIDTH, WORDS)
        self.norm = nn.LayerNorm(WIDTH) if norm else nn.Identity()
        angles = waves(torch.arange(LENGTH).float())
        self.register_buffer(
            "positions", torch.cat([angles.sin(), angles.cos(), angles.sin(), angles.cos()], 1)
        )

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words) + self.positions
        out = self.middle(self.norm(x))
        return self.head(x + (out[0] if isinstance(out, tuple) else out))


class MixedOperations(nn.Module):
    """Operations that torch refuses for operands of two dtypes.

    They are writing into a slice, interpolation, distances, and addition at an index.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("memory", torch.zeros(8, LENGTH, WIDTH))
        self.register_buffer("centres", torch.randn(5, WIDTH))
        self.register_buffer("running", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.memory[:] = y.detach()
        self.running.lerp_(y.detach().mean((0, 1)), 0.1)
        y = torch.lerp(y, self.centres[0].expand_as(y), 0.01) + torch.addcmul(
            y, y, self.running.expand_as(y)
        )
        nearest = torch.cdist(y.flatten(0, 1), self.centres).softmax(-1) @ self.centres
        return (
            torch.index_add(y, 2, torch.arange(WIDTH), nearest.view_as(y))
            + torch.einsum("btw,w->bt", y, self.running)[..., None]
        )


def orthogonal(by: str) -> nn.Module:
    """Return a network whose layer has an orthogonal weight.

    The weight is a matrix exponential, the solution of a linear system (Cayley), or a product of
    Householder reflections.
    """
    return Text(parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH), orthogonal_map=by))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "added mask": lambda: Text(Attention("added mask")),
    "fused mask": lambda: Text(Attention("fused mask")),
    "rotary": lambda: Text(Attention("rotary")),
    "rotary without a norm": lambda: Text(Attention("rotary"), norm=False),
    "LSTM": lambda: Text(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "mixed operations": lambda: Text(MixedOperations()),
    "spectral norm": lambda: Text(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))),
    "Fourier": lambda: Text(Fourier()),
    **{
        f"orthogonal by {by}": partial(orthogonal, by)
        for by in ("matrix_exp", "cayley", "householder")
    },
}


def losses(make: Callable[[], nn.Module], recipe: str) -> list[float]:
    torch.manual_seed(0)
    row = RECIPES[recipe]
    scaler = replace(row.scaler, init_scale=min(row.scaler.init_scale, 2.0**8))
    engine = Engine(make(), partial(torch.optim.Adam, lr=3e-3), replace(row, scaler=scaler))
    losses_of_steps = []
    for step in range(12):
        words = torch.randint(WORDS, (8, LENGTH), generator=torch.Generator().manual_seed(step))
        engine.zero_grad()
        with engine.forward():
            loss = F.cross_entropy(engine(words).flatten(0, 1), (words.flatten() + 1) % WORDS)
        engine.backward(loss)
        assert engine.step().stepped
        losses_of_steps.append(loss.item())
    return losses_of_steps


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_trains_as_it_does_in_fp32(network: str) -> None:
    """The networks have buffers, or operations without a half-precision kernel."""
    theirs = losses(NETWORKS[network], "FP32")
    assert theirs[-1] < theirs[0] - 0.2, "the loss does not fall, so the comparison shows little"
    # Tolerances are a few times epsilon (2^-10 and 2^-7) for losses near 2.8 = log(16). Fourier and
    # orthogonal layers use operations without half kernels, so autocast meets them, too.
    without_half = {"O1 graph": 5e-3} if network.startswith(("Fourier", "orthogonal")) else {}
    for recipe, tolerance in {"O2": 5e-3, "BF16": 3e-2, **without_half}.items():
        assert losses(NETWORKS[network], recipe) == pytest.approx(theirs, abs=tolerance), recipe


def test_buffers_of_custom_modules_stay_fp32() -> None:
    net = Text(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)))
    net.register_buffer("count", torch.tensor(4097.0))
    before = net.positions.clone()
    to_model_format(net, FP16)
    assert net.count == 4097
    assert torch.equal(net.positions, before)
    # Power iteration multiplies the vectors of spectral norm by the FP16 weights.
    assert {b.dtype for b in net.middle.buffers()} == {torch.float16}


def test_buffers_of_a_norm_are_cast_with_it() -> None:
    batch_norm = to_model_format(nn.Sequential(nn.BatchNorm1d(3)), FP16, keep_norms=False)
    assert {b.dtype for b in batch_norm.buffers()} == {torch.float16, torch.int64}


def test_overflowing_conversion_is_refused_by_name() -> None:
    for where in ("parameter '0.weight'", "buffer '1.running_var'"):
        net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        target = net[0].weight if "weight" in where else net[1].running_var
        target.data[0] = 1e5
        with pytest.raises(
            ValueError, match=rf"{where} holds 100000, which FP16 cannot: it ends at 65504"
        ):
            to_model_format(net, FP16, keep_norms=False)
        assert {t.dtype for t in net.state_dict().values() if t.is_floating_point()} == {
            torch.float32
        }
        # Infinity is a number of FP16, so its conversion overflows nothing.
        target.data[0] = math.inf
        to_model_format(net, FP16, keep_norms=False)


def test_model_with_coarse_weights_warns_once() -> None:
    for value in (4097.0, 1e-6):
        net = nn.Sequential(nn.Linear(2, 3))
        net.register_parameter("table", nn.Parameter(torch.full((3,), value), requires_grad=False))
        with pytest.warns(
            UserWarning, match="FP16 makes this model coarse: .*parameter 'table'"
        ) as caught:
            Engine(net, partial(torch.optim.SGD, lr=0.1), RECIPES["O2"])
        assert len(caught) == 1


def test_models_of_default_weights_convert_without_warning() -> None:
    with warnings.catch_warnings(action="error"):
        for format in (FP16, BF16):
            to_model_format(
                nn.Sequential(nn.Linear(64, 64), nn.LSTM(8, 8), nn.Conv2d(3, 8, 3)), format
            )


def test_mask_passed_as_an_argument_still_masks() -> None:
    recipes = (
        RECIPES["O2"],
        RECIPES["O3"],
        RECIPES["BF16"],
        replace(RECIPES["O2"], accumulator=SPECS["V100"]),
    )
    for kind, recipe in itertools.product(("added mask", "fused mask"), recipes):
        torch.manual_seed(0)
        model = Attention(kind)
        x = torch.randn(2, LENGTH, WIDTH) / 8
        exact = model(x, causal_mask()).detach()
        engine = Engine(model, partial(torch.optim.SGD, lr=0.01), recipe)
        with engine.forward():
            out = engine(x, causal_mask())
        # A few times the epsilon of BF16, 2^-7, of outputs below 1.
        torch.testing.assert_close(out.detach(), exact, rtol=0, atol=0.02)


def test_a_product_of_two_dtypes_is_written_into_out() -> None:
    half = torch.full((2, 2), 2.0).half()
    for dtype, other in itertools.product((torch.float16, torch.float32), repeat=2):
        out = torch.zeros(2, 2, dtype=dtype)
        with mixed_dtype_ops():
            result = torch.mm(half, torch.ones(2, 2, dtype=other), out=out)
        assert result is out, (dtype, other)
        assert out.tolist() == [[4.0, 4.0], [4.0, 4.0]], (dtype, other)


def test_a_mode_that_opens_twice_restores_torchs_flag() -> None:
    mode = mixed_dtype_ops()
    before = torch.is_autocast_enabled(FLAGGED_DEVICE)
    with mode, mode:
        pass
    assert torch.is_autocast_enabled(FLAGGED_DEVICE) == before


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
def test_sparse_inputs_give_the_result_of_dense_ones() -> None:
    class SparseInput(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to_dense())

    for recipe, x in itertools.product(("O2", "BF16"), (torch.eye(4), torch.zeros(4, 4))):
        engine = Engine(SparseInput(4, 2), partial(torch.optim.SGD, lr=0.1), RECIPES[recipe])
        for sparse in (x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc()):
            assert torch.equal(engine(sparse), engine(x)), (recipe, sparse.layout)
