"""Where nothing can be forked, as on Windows, each submission gets a program of its own, and the same rows.

The fork server is switched off here, so that this road is tried on Linux too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.amp import RECIPES
from labkit.grading import EXERCISES, judge, project_runs, supervise
from labkit.grading.batch import answers_in, grade, question
from labkit.grading.given.child import Limits
from labkit.grading.judge import paper_of
from labkit.grading.submission import find
from labkit.grading.supervise import Runner, scratch
from labkit.grading.trainings import Trainings
from tests.grading.hostile import HOSTILE, RIGHT
from tests.grading.test_hostile import hand_in

FORGES = r"""
import os
for descriptor in range(3, 9):
    try:
        os.write(descriptor, b"?\n")
    except OSError:
        pass
"""
PAPER = paper_of(EXERCISES["scaling.advance"], 5)
IMPORTS = "from labkit.amp import ScalerConfig, ScalerState\nfrom labkit.grading import check\n"


@pytest.fixture(autouse=True)
def no_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "FORKS", False)


def test_an_answer_after_one_that_stops_earns_its_points() -> None:
    """One program answers both; the first cell does not even run to its end."""
    stops = replace(question(PAPER, ["1 / 0"]), exercise="stops")
    with scratch() as folder, Runner(Limits(), folder) as runner:
        assert runner._server is None, "no fork server"
        replies = runner.run([stops, question(PAPER, [IMPORTS + RIGHT])])
    assert "its cell stopped with ZeroDivisionError" in replies["stops"].note
    assert judge(PAPER, answers_in(replies["scaling.advance"])).points == 8


@pytest.mark.slow  # each of them costs a second start
def test_code_that_ends_waits_or_forges_costs_its_own_question_alone() -> None:
    for source, why in (
        ("import os\nos._exit(7)", "the code ended its process, with exit code 7"),
        ("while True: pass", "it waits for something"),  # the clock on the wall, where no other can be read
        (FORGES, "wrote into the channel"),
    ):
        bad = replace(question(PAPER, [source]), exercise="bad")
        with scratch() as folder, Runner(Limits(seconds=1.0), folder) as runner:
            replies = runner.run([bad, question(PAPER, [IMPORTS + RIGHT])])
        assert why in replies["bad"].note
        assert judge(PAPER, answers_in(replies["scaling.advance"])).points == 8


@pytest.mark.slow
def test_a_class_gets_the_rows_it_gets_from_the_fork_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hand_in(tmp_path, "honest", RIGHT)
    hand_in(tmp_path, "leaves", HOSTILE["os._exit in the cell"].source)
    said: list[str] = []
    spawned = grade(find([tmp_path]), 5, Limits(2.0), lesson="06_loss_scaling", progress=said.append)
    assert "Missing here: " in said[0]
    monkeypatch.setattr(supervise, "FORKS", True)
    assert spawned == grade(find([tmp_path]), 5, Limits(2.0), lesson="06_loss_scaling")


@pytest.mark.slow
def test_a_recipe_is_trained_in_a_program_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_runs, "_KEPT", {})
    asked = ("targets", replace(RECIPES["FP32"], name="yours"), 0)
    with scratch() as folder, Runner(Limits(), folder) as runner:
        trainings = Trainings(runner)
        trainings._train(asked)
    assert project_runs.kept(asked)
