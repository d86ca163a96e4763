"""Master weights: what FP32 remembers and FP16 forgets; in groups, flat or not, and what does without."""

import copy
import itertools
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from labkit.amp import WeightRounding, Weights, no_decay_on_norms_and_biases, to_model_format
from labkit.amp.masters.without_master import stochastic_bf16
from labkit.formats import BF16, FP16, Rounding, round_to


def one_weight(value: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    to_model_format(model, FP16)
    return model


def test_worked_example_a_thousand_small_updates() -> None:
    # The spacing of FP16 at 1 is 2^-10; an update of 2^-12 is swallowed alone, and a thousand of them make a quarter.
    sgd = partial(torch.optim.SGD, lr=1.0)
    update = [torch.tensor([[2.0**-12]])]
    with_master, without = one_weight(1.0), one_weight(1.0)
    remembering, forgetting = Weights(with_master, sgd), Weights(without, sgd, master=False)
    for _ in range(1000):
        remembering.step(update)
        forgetting.step(update)
    assert with_master.weight.item() == 0.755859375  # 1 - 1000 * 2^-12 = 0.755859375, which FP16 holds
    assert without.weight.item() == 1.0


def test_a_parameter_without_a_gradient_stays_even_under_weight_decay() -> None:
    model = to_model_format(nn.Linear(2, 2), FP16)
    weights = Weights(model, partial(torch.optim.SGD, lr=0.1, weight_decay=0.5))
    before = [p.clone() for p in model.parameters()]
    weights.step([None, torch.ones(2)])
    assert torch.equal(model.weight, before[0])
    assert not torch.equal(model.bias, before[1])
    weights.step([None, None])


# --- any optimizer ----------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    **{
        f"{name} {loop}": partial(getattr(torch.optim, name), lr=1e-2, foreach=loop == "foreach")
        for name in "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD".split()
        for loop in ("foreach", "one by one")
    },
    "Adam fused": partial(torch.optim.Adam, lr=1e-2, fused=True),
    "AdamW amsgrad": partial(torch.optim.AdamW, lr=1e-2, amsgrad=True),
    "SGD Nesterov": partial(torch.optim.SGD, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
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


def test_any_optimizer_steps_the_master_as_it_steps_plain_fp32_tensors() -> None:
    for name, make in OPTIMIZERS.items():
        masters = [p.detach().float().requires_grad_() for p in small_net().parameters()]
        theirs, weights = make(masters), Weights(small_net(), make)
        for step in range(5):
            torch.manual_seed(step)
            for m in masters:
                m.grad = torch.randn_like(m)
            theirs.step()
            weights.step([m.grad.clone() for m in masters])
            for ours, master, weight in zip(weights.master_weights, masters, weights.model_weights, strict=True):
                assert torch.equal(ours, master), (name, step)
                assert torch.equal(weight, master.to(weight.dtype)), (name, step)


def test_an_optimizer_that_would_teach_nothing_is_refused() -> None:
    """One of the model's own FP16 weights would step tensors that get no gradient, and every step be called well."""
    half = nn.Linear(2, 1).half()
    with pytest.raises(
        ValueError, match=r"expected SGD to step the 2 masters, got 2 other tensors.*lambda weights: SGD"
    ):
        Weights(half, lambda _: torch.optim.SGD(half.parameters(), lr=0.1))
    single = nn.Linear(2, 1)  # is its own master
    weights = Weights(single, lambda _: torch.optim.SGD(single.parameters(), lr=1.0))
    weights.step([torch.ones(1, 2), torch.ones(1)])
    assert weights.master_weights[0] is single.weight
    with pytest.raises(ValueError, match="LBFGS evaluates the loss several times"):
        Weights(small_net(), torch.optim.LBFGS)
    with pytest.raises(ValueError, match=r"'0.weight' of a lazy layer has no shape yet"):
        Weights(nn.Sequential(nn.LazyLinear(3)), partial(torch.optim.SGD, lr=0.1))


# --- groups -----------------------------------------------------------------------------------------------------------


def three_groups(model: nn.Module) -> list[dict[str, object]]:
    """A frozen first layer, a norm with its own learning rate and no decay, and the rest."""
    model[0].requires_grad_(False)  # type: ignore[operator, index]
    layers = [list(layer.parameters()) for layer in model]  # type: ignore[attr-defined]
    return [{"params": layers[0]}, {"params": layers[1], "lr": 0.5, "weight_decay": 0.0}, {"params": layers[2]}]


@pytest.mark.parametrize("flat", [False, True])
def test_groups_keep_their_options_and_a_frozen_layer_stays_until_the_optimizer_knows(flat: bool) -> None:
    model = small_net()
    sgd = partial(torch.optim.SGD, lr=0.01, weight_decay=0.25)
    weights = Weights(model, sgd, groups=three_groups, flat=flat)
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
    weights = Weights(
        model, partial(torch.optim.SGD, lr=1.0), groups=partial(no_decay_on_norms_and_biases, weight_decay=0.5)
    )
    before = {name: p.clone() for name, p in model.named_parameters()}
    weights.step([torch.zeros_like(m) for m in weights.master_weights])
    decayed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert decayed == {"0.weight", "2.weight"}
    assert torch.equal(model[2].weight, before["2.weight"] / 2)


def test_wrong_groups_are_refused_in_words() -> None:
    model, sgd = small_net(), partial(torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match=r"are in no group, the first is '1.weight'"):
        Weights(model, sgd, groups=[{"params": model[0].parameters()}])
    with pytest.raises(ValueError, match="got 1 other tensors, the first of shape \\(2,\\)"):
        Weights(model, sgd, groups=[{"params": [nn.Parameter(torch.zeros(2))]}])
    with pytest.raises(ValueError, match=r"got '0.weight' twice"):
        Weights(model, sgd, groups=[{"params": model.parameters()}, {"params": model[0].weight}])


def test_tied_weights_have_one_master() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    to_model_format(model, FP16)
    assert model[1].weight is model[0].weight
    weights = Weights(model, partial(torch.optim.SGD, lr=0.5))
    assert sorted(weights.named_masters()) == ["0.bias", "0.weight", "1.bias"]
    weights.step([torch.ones_like(m) for m in weights.master_weights])
    assert torch.equal(model[1].weight, weights.named_masters()["0.weight"].half())


def test_a_change_of_the_model_counts_and_what_was_not_changed_keeps_its_digits() -> None:
    model = small_net()
    weights = Weights(model, partial(torch.optim.SGD, lr=0.0))
    digits = weights.named_masters()["2.weight"].clone().add_(2.0**-20)
    weights.named_masters()["2.weight"].copy_(digits)
    with torch.no_grad():
        model[0].weight.fill_(0.25)
    nothing = [torch.zeros_like(m) for m in weights.master_weights]
    weights.step(nothing)
    assert (model[0].weight == 0.25).all()
    assert torch.equal(weights.named_masters()["2.weight"], digits), "what was not changed keeps its digits"


# --- flat -------------------------------------------------------------------------------------------------------------


def test_flat_computes_what_one_tensor_for_each_parameter_computes() -> None:
    for name, make in OPTIMIZERS.items():
        if "Adafactor" in name:
            continue
        many, one = (Weights(small_net(), make, flat=flat) for flat in (False, True))
        assert [len(w.optimizer_weights) for w in (many, one)] == [6, 1]
        (whole,) = one.optimizer_weights
        views = [p.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr() for p in one.model_weights]
        assert views == [False, False, True, True, False, False], "FP32 norms lie in the master: nothing to copy back"
        for step in range(5):
            step_all(many, step)
            step_all(one, step)
        assert all(map(torch.equal, many.model_weights, one.model_weights)), name
        masters = one.named_masters()
        assert all(torch.equal(master, masters[key]) for key, master in many.named_masters().items()), name


def test_flat_or_not_reads_what_the_other_wrote() -> None:
    for flat, name in itertools.product((False, True), ("SGD Nesterov", "Adam fused", "NAdam foreach")):
        whole, first, second = (Weights(small_net(), OPTIMIZERS[name], flat=f) for f in (flat, flat, not flat))
        for step in range(6):
            step_all(whole, step)
        for step in range(3):
            step_all(first, step)
        state = copy.deepcopy(first.state_dict())
        assert set(state["master"]) == {f"{i}.{kind}" for i in range(3) for kind in ("weight", "bias")}
        assert state["optimizer"]["param_groups"][0]["params"] == list(range(6)), "as plain torch writes it"
        second.load_state_dict(state)
        second.copy_back()
        for step in range(3, 6):
            step_all(second, step)
        assert all(map(torch.equal, whole.master_weights, second.master_weights)), (flat, name)


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


# --- without a master -------------------------------------------------------------------------------------------------


def drift(rounding: WeightRounding, steps: int = 1024, seed: int = 0) -> torch.Tensor:
    """1,000 weights of 1 that move up by 2^-13 in each step, an eighth of FP16's spacing there."""
    model = to_model_format(nn.Linear(1000, 1, bias=False), FP16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    weights = Weights(model, partial(torch.optim.SGD, lr=1.0), master=False, rounding=rounding, seed=seed)
    for _ in range(steps):
        weights.step([torch.full((1, 1000), -(2.0**-13))])
    return model.weight.detach().double().squeeze()


def test_nearest_loses_every_update_kahan_none_and_stochastic_none_on_average() -> None:
    assert (drift(WeightRounding.NEAREST) == 1.0).all()
    assert (drift(WeightRounding.KAHAN) == 1.125).all(), "1 + 1024 * 2^-13, exactly"
    walked = drift(WeightRounding.STOCHASTIC) - 1
    # Each step goes up by 2^-10 with probability 1/8: binomial, mean 128 and deviation sqrt(1024/8 * 7/8) of them.
    ulps = walked * 2**10
    assert torch.equal(ulps, ulps.round())
    assert abs(ulps.mean().item() - 128) < 5 * (112 / 1000) ** 0.5
    assert abs(ulps.std().item() - 112**0.5) < 1.5


def test_stochastic_rounding_follows_from_its_seed() -> None:
    a, b, other = (drift(WeightRounding.STOCHASTIC, 20, seed) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, other)


def test_stochastic_rounding_to_bf16_is_that_of_the_numpy_rounding() -> None:
    numbers = np.random.default_rng(0)
    codes = numbers.integers(0, 2**32, 10**5, dtype=np.uint32)
    codes[:5] = 0x7FFFFFFF, 0x7F800000, 0xFF7FFFFF, 0x00000001, 0x80000000  # a NaN that would carry into the sign, ...
    values, bits = codes.view(np.float32), numbers.integers(0, 2**32, codes.size)
    ours = stochastic_bf16(torch.from_numpy(values), torch.from_numpy(bits)).numpy()
    assert np.array_equal(ours, round_to(values, BF16, Rounding.STOCHASTIC, random_bits=bits), equal_nan=True)
    assert np.array_equal(np.signbit(ours[3:5]), [False, True])


def test_what_survives_fits_the_model_s_format() -> None:
    for rounding in WeightRounding:
        torch.manual_seed(0)
        model = to_model_format(nn.Linear(50, 3), FP16)
        weights = Weights(model, partial(torch.optim.Adam, lr=1e-3), master=False, rounding=rounding)
        for _ in range(5):
            weights.step([torch.randn_like(m) for m in weights.master_weights])
            for weight, wide in zip(weights.model_weights, weights.master_weights, strict=True):
                lost = wide - weight.float()
                assert torch.equal(lost, lost.half().float()), "one FP16 number for the weight, one for what it lost"
                assert bool((lost != 0).any()) == (rounding is WeightRounding.KAHAN)


def test_kahan_survives_a_weight_that_overflows() -> None:
    model = one_weight(65504.0)
    weights = Weights(model, partial(torch.optim.SGD, lr=1.0), master=False, rounding=WeightRounding.KAHAN)
    weights.step([torch.tensor([[-1e5]])])
    assert torch.isinf(model.weight).all()
    assert torch.isinf(weights.master_weights[0]).all()
