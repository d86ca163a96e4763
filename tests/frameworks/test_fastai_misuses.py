"""Misuses of `labkit.frameworks.fastai`, each refused with a reason."""

import pytest

from labkit.frameworks.fastai.basics import *  # noqa: F403 - as scripts of fastai begin
from labkit.frameworks.fastai.basics import SGD, Callback, Learner, nn, partial, torch
from labkit.frameworks.fastai.callback import fp16
from tests.frameworks.learners import synth_learner
from tests.frameworks.refusals import not_refused
from tests.frameworks.test_fastai_loop import by_layer, two_layers

pytestmark = pytest.mark.usefixtures("same_numbers")


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
    "parameters as a hyperparameter": (
        lambda: SGD([nn.Parameter(torch.ones(1))], lr=0.1).set_hyper("params", 0.9),
        ValueError,
        r"\(lr, mom, wd\), got 'params'",
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
