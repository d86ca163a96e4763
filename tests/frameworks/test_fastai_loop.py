"""The loop of `labkit.frameworks.fastai`: its events, its callbacks, and what it warns of."""

import math

import pytest

from labkit.frameworks.fastai.basics import *  # noqa: F403 - as scripts of fastai begin
from labkit.frameworks.fastai.basics import SGD, Callback, DataLoaders, nn, partial, torch
from labkit.frameworks.fastai.callback import core
from tests.frameworks.learners import synth_learner

pytestmark = pytest.mark.usefixtures("same_numbers")


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


def test_a_rate_in_place_of_the_epochs_is_refused():
    reason = r"n_epoch: expected an int, got 0\.001\. Pass a rate as lr="
    with pytest.raises(TypeError, match=reason):
        two_layers().fit(1e-3)


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


def test_an_event_that_a_callback_lacks_is_named_without_advice():
    recorder = synth_learner(n_trn=1).recorder
    with pytest.raises(AttributeError, match=r"^Recorder has no attribute 'after_pred'$"):
        _ = recorder.after_pred


def test_an_event_of_a_callback_without_a_learner_is_named():
    reason = r"^Callback has no attribute 'after_pred', and no learner to look it up in$"
    with pytest.raises(AttributeError, match=reason):
        _ = Callback().after_pred


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


def copies(model):
    """Return copies of a model's parameters."""
    return [p.detach().clone() for p in model.parameters()]


def differ(model, before):
    """Return for each parameter whether it differs from a copy."""
    return [not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]


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
