"""From a folder of notebooks to the code that is run for one exercise. Nothing of a learner's runs in here."""

from pathlib import Path

import pytest

from labkit.grading import EXERCISES
from labkit.grading.program import CodeCell, Unreadable, as_python, program_of
from labkit.grading.submission import Submission, find
from tests.grading.hand_ins import code, notebook, put

ADVANCE = EXERCISES["scaling.advance"]


def own(source: str) -> CodeCell:
    return CodeCell("", (ADVANCE.tag,), source)


def other(source: str) -> CodeCell:
    return CodeCell("", (), source)


def test_students_are_files_or_folders(tmp_path: Path) -> None:
    for name in (
        "ada.ipynb",
        "bob/06_loss_scaling.ipynb",
        "bob/late/07.IPYNB",
        "bob/.ipynb_checkpoints/06.ipynb",
        ".git/x.ipynb",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "cleo").mkdir()
    found = [(submission.student, submission.notebook) for submission in find([tmp_path])]
    assert found == [("ada", "ada.ipynb"), ("bob", "06_loss_scaling.ipynb"), ("bob", "late/07.IPYNB"), ("cleo", "")]


def test_only_what_the_cell_names_comes_along() -> None:
    cells = [
        other("import torch\nimport math as m\nfrom labkit.widgets import live"),
        other("HALF = 0.5\nrun = train(task)\nprint('again?')"),
        other("def back_off(scale):\n    return m.floor(scale * HALF)\n\ndef unused():\n    pass"),
        own("def my_advance(state, found_inf, config):\n    return back_off(state.scale)"),
    ]
    *definitions, last = program_of(cells, ADVANCE)
    assert [line.split("\n")[0] for line in definitions] == ["import math as m", "HALF = 0.5", "def back_off(scale):"]
    assert last == cells[-1].source


def test_what_the_exercise_provides_is_not_taken_from_the_notebook() -> None:
    cells = [other("class ScalerState:\n    pass"), own("def my_advance(*_):\n    return ScalerState(1.0)")]
    assert len(program_of(cells, ADVANCE)) == 1


def test_lines_for_IPython_become_calls_and_lines_keep_their_numbers() -> None:
    assert as_python("\n%%time\n!ls\nx = 5 % 3\n?x").split("\n") == [
        "",
        "# %%time",
        "get_ipython().system('ls')",
        "x = 5 % 3",
        "get_ipython().run_line_magic('pinfo', 'x')",
    ]


def test_what_is_no_notebook_or_cannot_be_run_says_so(tmp_path: Path) -> None:
    """The other reasons are met in test_handed_in.py."""
    path = tmp_path / "ada.ipynb"
    for text, says in (
        ("\xff\xfe", "its text is not JSON"),
        ("[" * 100_000, "its text is not JSON"),
        ('{"cells": [5, {"cell_type": "code", "source": 7, "metadata": []}]}', "empty notebook"),
    ):
        path.write_text(text, encoding="latin-1")
        assert says in Submission("ada", "ada.ipynb", path).problem
    with pytest.raises(Unreadable, match="syntax error"):
        program_of([own("x = '\0'")], ADVANCE)


def test_a_lesson_is_recognised_by_its_exercises_or_its_file(tmp_path: Path) -> None:
    for name, exercise, lesson in (
        ("00_start", ADVANCE.id, "06_loss_scaling"),
        ("06_loss_scaling", "", "06_loss_scaling"),
        ("ada", ADVANCE.id, "06_loss_scaling"),
        ("ada", "", None),
    ):
        path = put(tmp_path / f"{name}.ipynb", notebook(code("x = 1", exercise)))
        assert Submission("ada", path.name, path).lesson == lesson, (name, exercise)
