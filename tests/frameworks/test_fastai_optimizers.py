"""Optimizers and groups of `labkit.frameworks.fastai`, against torch's."""

import copy
import pickle

import numpy as np
import pytest

from labkit.frameworks.fastai.basics import *  # noqa: F403 - as scripts of fastai begin
from labkit.frameworks.fastai.basics import SGD, Adam, Callback, F, nn, partial, torch
from tests.frameworks.test_fastai_loop import by_layer, copies, differ, two_layers

pytestmark = pytest.mark.usefixtures("same_numbers")


def zero_gradients(callback):
    for p in callback.model.parameters():
        p.grad.zero_()


def test_norms_and_biases_do_not_decay():
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    nn.init.ones_(model[1].bias)
    learn = two_layers(model=model, opt_func=partial(Adam, wd=0.5))
    before = copies(model)
    # Without gradients only decay moves a parameter.
    learn.fit(1, lr=0.25, cbs=Callback(before_step=zero_gradients))
    assert {group["lr"] for group in learn.opt.param_groups} == {0.25}
    assert differ(model, before) == [True, False, False, False]


# Name -> the lab's optimizer, torch's with the same rule, and the relative difference allowed: of
# Adam's rule, torch computes the parts in another order.
OPTIMIZERS = {
    "SGD": (SGD, torch.optim.SGD, 0.0),
    "momentum": (partial(SGD, mom=0.9), partial(torch.optim.SGD, momentum=0.9), 0.0),
    "L2": (
        partial(SGD, mom=0.9, wd=0.1, decouple_wd=False),
        partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1),
        0.0,
    ),
    "AdamW": (
        partial(Adam, wd=0.5),
        partial(torch.optim.AdamW, betas=(0.9, 0.99), eps=1e-5, weight_decay=0.5),
        1e-5,
    ),
    "Adam with L2": (
        partial(Adam, wd=0.5, decouple_wd=False),
        partial(torch.optim.Adam, betas=(0.9, 0.99), eps=1e-5, weight_decay=0.5),
        1e-5,
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_steps_two_groups_as_the_one_of_torch_does(name):
    make, make_of_torch, rtol = OPTIMIZERS[name]

    def two_parameters():
        return [nn.Parameter(torch.linspace(-1, 1, n)) for n in (5, 3)]

    def take_steps(parameters, optimizer):
        for step in range(6):
            optimizer.zero_grad()
            sum((p * (step + 1)).sin().square().sum() for p in parameters).backward()
            optimizer.step()

    ours = two_parameters()
    take_steps(ours, make([[ours[0]], [ours[1]]], lr=[0.1, 0.01]))
    of_torch = two_parameters()
    groups = [{"params": [of_torch[0]], "lr": 0.1}, {"params": [of_torch[1]], "lr": 0.01}]
    take_steps(of_torch, make_of_torch(groups, lr=1.0))
    for one, other in zip(ours, of_torch, strict=True):
        torch.testing.assert_close(one, other, atol=0.0, rtol=rtol)


def test_decoupled_decay_of_sgd_shortens_the_weights_first():
    weight = nn.Parameter(torch.tensor([2.0]))
    weight.grad = torch.tensor([1.0])
    SGD([weight], lr=0.5, wd=0.25).step()
    assert weight.item() == 2.0 * (1 - 0.125) - 0.5


@pytest.fixture
def three_groups():
    """An optimizer of three layers, with a group for each."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    learn = two_layers(model=model, splitter=by_layer)
    learn.create_opt()
    return learn.opt


def rates_of(optimizer):
    return [hyper["lr"] for hyper in optimizer.hypers]


@pytest.mark.parametrize(
    ("value", "rates"),
    [
        (slice(0.01, 1.0), [0.01, 0.1, 1.0]),
        (slice(1.0), [0.1, 0.1, 1.0]),
        (0.5, [0.5, 0.5, 0.5]),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        ([0.5], [0.5, 0.5, 0.5]),
        (np.array([1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]),
        (np.array(0.5), [0.5, 0.5, 0.5]),
        (torch.tensor([1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]),
    ],
    ids=[
        "from first to last",
        "last",
        "all",
        "each",
        "list of one",
        "array",
        "array without dimensions",
        "tensor",
    ],
)
def test_a_rate_is_spread_over_the_groups(value, rates, three_groups):
    three_groups.set_hyper("lr", value)
    assert rates_of(three_groups) == pytest.approx(rates)


def test_a_slice_without_a_last_rate_is_refused(three_groups):
    with pytest.raises(ValueError, match=r"lr as slice\(last\) or slice\(first, last\)"):
        three_groups.set_hyper("lr", slice(0.01, None))


def test_a_weight_decay_may_be_a_number_of_numpy():
    learn = two_layers()
    learn.fit(1, wd=np.float32(0.25))
    assert [hyper["wd"] for hyper in learn.opt.hypers] == [0.25]


def test_one_group_has_the_last_rate_of_a_slice():
    assert rates_of(SGD([nn.Parameter(torch.ones(1))], slice(0.1, 1.0))) == [1.0]


def test_hypers_and_groups_of_torch_are_the_same_values(three_groups):
    three_groups.hypers[0]["lr"] = 7.0
    three_groups.param_groups[1]["lr"] = 8.0
    assert [group["lr"] for group in three_groups.param_groups] == [7.0, 8.0, 0.05]
    assert three_groups.hypers[1] == {"lr": 8.0, "mom": 0.0, "wd": 0.0}


def test_parameters_are_listed_by_group(three_groups):
    assert [len(group) for group in three_groups.param_lists] == [2, 2, 2]


def test_lists_for_another_number_of_groups_change_none(three_groups):
    before = three_groups.param_lists
    with pytest.raises(ValueError, match="a list for each of 3 groups, got 2"):
        three_groups.param_lists = [[], []]
    assert three_groups.param_lists == before


def test_a_schedule_of_torch_changes_the_rates(three_groups):
    three_groups.set_hyper("lr", [7.0, 8.0, 3.0])
    schedule = torch.optim.lr_scheduler.StepLR(three_groups, 1, gamma=0.5)
    three_groups.step()
    schedule.step()
    assert rates_of(three_groups) == [3.5, 4.0, 1.5]


def by_pickle(value):
    return pickle.loads(pickle.dumps(value))


def weight_after_steps(copied):
    """Return a weight after three steps, between which it is copied with its optimizer."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = Adam([weight], lr=0.1)
    for _ in range(3):
        weight.grad = torch.ones(2)
        optimizer.step()
        weight, optimizer = copied((weight, optimizer))
    return weight.detach()


def by_state_dict(pair):
    weight, optimizer = pair
    other = Adam([weight], lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    return weight, other


@pytest.mark.parametrize("copied", [copy.deepcopy, by_pickle, by_state_dict])
def test_copied_optimizer_continues_like_the_original(copied):
    assert torch.equal(weight_after_steps(copied), weight_after_steps(lambda pair: pair))


def with_a_norm(**options):
    """Return a learner of a linear layer with a norm in one group, and a layer in another."""
    model = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.BatchNorm1d(2), nn.Linear(2, 1))
    first = [*model[0].parameters(), *model[2].parameters()]
    last = [*model[3].parameters()]
    return two_layers(model=model, splitter=lambda m: [first, last], **options)


def test_norms_of_a_frozen_group_are_trained():
    learn = with_a_norm()
    learn.freeze()
    trained = [False, False, True, True, True, True]
    assert [p.requires_grad for p in learn.model.parameters()] == trained
    before = copies(learn.model)
    learn.fit(1)
    assert differ(learn.model, before) == trained


def test_unfreezing_trains_all_parameters():
    learn = with_a_norm()
    learn.freeze()
    learn.unfreeze()
    before = copies(learn.model)
    learn.fit(1)
    assert all(differ(learn.model, before))


def test_freezing_after_another_model_was_set_is_refused():
    learn = two_layers(splitter=by_layer)
    learn.fit(1)
    learn.model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    with pytest.raises(ValueError, match="the model was set after the optimizer was made"):
        learn.freeze()


def test_with_train_bn_false_the_norms_are_frozen_too():
    learn = with_a_norm(train_bn=False)
    learn.freeze()
    trained = [False, False, False, False, True, True]
    assert [p.requires_grad for p in learn.model.parameters()] == trained


def test_three_groups_train_as_in_torch():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))
    of_torch = copy.deepcopy(model)
    learn = two_layers(
        model=model,
        opt_func=partial(SGD, mom=0.9),
        splitter=lambda m: [m[0].parameters(), m[2].parameters(), m[3].parameters()],
    )
    learn.freeze_to(1)
    learn.fit(2, lr=slice(1e-3, 1e-1))
    # The slice gives 1e-2 to the second of three groups, and 1e-1 to the last.
    groups = [
        {"params": of_torch[2].parameters(), "lr": 1e-2},
        {"params": of_torch[3].parameters(), "lr": 1e-1},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    for x, y in [*learn.dls.train] * 2:
        optimizer.zero_grad()
        F.mse_loss(of_torch(x), y).backward()
        optimizer.step()
    for one, other in zip(model.parameters(), of_torch.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
