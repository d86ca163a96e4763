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
from tests.hosts.training import BATCH, O1, OVERFLOWS, RATE, assert_same, network, own_loop, points


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
def test_it_trains_skips_and_equals_our_own_loop_bit_for_bit(opt_func, clip):
    by_recipe = ByRecipe(O1, clip=clip)
    learn = learner(by_recipe, opt_func=opt_func)
    learn.fit(2)
    losses, weights, scale, own_skipped, _ = own_loop(epochs=2, clip=clip)
    assert learn.notes.losses == losses
    assert_same(learn.model, weights)
    skipped = [i for i, report in enumerate(by_recipe.reports) if not report.stepped]
    assert skipped == [OVERFLOWS, 12 + OVERFLOWS]
    assert own_skipped == [OVERFLOWS, 12 + OVERFLOWS]
    assert by_recipe.reports[-1].scale == 2.0**14
    assert scale == 2.0**14
    assert losses[11] < losses[0] / 2
    assert learn.notes.dtypes == {torch.float32}, "pred is what fastai's own callback makes of it"


@pytest.mark.parametrize("recipe", ["O0", "O1", "O2", "O3", "BF16", "FP16"])
def test_every_recipe_gives_an_fp32_model_back(recipe):
    learn = learner(ByRecipe(recipe), overflow=False, opt_func=partial(SGD, mom=0.5))
    for _ in range(2):
        learn.fit(2)
        state = [learn.opt.state[p]["grad_avg"] for p in learn.model.parameters()]
        assert all(average.dtype is torch.float32 and average.any() for average in state)
    assert learn.notes.losses[-1] < learn.notes.losses[0]
    assert {p.dtype for p in learn.model.parameters()} == {torch.float32}
    if recipe == "O2":
        assert any(not torch.equal(p, p.half().float()) for p in learn.model.parameters()), (
            "its masters' digits"
        )
    assert [p for group in learn.opt.param_lists for p in group] == list(learn.model.parameters())
    learn.validate()  # as ever


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


TEXT = Path(__file__).parents[1] / "frameworks" / "seed_texts" / "fastai_text.py"


def test_the_script_runs_under_fastai_as_under_the_lab(monkeypatch):
    """The same script, numbers included, with the real imports; only what asks for a GPU is
    replaced.
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
    text, early, _ = TEXT.read_text(encoding="utf-8").partition("# fastai's early versions")
    assert early, "this version has no such arguments"
    exec(compile(text.replace("labkit.frameworks.fastai", "fastai"), str(TEXT), "exec"), {})
