"""`labkit.frameworks.fastai`: loop, events, optimizers, mixed precision, and misuses."""

import copy
import itertools
import math
import pickle
from collections import Counter

import numpy as np
import pytest

from labkit.amp.casting.autocast import current
from labkit.frameworks.fastai import test_utils as checks
from labkit.frameworks.fastai.basics import *  # noqa: F403 - as scripts of fastai begin
from labkit.frameworks.fastai.basics import (
    SGD,
    Adam,
    Callback,
    CancelBatchException,
    CancelFitException,
    DataLoaders,
    F,
    Learner,
    nn,
    partial,
    torch,
)
from labkit.frameworks.fastai.callback import core, fp16
from labkit.frameworks.fastai.fp16_utils import convert_network
from tests.frameworks.learners import synth_learner
from tests.frameworks.refusals import not_refused


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(99)


def two_layers(**options):
    """Return a learner of two linear layers; options replace its arguments."""
    arguments = {
        "opt_func": partial(SGD, mom=0.0),
        "lr": 0.05,
        "model": nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)),
    }
    return synth_learner(**(arguments | options))


def by_layer(model):
    """Return the parameters of a model in a group for each layer."""
    return [list(layer.parameters()) for layer in model]


# --- the loop -------------------------------------------------------------------------------------


# Part of a training -> the exception that cancels it.
CANCELS = {
    "backward": core.CancelBackwardException,
    "step": core.CancelStepException,
    "batch": core.CancelBatchException,
    "train": core.CancelTrainException,
    "validate": core.CancelValidException,
    "epoch": core.CancelEpochException,
    "fit": core.CancelFitException,
}


class Listing(Callback):
    """Lists the events, and cancels the first occurrence of a part."""

    def __init__(self, part=None):
        super().__init__()
        self.events = []
        self.part = part
        for event in core.EVENTS - {"after_create"}:
            setattr(self, event, partial(self.on_event, event))

    def on_event(self, event):
        self.events.append(event)
        if self.part is not None and event == f"before_{self.part}":
            exception = CANCELS[self.part]
            self.part = None
            raise exception


BATCH = [
    "before_batch",
    "after_pred",
    "after_loss",
    "before_backward",
    "after_backward",
    "before_step",
    "after_step",
    "after_batch",
]
VALID = ["before_batch", "after_pred", "after_loss", "after_batch"]
TRAIN = ["before_train", *BATCH, "after_train"]
EPOCH = ["before_epoch", *TRAIN, "before_validate", *VALID, "after_validate", "after_epoch"]


def test_fit_calls_all_events_in_order():
    listing = Listing()
    synth_learner(n_trn=1, n_val=1, cbs=listing).fit(2)
    assert listing.events == ["before_fit", *EPOCH, *EPOCH, "after_fit"]


@pytest.mark.parametrize("part", CANCELS)
def test_the_end_of_a_cancelled_part_is_an_event(part):
    listing = Listing(part)
    synth_learner(n_trn=1, n_val=1, cbs=listing).fit(1)
    events = listing.events
    begin = events.index(f"before_{part}")
    assert events[begin + 1 : begin + 3] == [f"after_cancel_{part}", f"after_{part}"]
    assert events[-1] == "after_fit"


@pytest.mark.parametrize("part", [part for part in CANCELS if part != "validate"])
def test_a_cancelled_part_of_training_moves_no_weight(part):
    learn = synth_learner(n_trn=1, n_val=1, cbs=Listing(part))
    before = learn.model.a.item()
    learn.fit(1)
    assert learn.model.a.item() == before


def test_the_weights_move_before_a_cancelled_validation():
    learn = synth_learner(n_trn=1, n_val=1, cbs=Listing("validate"))
    before = learn.model.a.item()
    learn.fit(1)
    assert learn.model.a.item() != before


def test_a_line_is_fitted_and_its_losses_are_recorded():
    learn = synth_learner(lr=0.02, opt_func=SGD)
    learn.fit(8)
    assert [len(row) for row in learn.recorder.values] == [2] * 8
    assert learn.recorder.values[0][1] > 0.1
    assert learn.recorder.values[-1][1] < 0.1


def test_without_validation_its_loss_is_nan():
    learn = synth_learner()
    learn.dls = DataLoaders(learn.dls.train)
    learn.fit(1)
    assert math.isnan(learn.recorder.values[0][1])


class Reader(Callback):
    """Reads attributes of its learner as its own."""

    def after_fit(self):
        self.attributes = (self.lr, self.recorder.order, self.n_epoch)


def test_a_callback_has_the_attributes_of_its_learner():
    reader = Reader()
    synth_learner(n_trn=1, lr=0.25, cbs=reader).fit(3)
    assert reader.attributes == (0.25, 50, 3)


def test_a_callback_without_a_learner_has_no_other_attributes():
    with pytest.raises(AttributeError, match="no learner to look it up in"):
        _ = Callback().nothing


def test_a_callback_for_an_unknown_event_is_refused():
    with pytest.raises(ValueError, match=r"unknown events.*before_stepp"):
        Callback(before_stepp=lambda self: None)


def test_a_callback_is_made_from_a_function():
    calls = []
    synth_learner(n_trn=1).fit(1, cbs=Callback(after_fit=calls.append))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("targets", "y"), [(("target",), "target"), (("one", "other"), ("one", "other"))]
)
def test_y_is_the_target_or_the_tuple_of_several(targets, y):
    learn = synth_learner()
    learn.yb = targets
    assert learn.y == y


def zero_gradients(callback):
    for p in callback.model.parameters():
        p.grad.zero_()


def copies(model):
    """Return copies of a model's parameters."""
    return [p.detach().clone() for p in model.parameters()]


def differ(model, before):
    """Return for each parameter whether it differs from a copy."""
    return [not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]


def test_norms_and_biases_do_not_decay():
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    nn.init.ones_(model[1].bias)
    learn = two_layers(model=model, opt_func=partial(Adam, wd=0.5))
    before = copies(model)
    # Without gradients only decay moves a parameter.
    learn.fit(1, lr=0.25, cbs=Callback(before_step=zero_gradients))
    assert {group["lr"] for group in learn.opt.param_groups} == {0.25}
    assert differ(model, before) == [True, False, False, False]


@pytest.mark.parametrize(
    ("wrong", "right"), [("begin_fit", "before_fit"), ("after_btach", "after_batch")]
)
def test_a_method_like_an_event_is_warned_of(wrong, right):
    message = rf"Old\.{wrong}: there is no such event, did you mean {right}\?"
    with pytest.warns(UserWarning, match=message):
        type("Old", (Callback,), {wrong: lambda self: None})


def test_parameters_in_no_group_are_warned_of():
    learn = two_layers(splitter=lambda m: list(m[0].parameters()))
    with pytest.warns(UserWarning, match="2 trainable parameters.*the first is '1.weight'"):
        learn.fit(1)


def test_freezing_one_group_is_warned_of():
    with pytest.warns(UserWarning, match="there is one: nothing is frozen"):
        two_layers().freeze()


def test_freezing_the_whole_model_is_warned_of():
    with pytest.warns(UserWarning, match="whole model is frozen"):
        two_layers(splitter=by_layer).freeze_to(2)


# --- optimizers -----------------------------------------------------------------------------------

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
def test_an_optimizer_steps_two_groups_as_torchs_does(name):
    make, make_torchs, rtol = OPTIMIZERS[name]

    def two_parameters():
        return [nn.Parameter(torch.linspace(-1, 1, n)) for n in (5, 3)]

    def take_steps(parameters, optimizer):
        for step in range(6):
            optimizer.zero_grad()
            sum((p * (step + 1)).sin().square().sum() for p in parameters).backward()
            optimizer.step()

    ours = two_parameters()
    take_steps(ours, make([[ours[0]], [ours[1]]], lr=[0.1, 0.01]))
    torchs = two_parameters()
    groups = [{"params": [torchs[0]], "lr": 0.1}, {"params": [torchs[1]], "lr": 0.01}]
    take_steps(torchs, make_torchs(groups, lr=1.0))
    for one, other in zip(ours, torchs, strict=True):
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


def test_a_rate_in_place_of_the_epochs_is_refused():
    with pytest.raises(TypeError, match=r"n_epoch: expected an int, got 0.001. Pass a rate as lr="):
        two_layers().fit(1e-3)


def test_an_event_that_a_callback_lacks_is_named_without_advice():
    learn = two_layers()
    for callback, ending in ((learn.recorder, "'after_pred'$"), (Callback(), "look it up in$")):
        with pytest.raises(AttributeError, match=ending):
            _ = callback.after_pred


def test_one_group_has_the_last_rate_of_a_slice():
    assert rates_of(SGD([nn.Parameter(torch.ones(1))], slice(0.1, 1.0))) == [1.0]


def test_hypers_and_groups_of_torch_are_the_same_values(three_groups):
    three_groups.hypers[0]["lr"] = 7.0
    three_groups.param_groups[1]["lr"] = 8.0
    assert [group["lr"] for group in three_groups.param_groups] == [7.0, 8.0, 0.05]
    assert three_groups.hypers[1] == {"lr": 8.0, "mom": 0.0, "wd": 0.0}


def test_parameters_are_listed_by_group(three_groups):
    assert [len(group) for group in three_groups.param_lists] == [2, 2, 2]


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


def test_three_groups_train_as_torchs_do():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))
    torchs = copy.deepcopy(model)
    learn = two_layers(
        model=model,
        opt_func=partial(SGD, mom=0.9),
        splitter=lambda m: [m[0].parameters(), m[2].parameters(), m[3].parameters()],
    )
    learn.freeze_to(1)
    learn.fit(2, lr=slice(1e-3, 1e-1))
    # The slice gives 1e-2 to the second of three groups, and 1e-1 to the last.
    groups = [
        {"params": torchs[2].parameters(), "lr": 1e-2},
        {"params": torchs[3].parameters(), "lr": 1e-1},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    for x, y in [*learn.dls.train] * 2:
        optimizer.zero_grad()
        F.mse_loss(torchs(x), y).backward()
        optimizer.step()
    for one, other in zip(model.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


# --- misuses --------------------------------------------------------------------------------------


class X(Callback):
    """A callback that would be `learn.x`, which is the batch's input."""


def _fit_with(learn, opt_func):
    learn.opt_func = opt_func
    learn.fit(1)


def _swap_the_model():
    learn = synth_learner()
    learn.fit(1)
    learn.model = nn.Linear(1, 1)
    learn.fit(1)


def _frozen():
    learn = two_layers(splitter=by_layer).to_non_native_fp16(max_loss_scale=8.0)
    learn.freeze()
    return learn


def _thaw(callback):
    callback.model.requires_grad_(True)


# Misuse -> a function that commits it, the error, and a part of its message.
MISUSES = {
    "no callback": (lambda: synth_learner(cbs=[3]), TypeError, "Callback of fastai.basics"),
    "hides x": (lambda: synth_learner(cbs=[X]), ValueError, "X would hide learn.x"),
    "hides the model": (
        lambda: synth_learner(cbs=[type("Model", (Callback,), {})]),
        ValueError,
        "hide learn.model",
    ),
    "no schedule": (
        lambda: synth_learner().fit_one_cycle(1),
        AttributeError,
        "no 'fit_one_cycle'.*Write a callback",
    ),
    "torch's optimizer": (
        lambda: _fit_with(synth_learner(), torch.optim.SGD),
        TypeError,
        "use SGD or Adam",
    ),
    "an optimizer that torch's is in": (
        lambda: _fit_with(synth_learner(), lambda groups, lr: torch.optim.SGD(groups, lr=lr)),
        TypeError,
        "got SGD: use SGD or Adam",
    ),
    "a part of torch's optimizer": (
        lambda: _fit_with(synth_learner(), partial(torch.optim.SGD, momentum=0.9)),
        TypeError,
        "use SGD or Adam",
    ),
    "callbacks as a splitter": (
        lambda: Learner(None, None, None, SGD, 0.1, [X]),
        TypeError,
        "pass callbacks as cbs=",
    ),
    "a callback as a splitter": (
        lambda: Learner(None, None, None, SGD, 0.1, fp16.MixedPrecision),
        TypeError,
        "pass callbacks as cbs=",
    ),
    "callbacks as a decay": (
        lambda: synth_learner().fit(1, 0.1, [X]),
        TypeError,
        "pass callbacks as cbs=",
    ),
    "another model's optimizer": (_swap_the_model, ValueError, "reset_opt=True"),
    "rates for other groups": (
        lambda: synth_learner().fit(1, lr=[0.1, 0.2]),
        ValueError,
        "2 values for lr but there are 1",
    ),
    "a hyperparameter that is none": (
        lambda: SGD([nn.Parameter(torch.ones(1))], lr=0.1).set_hyper("momentum", 0.9),
        ValueError,
        r"\(lr, mom, wd\), got 'momentum'",
    ),
    "a group's option that is none": (
        lambda: SGD([{"params": [nn.Parameter(torch.ones(1))], "decay": 0.1}], lr=0.1),
        ValueError,
        "got 'decay'",
    ),
    "a parameter in two groups": (
        lambda: SGD([[p := nn.Parameter(torch.ones(1))], [p]], lr=0.1),
        ValueError,
        "more than one parameter group",
    ),
    "a closure": (
        lambda: SGD([nn.Parameter(torch.ones(1))], lr=0.1).step(lambda: None),
        NotImplementedError,
        "do not support closure",
    ),
    "unfrozen beside its masters": (
        lambda: _frozen().fit(1, cbs=Callback(before_epoch=lambda self: self.learn.unfreeze())),
        RuntimeError,
        "between two calls of fit",
    ),
    "thawed without a master": (
        lambda: _frozen().fit(1, cbs=Callback(before_epoch=_thaw)),
        RuntimeError,
        "has no master",
    ),
    "no argument of a scaler": (
        lambda: fp16.MixedPrecision(flat_master=True),
        TypeError,
        "NonNativeMixedPrecision's",
    ),
    "FP8": (lambda: fp16.MixedPrecision("fp8"), ValueError, "'fp16' or 'bf16'"),
    "two ways": (
        lambda: synth_learner().to_fp16().to_non_native_fp16().fit(1),
        ValueError,
        "to_fp32",
    ),
    "two of a kind": (
        lambda: synth_learner(cbs=[fp16.MixedPrecision] * 2).fit(1),
        ValueError,
        "MixedPrecision alone",
    ),
    "FP32 model": (
        lambda: synth_learner(cbs=fp16.NonNativeMixedPrecision()).fit(1),
        ValueError,
        "or ModelToHalf and",
    ),
    "no masters": (
        lambda: synth_learner(cbs=fp16.ModelToHalf()).fit(1),
        ValueError,
        "this learner has ModelToHalf",
    ),
    "scale": (
        lambda: fp16.NonNativeMixedPrecision(-1, dynamic=False),
        ValueError,
        "loss_scale=-1, dynamic=False",
    ),
    "wait": (
        lambda: fp16.NonNativeMixedPrecision(scale_wait=0),
        ValueError,
        "growth_interval must be a whole number, 1 or more; got 0",
    ),
    "factor": (
        lambda: fp16.NonNativeMixedPrecision(div_factor=0),
        ValueError,
        "div_factor above 1",
    ),
    "clip": (lambda: fp16.NonNativeMixedPrecision(clip=-1.0), ValueError, "clip above 0 or None"),
}


def test_misuses_are_refused_with_a_reason():
    assert not_refused(MISUSES) == {}


# --- mixed precision ------------------------------------------------------------------------------


class Dtypes(Callback):
    """Lists the dtypes of model, input, prediction and model at four events.

    Its order is before or after the callbacks of mixed precision.
    """

    def __init__(self, order):
        super().__init__()
        self.order = order

    def before_fit(self):
        self.dtypes = {"model before": self.model[0].weight.dtype}

    def before_batch(self):
        self.dtypes["input"] = self.x.dtype

    def after_pred(self):
        self.dtypes["prediction"] = self.pred.dtype

    def after_fit(self):
        self.dtypes["model after"] = self.model[0].weight.dtype


def non_native(**options):
    """Return a learner with the callbacks of mixed precision by master weights."""
    return two_layers(cbs=[fp16.ModelToHalf(), fp16.NonNativeMixedPrecision(**options)])


def test_callbacks_see_fp16_between_those_of_mixed_precision():
    half = torch.float16
    wide = torch.float32
    before = Dtypes(order=-55)
    after = Dtypes(order=65)
    non_native().fit(3, cbs=[before, after])
    assert list(before.dtypes.values()) == [wide, wide, half, half]
    assert list(after.dtypes.values()) == [half, half, wide, wide]


@pytest.mark.parametrize("dynamic", [True, False])
def test_mixed_precision_by_masters_reduces_both_losses(dynamic):
    learn = non_native(dynamic=dynamic)
    learn.fit(3)
    for begin, end in zip(learn.recorder.values[0], learn.recorder.values[-1], strict=True):
        assert end < begin


def test_a_dynamic_scale_moves_below_its_maximum():
    learn = non_native(dynamic=True)
    learn.fit(3)
    assert 1 < learn.non_native_mixed_precision.loss_scale < 2**24


def test_a_static_scale_stays():
    learn = non_native(dynamic=False)
    learn.fit(3)
    assert learn.non_native_mixed_precision.loss_scale == 512


def test_callbacks_of_a_fit_are_removed_after_it():
    learn = two_layers()
    learn.fit(1, cbs=Reader())
    assert not hasattr(learn, "reader")


def with_a_frozen_layer():
    """Return a learner with masters and momentum whose first layer is frozen."""
    learn = two_layers(opt_func=partial(SGD, mom=0.9)).to_non_native_fp16()
    learn.model[0].requires_grad_(False)
    learn.create_opt()
    return learn


def parameters_of(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def test_frozen_parameters_are_not_in_the_optimizer():
    learn = with_a_frozen_layer()
    assert set(parameters_of(learn.opt)) == set(learn.model[1].parameters())


def test_after_a_fit_the_optimizer_has_the_model_s_parameters():
    learn = with_a_frozen_layer()
    before = parameters_of(learn.opt)
    learn.fit(3)
    for p, q in zip(before, parameters_of(learn.opt), strict=True):
        assert p is q


def test_momentum_of_masters_is_kept_for_the_parameters():
    learn = with_a_frozen_layer()
    learn.fit(3)
    assert set(learn.opt.state) == set(learn.model[1].parameters())
    for p in learn.model[1].parameters():
        assert "grad_avg" in learn.opt.state[p]


def names_of_callbacks(learn):
    return {type(each).__name__ for each in learn.cbs}


def test_to_non_native_fp32_removes_the_callbacks():
    learn = with_a_frozen_layer()
    learn.to_non_native_fp32().fit(1)
    assert names_of_callbacks(learn) == {"TrainEvalCallback", "Recorder"}


def test_flat_masters_train_as_single_ones_do():
    models = []
    for flat in (False, True):
        torch.manual_seed(7)
        learn = two_layers().to_non_native_fp16(flat_master=flat, max_loss_scale=2.0**10, clip=1.0)
        learn.fit(2)
        models.append(learn.model)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


class Injecting(Callback):
    """Makes a gradient of the fourth step infinite, and lists the weights before each step."""

    order = 5

    def __init__(self):
        super().__init__()
        self.weights = []
        self.cancelled = Counter()

    def before_step(self):
        if self.train_iter == 3:
            next(self.model.parameters()).grad.fill_(math.inf)
        self.weights.append(copies(self.model))

    def after_cancel_step(self):
        self.cancelled["step"] += 1

    def after_cancel_batch(self):
        self.cancelled["batch"] += 1

    def unchanged_by(self):
        """Return the steps that changed no weight."""
        pairs = enumerate(itertools.pairwise(self.weights))
        return [i for i, (one, other) in pairs if all(map(torch.equal, one, other))]


def test_native_fp16_cancels_the_step_of_an_inf():
    learn = two_layers().to_fp16(init_scale=64.0)
    injecting = Injecting()
    learn.fit(1, cbs=injecting)
    assert injecting.unchanged_by() == [3]
    assert injecting.cancelled == {"step": 1}
    assert learn.scaler.get_scale() == 32.0


def test_masters_cancel_the_batch_of_an_inf_and_halve_the_scale():
    learn = two_layers().to_non_native_fp16(max_loss_scale=64.0)
    injecting = Injecting()
    learn.fit(1, cbs=injecting)
    assert injecting.unchanged_by() == [3]
    assert injecting.cancelled == {"batch": 1}
    assert learn.non_native_mixed_precision.loss_scale == 32.0


@pytest.mark.parametrize(
    ("way", "callbacks"), [("to_fp16", 1), ("to_bf16", 1), ("to_non_native_fp16", 2)]
)
def test_repeated_call_acts_once(way, callbacks):
    learn = two_layers()
    getattr(learn, way)()
    getattr(learn, way)()
    assert len(learn.cbs) == 2 + callbacks


def cancel_batch(callback):
    raise CancelBatchException


def fail(callback):
    raise KeyError("in a callback")


@pytest.mark.parametrize("way", ["to_fp16", "to_bf16", "to_non_native_fp16"])
def test_a_fit_that_raises_leaves_no_autocast_and_no_fp16(way):
    learn = two_layers()
    getattr(learn, way)()
    learn.fit(1, cbs=Callback(after_pred=cancel_batch))
    assert current() is None
    with pytest.raises(KeyError, match="in a callback"):
        learn.fit(1, cbs=Callback(after_pred=fail))
    assert current() is None
    assert {p.dtype for p in learn.model.parameters()} == {torch.float32}
    learn.fit(1)


# Name of a mixed precision -> a function that gives it to a learner.
WAYS = {
    # Scales at which no gradient overflows, so that the weights are stepped.
    "to_fp16": lambda learn: learn.to_fp16(init_scale=2.0**10),
    "to_bf16": lambda learn: learn.to_bf16(),
    "to_non_native_fp16": lambda learn: learn.to_non_native_fp16(max_loss_scale=2.0**10),
    "flat": lambda learn: learn.to_non_native_fp16(flat_master=True, max_loss_scale=2.0**10),
}


@pytest.mark.parametrize("event", sorted(core.EVENTS - {"after_create"}))
@pytest.mark.parametrize("way", WAYS)
def test_after_a_cancelled_part_the_next_fit_is_a_plain_one(way, event):
    """Each exception is raised at each event, before and after the callbacks of mixed precision."""
    for part, order in itertools.product(CANCELS, (5, 20)):
        learn = WAYS[way](two_layers(n_trn=2, n_val=1, splitter=by_layer))
        raising = RaisesOnce(CANCELS[part])
        actions = {event: raising}
        # This event occurs only in a part that was cancelled.
        if event.startswith("after_cancel_"):
            cancelled = event.removeprefix("after_cancel_")
            actions[f"before_{cancelled}"] = RaisesOnce(CANCELS[cancelled])
        callback = Callback(**actions)
        callback.order = order
        try:
            learn.fit(1, cbs=callback)
        except CANCELS[part]:
            # The event is outside the part that catches the exception.
            assert part != "fit" or event in ("after_fit", "after_cancel_fit")
        assert raising.raised, (part, order)
        assert_plain(learn, case=(event, part, order))


class RaisesOnce:
    """A function of a callback that raises an exception in its first call."""

    def __init__(self, exception):
        self.exception = exception
        self.raised = False

    def __call__(self, callback):
        if not self.raised:
            self.raised = True
            raise self.exception


def assert_plain(learn, case):
    """Assert that nothing of mixed precision is left, and that a fit in FP32 is torch's training.

    Args:
        learn: The learner after a fit.
        case: What happened in the fit, for the message.
    """
    parameters = [*learn.model.parameters()]
    assert current() is None, case
    for p, q in zip(parameters, itertools.chain(*learn.opt.param_lists), strict=True):
        assert p is q, case
        assert p.dtype == torch.float32, case
        assert p.grad is None or not p.grad.any(), case
    plain = copy.deepcopy(learn.model)
    learn.to_fp32().fit(1)
    optimizer = torch.optim.SGD(plain.parameters(), lr=learn.lr)
    for x, y in learn.dls.train:
        optimizer.zero_grad()
        F.mse_loss(plain(x), y).backward()
        optimizer.step()
    assert all(map(torch.equal, plain.parameters(), parameters)), case


class Stop(Callback):
    """Cancels the fit in the fifth batch."""

    def after_pred(self):
        if self.training and self.iter == 4:
            raise CancelFitException


@pytest.mark.parametrize("way", WAYS)
def test_cancelled_fit_keeps_its_weights(way):
    learn = WAYS[way](two_layers())
    before = copies(learn.model)
    learn.fit(3, cbs=Stop)
    assert learn.train_iter == 4
    assert learn.epoch == 0
    assert all(differ(learn.model, before))


@pytest.mark.parametrize("opt_func", [partial(SGD, mom=0.9), partial(Adam, wd=0.3)])
def test_flat_masters_keep_each_parameters_state_from_fit_to_fit(opt_func):
    """A weight that was frozen in the first fit has fewer steps than the rest of its group.

    Biases do not decay.
    """
    results = []
    for flat in (False, True):
        torch.manual_seed(7)
        learn = two_layers(opt_func=opt_func, lr=0.01)
        learn.to_non_native_fp16(flat_master=flat, max_loss_scale=2.0**10)
        learn.create_opt()
        learn.model[0].weight.requires_grad_(False)
        learn.fit(1)
        learn.model[0].weight.requires_grad_(True)
        learn.fit(2)
        states = [learn.opt.state[p] for p in learn.model.parameters()]
        assert [state.get("do_wd", True) for state in states] == [True, False, True, False]
        averages = [state["grad_avg"] for state in states]
        steps = [torch.tensor(state.get("step", 0)) for state in states]
        results.append([*copies(learn.model), *averages, *steps])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_flat_master_may_hold_a_parameter_without_elements():
    class Shifted(nn.Linear):
        def __init__(self):
            super().__init__(1, 1)
            self.empty = nn.Parameter(torch.empty(0))

        def forward(self, inputs):
            return super().forward(inputs) + self.empty.sum()

    learn = two_layers(model=Shifted())
    learn.to_non_native_fp16(flat_master=True, max_loss_scale=2.0**10).fit(2)
    # the bias, in the same group, does not decay
    assert learn.opt.state[learn.model.bias]["do_wd"] is False
    assert "do_wd" not in learn.opt.state[learn.model.empty]


def in_three_dtypes():
    """Return a model in FP16, FP32 and BF16, and its optimizer with two groups."""
    model = nn.Sequential(nn.Linear(2, 3).half(), nn.BatchNorm1d(3), nn.Linear(3, 1).bfloat16())
    optimizer = SGD([[*model[0].parameters(), *model[1].parameters()], model[2].parameters()], 0.1)
    for i, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, 2.0**-i)
    return model, optimizer


def test_a_flat_master_holds_a_group_of_several_dtypes():
    model, optimizer = in_three_dtypes()
    before = copies(model)
    model_pgs, master_pgs = fp16.get_master(optimizer, flat_master=True)
    assert [[m.shape for m in group] for group in master_pgs] == [[(15,)], [(4,)]]
    fp16.to_master_grads(model_pgs, master_pgs, flat_master=True)
    with torch.no_grad():
        for (master,) in master_pgs:
            assert master.dtype == torch.float32
            assert master.grad.dtype == torch.float32
            master.sub_(master.grad)
    # A parameter is not a view into its master.
    assert not any(differ(model, before))
    fp16.to_model_params(model_pgs, master_pgs, flat_master=True)
    for i, (p, b) in enumerate(zip(model.parameters(), before, strict=True)):
        assert p.dtype == b.dtype
        assert torch.equal(p, (b.float() - 2.0**-i).to(b.dtype))


def test_a_flat_master_needs_all_gradients_of_its_group():
    model, optimizer = in_three_dtypes()
    pgs = fp16.get_master(optimizer, flat_master=True)
    model[0].weight.grad = None
    with pytest.raises(RuntimeError, match="flat master: parameter '0 of its group'"):
        fp16.to_master_grads(*pgs, flat_master=True)


def test_single_masters_accept_a_missing_gradient():
    model, optimizer = in_three_dtypes()
    model[0].weight.grad = None
    model_pgs, master_pgs = fp16.get_master(optimizer)
    fp16.to_master_grads(model_pgs, master_pgs)
    assert master_pgs[0][0].grad is None


def test_frozen_groups_have_no_flat_master():
    model, optimizer = in_three_dtypes()
    model.requires_grad_(False)
    assert fp16.get_master(optimizer, flat_master=True) == ([[], []], [[], []])


class Writing(Callback):
    """Writes 0.5 into weights or masters after the first step was copied into the model."""

    order = 65

    def __init__(self, tensors_of):
        super().__init__()
        self.tensors_of = tensors_of

    def after_step(self):
        if self.train_iter == 0:
            for tensor in self.tensors_of(self):
                tensor.data.fill_(0.5)


def weights_of(callback):
    return callback.model.parameters()


def masters_of(callback):
    return itertools.chain(*callback.non_native_mixed_precision.master_pgs)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("tensors_of", [weights_of, masters_of])
def test_what_a_callback_writes_into_weights_or_masters_stays(tensors_of, flat):
    learn = two_layers().to_non_native_fp16(flat_master=flat, max_loss_scale=2.0**10)
    # The steps after the writing are tiny.
    learn.fit(1, lr=2.0**-20, cbs=Writing(tensors_of))
    for p in learn.model.parameters():
        torch.testing.assert_close(p, torch.full_like(p, 0.5), rtol=0.0, atol=2.0**-10)


def test_sparse_gradients_are_unscaled_for_their_masters():
    weights = []
    for sparse in (False, True):
        torch.manual_seed(7)
        model = nn.Sequential(nn.EmbeddingBag(4, 1, mode="sum", sparse=sparse))
        data = [(torch.tensor([[0, 1], [1, 2]]), torch.ones(2, 1))] * 3
        learn = Learner(DataLoaders(data), model, nn.MSELoss(), SGD, lr=0.125)
        learn.to_non_native_fp16(max_loss_scale=2.0**6).fit(1)
        weights.append(model[0].weight.detach())
    assert torch.equal(*weights)


@pytest.mark.parametrize("way", WAYS)
def test_to_fp32_undoes_every_conversion(way):
    learn = WAYS[way](two_layers())
    assert learn.to_fp32() is learn
    assert names_of_callbacks(learn) == {"TrainEvalCallback", "Recorder"}


def test_to_fp16_with_arguments_of_masters_uses_masters():
    learn = two_layers().to_fp16(max_loss_scale=2048.0, clip=1.0)
    learn.fit(1)
    assert learn.non_native_mixed_precision.loss_scale == 2048.0


def test_to_fp16_replaces_an_earlier_mixed_precision():
    learn = two_layers().to_fp16(max_loss_scale=2048.0)
    assert not hasattr(learn.to_fp16(), "non_native_mixed_precision")


NORMS = [
    nn.BatchNorm1d(4),
    nn.GroupNorm(2, 4),
    nn.LayerNorm(4),
    nn.InstanceNorm1d(4, affine=True),
    BatchNorm(4, ndim=1),  # noqa: F405
]


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
def test_a_norm_stays_in_fp32(norm):
    network = convert_network(nn.Sequential(nn.Linear(2, 4), copy.deepcopy(norm)), torch.float16)
    assert [p.dtype for p in network[0].parameters()] == [torch.float16] * 2
    assert [p.dtype for p in network[1].parameters()] == [torch.float32] * 2


def test_a_network_is_converted_back_in_place():
    network = convert_network(nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4)), torch.float16)
    assert convert_network(network, torch.float32) is network
    assert {p.dtype for p in network.parameters()} == {torch.float32}


def test_an_integer_dtype_is_refused():
    with pytest.raises(ValueError, match="expected a dtype"):
        convert_network(nn.Linear(1, 1), torch.int8)


@pytest.mark.parametrize("other", [None, "1.0", {"a": 1}], ids=["None", "text", "dict"])
def test_a_tensor_differs_from_what_is_no_number(other):
    checks.test_ne(torch.ones(1), other)
    with pytest.raises(AssertionError):
        checks.test_eq(torch.ones(1), other)


@pytest.mark.parametrize(
    ("one", "other", "eps"), [(2.0**24, 2.0**24 + 1, 1e-5), (1.0, 1 + 5e-9, 1e-9)]
)
def test_numbers_that_fp32_makes_equal_are_not_close(one, other, eps):
    with pytest.raises(AssertionError):
        checks.test_close(one, other, eps=eps)


def test_arrays_without_dimensions_are_compared():
    checks.test_eq(np.array(1.0), np.array(1.0))
    checks.test_close(np.array(1.0), np.array(1.0 + 1e-7))
    checks.test_ne(np.array(1.0), np.array(2.0))
