"""A training that ends badly costs its recipe's points; but where not even FP32 trains, nobody is graded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.amp import RECIPES
from labkit.grading import walls
from labkit.grading.exercises import project_runs
from labkit.grading.given.child import Limits
from labkit.grading.given.keeper import Reply
from labkit.grading.supervise import NotStarted, Runner, scratch
from labkit.grading.trainings import Trainings

FP32, O3 = (replace(RECIPES[name], name="yours") for name in ("FP32", "O3"))


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_runs, "_KEPT", {})


def train(runner: object, *asked: project_runs.Asked) -> None:
    trainings = Trainings(runner)  # type: ignore[arg-type]
    trainings._missing.update(dict.fromkeys(asked))
    with ThreadPoolExecutor(1) as pool:
        trainings.run(pool, lambda line: None)


def out_of_reach(questions: object, limits: object) -> dict[str, Reply]:
    return {"training": Reply("training", note="FileNotFoundError: digits.npz")}


def test_a_recipe_whose_training_ends_badly_is_told_why() -> None:
    train(SimpleNamespace(limits=Limits(), run=out_of_reach), ("digits", O3, 0))
    with pytest.raises(RuntimeError, match=r"digits\.npz"):
        project_runs.run_of("digits", O3, 0)


def test_where_not_even_fp32_trains_no_recipe_is_blamed() -> None:
    with pytest.raises(NotStarted, match="'digits' cannot be trained here, not even in FP32: FileNotFoundError"):
        train(SimpleNamespace(limits=Limits(), run=out_of_reach), ("digits", O3, 0), ("digits", FP32, 0))


def test_the_data_of_the_lab_are_in_sight_of_a_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Digits are read from a file; a folder without it is the machine's fault."""
    with scratch() as folder, Runner(Limits(), folder) as runner:
        walls.build(runner, [], folder)
        train(runner, ("digits", FP32, 0))
    assert project_runs.run_of("digits", FP32, 0).metric > 0.6
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    with scratch() as folder, Runner(Limits(), folder) as runner, pytest.raises(NotStarted, match=r"digits\.npz"):
        train(runner, ("digits", FP32, 1))
