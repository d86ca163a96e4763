"""Faults that `tests/mutants/draw.py` draws from a file."""

import random
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutants import draw
from tests.mutants.run import Fault

SOURCE = """def f(x):
    if x < 2:
        print(x)
    return x + 1
"""
# Every fault of SOURCE, as the line that it changes.
CHANGED = {
    "    if x <= 2:",
    "    if x < (2 + 1):",
    "        pass",
    "    return ((x) - (1))",
    "    return x + (1 + 1)",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with SOURCE as its only file."""
    (tmp_path / "labkit").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "labkit" / "small.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr(draw, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_each_fault_of_a_file_is_drawn_once() -> None:
    lines = [becomes.strip("\n") for _, _, _, becomes in draw.drawn("labkit", random.Random(0))]
    assert sorted(lines) == sorted(CHANGED)


@pytest.fixture
def command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[int], str]:
    """A function that draws some faults by the command, and returns what it printed."""

    def run(count: int) -> str:
        monkeypatch.setattr("sys.argv", ["draw.py", "7", str(count), "labkit/small.py"])
        draw.main()
        return capsys.readouterr().out

    return run


def test_a_row_can_be_planted(command: Callable[[int], str]) -> None:
    (row,) = tomllib.loads(command(1))["fault"]
    assert Fault(**row).planted(SOURCE) != SOURCE


def test_the_same_seed_draws_the_same_faults(command: Callable[[int], str]) -> None:
    assert command(3) == command(3)


def test_more_faults_than_there_are_is_an_error(
    command: Callable[[int], str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command(6)
    assert "expected a count of at most 5" in capsys.readouterr().err
