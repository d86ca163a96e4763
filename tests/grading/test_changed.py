"""Gradings that start from an earlier one: rows that are used again, and notices about others."""

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.cli import main
from labkit.commands import grade as command
from labkit.grading import EXERCISES, digests
from labkit.grading.digests import exercise_digest, lab_digest
from labkit.grading.results import GradeRow, GradingLog
from tests.grading.hand_ins import NOTEBOOK, notebook, put, solved

ID, OTHER = "scaling.advance", "scaling.clip"


def graded(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """Grade one solved lesson again, and return the lines on the screen."""
    put(folder / "class" / "ada" / NOTEBOOK, notebook(*solved()))
    words = ["grade", str(folder / "class"), "--csv", str(folder / "g.csv"), "--changed", *options]
    assert main(words) == 0
    return capsys.readouterr().err.splitlines()


def seed_in(lines: list[str]) -> str:
    (line,) = [line for line in lines if " repeats it" in line]
    return line.partition("--seed ")[2].split()[0]


def test_a_changed_exercise_alone_is_graded_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = graded(tmp_path, capsys)
    again = graded(tmp_path, capsys)
    assert not [line for line in again if line.startswith(("[", "graded again"))]
    monkeypatch.setattr(
        command,
        "exercise_digest",
        lambda id, seed: exercise_digest(id, seed) + ("changed" if id == OTHER else ""),
    )
    changed = graded(tmp_path, capsys)
    assert "graded again, as the exercise changed: scaling.clip (rows: 1)" in changed
    assert "[1/1] ada: 10 of 10 in 06_loss_scaling" in changed
    assert seed_in(first) == seed_in(again) == seed_in(changed)


def test_other_limits_keep_the_seed_and_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = graded(tmp_path, capsys)
    slower = graded(tmp_path, capsys, "--seconds", "30")
    assert "graded again, with the same seed, as --seconds changed" in slower
    assert "[1/1] ada: 50 of 50 in 06_loss_scaling" in slower
    monkeypatch.setattr(command, "lab_digest", lambda: "another lab")
    other = graded(tmp_path, capsys, "--seconds", "30")
    assert any("as the lab's grading, Python or torch changed" in line for line in other)
    assert seed_in(first) == seed_in(slower) == seed_in(other)


def test_a_digest_changes_with_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    exercise = EXERCISES[ID]
    more = tuple(replace(check, points=check.points + 1) for check in exercise.checks)
    fewer = tuple(
        replace(check, cases=lambda random, draw=check.cases: draw(random)[:-1])
        for check in exercise.checks
    )
    versions = [
        exercise,
        replace(exercise, checks=more),
        replace(exercise, checks=fewer),
        replace(exercise, reference=lambda state, found_inf, config: state),
        replace(exercise, mistakes=exercise.mistakes[1:]),
        replace(exercise, ulps=2),
    ]
    found = []
    for version in versions:
        monkeypatch.setattr(digests, "EXERCISES", {ID: version})
        # The function itself, whose results are not kept for other tests.
        found.append(exercise_digest.__wrapped__(ID, 3))
    assert len(set(found)) == len(versions)


def test_the_digest_of_the_lab_is_that_of_files_in_any_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = lab_digest()
    rglob = Path.rglob
    # A file system lists files in an order of its own.
    monkeypatch.setattr(Path, "rglob", lambda *args: reversed(list(rglob(*args))))
    assert lab_digest() == before


@pytest.mark.parametrize(
    ("take", "points"),
    [
        # The newest row of each notebook, and the best of the two notebooks.
        (None, 7),
        # The newest row of all.
        ("last", 4),
        # Each attempt counts.
        ("best", 9),
    ],
)
def test_an_interrupted_grading_writes_a_row_for_each_exercise(
    take: str | None, points: int
) -> None:
    log = GradingLog(None, {"seed": 1})
    for key, name, earned in (
        ("before the change", "one.ipynb", 9),
        ("after the change", "one.ipynb", 7),
        ("another notebook", "two.ipynb", 4),
    ):
        log.add(key, [GradeRow("ada", name, ID, earned, 10, "")])
    (row,) = command._rows_so_far(log, take)
    assert row.points == points
