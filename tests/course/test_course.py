"""Folders of lessons: the lab's own, folders elsewhere, and invalid ones."""

import doctest
import os
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jupytext
import pytest

from labkit.course import (
    COURSE,
    CourseError,
    Lesson,
    add_folders,
    cells_of,
    lessons,
    lessons_named,
    notebook_of,
    questions,
)
from labkit.grading import EXERCISES, check, hint
from labkit.grading.exercises import exercises_of
from labkit.widgets import predictions

TEXT = '''\
# %% [markdown]
# # 20 · Posits
#
# ### Exercise 1: the largest of two  ●○○  3 min
#
# Return the larger number.

# %% id="exercise-posits-largest" tags=["exercise-posits.largest"]
def my_largest(a, b):
    """Return the larger of two numbers."""
    ### BEGIN SOLUTION
    if a > b:
        return a
    return b
    ### END SOLUTION


check("posits.largest", my_largest)
'''
EXERCISE = '''\
"""Exercises of a lesson of one's own."""

from labkit.grading.exercise import Check, Exercise, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)
EXERCISES = (
    Exercise(
        id="posits.largest",
        checks=(
            Check("the larger one", 2, lambda random: [(random.randrange(9), 10), (3, 2), (1, 1)]),
        ),
        mistakes=(
            wrong("the smaller one", "this returns the smaller one.", replace=("a > b", "a < b")),
            wrong("the first", "this always returns the first.", lambda a, b: a),
            wrong("one too many", "this adds one.", lambda a, b: solution.my_largest(a, b) + 1),
        ),
    ),
)
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lesson of one's own, which no other test sees."""
    monkeypatch.setenv(COURSE, "")
    folder = tmp_path / "lesson_20_posits"
    folder.mkdir()
    for name, text in {
        "lesson.py": TEXT,
        "exercises.py": EXERCISE,
        "hints.toml": '"posits.largest" = ["Compare.", "Return.", "Both."]\n',
        "predictions.toml": '"posits.guess" = {question = "1 + 1?", answer = "2", choices = {"2" = '
        '"Yes."}}\n',
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    yield folder
    for name in [name for name in sys.modules if name.startswith("labkit_lessons.lesson_20")]:
        del sys.modules[name]
    package = sys.modules["labkit_lessons"]
    package.__path__ = [path for path in package.__path__ if path != str(tmp_path)]
    exercises_of.cache_clear()


def test_cells_are_those_that_jupytext_reads() -> None:
    for lesson in lessons():
        text = lesson.text.read_text(encoding="utf-8")
        theirs = [
            (c.cell_type, c.source, dict(c.metadata))
            for c in jupytext.reads(text, fmt="py:percent").cells
        ]
        for _, _, metadata in theirs:
            metadata.pop("lines_to_next_cell", None)
        assert [(c.cell_type, c.source, c.metadata) for c in cells_of(text)] == theirs, lesson.name
        for stem in (
            found.name
            for found in pkgutil.iter_modules([str(lesson.folder)])
            if found.name != "lesson"
        ):
            assert doctest.testmod(lesson.module(stem)).failed == 0, f"{lesson.name}/{stem}.py"


def test_exercises_and_predictions_are_the_lessons_own() -> None:
    for lesson in lessons():
        asked = questions(lesson.text)
        text = lesson.text.read_text(encoding="utf-8")
        for id, said in asked.items():
            exercise = EXERCISES[id]
            assert exercise.lesson == lesson.name
            assert exercise.title == said.title
            assert exercise.minutes == said.minutes
            assert exercise.call.startswith(f"{said.entry}("), id
        assert set(lesson.table("hints")) == set(asked), lesson.name
        assert set(lesson.table("predictions")) == set(
            re.findall(r'predict\(\s*"([\w.]+)"', text)
        ), lesson.name


def test_a_lesson_of_ones_own_joins_the_course(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(EXERCISES)
    assert "posits.guess" not in predictions()
    for folder in (own, own.parent):  # a folder of lessons is as good as the lesson
        monkeypatch.setenv(COURSE, "")
        for _ in range(2):
            add_folders([folder])
        assert lessons()[-1] == Lesson(own)
        assert os.environ[COURSE] == str(folder)
    assert list(EXERCISES)[-1] == "posits.largest"
    assert len(EXERCISES) == before + 1
    assert lessons_named(["20"]) == [Lesson(own)]
    monkeypatch.setenv("LABKIT_ANSWERS", "off")
    assert "Solved." in str(check("posits.largest", max))
    grade = check("posits.largest", min)
    assert grade.mistake is not None
    assert grade.mistake.name == "the smaller one"
    assert hint("posits.largest").text == "Compare."
    # Predictions are read again after the course has changed.
    assert predictions()["posits.guess"].answer == "2"
    cells = notebook_of(Lesson(own))["cells"]
    assert "your code goes here" in "".join(cells[1]["source"])
    assert not any("a > b" in "".join(cell["source"]) for cell in cells)


EDIT = '("a > b", "a < b")'


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (
            "exercises.py",
            "",
            None,
            r"exercises.py is missing; lesson.py has the exercises posits.largest",
        ),
        ("lesson.py", "", None, r"lesson_20_posits has no lesson.py"),
        (
            "lesson.py",
            "exercise-posits.largest",
            "exercise-posits.other",
            r"exercise posits.largest: lesson.py has no",
        ),
        ("lesson.py", "  ●○○  3 min", "", r"posits.largest: expected a heading such as"),
        ("lesson.py", "    ### END SOLUTION\n", "", r"posits.largest: a solution begins with"),
        (
            "exercises.py",
            EDIT,
            '("return", "1")',
            r"posits.largest, 'the smaller one': .*it 2 times",
        ),
        (
            "exercises.py",
            EDIT,
            '("a > b", "(a > b)")',
            r"posits.largest, 'the smaller one': .*equals the",
        ),
        (
            "exercises.py",
            EDIT,
            '("a > b", "a >")',
            r"posits.largest, 'the smaller one': .*is not Python",
        ),
        (
            "exercises.py",
            EXERCISE,
            "EXERCISES = ()\n",
            r"the exercise posits.largest, which EXERCISES lacks",
        ),
        ("hints.toml", " = [", " = ", r"hints.toml: "),
        (
            "exercises.py",
            "EXERCISES = (",
            "EXERCISES = ((",
            r"exercises.py does not run: SyntaxError",
        ),
    ],
)
def test_invalid_folder_is_reported_with_file_and_exercise(
    own: Path, file: str, old: str, new: str | None, says: str
) -> None:
    before = (own / file).read_text(encoding="utf-8")
    assert old in before
    if new is None:
        (own / file).unlink()
    else:
        (own / file).write_text(before.replace(old, new, 1), encoding="utf-8")

    def read() -> None:
        add_folders([own])
        list(EXERCISES)
        hint("posits.largest")

    with pytest.raises(CourseError, match=says):
        read()


def test_folder_without_a_lesson_is_refused(own: Path, tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="expected a folder lesson_NN_name"):
        add_folders([tmp_path / "elsewhere"])
    assert os.environ[COURSE] == ""
    other = tmp_path / "other" / "lesson_00_start"
    other.mkdir(parents=True)
    (other / "lesson.py").write_text(TEXT, encoding="utf-8")
    with pytest.raises(CourseError, match="have the same name"):
        add_folders([other])
