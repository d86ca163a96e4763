"""Logged answers, their restoration into notebooks, and hints."""

import codecs
import json
import linecache
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from labkit import cli
from labkit.course import text
from labkit.grading import EXERCISES, check, hint, progress
from labkit.grading.answer_log import (
    STARTER,
    LoggedAnswer,
    best,
    has_work,
    hints,
    logged_answers,
    restore_answers,
)
from labkit.records.journal import NAME, append_answer, last_answers
from notebooks import build
from tests.grading.cases import cells_of
from tests.grading.hand_ins import put
from tests.slowness import slowness

SMALLEST = EXERCISES["start.smallest"]
RIGHT = (
    "def my_smallest(exponent_bits, significand_bits):\n"
    "    bias = 2 ** (exponent_bits - 1) - 1\n"
    "    return 2.0 ** (1 - bias - significand_bits)\n"
)
CHECK = 'check("start.smallest", my_smallest)'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a learner's folder with lesson 00 as handed out, and make it the working directory.

    The home directory is another, empty one.
    """
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(tmp_path))
    monkeypatch.delenv("LABKIT_ANSWERS", raising=False)
    put(tmp_path / "mine" / "00_start.ipynb", (build.NOTEBOOKS / "00_start.ipynb").read_bytes())
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


@pytest.fixture
def ask(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a cell with `check` as a notebook does, and returns the grade."""

    def run(cell: str):
        parent = {"content": {"code": cell}}
        shell = SimpleNamespace(kernel="one", get_parent=lambda: parent)
        monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)
        names: dict[str, object] = {"check": check}
        program = cell.replace(CHECK, f"grade = {CHECK}")
        # As IPython does, so that `inspect` finds the source.
        lines = program.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, "<cell>", (len(program), None, lines, "<cell>"))
        exec(compile(program, "<cell>", "exec"), names)
        return names["grade"]

    return run


def cells_by_tag(notebook: dict[str, Any]) -> dict[str, str]:
    return {
        tag: "".join(cell["source"])
        for cell in notebook["cells"]
        for tag in cell["metadata"].get("tags", ())
    }


def exercise_cell(folder: Path) -> str:
    return cells_by_tag(json.loads((folder / "00_start.ipynb").read_text(encoding="utf-8")))[
        SMALLEST.tag
    ]


def test_a_starter_is_not_logged(ask, folder: Path) -> None:
    ask(f"def my_smallest(exponent_bits, significand_bits):\n    {text.STARTER}\n\n{CHECK}")
    assert logged_answers(folder) == {}


def test_an_answer_that_is_checked_again_is_logged_once(ask, folder: Path) -> None:
    for _ in range(3):
        assert ask(f"{RIGHT}\n{CHECK}").points == SMALLEST.points
    ((id, (kept,)),) = logged_answers(folder).items()
    assert id == "start.smallest"
    assert kept.source == f"{RIGHT}\n{CHECK}"
    assert kept.points == 2
    assert kept.out_of == 2
    assert kept.when.endswith("+00:00")


def test_the_best_answer_is_the_latest_with_most_points() -> None:
    answers = [
        LoggedAnswer("x", source, points, 2, "")
        for source, points in (("a", 2), ("b", 2), ("c", 0))
    ]
    assert best(answers).source == "b"


def test_an_answer_comes_back_into_a_cell_without_work(ask, folder: Path) -> None:
    ask(f"{RIGHT}\n{CHECK}")
    assert STARTER in exercise_cell(folder)
    (done,) = restore_answers(folder)
    assert done == "start.smallest: restored into 00_start.ipynb (2 of 2 points)"
    assert exercise_cell(folder) == f"{RIGHT}\n{CHECK}"


def test_an_answer_comes_back_behind_a_byte_order_mark(ask, folder: Path) -> None:
    ask(f"{RIGHT}\n{CHECK}")
    notebook = folder / "00_start.ipynb"
    notebook.write_bytes(codecs.BOM_UTF8 + notebook.read_bytes())
    (done,) = restore_answers(folder)
    assert done.startswith("start.smallest: restored")
    assert exercise_cell(folder) == f"{RIGHT}\n{CHECK}"


def test_an_answer_that_its_cell_holds_is_not_restored(ask, folder: Path) -> None:
    ask(f"{RIGHT}\n{CHECK}")
    restore_answers(folder)
    before = (folder / "00_start.ipynb").read_bytes()
    assert restore_answers(folder) == ["start.smallest: the cell holds this answer already"]
    assert (folder / "00_start.ipynb").read_bytes() == before


def test_a_cell_with_other_work_is_left_alone(ask, folder: Path) -> None:
    ask(f"{RIGHT}\n{CHECK}")
    restore_answers(folder)
    before = (folder / "00_start.ipynb").read_bytes()
    append_answer(folder / NAME, "exercise", "start.smallest", "another", points=2, out_of=2)
    (sentence,) = restore_answers(folder)
    assert sentence.startswith("start.smallest: left alone: the cell holds work")
    assert (folder / "00_start.ipynb").read_bytes() == before


def test_a_starter_is_not_work_and_what_was_begun_in_it_is() -> None:
    """Half an answer, a helper or a comment is not overwritten.

    The starter's last line is still there.
    """
    line = "    raise NotImplementedError("
    for lesson in {exercise.lesson for exercise in EXERCISES.values()}:
        source = build.lesson(lesson)
        learners, solved = (
            cells_by_tag(made) for made in (build.learners(source), build.solved(source))
        )
        for exercise in EXERCISES.values():
            if exercise.lesson == lesson:
                starter = learners[exercise.tag]
                answer = solved[exercise.tag]
                assert not has_work(starter, answer, starter), exercise.id
                for begun in ("    # I think it is the exponent", "    first = 1", "    return ("):
                    assert has_work(
                        starter.replace(line, f"{begun}\n{line}", 1), answer, starter
                    ), (exercise.id, begun)
                assert has_work(
                    f"def helper(x):\n    return x + 7\n\n{starter}", answer, starter
                ), exercise.id


def test_progress_without_an_answer_names_the_first_exercise(folder: Path) -> None:
    assert progress(folder).next == f"Next: {SMALLEST.title}, in 00_start"


@pytest.fixture
def some_progress(ask, folder: Path):
    """The progress of a learner who has solved lesson 00, and half an exercise of lesson 06."""
    ask(f"{RIGHT}\n{CHECK}")
    append_answer(folder / NAME, "exercise", "scaling.advance", "half of it", points=1, out_of=6)
    return progress(folder)


def test_progress_counts_points_and_solved_exercises(some_progress) -> None:
    counts = {
        lesson.name: (lesson.solved, lesson.points)
        for lesson in some_progress.lessons
        if lesson.points
    }
    assert counts == {"00_start": (1, 2), "06_loss_scaling": (0, 1)}


def test_progress_spans_the_exercises_of_all_lessons(some_progress) -> None:
    assert sum(lesson.exercises for lesson in some_progress.lessons) == len(EXERCISES)


def test_progress_names_the_exercise_that_comes_next(some_progress) -> None:
    assert some_progress.next == f"Next: {EXERCISES['numbers.decode'].title}, in 01_numbers"


def test_progress_is_printed_in_columns(some_progress) -> None:
    lines = str(some_progress).splitlines()[:-1]
    columns = re.compile(r"\w  +\d+ of \d+ solved  +\d+ of \d+ points$")
    assert lines
    assert [line for line in lines if not columns.search(line)] == []


def test_progress_is_shown_in_a_notebook(some_progress) -> None:
    assert "1 of 1 solved" in some_progress._repr_html_()


@pytest.mark.parametrize(("points", "counted"), [(-5, 0), (999, 2), (True, 0), ("2", 0)])
def test_points_of_an_edited_journal_are_limited(
    folder: Path, points: object, counted: int
) -> None:
    append_answer(folder / NAME, "exercise", "start.smallest", "x", points=points, out_of=2)
    (start, *_) = progress(folder).lessons
    assert start.points == counted


@pytest.mark.parametrize("source", [None, 7, [1]])
def test_a_damaged_cell_stops_no_other_restoration(ask, folder: Path, source: object) -> None:
    ask(f"{RIGHT}\n{CHECK}")
    notebook = folder / "00_start.ipynb"
    content = json.loads(notebook.read_text())
    for cell in content["cells"]:
        if SMALLEST.tag in cell["metadata"].get("tags", ()):
            cell["source"] = source
    notebook.write_text(json.dumps(content))
    put(folder / "01_numbers.ipynb", (build.NOTEBOOKS / "01_numbers.ipynb").read_bytes())
    append_answer(folder / NAME, "exercise", "numbers.decode", "an answer", points=1, out_of=6)
    damaged, other = restore_answers(folder)
    assert damaged.startswith("start.smallest: 00_start.ipynb has no such cell")
    assert other.startswith("numbers.decode: restored into 01_numbers.ipynb")


def test_an_answer_with_a_lone_surrogate_comes_back(folder: Path) -> None:
    source = "def my_smallest():\n    return '\ud800'"
    append_answer(folder / NAME, "exercise", "start.smallest", source, points=2, out_of=2)
    (line,) = restore_answers(folder)
    assert line.startswith("start.smallest: restored")
    assert exercise_cell(folder) == source


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["restore"], "start.smallest            2 of 2 points"),
        (["restore", "start.smallest"], RIGHT),
        (["restore", "--write"], "restored into 00_start.ipynb"),
        (["progress"], "1 of 1 solved"),
    ],
    ids=["list", "print", "write", "progress"],
)
def test_a_command_shows_or_restores_answers(
    words: list[str], says: str, ask, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(f"{RIGHT}\n{CHECK}")
    assert cli.main(words) == 0
    assert says in capsys.readouterr().out


def test_a_misspelt_exercise_is_refused_with_the_known_ones(
    ask, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(f"{RIGHT}\n{CHECK}")
    assert cli.main(["restore", "start.smalest"]) == 2
    assert "choose from start.smallest" in capsys.readouterr().err


def test_a_check_works_on_a_full_disk_and_warns(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("labkit.records.journal.append_answer", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert ask(f"{RIGHT}\n{CHECK}").points == 2


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kill -9 is of Unix")
def test_an_answer_outlives_a_kernel_that_is_killed(folder: Path) -> None:
    """Kill a real kernel with SIGKILL as soon as its second cell has answered."""
    longest = 120 * slowness()
    manager, client = start_new_kernel(cwd=str(folder), startup_timeout=longest)
    try:
        messages: list[str] = []
        for cell in (f"from labkit.grading import check\n{RIGHT}", f"{CHECK}.points"):
            client.execute_interactive(
                cell, timeout=longest, output_hook=lambda message: messages.append(str(message))
            )
        os.kill(manager.provisioner.process.pid, signal.SIGKILL)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert "'text/plain': '2'" in "".join(messages)
    (kept,) = logged_answers(folder)["start.smallest"]
    assert kept.source == f"{RIGHT}\n\n{CHECK}.points"
    assert restore_answers(folder) == [
        "start.smallest: restored into 00_start.ipynb (2 of 2 points)"
    ]


# --- three hints for each exercise, none of them the solution ---


def test_hints_come_one_by_one(tmp_path: Path) -> None:
    journal = tmp_path / "answers.jsonl"
    hints = [hint("scaling.advance", journal) for _ in range(4)]
    assert [one.step for one in hints] == [1, 2, 3, 3]
    assert len({one.text for one in hints}) == 3
    assert str(hints[0]).startswith("Hint 1 of 3: There are three cases")


def test_the_journal_counts_the_hints_of_each_exercise(tmp_path: Path) -> None:
    journal = tmp_path / "answers.jsonl"
    for _ in range(3):
        hint("scaling.advance", journal)
    assert hint("scaling.clip", journal).step == 1
    assert last_answers(journal, "hint") == {"scaling.advance": "3", "scaling.clip": "1"}


@pytest.mark.parametrize("edited", ["many", "-1", "²", "9" * 5000, ""])
def test_a_hint_after_an_edited_line_is_the_first(tmp_path: Path, edited: str) -> None:
    journal = tmp_path / "answers.jsonl"
    append_answer(journal, "hint", "scaling.clip", edited)
    assert hint("scaling.clip", journal).step == 1


def test_a_hint_is_recorded_at_home_if_the_folder_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    (tmp_path / "file").write_text("not a folder")
    journal = tmp_path / "file" / "answers.jsonl"
    assert [hint("scaling.clip", journal).step for _ in range(2)] == [1, 2]


def test_every_exercise_has_three_short_hints() -> None:
    assert hints().keys() == EXERCISES.keys()
    every = [text for steps in hints().values() for text in steps]
    assert all(len(steps) == 3 for steps in hints().values())
    assert len(set(every)) == len(every)
    # Characters: a sentence, which fits into two lines of a notebook.
    assert all(20 < len(text) < 140 for text in every)


def test_no_hint_has_a_line_of_its_lessons_code() -> None:
    for id, steps in hints().items():
        source = "\n".join(cell.source for cell in cells_of(EXERCISES[id].lesson))
        # Shorter lines, such as `return x`, may occur in a sentence.
        lines = [line.strip() for line in source.splitlines() if len(line.strip()) > 12]
        assert lines
        for sentence in steps:
            assert [line for line in lines if line in sentence] == [], (id, sentence)
