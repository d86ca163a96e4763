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
    quiz_questions,
)
from labkit.grading import EXERCISES, check, hint
from labkit.grading.exercises import exercises_of
from labkit.grading.judge import problems
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
    """The folder of an additional lesson, which is removed from the process after the test."""
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


each_lesson = pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.name)


@each_lesson
def test_cells_are_those_that_jupytext_reads(lesson: Lesson) -> None:
    text = lesson.text.read_text(encoding="utf-8")
    expected = []
    for cell in jupytext.reads(text, fmt="py:percent").cells:
        metadata = dict(cell.metadata)
        # jupytext's note of blank lines in the text
        metadata.pop("lines_to_next_cell", None)
        expected.append((cell.cell_type, cell.source, metadata))
    assert [(cell.cell_type, cell.source, cell.metadata) for cell in cells_of(text)] == expected


def test_a_text_without_marks_has_no_cells() -> None:
    assert cells_of("") == ()
    assert cells_of("x = 1\n") == ()


def test_metadata_without_quotes_are_named_with_their_cell() -> None:
    head = re.escape("`# %% tags=[exercise-a.b]`")
    with pytest.raises(CourseError, match=f"{head}: expected JSON for 'tags'"):
        cells_of("# %% tags=[exercise-a.b]\n1 + 1\n")


@each_lesson
def test_examples_in_modules_of_a_lesson_are_right(lesson: Lesson) -> None:
    for module in pkgutil.iter_modules([str(lesson.folder)]):
        # lesson.py is a notebook, which is not imported.
        if module.name != "lesson":
            assert doctest.testmod(lesson.module(module.name)).failed == 0, module.name


@each_lesson
def test_an_exercise_is_as_the_text_describes_it(lesson: Lesson) -> None:
    for id, question in questions(lesson.text).items():
        exercise = EXERCISES[id]
        assert exercise.lesson == lesson.name
        assert exercise.title == question.title
        assert exercise.minutes == question.minutes
        assert exercise.call.startswith(f"{question.entry}("), id


@each_lesson
def test_each_exercise_of_a_lesson_has_hints(lesson: Lesson) -> None:
    assert set(lesson.table("hints")) == set(questions(lesson.text))


@each_lesson
def test_predictions_of_a_lesson_are_those_in_its_cells(lesson: Lesson) -> None:
    text = lesson.text.read_text(encoding="utf-8")
    ids = re.findall(r'predict\(\s*"([\w.]+)"', text)
    assert set(lesson.table("predictions")) == set(ids)


@pytest.mark.parametrize("parents", [0, 1], ids=["lesson", "folder of lessons"])
def test_adding_a_lesson_twice_adds_it_once(own: Path, parents: int) -> None:
    folder = (own, own.parent)[parents]
    add_folders([folder])
    add_folders([folder])
    assert lessons()[-1] == Lesson(own)
    assert lessons_named(["20"]) == [Lesson(own)]
    assert os.environ[COURSE] == str(folder)


def test_exercises_of_an_added_lesson_are_the_last(own: Path) -> None:
    before = list(EXERCISES)
    add_folders([own])
    assert list(EXERCISES) == [*before, "posits.largest"]


def test_exercises_of_an_added_lesson_are_checked(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_folders([own])
    monkeypatch.setenv("LABKIT_ANSWERS", "off")
    assert "Solved." in str(check("posits.largest", max))
    grade = check("posits.largest", min)
    assert grade.mistake is not None
    assert grade.mistake.name == "the smaller one"


HIDDEN = 'Check("more cases", 1, lambda random: [(5, 4)], hidden=True),'


@pytest.mark.parametrize("hidden", [False, True], ids=["visible checks", "a hidden check"])
def test_sound_exercises_have_no_problems(own: Path, hidden: bool) -> None:
    if hidden:
        text = EXERCISE.replace("checks=(", f"checks=(\n            {HIDDEN}")
        (own / "exercises.py").write_text(text, encoding="utf-8")
    add_folders([own])
    assert problems(Lesson(own)) == []


def test_a_mistake_without_a_difference_is_a_problem(own: Path) -> None:
    text = EXERCISE.replace("lambda a, b: a)", "lambda a, b: max(a, b))")
    (own / "exercises.py").write_text(text, encoding="utf-8")
    add_folders([own])
    (problem,) = problems(Lesson(own))
    assert "'the first' equals the reference on every case of the notebook" in problem


def test_an_added_lesson_has_its_predictions(own: Path) -> None:
    assert "posits.guess" not in predictions()
    add_folders([own])
    # Predictions are read again after the course has changed.
    assert predictions()["posits.guess"].answer == "2"


def test_an_added_lesson_has_its_hints(own: Path) -> None:
    add_folders([own])
    assert hint("posits.largest").text == "Compare."


def test_the_notebook_of_an_added_lesson_has_no_solution(own: Path) -> None:
    cells = ["".join(cell["source"]) for cell in notebook_of(Lesson(own))["cells"]]
    assert "your code goes here" in cells[1]
    assert not any("a > b" in cell for cell in cells)


@pytest.mark.parametrize("mark", ["### BEGIN SOLUTION", "### END SOLUTION"])
def test_blanks_after_a_mark_do_not_reveal_the_solution(own: Path, mark: str) -> None:
    text = TEXT.replace(mark, f"{mark} \t")
    (own / "lesson.py").write_text(text, encoding="utf-8")
    cells = ["".join(cell["source"]) for cell in notebook_of(Lesson(own))["cells"]]
    assert not any("a > b" in cell for cell in cells)


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
        ("lesson.py", "def my_largest", "%time\ndef my_largest", r"posits.largest: .*magics"),
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


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('question = "1 + 1?"', "KeyError: 'choices'"),
        ('question = "1 + 1?"\nchoices = ["2"]\nanswer = "2"\nlesson = "20"', "missing .*'why'"),
        (
            'question = "1 + 1?"\nchoices = ["2"]\nanswer = "3"\nwhy = ""\nlesson = "20"',
            "answer: expected one of the choices",
        ),
    ],
)
def test_a_wrong_question_of_the_quiz_is_named_with_its_file(
    row: str, says: str, own: Path
) -> None:
    (own / "questions.toml").write_text(f"[sum]\n{row}\n", encoding="utf-8")
    add_folders([own])
    with pytest.raises(CourseError, match=rf"questions\.toml: question sum: .*{says}"):
        quiz_questions()


@pytest.mark.usefixtures("own")
def test_folder_without_a_lesson_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="expected a folder lesson_NN_name"):
        add_folders([tmp_path / "elsewhere"])
    assert os.environ[COURSE] == ""


@pytest.mark.usefixtures("own")
def test_a_second_lesson_of_the_same_name_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other" / "lesson_00_start"
    other.mkdir(parents=True)
    (other / "lesson.py").write_text(TEXT, encoding="utf-8")
    with pytest.raises(CourseError, match="have the same name"):
        add_folders([other])
