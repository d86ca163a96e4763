"""A class is graded: every submission, however broken, is a row with its points and a reason.

Code that nobody has read runs here, in processes of its own. Each of these costs a second or two, so the class is
handed in at once and graded once, and the tests read its marks.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from labkit.commands.grade import add_arguments
from labkit.grading import EXERCISES
from labkit.grading.cli import run
from labkit.grading.table import Row, write

SETUP = "import torch\nfrom labkit.amp import ScalerConfig, ScalerState\nfrom labkit.grading import check\n"

# Answers as a good student writes them: not our references, so that each proves the other.
STATIC_STEP = """
def my_static_step(weight, gradient_of, scale, lr):
    gradient = gradient_of(scale).float() / scale
    return weight - lr * gradient if torch.isfinite(gradient).all() else weight

check("scaling.static_step", my_static_step)
"""
ADVANCE = """
def my_advance(state, found_inf, config):
    if found_inf:
        return ScalerState(state.scale * config.backoff_factor, 0)
    if state.growth_tracker + 1 == config.growth_interval:
        return ScalerState(state.scale * config.growth_factor, 0)
    return ScalerState(state.scale, state.growth_tracker + 1)

check("scaling.advance", my_advance)
"""
CLIP = """
def my_clip_step(scaled_grads, scale, max_norm):
    grads = [grad.float() / scale for grad in scaled_grads]
    if not all(torch.isfinite(grad).all() for grad in grads):
        return None
    norm = torch.sqrt(sum((grad ** 2).sum() for grad in grads))
    return [grad * min(1.0, max_norm / (float(norm) + 1e-6)) for grad in grads]

check("scaling.clip", my_clip_step)
"""
UNSCALE = """
def my_unscale(scaled_grads, scale):
    grads = [grad.float() / scale for grad in scaled_grads]
    return grads, not all(bool(torch.isfinite(grad).all()) for grad in grads)

check("scaling.unscale", my_unscale)
"""
ORDER = """
def my_training_step(loop):
    loop.zero_grad()
    for batch in loop.batches:
        loop.backward(batch)
    for part in (loop.unscale, loop.clip, loop.step, loop.copy_back, loop.update):
        part()
    return loop

check("scaling.order", my_training_step)
"""
REPAIR = """
def my_repaired_step(scale, tracker, grads, growth_interval):
    if not all(bool(torch.isfinite(grad).all()) for grad in grads):
        return max(scale * 0.5, 1.0), 0, False
    tracker = tracker + 1
    return (scale * 2.0, 0, True) if tracker >= growth_interval else (scale, tracker, True)

check("scaling.repair", my_repaired_step)
"""
SOLUTIONS = {
    "static_step": STATIC_STEP,
    "unscale": UNSCALE,
    "advance": ADVANCE,
    "clip": CLIP,
    "order": ORDER,
    "repair": REPAIR,
}
FULL = {name: EXERCISES[f"scaling.{name}"].points for name in SOLUTIONS}
NONE = dict.fromkeys(FULL, 0)


def code(source: str, exercise: str = "") -> dict[str, Any]:
    tags = [f"exercise-scaling.{exercise}"] if exercise else []
    return {"cell_type": "code", "metadata": {"tags": tags}, "source": source.splitlines(keepends=True)}


def solved(**changed: str) -> list[dict[str, Any]]:
    """Return a solved notebook, but for the answers that are given here."""
    return [code(SETUP), *(code(source, name) for name, source in (SOLUTIONS | changed).items())]


def starter(name: str) -> str:
    """Return what a learner finds: the first line of the solution, and a line to replace."""
    return SOLUTIONS[name].strip().split("\n")[0] + '\n    raise NotImplementedError("your code goes here")\n'


def hand_in(folder: Path, student: str, cells: list[dict[str, Any]]) -> None:
    content = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    (folder / f"{student}.ipynb").write_text(json.dumps(content), encoding="utf-8")


HELPERS = [
    code("import torch\nimport math as mathematics\n%matplotlib inline\n"),
    code("LIMIT = mathematics.inf\nraise RuntimeError('a cell that does not run again')"),
    code("ONE = 1\ndef count(state):\n    return state.growth_tracker + ONE\n\nprint(undefined_name)"),
    code(ADVANCE.replace("state.growth_tracker + 1", "count(state)"), "advance"),
]

# A student each. What would rather break the grading than answer stands in hostile.py.
CLASS: dict[str, list[dict[str, Any]]] = {
    "solved": solved(),
    "unsolved": [code(SETUP), *(code(starter(name), name) for name in SOLUTIONS)],
    "empty": [],
    "helpers": HELPERS,
    "cells": [
        code(SETUP),
        code(ADVANCE, "advance"),
        code(starter("advance"), "advance"),
        code(CLIP.replace("my_clip_step", "clip_of_mine"), "clip"),
        code(UNSCALE.replace(":", "", 1), "unscale"),
    ],
    "slips": solved(
        static_step=STATIC_STEP.replace("torch.isfinite(gradient).all()", "True"),
        advance=ADVANCE.replace("state.growth_tracker + 1 ==", "state.growth_tracker =="),
        clip=CLIP.replace("torch.sqrt(sum((grad ** 2).sum() for grad in grads))", "sum(grad.norm() for grad in grads)"),
    ),
}


def command(*words: str | Path) -> argparse.Namespace:
    """Return what `labkit grade` makes of these words."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


Marks = dict[tuple[str, str], Row]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grade the whole class, once, by the command; return the folder of its table, and of what the command said."""
    folder, out = tmp_path_factory.mktemp("submissions"), tmp_path_factory.mktemp("out")
    for student, cells in CLASS.items():
        hand_in(folder, student, cells)
    (folder / "not_json.ipynb").write_text("I could not export it, sorry", encoding="utf-8")
    (folder / "not_a_notebook.ipynb").write_text("[1, 2, 3]", encoding="utf-8")
    for student in ("only_a_pdf", "Ada Lovelace", "notes"):
        (folder / student).mkdir()
    (folder / "only_a_pdf" / "homework.pdf").write_bytes(b"%PDF-1.4")
    hand_in(folder / "Ada Lovelace", "06_loss_scaling", solved())
    for student in ("Ada Lovelace", "notes"):
        hand_in(folder / student, "my notes", [code("x = 1")])

    with redirect_stderr(io.StringIO()) as said:
        assert run(command(folder, "--csv", out / "grades.csv", "--seed", "7", "--lesson", "06_loss_scaling")) == 0
    (out / "said.txt").write_text(said.getvalue(), encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def marks(out: Path) -> Marks:
    with (out / "grades.csv").open(newline="", encoding="utf-8") as file:
        lines = [list(line.values())[:6] for line in csv.DictReader(file)]
    rows = [Row(name, notebook, id, int(got), int(full), reason) for name, notebook, id, got, full, reason in lines]
    return {(row.student, row.exercise.removeprefix("scaling.")): row for row in rows}


def points(marks: Marks, student: str) -> dict[str, int]:
    return {exercise: row.points for (name, exercise), row in marks.items() if name == student}


def test_every_student_has_a_row_for_every_exercise_and_every_row_a_reason(marks: Marks) -> None:
    students = {*CLASS, "not_json", "not_a_notebook", "only_a_pdf", "Ada Lovelace", "notes"}
    assert set(marks) == {(student, exercise) for student in students for exercise in FULL}
    assert all(row.reason for row in marks.values())
    assert all(row.out_of == FULL[exercise] for (_, exercise), row in marks.items())


def test_the_solution_earns_full_marks_and_the_untouched_starter_nothing(marks: Marks) -> None:
    assert points(marks, "solved") == FULL
    assert marks["solved", "advance"].reason == "5 of 5 checks pass"
    assert points(marks, "unsolved") == NONE
    assert all(marks["unsolved", name].reason == "unsolved: the starter is still in place" for name in NONE)


def test_what_is_no_notebook_earns_nothing_and_says_why(marks: Marks) -> None:
    for student, says in {
        "empty": "empty notebook",
        "not_json": "its text is not JSON",
        "not_a_notebook": "it has no list of cells",
        "only_a_pdf": "no notebook in this student's folder",
    }.items():
        assert points(marks, student) == NONE
        assert all(says in marks[student, name].reason for name in NONE), student


def test_a_cell_that_is_gone_or_broken_costs_its_own_points_and_one_of_two_copies_counts(marks: Marks) -> None:
    assert points(marks, "cells") == {**NONE, "advance": FULL["advance"]}
    for exercise, says in {
        "static_step": "its cell was deleted: no code cell has the tag exercise-scaling.static_step",
        "clip": "its cell no longer defines my_clip_step(scaled_grads, scale, max_norm)",
        "unscale": "syntax error in line 2: expected ':'",
    }.items():
        assert says in marks["cells", exercise].reason


def test_helpers_in_other_cells_count_and_nothing_else_in_them_runs(marks: Marks) -> None:
    assert points(marks, "helpers") == {**NONE, "advance": FULL["advance"]}


def test_known_mistakes_lose_points_and_are_called_by_name(marks: Marks) -> None:
    """Three slips of the pen go the long way here; all of them are met in test_exercises."""
    for exercise, called in {
        "static_step": "never skips",
        "advance": "grows one step late",
        "clip": "adds the norms",
    }.items():
        row = marks["slips", exercise]
        assert (row.points < row.out_of, called in row.reason.partition("known mistake: ")[2]) == (True, True), row


def test_notes_are_passed_over_and_a_missing_lesson_is_not(marks: Marks, out: Path) -> None:
    assert points(marks, "Ada Lovelace") == FULL
    assert {row.notebook for row in marks.values() if row.student == "Ada Lovelace"} == {"06_loss_scaling.ipynb"}
    assert {row.notebook for row in marks.values() if row.student == "notes"} == {"my notes.ipynb"}
    assert points(marks, "notes") == NONE
    said = (out / "said.txt").read_text(encoding="utf-8")
    assert any("passed over" in line and "Ada Lovelace/my notes.ipynb" in line for line in said.splitlines())
    assert "--seed 7 repeats it" in said


def test_nothing_to_grade_is_said_and_no_file_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(tmp_path, "--csv", tmp_path / "grades.csv")) == 2
    assert run(command(tmp_path / "nowhere", "--csv", tmp_path / "grades.csv")) == 2
    said = capsys.readouterr().err
    assert "no notebook (.ipynb) in" in said
    assert "nowhere; give a folder of notebooks" in said
    assert not (tmp_path / "grades.csv").exists()


def test_grades_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "grades.csv"
    path.write_text("the grades of last week")

    def broken() -> Any:
        yield Row("=1+1", "06.ipynb", "scaling.clip", 0, 10, "unsolved")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        write(broken(), path)
    assert path.read_text() == "the grades of last week"
    assert list(tmp_path.iterdir()) == [path]


def test_text_that_utf8_does_not_have_is_written_all_the_same(tmp_path: Path) -> None:
    row = Row("ann", "06.ipynb", "scaling.clip", 0, 10, "it stopped with ValueError: \ud800")
    write([row], tmp_path / "grades.csv")
    assert "ValueError: \\ud800" in (tmp_path / "grades.csv").read_text(encoding="utf-8")
