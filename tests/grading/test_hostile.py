"""Who would rather break the grading than learn gets a row, and costs nobody else's: submissions as data.

A handful runs in every test; all of them where slow tests run. What needs walls is asked only where they stand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from labkit.classroom.wheel import files_of
from labkit.course import lessons
from labkit.grading.batch import grade
from labkit.grading.given.child import Limits
from labkit.grading.given.keeper import Walls
from labkit.grading.submission import find
from labkit.grading.supervise import Runner, scratch
from labkit.grading.walls import NAMES, build, describe
from labkit.records import write_whole
from tests.grading.hostile import CHEATS, HOSTILE, RIGHT, Row
from tests.grading.odd_notebooks import SETUP, UNSCALE

ROOT = Path(__file__).parents[2]
ALL = HOSTILE | CHEATS
ANYWHERE = (
    "os._exit in the cell", "os._exit in the call", "os._exit at the third check", "a segmentation fault",
    "loops in the cell", "loops at the third check", "sys.exit after the answer", "sys.exit in the call", "eats memory",
    "prints without end", "200 MB into the channel", "a forged verdict", "equals everything", "replaces the comparison",
    "calls what is withheld", "imports the list",
)  # fmt: skip
BEHIND_WALLS = (
    "leaves a process behind", "imports the reference", "looks through gc for functions", "reads a classmate's file",
    "writes the grades later", "reads the parent's memory", "asks the network",
)  # fmt: skip
SECONDS = 2.0
linux = pytest.mark.skipif(sys.platform != "linux", reason="walls are Linux's")


def hand_in(folder: Path, student: str, cell: str) -> None:
    names = f"CLASSMATE, GRADES = {str(folder / 'honest.ipynb')!r}, {str(folder.parent / 'grades.csv')!r}"
    cells = [
        {"cell_type": "code", "metadata": {"tags": tags}, "source": source}
        for tags, source in (
            ([], f"{SETUP}\n{names}"),
            (["exercise-scaling.advance"], f"{names}\n{cell}"),
            (["exercise-scaling.unscale"], UNSCALE),
        )
    ]
    (folder / f"{student}.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")


def expect_rows(tmp_path: Path, students: dict[str, Row]) -> None:
    """Grade these students, and an honest one with them; every row is what it must be.

    Where not all walls stand, only the rows of ANYWHERE are compared, and the test is skipped at its end.
    """
    folder = tmp_path / "class"
    folder.mkdir()
    (tmp_path / "grades.csv").write_text("nobody's yet")
    names = {f"{number:02d}": name for number, name in enumerate(students)}
    for number, name in names.items():
        hand_in(folder, number, students[name].source)
    hand_in(folder, "honest", RIGHT)
    said: list[str] = []
    limits = Limits(SECONDS, memory=1 << 29)
    rows = grade(find([folder]), 5, limits, lesson="06_loss_scaling", progress=said.append, output=tmp_path)
    walled = said[0] == describe(tuple(NAMES))
    names = {number: name for number, name in names.items() if walled or name in ANYWHERE}
    by = {(row.student, row.exercise): row for row in rows}
    wrong = [
        f"{name}: {row.points} points, {row.reason}"
        for number, name in names.items()
        if (row := by[number, "scaling.advance"]).points != students[name].points
        or students[name].says not in f"{row.exercise}: {row.reason}"
    ]
    assert not wrong, "\n".join(wrong)
    assert {name for number, name in names.items() if by[number, "scaling.unscale"].points != 6} == set()
    assert by["honest", "scaling.advance"].points == 8
    assert not walled or (tmp_path / "grades.csv").read_text() == "nobody's yet"
    if not walled and set(students) - {*ANYWHERE}:
        pytest.skip(f"on this machine not all walls stand: {said[0]}")


@pytest.mark.slow
def test_a_handful_of_them_gets_its_rows(tmp_path: Path) -> None:
    few = (*ANYWHERE, *BEHIND_WALLS) if sys.platform == "linux" else ANYWHERE
    expect_rows(tmp_path, {name: ALL[name] for name in few})


@linux
@pytest.mark.slow
@pytest.mark.parametrize("group", ["HOSTILE", "CHEATS"])
def test_each_of_them_gets_its_row(tmp_path: Path, group: str) -> None:
    expect_rows(tmp_path, {"HOSTILE": HOSTILE, "CHEATS": CHEATS}[group])


@linux
def test_what_is_named_by_a_relative_path_is_tried_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`labkit grade . --csv grades.csv`: the probe stands elsewhere, and must not try its own folder instead."""
    monkeypatch.chdir(tmp_path)
    Path("ada.ipynb").write_text("{}")
    with scratch() as folder, Runner(Limits(), folder) as runner:
        best = build(runner, [Path("ada.ipynb")], Path())
        assert best == build(runner, [tmp_path / "ada.ipynb"], tmp_path)
        monkeypatch.setattr("labkit.grading.walls._candidates", lambda: [Walls()])
        open_to_all = build(runner, [Path("ada.ipynb")], Path())
    assert not {"submissions", "grades"} & set(open_to_all), "without walls both can be reached"


STANDING = """
from pathlib import Path
from labkit.grading.given.child import Limits
from labkit.grading.supervise import Runner, scratch
from labkit.grading.walls import build
with scratch() as folder, Runner(Limits(), folder) as runner:
    print(build(runner, [], Path()))
"""


@linux
def test_the_lessons_inside_of_an_installed_package_are_as_hidden_as_those_of_a_checkout(tmp_path: Path) -> None:
    """In /var/tmp, for in the sandbox a scratch folder takes the place of /tmp."""
    with TemporaryDirectory(dir="/var/tmp") as place:
        for name, content in files_of(ROOT, lessons()).items():
            write_whole(Path(place, name), content)
        Path(place).chmod(0o755)
        installed, checkout = (
            subprocess.run(
                [sys.executable, "-c", STANDING], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(path)},
                capture_output=True, text=True, check=True,
            ).stdout
            for path in (place, ROOT)
        )  # fmt: skip
    assert installed == checkout
