"""What stands between the lab and the real frameworks, tried without them; `make hosts` tries it with them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit.frameworks.fastai.callback.fp16 import MixedPrecision
from labkit.frameworks.fastai.test_utils import synth_learner
from labkit.frameworks.watching import Watching
from labkit.instrument import watch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")


def test_every_import_on_the_page_for_users_is_there():
    """The adapters' own frameworks are not installed here, so their files are read."""
    named = re.findall(r"from labkit\.frameworks\.(\w+) import (\w+)", PAGE)
    assert {module for module, _ in named} == {"lightning", "fastai_learner", "accelerate", "transformers"}
    for module, name in named:
        tree = ast.parse((ROOT / "labkit" / "frameworks" / f"{module}.py").read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}, (module, name)


def step(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def test_a_callback_watches_from_open_to_close_and_a_second_time():
    model, watching = nn.Linear(3, 1), Watching(every=1)
    with pytest.raises(RuntimeError, match="nothing was watched yet"):
        watching.report()
    for steps in (2, 3):
        watching.open(model)
        for _ in range(steps):
            step(model)
        watching.close()
        step(model)  # not seen any more
        assert watching.report().steps == steps


def test_one_that_was_left_open_by_an_error_is_closed_by_the_next_beginning():
    watching = Watching(every=1)
    watching.open(nn.Linear(3, 1))
    watching.open(model := nn.Linear(3, 1))
    step(model)
    watching.close()
    watching.close()
    assert watching.report().steps == 1
    assert not nn.modules.module._global_forward_hooks


def test_watch_hears_an_optimizer_that_is_none_of_torch_s():
    """The face of fastai has fastai's kind, which no hook of torch's tells of; a scaler steps the callback instead."""
    for callback in (None, MixedPrecision(init_scale=2.0**8)):
        learn = synth_learner(cbs=callback)
        with watch(learn.model, every=5) as w:
            learn.fit(1)
        report = w.report()
        assert report.steps == 10
        assert [step.step for step in report.watched] == [0, 5]
        assert report.skips == ()
        assert report.histograms("updates")["a"].finite_non_zero == 2, "in each of both"


def test_watch_hears_which_of_its_steps_a_scaler_skipped():
    torch.manual_seed(0)
    learn = synth_learner(cbs=MixedPrecision(init_scale=2.0**127))
    with watch(learn.model, every=5) as w:
        learn.fit(1)
    assert w.report().steps == 10
    assert len(w.report().skips) == 10 - len(learn.mixed_precision.scales) > 0
