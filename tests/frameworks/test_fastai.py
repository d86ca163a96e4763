"""fastai in labkit: the training loop, its events, and fastai's own checks of its callbacks."""

import copy
import itertools
import math
import pickle
from collections import Counter

import pytest

from labkit.amp.casting.autocast import current
from labkit.frameworks.fastai.basics import *  # noqa: F403 - as in scripts for fastai
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
    """Return a learner of two linear layers; options are those of `synth_learner`."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    defaults = {"opt_func": partial(SGD, mom=0.0), "lr": 0.05, "model": model}
    return synth_learner(**{**defaults, **options})


def by_layer(model):
    """Return a parameter group for each layer; a splitter."""
    return [list(layer.parameters()) for layer in model]


# --- the loop -------------------------------------------------------------------------------------


class RecordEvents(Callback):
    """Record every event, and cancel one part of the training the first time that it begins.

    Args:
        cancel: the part, such as "batch"; None cancels nothing.
    """

    def __init__(self, cancel=None):
        super().__init__()
        self.events = []
        self.cancel = cancel
        for event in core.EVENTS - {"after_create"}:
            setattr(self, event, lambda event=event: self.record(event))

    def record(self, event):
        self.events.append(event)
        if self.cancel is not None and event == f"before_{self.cancel}":
            # fastai's exception for "validate" is CancelValidException
            part = self.cancel.title().replace("Validate", "Valid")
            self.cancel = None
            raise getattr(core, f"Cancel{part}Exception")


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


def test_after_events_run_for_cancelled_parts():
    recording = RecordEvents()
    learn = synth_learner(n_trn=1, n_val=1, cbs=recording)
    learn.fit(2)
    assert recording.events == ["before_fit", *EPOCH, *EPOCH, "after_fit"]
    for part in ("backward", "step", "batch", "train", "validate", "epoch", "fit"):
        recording = RecordEvents(part)
        learn = synth_learner(n_trn=1, n_val=1, cbs=recording)
        before = learn.model.a.item()
        learn.fit(1)
        events = recording.events
        after = events.index(f"before_{part}") + 1
        assert events[after : after + 2] == [f"after_cancel_{part}", f"after_{part}"]
        assert events[-1] == "after_fit"
        # Only a cancelled validation leaves the one step of training.
        assert (learn.model.a.item() == before) == (part != "validate")


def test_losses_of_each_epoch_are_recorded():
    learn = synth_learner(lr=0.02, opt_func=SGD)
    learn.fit(8)
    assert [len(row) for row in learn.recorder.values] == [2] * 8
    assert learn.recorder.values[-1][1] < 0.1
    assert learn.recorder.values[0][1] > 0.1
    learn.dls = DataLoaders(learn.dls.train)
    learn.fit(1)
    assert math.isnan(learn.recorder.values[0][1]), "a loss without validation data"


def test_a_callback_reads_attributes_of_its_learner():
    class ReadLearner(Callback):
        def after_fit(self):
            self.learn.values = (self.lr, self.recorder.order, self.n_epoch)

    learn = synth_learner(n_trn=1, lr=0.25, cbs=ReadLearner)
    learn.fit(3)
    assert learn.values == (0.25, 50, 3)
    with pytest.raises(AttributeError, match="no learner to look it up in"):
        _ = Callback().nothing
    with pytest.raises(ValueError, match=r"unknown events.*before_stepp"):
        Callback(before_stepp=lambda self: None)
    learn.fit(
        1, cbs=Callback(after_fit=lambda self: setattr(self.learn, "values", "set by a function"))
    )
    assert learn.values == "set by a function"
    for targets, y in ((("target",), "target"), (("one", "other"), ("one", "other"))):
        learn.yb = targets
        assert learn.y == y


def test_norms_and_biases_do_not_decay():
    learn = two_layers(
        model=nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)), opt_func=partial(Adam, wd=0.5)
    )
    nn.init.ones_(learn.model[1].bias)
    before = [p.detach().clone() for p in learn.model.parameters()]
    learn.fit(
        1,
        lr=0.25,
        cbs=Callback(before_step=lambda self: [p.grad.zero_() for p in self.model.parameters()]),
    )
    assert {group["lr"] for group in learn.opt.param_groups} == {0.25}
    moved = [not torch.equal(p, b) for p, b in zip(learn.model.parameters(), before, strict=True)]
    assert moved == [True, False, False, False]


def test_a_misspelt_event_warns_with_the_right_name():
    for wrong, right in (("begin_fit", "before_fit"), ("after_btach", "after_batch")):
        with pytest.warns(
            UserWarning, match=rf"Old\.{wrong}: there is no such event, did you mean {right}\?"
        ):
            type("Old", (Callback,), {wrong: lambda self: None})


def test_parameters_in_no_group_and_frozen_models_warn():
    learn = two_layers(splitter=lambda m: list(m[0].parameters()))
    with pytest.warns(UserWarning, match="2 trainable parameters.*the first is '1.weight'"):
        learn.fit(1)
    with pytest.warns(UserWarning, match="there is one: nothing is frozen"):
        two_layers().freeze()
    with pytest.warns(UserWarning, match="whole model is frozen"):
        two_layers(splitter=by_layer).freeze_to(2)


# --- optimizers -----------------------------------------------------------------------------------

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
    ours, theirs, rtol = OPTIMIZERS[name]
    mine, yours = ([nn.Parameter(torch.linspace(-1, 1, n)) for n in (5, 3)] for _ in range(2))
    optimizers = (
        ours([[mine[0]], [mine[1]]], lr=[0.1, 0.01]),
        theirs([{"params": [yours[0]], "lr": 0.1}, {"params": [yours[1]], "lr": 0.01}], lr=1.0),
    )
    for step in range(6):
        for weights, optimizer in zip((mine, yours), optimizers, strict=True):
            optimizer.zero_grad()
            sum((w * (step + 1)).sin().square().sum() for w in weights).backward()
            optimizer.step()
    for one, other in zip(mine, yours, strict=True):
        torch.testing.assert_close(one, other, atol=0.0, rtol=rtol)


def test_decoupled_decay_of_sgd_shortens_the_weights_first():
    weight = nn.Parameter(torch.tensor([2.0]))
    weight.grad = torch.tensor([1.0])
    SGD([weight], lr=0.5, wd=0.25).step()
    assert weight.item() == 2.0 * (1 - 0.125) - 0.5


def test_rates_of_groups_are_read_and_set_by_name():
    learn = two_layers(
        model=nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)), splitter=by_layer
    )
    learn.create_opt()
    for value, rates in (
        (slice(0.01, 1.0), [0.01, 0.1, 1.0]),
        (slice(1.0), [0.1, 0.1, 1.0]),
        (0.5, [0.5] * 3),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
    ):
        learn.opt.set_hyper("lr", value)
        assert [hyper["lr"] for hyper in learn.opt.hypers] == pytest.approx(rates)
    learn.opt.hypers[0]["lr"] = 7.0
    learn.opt.param_groups[1]["lr"] = 8.0
    assert [group["lr"] for group in learn.opt.param_groups] == [7.0, 8.0, 3.0]
    assert learn.opt.hypers[1] == {"lr": 8.0, "mom": 0.0, "wd": 0.0}
    assert [len(group) for group in learn.opt.param_lists] == [2, 2, 2]
    schedule = torch.optim.lr_scheduler.StepLR(learn.opt, 1, gamma=0.5)
    learn.opt.step()
    schedule.step()
    assert [hyper["lr"] for hyper in learn.opt.hypers] == [3.5, 4.0, 1.5]
    assert [h["lr"] for h in SGD([nn.Parameter(torch.ones(1))], slice(0.1, 1.0)).hypers] == [1.0]


def test_copied_optimizer_continues_like_the_original():
    ends = []
    for copied in (lambda learn: learn, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        weight = nn.Parameter(torch.ones(2))
        optimizer = Adam([weight], lr=0.1)
        for _ in range(2):
            weight.grad = torch.ones(2)
            optimizer.step()
            weight, optimizer = copied((weight, optimizer))
        other = Adam([weight], lr=0.1)
        other.load_state_dict(optimizer.state_dict())
        weight.grad = torch.ones(2)
        other.step()
        ends.append(weight.detach())
    assert all(torch.equal(end, ends[0]) for end in ends)


def test_frozen_groups_train_their_norms_only():
    model = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.BatchNorm1d(2), nn.Linear(2, 1))
    learn = two_layers(
        model=model,
        splitter=lambda m: [[*m[0].parameters(), *m[2].parameters()], m[3].parameters()],
    )
    learn.freeze()
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True, True, True]
    before = [p.detach().clone() for p in model.parameters()]
    learn.fit(1)
    moved = [not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]
    assert moved == [False, False, True, True, True, True]
    learn.unfreeze()
    learn.fit(1)
    assert not any(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    strict = two_layers(model=copy.deepcopy(model), splitter=by_layer, train_bn=False)
    strict.freeze()
    assert sum(p.requires_grad for p in strict.model.parameters()) == 2


def test_three_groups_train_as_torchs_do():
    ends = []
    for ours in (True, False):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))
        learn = two_layers(model=model, opt_func=partial(SGD, mom=0.9))
        learn.splitter = lambda m: [m[0].parameters(), m[2].parameters(), m[3].parameters()]
        if ours:
            learn.freeze_to(1)
            learn.fit(2, lr=slice(1e-3, 1e-1))
        else:
            groups = [
                {"params": model[2].parameters(), "lr": 1e-2},
                {"params": model[3].parameters()},
            ]
            optimizer = torch.optim.SGD(groups, lr=1e-1, momentum=0.9)
            for x, y in [*learn.dls.train] * 2:
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
        ends.append([p.detach() for p in model.parameters()])
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


class X(Callback):
    """A callback that would be `learn.x`, which is the batch's input."""


def _opt(learn, made):
    learn.opt_func = made
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


WEIGHT = nn.Parameter(torch.ones(1))
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
        lambda: _opt(synth_learner(), torch.optim.SGD),
        TypeError,
        "use SGD or Adam",
    ),
    "an optimizer that torch's is in": (
        lambda: _opt(synth_learner(), lambda groups, lr: torch.optim.SGD(groups, lr=lr)),
        TypeError,
        "got SGD: use SGD or Adam",
    ),
    "a part of torch's optimizer": (
        lambda: _opt(synth_learner(), partial(torch.optim.SGD, momentum=0.9)),
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
        lambda: SGD([[WEIGHT], [WEIGHT]], lr=0.1),
        ValueError,
        "more than one parameter group",
    ),
    "a closure": (
        lambda: SGD([nn.Parameter(torch.ones(1))], lr=0.1).step(lambda: None),
        NotImplementedError,
        "closure",
    ),
    "unfrozen beside its masters": (
        lambda: _frozen().fit(1, cbs=Callback(before_epoch=lambda self: self.learn.unfreeze())),
        RuntimeError,
        "between two calls of fit",
    ),
    "thawed without a master": (
        lambda: _frozen().fit(
            1, cbs=Callback(before_epoch=lambda self: self.model.requires_grad_(True) and None)
        ),
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
    "wait": (lambda: fp16.NonNativeMixedPrecision(scale_wait=0), ValueError, "scale_wait=0"),
    "factor": (
        lambda: fp16.NonNativeMixedPrecision(div_factor=0),
        ValueError,
        "div_factor above 1",
    ),
    "clip": (lambda: fp16.NonNativeMixedPrecision(clip=-1.0), ValueError, "clip above 0 or None"),
}


def test_misuses_are_refused_with_a_message():
    assert not_refused(MISUSES) == {}


# --- mixed precision ------------------------------------------------------------------------------


class RecordDtypes(Callback):
    """Record dtypes of the model, its inputs and its predictions, by event.

    Args:
        order: the place among the callbacks; those of mixed precision are between -55 and 65.
    """

    def __init__(self, order):
        super().__init__()
        self.order = order
        self.dtypes = {}

    def before_fit(self):
        self.dtypes["before_fit"] = self.model[0].weight.dtype

    def before_batch(self):
        self.dtypes["before_batch"] = self.x.dtype

    def after_pred(self):
        self.dtypes["after_pred"] = self.pred.dtype

    def after_fit(self):
        self.dtypes["after_fit"] = self.model[0].weight.dtype


def test_non_native_mixed_precision():
    half, wide = torch.float16, torch.float32
    for dynamic in (True, False):
        before = RecordDtypes(-55)
        after = RecordDtypes(65)
        learn = two_layers(cbs=[fp16.ModelToHalf(), fp16.NonNativeMixedPrecision(dynamic=dynamic)])
        learn.fit(3, cbs=[before, after])
        assert list(before.dtypes.values()) == [wide, wide, half, half]
        assert list(after.dtypes.values()) == [half, half, wide, wide]
        scale = learn.non_native_mixed_precision.loss_scale
        if dynamic:
            assert 1 < scale < 2**24
        else:
            assert scale == 512
        for begin, end in zip(learn.recorder.values[0], learn.recorder.values[-1], strict=True):
            assert end < begin
        # Callbacks that are passed to fit belong to the learner only during that fit.
        assert not hasattr(learn, "record_dtypes")


def test_momentum_survives_and_frozen_weights_have_none():
    learn = two_layers()
    learn.opt_func = partial(SGD, mom=0.9)
    learn.to_non_native_fp16()
    learn.model[0].requires_grad_(False)
    learn.create_opt()
    before = [p for group in learn.opt.param_groups for p in group["params"]]
    assert set(before) == set(learn.model[1].parameters())
    learn.fit(3)
    assert all(
        p is q
        for p, q in zip(
            before, (p for g in learn.opt.param_groups for p in g["params"]), strict=True
        )
    )
    assert set(learn.opt.state) == set(before)
    assert all("grad_avg" in learn.opt.state[p] for p in before)
    learn.to_non_native_fp32().fit(1)
    assert {type(cb).__name__ for cb in learn.cbs} == {"TrainEvalCallback", "Recorder"}


def test_flat_masters_train_as_single_ones_do():
    ends = []
    for flat in (False, True):
        torch.manual_seed(7)
        learn = two_layers().to_non_native_fp16(flat_master=flat, max_loss_scale=2.0**10, clip=1.0)
        learn.fit(2)
        ends.append([p.detach() for p in learn.model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


@pytest.mark.parametrize("way", ["to_fp16", "to_non_native_fp16"])
def test_an_inf_skips_a_step_and_halves_the_scale(way):
    learn = two_layers()
    scale_option = "init_scale" if way == "to_fp16" else "max_loss_scale"
    getattr(learn, way)(**{scale_option: 64.0})
    weights_before_steps = []
    cancelled = Counter()

    class Injecting(Callback):
        order = 5

        def before_step(self):
            if self.train_iter == 3:
                next(self.model.parameters()).grad.fill_(math.inf)
            weights_before_steps.append([p.detach().clone() for p in self.model.parameters()])

        def after_cancel_step(self):
            cancelled["step"] += 1

        def after_cancel_batch(self):
            cancelled["batch"] += 1

    learn.fit(1, cbs=Injecting)
    pairs = itertools.pairwise(weights_before_steps)
    moved = [not all(map(torch.equal, before, after)) for before, after in pairs]
    assert [step for step, has_moved in enumerate(moved) if not has_moved] == [3]
    assert cancelled == {"step" if way == "to_fp16" else "batch": 1}
    scale = (
        learn.scaler.get_scale()
        if way == "to_fp16"
        else learn.non_native_mixed_precision.loss_scale
    )
    assert scale == 32.0


def test_repeated_call_acts_once():
    for way, callbacks in (("to_fp16", 1), ("to_bf16", 1), ("to_non_native_fp16", 2)):
        learn = getattr(getattr(two_layers(), way)(), way)()
        assert len(learn.cbs) == 2 + callbacks
        learn.fit(
            1, cbs=Callback(after_pred=lambda self: (_ for _ in ()).throw(CancelBatchException))
        )
        assert current() is None
        with pytest.raises(KeyError):
            learn.fit(1, cbs=Callback(after_pred=lambda self: {}[0]))
        assert current() is None
        assert {p.dtype for p in learn.model.parameters()} == {torch.float32}
        learn.fit(1)


WAYS = {
    "to_fp16": lambda learn: learn.to_fp16(),
    "to_bf16": lambda learn: learn.to_bf16(),
    "to_non_native_fp16": lambda learn: learn.to_non_native_fp16(),
    "flat": lambda learn: learn.to_non_native_fp16(flat_master=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_fit_after_a_cancelled_part_equals_a_plain_loop(way):
    """At each event, callbacks before and after mixed precision raise each exception."""
    events = sorted(core.EVENTS - {"after_create"})
    kinds = ["Fit", "Train", "Epoch", "Batch", "Valid", "Step", "Backward"]
    for event, kind, order in itertools.product(events, kinds, (5, 20)):
        cancel = getattr(core, f"Cancel{kind}Exception")
        raised = []

        def raise_once(self, cancel=cancel, raised=raised):
            if not raised:
                raised.append(True)
                raise cancel

        learn = WAYS[way](two_layers(n_trn=2, n_val=1, splitter=by_layer))
        callback = Callback(**{event: raise_once})
        callback.order = order
        try:
            learn.fit(1, cbs=callback)
        except cancel:
            # Only these events are outside of the part that catches the exception.
            assert kind != "Fit" or event in ("after_fit", "after_cancel_fit")
        own = [*learn.model.parameters()]
        case = (event, kind, order)
        assert current() is None, case
        assert {p.dtype for p in own} == {torch.float32}, case
        assert all(p.grad is None or not p.grad.any() for p in own), case
        stepped = [p for group in learn.opt.param_lists for p in group]
        assert all(p is q for p, q in zip(own, stepped, strict=True)), case
        plain = copy.deepcopy(learn.model)
        learn.to_fp32().fit(1)
        optimizer = torch.optim.SGD(plain.parameters(), lr=learn.lr)
        for x, y in learn.dls.train:
            optimizer.zero_grad()
            F.mse_loss(plain(x), y).backward()
            optimizer.step()
        assert all(map(torch.equal, plain.parameters(), own)), case


def test_cancelled_fit_keeps_its_weights():
    class Stop(Callback):
        def after_pred(self):
            if self.training and self.iter == 4:
                raise CancelFitException

    for way in WAYS.values():
        learn = way(two_layers())
        before = [p.detach().clone() for p in learn.model.parameters()]
        learn.fit(3, cbs=Stop)
        assert learn.train_iter == 4
        assert learn.epoch == 0
        assert not any(map(torch.equal, learn.model.parameters(), before))


@pytest.mark.parametrize("opt_func", [partial(SGD, mom=0.9), partial(Adam, wd=0.3)])
def test_flat_masters_keep_each_parameters_state_from_fit_to_fit(opt_func):
    """A weight that was frozen in the first fit has fewer steps. Biases do not decay."""
    ends = []
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
        ends.append(
            [*(p.detach() for p in learn.model.parameters()), *(s["grad_avg"] for s in states)]
        )
        ends[-1] += [torch.tensor(state.get("step", 0)) for state in states]
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_flat_masters_of_groups_in_several_dtypes():
    model = nn.Sequential(nn.Linear(2, 3).half(), nn.BatchNorm1d(3), nn.Linear(3, 1).bfloat16())
    optimizer = SGD([[*model[0].parameters(), *model[1].parameters()], model[2].parameters()], 0.1)
    before = [p.detach().clone() for p in model.parameters()]
    for i, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, 2.0**-i)
    model_pgs, master_pgs = fp16.get_master(optimizer, flat_master=True)
    assert [[m.shape for m in group] for group in master_pgs] == [[(15,)], [(4,)]]
    fp16.to_master_grads(model_pgs, master_pgs, flat_master=True)
    with torch.no_grad():
        for (master,) in master_pgs:
            assert master.dtype == torch.float32
            assert master.grad.dtype == torch.float32
            master.sub_(master.grad)
    assert all(map(torch.equal, model.parameters(), before)), "a weight is a view into a master"
    fp16.to_model_params(model_pgs, master_pgs, flat_master=True)
    for i, (p, b) in enumerate(zip(model.parameters(), before, strict=True)):
        assert p.dtype == b.dtype
        assert torch.equal(p, (b.float() - 2.0**-i).to(b.dtype))
    model[0].weight.grad = None
    with pytest.raises(RuntimeError, match="flat master: parameter '0 of its group'"):
        fp16.to_master_grads(model_pgs, master_pgs, flat_master=True)
    fp16.to_master_grads(*fp16.get_master(optimizer))
    model.requires_grad_(False)
    assert fp16.get_master(optimizer, flat_master=True) == ([[], []], [[], []])


@pytest.mark.parametrize("flat", [False, True])
def test_edits_of_weights_or_masters_by_a_callback_stay(flat):
    """The callback writes after the first step was copied into the model; later steps are tiny."""

    class Write(Callback):
        order = 65

        def __init__(self, tensors):
            super().__init__()
            self.tensors = tensors

        def after_step(self):
            if self.train_iter == 0:
                for p in self.tensors(self):
                    p.data.fill_(0.5)

    for tensors in (
        lambda self: self.model.parameters(),
        lambda self: itertools.chain(*self.non_native_mixed_precision.master_pgs),
    ):
        learn = two_layers().to_non_native_fp16(flat_master=flat, max_loss_scale=2.0**10)
        learn.fit(1, lr=2.0**-20, cbs=Write(tensors))
        for p in learn.model.parameters():
            torch.testing.assert_close(p, torch.full_like(p, 0.5), rtol=0.0, atol=2.0**-10)


def test_sparse_gradients_are_unscaled_for_their_masters():
    ends = []
    for sparse in (False, True):
        torch.manual_seed(7)
        model = nn.Sequential(nn.EmbeddingBag(4, 1, mode="sum", sparse=sparse))
        data = [(torch.tensor([[0, 1], [1, 2]]), torch.ones(2, 1))] * 3
        learn = Learner(DataLoaders(data), model, nn.MSELoss(), SGD, lr=0.125)
        learn.to_non_native_fp16(max_loss_scale=2.0**6).fit(1)
        ends.append(model[0].weight.detach())
    assert torch.equal(*ends)


def test_to_fp32_undoes_every_conversion():
    for way in WAYS.values():
        learn = way(two_layers())
        assert learn.to_fp32() is learn
        assert {type(cb).__name__ for cb in learn.cbs} == {"TrainEvalCallback", "Recorder"}
    learn = two_layers().to_fp16(max_loss_scale=2048.0, clip=1.0)
    learn.fit(1)
    assert learn.non_native_mixed_precision.loss_scale == 2048.0
    assert not hasattr(learn.to_fp16(), "non_native_mixed_precision")


def test_conversion_keeps_every_norm_in_fp32():
    norms = [
        nn.BatchNorm1d(4),
        nn.GroupNorm(2, 4),
        nn.LayerNorm(4),
        nn.InstanceNorm1d(4, affine=True),
    ]
    for norm in (*norms, BatchNorm(4, ndim=1)):  # noqa: F405
        network = convert_network(nn.Sequential(nn.Linear(2, 4), norm), torch.float16)
        assert [p.dtype for p in network.parameters()] == [torch.float16] * 2 + [torch.float32] * 2
        assert network is convert_network(network, torch.float32)
        assert {p.dtype for p in network.parameters()} == {torch.float32}
    with pytest.raises(ValueError, match="expected a dtype"):
        convert_network(nn.Linear(1, 1), torch.int8)
