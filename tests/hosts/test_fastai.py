"""The real fastai: with one callback, it trains by the lab's recipes on a CPU."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

pytest.importorskip("fastai")

import fastai.callback.schedule  # noqa: F401 - gives a Learner fit_one_cycle and lr_find
from fastai.callback import fp16
from fastai.callback.core import Callback
from fastai.callback.training import GradientAccumulation, GradientClip
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.optimizer import SGD, Adam, OptimWrapper
from fastai.torch_core import TensorBase

from labkit.frameworks.fastai_learner import ByRecipe, Watch
from tests.hosts.training import (
    BATCH,
    BATCHES,
    O1,
    OVERFLOWS,
    RATE,
    assert_same,
    network,
    own_loop,
    points,
)


class Notes(Callback):
    """What a user's callback sees after each batch."""

    order = 70

    def before_fit(self):
        self.losses = []
        self.dtypes = set()
        self.rates = []

    def after_pred(self):
        self.dtypes |= {self.pred.dtype, self.model[0].weight.dtype}

    def after_batch(self):
        if self.training:
            self.losses.append(self.loss.item())
            self.rates.append(self.opt.hypers[0]["lr"])


PLAIN = partial(SGD, mom=0.0)


def learner(*callbacks, opt_func=PLAIN, overflow=True, **options):
    loaders = DataLoaders(
        DataLoader(points(overflow), batch_size=BATCH), DataLoader(points(False), batch_size=BATCH)
    )
    options = {"loss_func": mse_loss, "opt_func": opt_func, "lr": RATE, **options}
    return Learner(loaders, network(), cbs=[Notes, *callbacks], **options)


@pytest.mark.parametrize("opt_func", [PLAIN, partial(OptimWrapper, opt=torch.optim.SGD)])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_it_equals_our_own_loop_bit_for_bit(opt_func, clip):
    by_recipe = ByRecipe(O1, clip=clip)
    learn = learner(by_recipe, opt_func=opt_func)
    learn.fit(2)
    losses, weights, scale, own_skipped, _ = own_loop(epochs=2, clip=clip, clips_as_torch=False)
    assert learn.notes.losses == losses
    assert_same(learn.model, weights)
    assert skipped_in(by_recipe) == own_skipped
    assert by_recipe.reports[-1].scale == scale


def skipped_in(by_recipe):
    return [i for i, report in enumerate(by_recipe.reports) if not report.stepped]


def test_a_step_that_overflows_is_skipped_and_halves_the_scale():
    by_recipe = ByRecipe(O1)
    learner(by_recipe).fit(2)
    assert skipped_in(by_recipe) == [OVERFLOWS, BATCHES + OVERFLOWS]
    assert by_recipe.reports[-1].scale == 2.0**14


def test_other_callbacks_see_predictions_in_fp32():
    learn = learner(ByRecipe(O1))
    learn.fit(1)
    assert learn.notes.dtypes == {torch.float32}, "pred is what fastai's own callback makes of it"


each_recipe = pytest.mark.parametrize("recipe", ["O0", "O1", "O2", "O3", "BF16", "FP16"])


@each_recipe
def test_every_recipe_brings_the_loss_down(recipe):
    learn = learner(ByRecipe(recipe), overflow=False)
    learn.fit(3)
    assert learn.notes.losses[-1] < learn.notes.losses[0] / 2


@each_recipe
def test_every_recipe_gives_an_fp32_model_back(recipe):
    learn = learner(ByRecipe(recipe), overflow=False)
    learn.fit(1)
    parameters = list(learn.model.parameters())
    assert {p.dtype for p in parameters} == {torch.float32}
    assert [p for group in learn.opt.param_lists for p in group] == parameters
    learn.validate()


@each_recipe
@pytest.mark.parametrize(
    ("opt_func", "average"),
    [
        (partial(SGD, mom=0.5), "grad_avg"),
        (Adam, "grad_avg"),
        (partial(OptimWrapper, opt=torch.optim.Adam), "exp_avg"),
    ],
    ids=["SGD", "Adam", "torch's Adam"],
)
def test_every_recipe_gives_state_in_fp32_back_and_takes_it(recipe, opt_func, average):
    learn = learner(ByRecipe(recipe), overflow=False, opt_func=opt_func)
    for _ in range(2):
        learn.fit(1)
        state = learn.opt.opt.state if isinstance(learn.opt, OptimWrapper) else learn.opt.state
        averages = [state[p][average] for p in learn.model.parameters()]
        assert all(values.dtype is torch.float32 and values.any() for values in averages)
        # That of masters is not left behind.
        assert len(state) == len(averages)


def test_the_steps_of_torchs_adam_are_counted_over_two_trainings():
    by_recipe = ByRecipe("O2")
    learn = learner(by_recipe, opt_func=partial(OptimWrapper, opt=torch.optim.Adam))
    taken = 0
    for _ in range(2):
        learn.fit(1)
        taken += BATCHES - len(skipped_in(by_recipe))
    assert {state["step"].item() for state in learn.opt.opt.state.values()} == {taken}


def test_a_model_of_o2_has_its_masters_digits_afterwards():
    learn = learner(ByRecipe("O2"), overflow=False)
    learn.fit(1)
    assert any(not torch.equal(p, p.half().float()) for p in learn.model.parameters())


def test_schedules_groups_and_frozen_layers_are_fastai_s(tmp_path):
    def splitter(model):
        return [list(model[0].parameters()), list(model[2].parameters())]

    learn = learner(ByRecipe("O2"), splitter=splitter, opt_func=Adam, path=tmp_path)
    before = learn.model[0].weight.clone()
    learn.freeze()
    learn.fit_one_cycle(1, slice(1e-3, 1e-2))
    assert torch.equal(learn.model[0].weight, before)
    assert len(set(learn.notes.rates)) > 5, "one cycle"
    learn.unfreeze()
    learn.fit(1)
    assert not torch.equal(learn.model[0].weight, before)
    learn.save("kept")
    learn.load("kept")


def test_gradients_of_several_batches_are_accumulated():
    by_recipe = ByRecipe("O1")
    learner(by_recipe, GradientAccumulation(n_acc=2 * BATCH)).fit(1)
    assert len(by_recipe.reports) == 6


def test_fastais_own_clipping_is_refused():
    with pytest.raises(ValueError, match=r"use ByRecipe\(clip=1.0\)"):
        learner(ByRecipe(), GradientClip).fit(1)


def test_an_error_in_the_midst_leaves_a_learner_that_trains_on():
    class Fails(Callback):
        armed = True

        def after_loss(self):
            if self.armed and self.training and self.iter == 3:
                self.armed = False
                raise RuntimeError("no fourth batch")

    learn = learner(ByRecipe("O2"), Fails())
    with pytest.raises(RuntimeError, match="no fourth batch"):
        learn.fit(1)
    learn.fit(1)
    assert learn.notes.losses[-1] < learn.notes.losses[0]
    assert {p.dtype for p in learn.model.parameters()} == {torch.float32}


def test_tensors_of_fastais_own_class_give_the_same_losses():
    data = points()
    data.tensors = tuple(TensorBase(t) for t in data.tensors)
    learn = learner(ByRecipe(O1))
    learn.dls = DataLoaders(DataLoader(data, batch_size=BATCH), DataLoader(data, batch_size=BATCH))
    learn.fit(1)
    assert learn.notes.losses == own_loop()[0]


@pytest.mark.parametrize("recipe", [None, O1, "O2"])
def test_watch_sees_the_steps_of_fastais_optimizer(recipe):
    watch = Watch(every=4)
    losses = []
    for watching in ([watch], []):
        learn = learner(
            *watching, *([ByRecipe(recipe)] if recipe else []), overflow=recipe is not None
        )
        learn.fit(1)
        losses.append(learn.notes.losses)
    assert losses[0] == losses[1]
    report = watch.report()
    assert report.steps == 12
    assert [step.step for step in report.watched] == [0, 4, 8]
    assert [skip.step for skip in report.skips] == ([] if recipe is None else [OVERFLOWS])
    assert report.histograms("updates")["0.weight"].finite_non_zero
    assert not watch.is_open
    assert not nn.modules.module._global_forward_hooks


# The line of the text from which on it needs what early versions of fastai had.
EARLY = "# as in early versions of fastai"
TEXT = Path(__file__).parents[1] / "frameworks" / "seed_texts" / "fastai_text.py"


def test_the_script_runs_under_fastai_as_under_the_lab(monkeypatch):
    """The same script, numbers included, with the real imports.

    Only what asks for a GPU is replaced.
    """

    def before_fit(self):
        self.model_pgs, self.master_pgs = fp16.get_master(self.opt, self.flat_master)
        self.old_pgs = self.opt.param_lists
        self.count = 0
        fp16._copy_state(self.opt, self.model_pgs, self.master_pgs)

    monkeypatch.setattr(fp16.NonNativeMixedPrecision, "before_fit", before_fit)
    monkeypatch.setattr(fp16, "autocast", lambda _, dtype: torch.autocast("cpu", dtype=dtype))
    monkeypatch.setattr(fp16, "GradScaler", lambda _, **given: torch.amp.GradScaler("cpu", **given))
    # the script reads the scaler after the training
    monkeypatch.setattr(fp16.MixedPrecision, "after_fit", lambda self: None)
    text, early, _ = TEXT.read_text(encoding="utf-8").partition(EARLY)
    assert early, "expected the line EARLY in the text, got none"
    exec(compile(text.replace("labkit.frameworks.fastai", "fastai"), str(TEXT), "exec"), {})
