"""Forked runs, swallowed updates and memory: what the workbench reads from a run, against plain torch and by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from labkit.amp import RECIPES, static
from labkit.train import TASKS, TrainingRun, bytes_held, load, train

DIGITS = TASKS["digits_cnn"]
PARAMETERS = sum(p.numel() for p in DIGITS.make_model().parameters())
NORMS = sum(p.numel() for n, p in DIGITS.make_model().named_parameters() if n.startswith("norm"))


def run_of(recipe: str, steps: int = 2, task: str = "digits_cnn") -> TrainingRun:
    run = TrainingRun(TASKS[task], RECIPES[recipe], seed=3)
    for _ in range(steps):
        run.step()
    return run


@pytest.mark.parametrize("recipe", ["FP32", "O1", "O2", "FP16 no master", "FP16 stochastic", "FP16 Kahan", "BF16"])
def test_a_fork_repeats_the_run_bit_for_bit_and_leaves_it_alone(recipe: str) -> None:
    run = run_of(recipe)
    fork, again = run.fork(), run.fork()
    ours = [fork.step() for _ in range(3)]
    assert [run.step() for _ in range(3)] == ours  # the fork's steps did not move the run
    assert [again.step() for _ in range(3)] == ours


def test_a_fork_keeps_a_learning_rate_that_was_changed() -> None:
    run = run_of("O2")
    run.engine.optimizer.param_groups[0]["lr"] = 0.25
    assert run.fork().engine.optimizer.param_groups[0]["lr"] == 0.25


def test_a_fork_under_another_scaler_begins_with_it_and_with_the_same_weights() -> None:
    run = run_of("O2")
    fork = run.fork(replace(RECIPES["O2"], scaler=static(8.0)))
    assert fork.scaler.scale == 8.0
    for mine, theirs in zip(run.weights.master_weights, fork.weights.master_weights, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("other", ["O1", "O2", "O3", "BF16"])
def test_a_fork_into_other_formats_converts_weights_and_moments(other: str) -> None:
    run = run_of("FP32")
    fork = run.fork(RECIPES[other])
    here, there = run.engine.optimizer.state, fork.engine.optimizer.state
    for (ours, mine), (weight, theirs) in zip(here.items(), there.items(), strict=True):
        assert torch.equal(weight, ours.to(weight.dtype))
        assert torch.equal(theirs["exp_avg"], mine["exp_avg"].to(weight.dtype))
        assert theirs["step"] == mine["step"]
    assert fork.step().step == 3


def test_swallowed_updates_are_those_of_the_weights_that_outlast_a_step() -> None:
    steps = {r: run_of(r, 6, "fine_tuning").step() for r in ("FP32",)}
    assert steps["FP32"].swallowed is None  # step 7 is not measured, step 1 was
    first = {r: run_of(r, 0, "fine_tuning").step() for r in ("FP32", "FP16 static", "FP16 no master", "BF16 no master")}
    assert first["FP32"].swallowed < 0.01
    assert first["FP16 static"].swallowed == pytest.approx(first["FP32"].swallowed, abs=0.01)
    assert 0.2 < first["FP16 no master"].swallowed < first["BF16 no master"].swallowed


def test_swallowed_is_what_a_comparison_by_hand_finds() -> None:
    run = run_of("FP16 no master", 0, "fine_tuning")
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    gradients = run.next_gradients("weight gradients", scale=run.scaler.scale)
    step = run.step()
    still = [(p.detach() == before[n])[gradients[n] != 0] for n, p in run.model.named_parameters()]
    assert step.swallowed == float(torch.cat(still).double().mean())


@pytest.mark.parametrize(
    ("recipe", "weights", "masters", "moments"),
    [("FP32", 4, 0, 4), ("O1", 4, 0, 4), ("O3", 2, 0, 2)],
)
def test_bytes_are_those_of_the_formats(recipe: str, weights: int, masters: int, moments: int) -> None:
    held = bytes_held(run_of(recipe, 1).engine)
    counters = 4 * len(list(DIGITS.make_model().parameters()))  # Adam keeps its step beside each weight, in FP32
    assert held == {
        "weights": weights * PARAMETERS,
        "master weights": masters * PARAMETERS,
        "gradients": weights * PARAMETERS,
        "optimizer state": 2 * moments * PARAMETERS + counters,
    }


def test_o2_keeps_fp16_weights_fp32_norms_and_masters_of_the_rest() -> None:
    held = bytes_held(run_of("O2", 1).engine)
    assert held["weights"] == held["gradients"] == 2 * (PARAMETERS - NORMS) + 4 * NORMS
    assert held["master weights"] == 4 * (PARAMETERS - NORMS)


def test_a_record_keeps_both_and_one_from_before_them_still_loads(tmp_path: Path) -> None:
    record = train(TASKS["digits"], RECIPES["O2"], steps=2)
    assert record.memory["master weights"] > 0
    assert record.steps[0].swallowed is not None
    assert load(record.save(tmp_path / "new.json")) == record
    stored = json.loads((tmp_path / "new.json").read_text())
    del stored["memory"], stored["steps"]["swallowed"]
    (tmp_path / "old.json").write_text(json.dumps(stored))
    old = load(tmp_path / "old.json")
    assert old.memory == {}
    assert [s.swallowed for s in old.steps] == [None, None]
    assert [s.loss for s in old.steps] == [s.loss for s in record.steps]
