"""A grading that is interrupted or killed loses no row, leaves nothing behind, and goes on where it was."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grading.hostile import RIGHT
from tests.grading.test_hostile import hand_in
from tests.slowness import slowness

SLEEPS = "import time\ntime.sleep(10 ** 6)"


def start(folder: Path) -> subprocess.Popen[str]:
    """Start `labkit grade` on a class of which one learner's code sleeps; return when the other one is marked."""
    (folder / "tmp").mkdir(exist_ok=True)
    program = "import sys; from labkit.cli import main; sys.exit(main())"
    words = ["grade", "class", "--csv", "grades.csv", "--lesson", "06_loss_scaling", "--seed", "5"]
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=folder, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(folder / "tmp")},
    )  # fmt: skip


def said_until(grading: subprocess.Popen[str], word: str) -> list[str]:
    assert grading.stderr is not None
    lines = []
    for line in grading.stderr:
        lines.append(line)
        if word in line:
            break
    assert word in lines[-1], "".join(lines)
    return lines


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.skipif(sys.platform != "linux", reason="signals and walls are Linux's")
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_who_is_interrupted_or_killed_loses_no_row_and_the_same_command_goes_on(
    tmp_path: Path, how: signal.Signals
) -> None:
    (tmp_path / "class").mkdir()
    hand_in(tmp_path / "class", "ada", RIGHT)
    hand_in(tmp_path / "class", "bob", SLEEPS)
    grading = start(tmp_path)
    said_until(grading, "[1/2] ada")
    grading.send_signal(how)
    _, said = grading.communicate(timeout=60 * slowness())
    if how == signal.SIGTERM:
        assert grading.returncode == 130, said
        assert {row["student"] for row in rows(tmp_path / "grades.csv")} == {"ada"}
        assert list((tmp_path / "tmp").iterdir()) == []

    hand_in(tmp_path / "class", "bob", RIGHT)
    _, said = start(tmp_path).communicate(timeout=120 * slowness())
    assert "going on where a grading was interrupted" in said
    assert "[1/1] bob" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["class", "grades.csv", "tmp"]
    resumed = (tmp_path / "grades.csv").read_bytes()
    start(tmp_path).communicate(timeout=120 * slowness())
    assert (tmp_path / "grades.csv").read_bytes() == resumed, "a grading without a break"
