"""Does fastai's face train as fastai does? The loop and its events; then fastai's own check of its callbacks."""

import itertools
import math
from collections import Counter

import pytest

from labkit.amp.casting.autocast import current
from labkit.frameworks.fastai.basics import *  # noqa: F403 - as scripts of fastai's begin
from labkit.frameworks.fastai.basics import (
    SGD,
    Adam,
    Callback,
    CancelBatchException,
    DataLoaders,
    nn,
    partial,
    torch,
)
from labkit.frameworks.fastai.callback import core, fp16
from tests.frameworks.learners import synth_learner
from tests.frameworks.refusals import not_refused


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(99)


def two_layers(**given):
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    return synth_learner(**{"opt_func": partial(SGD, mom=0.0), "lr": 0.05, "model": model, **given})


# --- the loop ---------------------------------------------------------------------------------------------------------


class Listing(Callback):
    """Write down every event, and cancel a part of the first training batch."""

    def __init__(self, cancel=None):
        super().__init__()
        self.events, self.cancel = [], cancel
        for event in core.EVENTS - {"after_create"}:
            setattr(self, event, lambda event=event: self.hear(event))

    def hear(self, event):
        self.events.append(event)
        if self.cancel is not None and event == f"before_{self.cancel}":
            self.cancel, name = None, self.cancel.title()
            raise getattr(core, f"Cancel{'Valid' if name == 'Validate' else name}Exception")


BATCH = "before_batch after_pred after_loss before_backward after_backward before_step after_step after_batch".split()
VALID = "before_batch after_pred after_loss after_batch".split()
TRAIN = ["before_train", *BATCH, "after_train"]
EPOCH = ["before_epoch", *TRAIN, "before_validate", *VALID, "after_validate", "after_epoch"]


def test_after_x_is_run_when_x_was_cancelled():
    learn = synth_learner(n_trn=1, n_val=1, cbs=(listing := Listing()))
    learn.fit(2)
    assert listing.events == ["before_fit", *EPOCH, *EPOCH, "after_fit"]
    for part in ("backward", "step", "batch", "train", "validate", "epoch", "fit"):
        learn = synth_learner(n_trn=1, n_val=1, cbs=(listing := Listing(part)))
        before = learn.model.a.item()
        learn.fit(1)
        events = listing.events
        assert events[events.index(f"before_{part}") + 1 :][:2] == [
            f"after_cancel_{part}",
            f"after_{part}",
        ]
        assert events[-1] == "after_fit"
        assert (learn.model.a.item() == before) == (part != "validate"), (
            "nothing was learnt but where training went on"
        )


def test_a_line_is_found_and_recorded():
    learn = synth_learner(lr=0.02, opt_func=SGD)
    learn.fit(8)
    assert [len(row) for row in learn.recorder.values] == [2] * 8
    assert learn.recorder.values[-1][1] < 0.1 < learn.recorder.values[0][1]
    learn.dls = DataLoaders(learn.dls.train)
    learn.fit(1)
    assert math.isnan(learn.recorder.values[0][1]), "without validation there is no loss of it"


def test_what_a_callback_lacks_it_finds_in_its_learner():
    class Peek(Callback):
        def after_fit(self):
            self.learn.seen = (self.lr, self.recorder.order, self.n_epoch)

    learn = synth_learner(n_trn=1, lr=0.25, cbs=Peek)
    learn.fit(3)
    assert learn.seen == (0.25, 50, 3)
    with pytest.raises(AttributeError, match="no learner has it"):
        _ = Callback().nothing
    with pytest.raises(ValueError, match=r"unknown events.*before_stepp"):
        Callback(before_stepp=lambda self: None)
    learn.fit(
        1, cbs=Callback(after_fit=lambda self: setattr(self.learn, "seen", "made of a function"))
    )
    assert learn.seen == "made of a function"
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


def test_a_method_that_no_event_calls_is_noticed():
    for wrong, right in (("begin_fit", "before_fit"), ("after_btach", "after_batch")):
        with pytest.warns(
            UserWarning, match=rf"Old\.{wrong}: there is no such event, did you mean {right}\?"
        ):
            type("Old", (Callback,), {wrong: lambda self: None})


class X(Callback):
    """A callback that would be `learn.x`, which is the batch's input."""


def _opt(learn, made):
    learn.opt_func = made
    learn.fit(1)


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
        "no 'fit_one_cycle'.*callback of yours",
    ),
    "torch's optimizer": (
        lambda: _opt(synth_learner(), torch.optim.SGD),
        TypeError,
        "take SGD or Adam",
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
        "div_factor is more than 1",
    ),
    "clip": (lambda: fp16.NonNativeMixedPrecision(clip=-1.0), ValueError, "clip a length above 0"),
}


def test_what_cannot_be_is_refused_in_words():
    assert not_refused(MISUSES) == {}


# --- mixed precision --------------------------------------------------------------------------------------------------


class Seen(Callback):
    """The dtypes that a callback sees before those of mixed precision, or after them."""

    def __init__(self, order):
        super().__init__()
        self.order, self.kinds = order, {}
        seen = {
            "before_fit": "model",
            "before_batch": "x",
            "after_pred": "pred",
            "after_fit": "model",
        }
        for event, what in seen.items():
            setattr(
                self, event, lambda event=event, what=what: self.note(event, getattr(self, what))
            )

    def note(self, event, value):
        self.kinds[event] = value[0].weight.dtype if isinstance(value, nn.Module) else value.dtype


def test_non_native_mixed_precision():
    half, wide = torch.float16, torch.float32
    for dynamic in (True, False):
        before, after = Seen(-55), Seen(65)
        learn = two_layers(cbs=[fp16.ModelToHalf(), fp16.NonNativeMixedPrecision(dynamic=dynamic)])
        learn.fit(3, cbs=[before, after])
        assert list(before.kinds.values()) == [wide, wide, half, half]
        assert list(after.kinds.values()) == [half, half, wide, wide]
        scale = learn.non_native_mixed_precision.loss_scale
        assert 1 < scale < 2**24 if dynamic else scale == 512
        for begin, end in zip(learn.recorder.values[0], learn.recorder.values[-1], strict=True):
            assert end < begin
        assert not hasattr(learn, "seen"), "callbacks of one fit are gone after it"


def test_momentum_survives_and_what_is_frozen_has_none():
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
def test_an_inf_costs_a_step_and_half_the_scale(way):
    learn = two_layers()
    getattr(learn, way)(**({"init_scale": 64.0} if way == "to_fp16" else {"max_loss_scale": 64.0}))
    seen, cancelled = [], Counter()

    class Injecting(Callback):
        order = 5

        def before_step(self):
            if self.train_iter == 3:
                next(self.model.parameters()).grad.fill_(math.inf)
            seen.append([p.detach().clone() for p in self.model.parameters()])

        def after_cancel_step(self):
            cancelled["step"] += 1

        def after_cancel_batch(self):
            cancelled["batch"] += 1

    learn.fit(1, cbs=Injecting)
    moved = [not all(map(torch.equal, one, other)) for one, other in itertools.pairwise(seen)]
    assert [i for i, did in enumerate(moved) if not did] == [3]
    assert cancelled == {"step" if way == "to_fp16" else "batch": 1}
    scale = (
        learn.scaler.get_scale()
        if way == "to_fp16"
        else learn.non_native_mixed_precision.loss_scale
    )
    assert scale == 32.0


def test_a_repeated_call_acts_once_and_errors_leave_no_region_open():
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
