"""From a folder of notebooks to the code that is run for one exercise. Nothing of a learner's runs in here."""

import json
from pathlib import Path

import pytest

from labkit.grading import EXERCISES
from labkit.grading.plan import lesson_of
from labkit.grading.program import as_python, program_of
from labkit.grading.submission import CodeCell, Submission, Unreadable, find, read_cells

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
        with pytest.raises(Unreadable, match=says):
            read_cells(Submission("ada", "ada.ipynb", path))
    with pytest.raises(Unreadable, match="syntax error"):
        program_of([own("x = '\0'")], ADVANCE)


def test_the_source_of_a_cell_may_be_a_string_or_lines(tmp_path: Path) -> None:
    path = tmp_path / "ada.ipynb"
    cells = [{"cell_type": "code", "source": ["x = 1\n", "y = 2"]}, {"cell_type": "code", "source": "z = 3"}]
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert [cell.source for cell in read_cells(Submission("ada", "ada.ipynb", path))] == ["x = 1\ny = 2", "z = 3"]


def test_a_lesson_is_recognised_by_its_exercises_or_its_file() -> None:
    assert lesson_of(Submission("ada", "00_start.ipynb", None), [own("x = 1")]) == "06_loss_scaling"
    assert lesson_of(Submission("ada", "06_loss_scaling.ipynb", None), []) == "06_loss_scaling"
    assert lesson_of(Submission("ada", "ada.ipynb", None), [own("x = 1")]) == "06_loss_scaling"
    assert lesson_of(Submission("ada", "ada.ipynb", None), [other("x = 1")]) is None


def test_what_other_systems_leave_in_a_folder_is_no_learner(tmp_path: Path) -> None:
    """An archive packed on a Mac, unpacked on Windows, in a folder with blanks and umlauts."""
    folder = tmp_path / "Übung 6" / "Änne O'Neil"
    left = (".DS_Store", "desktop.ini", "__MACOSX/._06_loss_scaling.ipynb", "__MACOSX/06.ipynb")
    for name in ("06_loss_scaling.ipynb", *left):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    for name in (".DS_Store", "desktop.ini", "__MACOSX/Änne O'Neil/06_loss_scaling.ipynb"):
        (folder.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.parent / name).write_text("{}")
    (found,) = find([folder.parent])
    assert (found.student, found.path) == ("Änne O'Neil", folder / "06_loss_scaling.ipynb")
