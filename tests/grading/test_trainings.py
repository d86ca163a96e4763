"""A training that ends badly costs its recipe's points; but where not even FP32 trains, nobody is graded."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.amp import RECIPES, static
from labkit.grading import EXERCISES
from labkit.grading.batch import answers_in
from labkit.grading.exercise import Key, Trained
from labkit.grading.sandbox import isolation
from labkit.grading.sandbox.runner import FORKS, NotStarted, Runner, packed, scratch
from labkit.grading.sandbox.supervisor import Reply
from labkit.grading.sandbox.worker import Limits, Request
from labkit.grading.trainings import Trainings
from tests.grading.cases import lesson_module

project_runs = lesson_module("12_project", "runs")

FP32, O3 = (replace(RECIPES[name], name="yours") for name in ("FP32", "O3"))


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in list(project_runs.RESULTS):
        monkeypatch.delitem(project_runs.RESULTS, key)


def wanted(*asked: Key) -> dict[Key, Trained]:
    trained = EXERCISES["project.digits"].trained
    assert trained is not None
    return dict.fromkeys(asked, trained)


def train(runner: object, *asked: Key) -> None:
    trainings = Trainings(runner)  # type: ignore[arg-type]
    trainings._missing |= wanted(*asked)
    with ThreadPoolExecutor(1) as pool:
        trainings.run(pool, lambda line: None)


def out_of_reach(questions: object, limits: object) -> dict[str, Reply]:
    return {"training": Reply("training", note="FileNotFoundError: digits.npz")}


def test_a_recipe_whose_training_fails_gets_the_reason() -> None:
    train(SimpleNamespace(limits=Limits(), run=out_of_reach), ("digits", O3, 0))
    with pytest.raises(RuntimeError, match=r"digits\.npz"):
        project_runs.run_of("digits", O3, 0)


def test_where_not_even_fp32_trains_no_recipe_is_blamed() -> None:
    with pytest.raises(NotStarted, match="'digits' cannot be trained here, not even in FP32: FileNotFoundError"):
        train(SimpleNamespace(limits=Limits(), run=out_of_reach), ("digits", O3, 0), ("digits", FP32, 0))


@pytest.mark.slow
@pytest.mark.skipif(not FORKS, reason="without a fork server each process loads what it needs itself")
def test_what_the_first_optimizer_loads_is_loaded_once_for_all() -> None:
    """torch._dynamo, twice as long as a training; a program without an optimizer needs none of it."""
    program, found = "import sys\ndef loaded():\n    return 'torch._dynamo' in sys.modules", []
    with scratch() as folder, Runner(Limits(), folder) as runner:
        for other in ("x = 1", "# torch.optim", "x = 2"):
            (reply,) = runner.run([Request("any", [other, program], "loaded", "loaded()", [[packed(())]])]).values()
            found += answers_in(reply)
    assert found == [[["bool", False]], [["bool", True]], [["bool", True]]]


def test_the_time_is_announced_before_the_first_training() -> None:
    """Nine hundred learners with a recipe each: two at once, at 0.6 seconds, take four and a half minutes."""
    told: list[str] = []

    def trained(questions: object, limits: object) -> dict[str, Reply]:
        told.append("a training")
        return {"training": Reply("training", note="not now")}

    trainings = Trainings(SimpleNamespace(limits=Limits(), run=trained), workers=2)  # type: ignore[arg-type]
    trainings.at_once = 2  # on a machine with one core, too
    recipes = [replace(O3, scaler=static(2.0**10 + number)) for number in range(900)]
    trainings._missing |= wanted(*(("digits", recipe, 0) for recipe in recipes))
    with ThreadPoolExecutor(2) as pool:
        trainings.run(pool, told.append)
    assert told[0] == "900 recipes: 900 trainings, about 4.5 minutes"
    assert told.count("a training") == 900


@pytest.mark.slow
def test_the_data_of_the_lab_are_in_sight_of_a_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Digits are read from a file; a folder without it is the machine's fault."""
    with scratch() as folder, Runner(Limits(), folder) as runner:
        isolation.isolate(runner, [], folder)
        train(runner, ("digits", FP32, 0))
    assert project_runs.run_of("digits", FP32, 0).metric > 0.6
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    with scratch() as folder, Runner(Limits(), folder) as runner, pytest.raises(NotStarted, match=r"digits\.npz"):
        train(runner, ("digits", FP32, 1))
