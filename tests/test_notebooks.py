"""The lessons' notebooks: equal to their sources, run from top to bottom, and solvable."""

import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import nbclient
import nbformat
import pytest

from labkit.course import Lesson
from labkit.course.text import REPAIR, STARTER
from labkit.grading import EXERCISES
from labkit.grading.batch import grade
from labkit.grading.results import GradeRow
from labkit.grading.sandbox.worker import Limits
from labkit.grading.submission import find
from notebooks import build
from tests.slowness import slowness

# The number of lines of code that a projector shows.
SCREEN = 30
# Far above the 20 s that a lesson may take; multiplied by `slowness`, so that it ends only hangs.
CELL_SECONDS = 120


SOURCES = build.sources()
# Notebooks whose answers train; tests/grading judges each answer by itself.
TRAINING = ["10_clinic", "12_project"]
LESSONS = sorted({exercise.lesson for exercise in EXERCISES.values()})


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def tags(notebook: dict[str, Any], prefix: str) -> list[str]:
    every = [tag for cell in notebook["cells"] for tag in cell["metadata"].get("tags", [])]
    return [tag.removeprefix(prefix) for tag in every if tag.startswith(prefix)]


# --- the generator, on a lesson of its own ---

SOURCE = '''
# %% [markdown] tags=["claim-C06"]
# # A lesson

# %%
x = 1

# %% id="exercise-a-b" tags=["exercise-a.b"]
def double(x):
    """Return twice x."""
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION


double(x)

# %%
x = 1
'''


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of notebooks with one source, in which build.py works."""
    monkeypatch.setattr(build, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(build, "SOURCES", tmp_path / "source")
    (tmp_path / "source" / "lesson_01_lesson").mkdir(parents=True)
    build.lesson("01_lesson").text.write_text(SOURCE)
    (tmp_path / "source" / "glossary.toml").write_text(
        '["lesson"]\nmeans = "This."\nlesson = "01"\n'
    )
    return tmp_path


def test_solution_becomes_a_starter(house: Path) -> None:
    handed_out = build.learners(build.lesson("01_lesson"))
    nbformat.validate(nbformat.from_dict(handed_out))
    assert "".join(code_cells(handed_out)[1]["source"]).splitlines() == [
        "def double(x):",
        '    """Return twice x."""',
        '    raise NotImplementedError("your code goes here; then run this cell again")',
        "",
        "",
        "double(x)",
    ]


def test_handed_out_and_solved_differ_in_the_solution_only(house: Path) -> None:
    source = build.lesson("01_lesson")
    handed_out = build.learners(source)
    solved = build.solved(source)
    assert "    return 2 * x\n" in code_cells(solved)[1]["source"]
    code_cells(handed_out)[1]["source"] = code_cells(solved)[1]["source"]
    assert handed_out == solved


def test_a_new_cell_changes_no_other_cell(house: Path) -> None:
    source = build.lesson("01_lesson")
    before = build.learners(source)
    source.text.write_text("# %%\nbefore = True\n" + SOURCE)
    after = build.learners(source)
    assert after["cells"][1:] == before["cells"]
    assert len({cell["id"] for cell in after["cells"]}) == len(after["cells"])


def test_new_lesson_is_linked_from_its_neighbours(house: Path) -> None:
    start = build.lesson("00_start")
    new = build.lesson("02_new")
    start.folder.mkdir()
    table = f"{build.MAP}| 02 | *to come* | | |\n| 03 | *to come* | | |".replace("\n", "\n# ")
    start.text.write_text(f"# %% [markdown]\n# # Start\n#\n# {table}\n")
    assert "| 02 | *to come* | | |" in build.text_of(build.learners(start))
    new.folder.mkdir()
    new.text.write_text(
        '# %% [markdown] on_the_map="a new thing"\n# # 02 · New: of all\n#\n# About 5 minutes.\n'
    )
    rows = "".join(build.learners(start)["cells"][0]["source"]).splitlines()[-2:]
    assert rows == ["| **02** | [New](02_new.ipynb) | 5 | a new thing |", "| 03 | *to come* | | |"]
    ends = ["".join(build.learners(source)["cells"][-1]["source"]) for source in build.sources()]
    assert [re.findall(r"\((\w+)\.ipynb\)", end) for end in ends] == [
        ["01_lesson"],
        ["00_start", "02_new"],
        ["01_lesson", "00_start"],
    ]


def test_check_names_a_notebook_until_it_is_written(
    house: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main(["--check"]) == 1
    assert "01_lesson.ipynb differs from its source" in capsys.readouterr().err
    assert build.main([]) == 0
    assert build.main(["--check"]) == 0


@pytest.mark.parametrize("arguments", [[], ["--check"]], ids=["write", "check"])
def test_a_notebook_without_a_source_is_named(
    arguments: list[str], house: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build.main([])
    (house / "99_stray.ipynb").write_text("{}")
    assert build.main(arguments) == 1
    assert "99_stray.ipynb has no source" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("# %%\n### BEGIN SOLUTION\nx = 1\n", "ends with ### END SOLUTION"),
        ("# %%\n### END SOLUTION\nx = 1\n", "begins with ### BEGIN SOLUTION"),
        (
            '# %% id="same"\nx = 1\n\n# %% id="same"\ny = 1\n',
            "more than one cell has the id 'same'",
        ),
    ],
    ids=["no end", "no beginning", "same id"],
)
def test_a_wrong_source_is_refused(source: str, message: str, house: Path) -> None:
    build.lesson("01_lesson").text.write_text(source)
    with pytest.raises(ValueError, match=message):
        build.learners(build.lesson("01_lesson"))


# --- the lessons as they are written ---


def test_the_learners_notebooks_equal_their_sources() -> None:
    assert {"00_start", *LESSONS} <= {source.name for source in SOURCES}
    assert build.stale() == [], "`make notebooks` writes them"


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_notebook_of_a_lesson_is_valid(source: Lesson) -> None:
    nbformat.validate(nbformat.from_dict(build.learners(source)))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_notebook_of_a_lesson_is_handed_out_without_outputs(source: Lesson) -> None:
    for cell in code_cells(build.learners(source)):
        assert cell["outputs"] == [], cell["id"]
        assert cell["execution_count"] is None, cell["id"]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_cells_of_a_lesson_fit_a_screen(source: Lesson) -> None:
    cells = code_cells(build.solved(source))
    assert [cell["id"] for cell in cells if len(cell["source"]) > SCREEN] == []


def test_every_exercise_has_one_cell_found_by_tag_and_by_id() -> None:
    for source in SOURCES:
        cells = code_cells(build.learners(source))
        expected = {
            exercise.tag: exercise
            for exercise in EXERCISES.values()
            if exercise.lesson == source.name
        }
        tagged = {tag: cell for cell in cells for tag in cell["metadata"].get("tags", [])}
        assert sorted(tags({"cells": cells}, "exercise-")) == sorted(
            tag.removeprefix("exercise-") for tag in expected
        )
        for tag, exercise in expected.items():
            cell = tagged[tag]
            assert cell["id"] == exercise.cell_id
            assert f"def {exercise.call}:" in "".join(cell["source"])
            starter = REPAIR if exercise.id.startswith("clinic.") else STARTER
            assert starter in "".join(cell["source"])
            assert cell["source"][-1] == f'check("{exercise.id}", {exercise.entry})'


# --- the lessons as they run: every notebook in a fresh kernel ---

# The first cell of a run: lessons that measure on a CPU then use small cases.
SMALL = {
    "cell_type": "code",
    "id": "small",
    "metadata": {},
    "outputs": [],
    "execution_count": None,
    "source": ["from labkit.bench import cases\n", "\n", "cases.CPU = cases.QUICK"],
}


def answered_later(source: Lesson) -> dict[str, Any]:
    """Return the notebook of a learner who runs each exercise as handed out, and then answers it.

    What a lesson times, it times once instead of several times, and small.
    """
    handed_out = enumerate(build.learners(source)["cells"])
    starters = {cell["id"]: {**cell, "id": f"starter-{number}"} for number, cell in handed_out}
    notebook = build.solved(source)
    for cell in notebook["cells"]:
        cell["source"] = [re.sub(r"\brounds=\d+", "rounds=1", line) for line in cell["source"]]
    twice = [
        [starters[cell["id"]], cell] if tags({"cells": [cell]}, "exercise-") else [cell]
        for cell in notebook["cells"]
    ]
    return {**notebook, "cells": [SMALL, *itertools.chain.from_iterable(twice)]}


# The limits of each cell and each exercise, which grow with how slow the machine is, end a hang
# before pytest-timeout does.
patient = pytest.mark.timeout(3600)


def execute(
    notebook: dict[str, Any], environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Run a notebook in a kernel of its own, and return it with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell raises.
        nbclient.exceptions.CellTimeoutError: If a cell hangs.
    """
    document = nbformat.reads(build.text_of(notebook), as_version=4)
    slow = slowness()
    nbclient.NotebookClient(
        document,
        timeout=int(CELL_SECONDS * slow),
        startup_timeout=int(60 * slow),
        kernel_name="python3",
        resources={"metadata": {"path": str(build.NOTEBOOKS)}},
        # The checkout may be a learner's own, whose answers are not overwritten.
    ).execute(env={**environment, "LABKIT_ANSWERS": "off"})
    return cast("dict[str, Any]", document)


def errors_of(notebook: dict[str, Any]) -> list[Any]:
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    assert outputs
    return [output for output in outputs if output["output_type"] == "error"]


def shown(cell: dict[str, Any]) -> str:
    return "".join(output.get("data", {}).get("text/plain", "") for output in cell["outputs"])


@patient
@pytest.mark.parametrize(
    "source",
    [
        # tests/grading checks each exercise of TRAINING by itself
        pytest.param(
            source, id=source.name, marks=pytest.mark.slow if source.name in TRAINING else ()
        )
        for source in SOURCES
    ],
)
def test_lesson_runs_from_top_to_bottom(preloaded_kernels: None, source: Lesson) -> None:
    notebook = execute(answered_later(source))
    assert errors_of(notebook) == []
    for exercise in (exercise for exercise in EXERCISES.values() if exercise.lesson == source.name):
        visible = sum(not check.hidden for check in exercise.checks)
        cells = [
            cell
            for cell in code_cells(notebook)
            if exercise.tag in cell["metadata"].get("tags", [])
        ]
        starter, answer = map(shown, cells)
        assert "Not solved yet: 0 of" in starter, exercise.id
        assert f"Solved. {visible} of {visible} checks pass" in answer, exercise.id


@pytest.mark.slow
@patient
def test_a_notebook_runs_from_top_to_bottom_without_any_answer() -> None:
    for source in SOURCES:
        assert errors_of(execute(build.learners(source))) == [], source.name


def graded(folder: Path, lessons: list[str]) -> list[GradeRow]:
    """Return the rows of two learners.

    One hands lessons in as they were handed out, the other as they are solved.
    """
    for student, made in (("unfilled", build.learners), ("solved", build.solved)):
        (folder / student).mkdir()
        for lesson in lessons:
            (folder / student / f"{lesson}.ipynb").write_text(
                build.text_of(made(build.lesson(lesson)))
            )
    return grade(find([folder]), seed=2017, limits=Limits(seconds=Limits.seconds * slowness()))


QUICK = [lesson for lesson in LESSONS if lesson not in TRAINING]


@patient
@pytest.mark.parametrize(
    "lessons",
    [
        pytest.param(QUICK[::3], id="some lessons"),
        pytest.param(QUICK, id="lessons", marks=pytest.mark.slow),
        pytest.param(TRAINING, id="training", marks=pytest.mark.slow),
    ],
)
def test_handed_in_they_earn_nothing_or_everything(tmp_path: Path, lessons: list[str]) -> None:
    rows = graded(tmp_path, lessons)
    exercises = sorted(exercise.id for exercise in EXERCISES.values() if exercise.lesson in lessons)
    for student in ("unfilled", "solved"):
        assert sorted(row.exercise for row in rows if row.student == student) == exercises
    for row in rows:
        expected = row.out_of if row.student == "solved" else 0
        assert row.points == expected, row
