"""Master weights under any optimizer, and their groups, in tensors of their own or in a flat one.

Updates of master weights are compared with those of plain torch optimizers in FP32.
"""

import copy
import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from labkit.amp import Weights, no_decay_on_norms_and_biases, to_model_format
from labkit.formats import FP16


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


PLAIN_SGD = partial(torch.optim.SGD, lr=0.1)


def test_an_optimizer_of_the_fp16_weights_is_refused() -> None:
    """It would step tensors that get no gradient, and each step would be reported as taken."""
    half = nn.Linear(2, 1).half()
    message = r"expected SGD to step the 2 masters, got 2 other.*lambda weights"
    with pytest.raises(ValueError, match=message):
        Weights(half, lambda _: PLAIN_SGD(half.parameters()))


def test_an_optimizer_of_fp32_weights_is_taken() -> None:
    """FP32 weights are their own masters."""
    single = nn.Linear(2, 1)
    weights = Weights(single, lambda _: PLAIN_SGD(single.parameters()))
    assert weights.master_weights[0] is single.weight


def test_an_optimizer_that_evaluates_the_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="LBFGS evaluates the loss several times"):
        Weights(small_net(), torch.optim.LBFGS)


def test_a_lazy_layer_is_refused() -> None:
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"'0.weight' of a lazy layer has no shape yet"):
        Weights(lazy, PLAIN_SGD)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (lambda model: [{"params": model[0].parameters()}], r"in none, the first is '1.weight'"),
        (
            lambda _: [{"params": [nn.Parameter(torch.zeros(2))]}],
            r"got 1 other tensor, the first of shape \(2,\)",
        ),
        (
            lambda model: [{"params": model.parameters()}, {"params": model[0].weight}],
            r"got '0.weight' twice",
        ),
    ],
    ids=["missing", "other", "twice"],
)
def test_groups_must_hold_each_parameter_once(groups: Any, expected: str) -> None:
    model = small_net()
    with pytest.raises(ValueError, match=expected):
        Weights(model, PLAIN_SGD, groups=groups(model))


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
class TestGroups:
    """A frozen first layer, a norm with its own learning rate and no decay, and the rest."""

    @pytest.fixture
    def model(self) -> nn.Sequential:
        model = small_net()
        model[0].requires_grad_(False)
        return model

    @pytest.fixture
    def weights(self, model: nn.Sequential, flat: bool) -> Weights:
        first, second, third = (list(layer.parameters()) for layer in model)
        groups = [
            {"params": first},
            {"params": second, "lr": 0.5, "weight_decay": 0.0},
            {"params": third},
        ]
        make = partial(torch.optim.SGD, lr=0.01, weight_decay=0.25)
        return Weights(model, make, groups=groups, flat=flat)

    def step_by_ones(self, model: nn.Sequential, weights: Weights) -> list[torch.Tensor]:
        """Take a step with gradients of one; return the layers' weights before it."""
        for p in model.parameters():
            p.grad = torch.ones_like(p) if p.requires_grad else None
        before = [layer.weight.clone() for layer in model]
        weights.step(weights.scaled_gradients())
        return before

    def test_groups_keep_their_options(self, weights: Weights) -> None:
        options = [(group["lr"], group["weight_decay"]) for group in weights.optimizer.param_groups]
        assert options == [(0.01, 0.25), (0.5, 0), (0.01, 0.25)]

    def test_a_step_has_the_options_of_each_group(
        self, model: nn.Sequential, weights: Weights
    ) -> None:
        frozen, norm, last = self.step_by_ones(model, weights)
        assert torch.equal(model[0].weight, frozen)
        assert torch.equal(model[1].weight, norm - 0.5)
        expected = last.float() - np.float32(0.01) * (1 + np.float32(0.25) * last.float())
        assert torch.equal(model[2].weight, expected.half())

    def test_a_layer_that_was_frozen_is_refused_with_a_remedy(
        self, model: nn.Sequential, weights: Weights
    ) -> None:
        model[0].requires_grad_(True)
        with pytest.raises(RuntimeError, match=r"'0.weight' was frozen .*add_group"):
            self.step_by_ones(model, weights)

    def test_a_layer_that_was_frozen_can_be_added(
        self, model: nn.Sequential, weights: Weights
    ) -> None:
        model[0].requires_grad_(True)
        weights.add_group({"params": model[0].parameters(), "lr": 0.5, "weight_decay": 0.0})
        before, _, _ = self.step_by_ones(model, weights)
        assert torch.equal(model[0].weight, (before.float() - 0.5).half())


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
