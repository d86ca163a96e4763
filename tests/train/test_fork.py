"""Forked runs, swallowed updates and memory: what the workbench reads from a run, against plain torch and by hand."""

from __future__ import annotations

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


def test_a_fork_repeats_the_run_bit_for_bit_and_leaves_it_alone() -> None:
    for recipe in ("FP32", "O1", "O2", "FP16 no master", "FP16 stochastic", "FP16 Kahan", "BF16"):
        run = run_of(recipe)
        run.engine.optimizer.param_groups[0]["lr"] *= 0.75  # as it was changed on the way
        fork, again = run.fork(), run.fork()
        ours = [fork.step() for _ in range(3)]
        assert [run.step() for _ in range(3)] == ours, recipe  # the fork's steps did not move the run
        assert [again.step() for _ in range(3)] == ours, recipe


def test_a_fork_under_another_scaler_begins_with_it_and_with_the_same_weights() -> None:
    run = run_of("O2")
    fork = run.fork(replace(RECIPES["O2"], scaler=static(8.0)))
    assert fork.scaler.scale == 8.0
    for mine, theirs in zip(run.weights.master_weights, fork.weights.master_weights, strict=True):
        assert torch.equal(mine, theirs)


def test_a_fork_into_other_formats_converts_weights_and_moments() -> None:
    run = run_of("FP32")
    for other in ("O1", "O2", "O3", "BF16"):
        fork = run.fork(RECIPES[other])
        here, there = run.engine.optimizer.state, fork.engine.optimizer.state
        for (ours, mine), (weight, theirs) in zip(here.items(), there.items(), strict=True):
            assert torch.equal(weight, ours.to(weight.dtype)), other
            assert torch.equal(theirs["exp_avg"], mine["exp_avg"].to(weight.dtype)), other
            assert theirs["step"] == mine["step"]
        assert fork.step().step == 3


def test_swallowed_updates_are_those_of_the_weights_that_outlast_a_step() -> None:
    recipes = ("FP32", "FP16 static", "FP16 no master", "BF16 no master")
    fp32, masters, fp16, bf16 = (run_of(r, 0, "fine_tuning").step().swallowed for r in recipes)
    assert fp32 < 0.01
    assert masters == pytest.approx(fp32, abs=0.01)
    assert 0.2 < fp16 < bf16
    assert run_of("FP32", 6, "fine_tuning").step().swallowed is None, "step 7 is not measured, step 1 was"


def test_bytes_are_those_of_the_formats() -> None:
    counters = 4 * len(list(DIGITS.make_model().parameters()))  # Adam keeps its step beside each weight, in FP32
    rest = PARAMETERS - NORMS
    for recipe, weights, masters, moments in (
        ("FP32", 4 * PARAMETERS, 0, 4 * PARAMETERS),
        ("O1", 4 * PARAMETERS, 0, 4 * PARAMETERS),
        ("O2", 2 * rest + 4 * NORMS, 4 * rest, 4 * PARAMETERS),
        ("O3", 2 * PARAMETERS, 0, 2 * PARAMETERS),
    ):
        held = bytes_held(run_of(recipe, 1).engine)
        sizes = (held["weights"], held["gradients"], held["master weights"], held["optimizer state"])
        assert sizes == (weights, weights, masters, 2 * moments + counters), recipe


def test_a_record_keeps_both(tmp_path: Path) -> None:
    record = train(TASKS["digits"], RECIPES["O2"], steps=2)
    assert record.memory["master weights"] > 0
    assert record.steps[0].swallowed is not None
    assert load(record.save(tmp_path / "new.json")) == record
