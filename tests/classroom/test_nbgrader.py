"""Does the real nbgrader, in an environment of its own, give the points that `labkit grade` gives?

It takes a minute to install and minutes to grade: that test is slow. LABKIT_NBGRADER names the python of an environment
that has nbgrader; else one is made with pip, and where that cannot be the test is skipped, loudly.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from labkit.classroom.nbgrader import write_course
from labkit.classroom.tables import read_table
from labkit.grading import EXERCISES, judge
from labkit.grading.judge import answers_of, earned, grading_cases
from notebooks import build
from tests.grading.hand_ins import ADVANCE, CLIP, LESSON, graded, put, solved
from tests.slowness import slowness

ROOT = Path(__file__).parents[2]
SEED = 11
ASKED = [exercise for exercise in EXERCISES.values() if exercise.lesson == LESSON]


def test_a_tests_cell_earns_what_grading_earns_and_says_nothing_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    exercise = EXERCISES["scaling.advance"]

    def chatty(state: object, found_inf: bool, config: object) -> object:
        print("so far so good", file=sys.stderr)
        return state

    points = earned(exercise.id, chatty, SEED)
    assert capfd.readouterr().err == ""
    paper = grading_cases(exercise, SEED)
    assert points == judge(paper, answers_of(paper, chatty)).points < exercise.points


def test_each_exercise_has_an_answer_cell_and_a_cell_of_hidden_tests_behind_it(tmp_path: Path) -> None:
    write_course(tmp_path, [build.lesson(LESSON)], ASKED, SEED)
    notebook = json.loads((tmp_path / "source" / LESSON / f"{LESSON}.ipynb").read_text(encoding="utf-8"))
    words = [cell["metadata"]["nbgrader"] for cell in notebook["cells"] if "nbgrader" in cell["metadata"]]
    points = {answer["grade_id"]: tests["points"] for answer, tests in zip(words[::2], words[1::2], strict=True)}
    assert points == {exercise.cell_id: exercise.points for exercise in ASKED}
    assert all(word["solution"] and not word["grade"] for word in words[::2])
    assert all(word["grade"] and word["locked"] and not word["solution"] for word in words[1::2])
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))


class Nbgrader:
    """The real one; its kernel is the python that runs these tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = os.environ.get("LABKIT_NBGRADER") or self._made(folder / "venv")
        spec = folder / "jupyter" / "kernels" / "python3"
        spec.mkdir(parents=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "lab", "language": "python"}))

    def _made(self, place: Path) -> str:
        venv.create(place, with_pip=True)
        python = str(place / "bin" / "python")
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", "nbgrader"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"nbgrader cannot be installed here: {done.stderr[-300:]}")
        return python

    def run(self, *words: str) -> str:
        environment = {**os.environ, "JUPYTER_PATH": str(self.folder / "jupyter"), "HOME": str(self.folder)}
        environment["PATH"] = os.pathsep.join([str(Path(self.python).parent), environment["PATH"]])
        done = subprocess.run(
            [self.python, "-m", "nbgrader", *words], cwd=self.folder / "teacher" / "nbgrader", env=environment,
            capture_output=True, text=True, timeout=1500 * slowness(), check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout + done.stderr


def hand_in(course: Path, student: str, answers: dict[str, str]) -> None:
    """Put answers into the cells of the released notebook, as a learner does."""
    notebook = json.loads((course / "release" / LESSON / f"{LESSON}.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        for tag in cell["metadata"].get("tags", ()):
            if tag in answers:
                cell["source"] = answers[tag].splitlines(keepends=True)
    put(course / "submitted" / student / LESSON / f"{LESSON}.ipynb", json.dumps(notebook))


@pytest.mark.slow
@pytest.mark.timeout(3600 * slowness())
def test_nbgrader_gives_the_same_points_partial_credit_included(tmp_path: Path) -> None:
    nbgrader, course = Nbgrader(tmp_path), tmp_path / "teacher" / "nbgrader"
    write_course(course, [build.lesson(LESSON)], ASKED, SEED)
    nbgrader.run("generate_assignment", LESSON)
    released = (course / "release" / LESSON / f"{LESSON}.ipynb").read_text(encoding="utf-8")
    assert "HIDDEN TESTS" not in released
    assert "backoff_factor, growth_tracker=0)" not in released
    assert "def my_advance(state, found_inf, config):" in released, "starters keep their first line and docstring"

    whole = {cell["metadata"]["tags"][0]: "".join(cell["source"]) for cell in solved()[1:]}
    partial = {
        "exercise-scaling.advance": ADVANCE.replace("+ 1 ==", "+ 1 >"),
        "exercise-scaling.clip": CLIP.replace("my_clip_step(scaled", "another_name(scaled"),
        "exercise-scaling.unscale": "def my_unscale(scaled_grads, scale):\n    return lightning.unscale(scaled_grads)",
    }
    hand_in(course, "ada", {**whole, **partial})
    hand_in(course, "zoe", {})
    nbgrader.run("autograde", LESSON)
    nbgrader.run("generate_feedback", LESSON)
    nbgrader.run("export")
    assert (course / "feedback" / "ada" / LESSON / f"{LESSON}.html").is_file()
    theirs = {row["student_id"]: float(row["score"]) for row in read_table(course / "grades.csv")}
    rows = graded(course / "submitted", tmp_path, "--seed", str(SEED))
    points = {name: sum(int(row["points"]) for (who, _), row in rows.items() if who == name) for name in ("ada", "zoe")}
    assert theirs == points
    assert 0 < points["ada"] < sum(exercise.points for exercise in ASKED)
