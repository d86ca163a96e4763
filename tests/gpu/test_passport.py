"""Passports of a GPU, which are written although items fail, hang or crash.

The items are small functions of `served_items`, which a process serves as it does the real ones.
"""

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labkit import cli
from labkit.gpu import passport
from labkit.gpu.worker import WorkerProcess, without_folders
from tests.gpu.rehearsal import lines_by_item
from tests.gpu.served_items import Found, serving
from tests.slowness import slowness

ROOT = Path(__file__).parents[2]

# --- writing --------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_PASSPORT", str(tmp_path / "passport.jsonl"))
    return tmp_path / "passport.jsonl"


# item -> its outcome; `lines_before` counts the lines in the file when it runs
OUTCOMES = {
    "prints": "done",
    "fails": "failed",
    "has_no_memory": "out of memory",
    "hangs": "process lost",
    "aborts": "process lost",
    "breaks_the_context": "failed",
    "lines_before": "done",
}


@dataclass(frozen=True)
class Passport:
    """A finished passport: its lines by item, what was printed, and how it ended."""

    lines: dict[str, Any]
    printed: list[str]
    end: str


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Passport:
    """A passport whose items fail in every way; it takes seconds."""
    file = tmp_path_factory.mktemp("passport") / "passport.jsonl"
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_PASSPORT", str(file))
        end = passport.make(
            file, serving(*OUTCOMES), item_seconds=3.0 * slowness(), say=printed.append
        )
    return Passport(lines_by_item(file), printed, end)


def test_passport_has_a_line_for_each_item(troubled: Passport) -> None:
    assert [*troubled.lines] == ["start", *OUTCOMES, "end"]
    outcomes = {name: troubled.lines[name]["outcome"] for name in OUTCOMES}
    assert outcomes == OUTCOMES


def test_each_item_has_its_line_before_the_next_begins(troubled: Passport) -> None:
    # the start, and the six items before
    assert troubled.lines["lines_before"]["lines"] == 7


def test_passport_with_failed_items_is_complete(troubled: Passport) -> None:
    assert troubled.end == "complete"
    assert troubled.lines["end"]["missing"] == []


def test_passport_names_its_schema(troubled: Passport) -> None:
    assert troubled.lines["start"]["schema"] == "labkit.passport/1"


def test_failed_item_has_its_error_and_traceback(troubled: Passport) -> None:
    fails = troubled.lines["fails"]
    assert fails["error"] == "ValueError: expected an even number, got 3"
    frames = [frame for frame in fails["traceback"] if "served_items.py" in frame]
    assert any("fails" in frame for frame in frames)


def test_failed_item_keeps_what_it_had_measured(troubled: Passport) -> None:
    assert troubled.lines["fails"]["by then"] == 3


def test_hanging_item_says_where_it_hung(troubled: Passport) -> None:
    hangs = troubled.lines["hangs"]
    assert re.fullmatch(r"no answer within .* s, so its process was ended", hangs["error"])
    assert "about to wait" in hangs["said"]
    # the traceback of the process
    assert "in hangs" in hangs["said"]


def test_aborted_item_names_the_signal(troubled: Passport) -> None:
    assert troubled.lines["aborts"]["error"] == "its process ended with SIGABRT"


def test_item_after_a_broken_context_has_a_new_process(troubled: Passport) -> None:
    assert troubled.lines["breaks_the_context"]["broken"]
    assert troubled.lines["lines_before"]["outcome"] == "done"


def test_failures_are_printed_at_once(troubled: Passport) -> None:
    assert troubled.printed[:2] == [
        "facts: 7 items",
        "  fails: failed, ValueError: expected an even number, got 3",
    ]


def test_passport_names_no_folder_of_this_machine(troubled: Passport) -> None:
    text = json.dumps(troubled.lines)
    assert str(ROOT) not in text
    assert str(Path.home()) + os.sep not in text


def test_a_passport_without_time_has_timings_only(file: Path) -> None:
    """Timings have a time limit of their own."""
    assert (
        passport.make(file, serving("prints", "fails", "time prints"), seconds=0.0)
        == "the time was up"
    )
    lines = lines_by_item(file)
    assert list(lines) == ["start", "time prints", "end"]
    assert lines["end"]["missing"] == ["prints", "fails"]


def test_a_passport_without_a_process_says_why(file: Path) -> None:
    end = passport.make(file, [sys.executable, "-c", "raise SystemExit('no torch here')"])
    assert end == "no process for the items could be started: its process ended with status 1"
    assert "no torch here" in lines_by_item(file)["process"]["said"]
    assert lines_by_item(file)["end"]["outcome"] == end


def test_an_interrupted_passport_keeps_its_lines(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = WorkerProcess.ask
    printed = []

    def interrupted(worker: WorkerProcess, name: str, *rest: Any) -> Found:
        if name == "hangs":
            raise KeyboardInterrupt
        return ask(worker, name, *rest)

    monkeypatch.setattr(WorkerProcess, "ask", interrupted)
    assert (
        passport.make(file, serving("prints", "hangs", "fails"), say=printed.append)
        == "interrupted"
    )
    assert printed == ["facts: 3 items", "interrupted; what is done is in the file"]
    lines = lines_by_item(file)
    assert list(lines) == ["start", "prints", "end"]
    assert lines["end"]["missing"] == ["hangs", "fails"]


def test_only_the_home_folder_itself_becomes_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/people/ann"))
    assert without_folders("/people/ann/train.py") == "~/train.py"
    assert without_folders("/people/anna/train.py") == "/people/anna/train.py"


# --- the command ----------------------------------------------------------------------------------


WRITE = ["gpu", "--device", "cpu", "--passport"]


@pytest.fixture
def _one_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a passport have one item."""
    monkeypatch.setattr("labkit.gpu.command.worker_command", lambda _: serving("prints"))


@pytest.mark.usefixtures("_one_item")
def test_the_command_prints_where_the_passport_is(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*WRITE, str(file)]) == 0
    assert f"complete. The passport is in {file}\nSend this file." in capsys.readouterr().out


@pytest.mark.usefixtures("_one_item")
def test_a_passport_replaces_no_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("an earlier passport")
    assert cli.main([*WRITE, str(file)]) == 2
    assert "exists already and was not changed" in capsys.readouterr().err
    assert file.read_text() == "an earlier passport"


def test_a_message_about_a_taken_name_suggests_a_free_one(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for taken in (file, file.with_name("passport-2.jsonl")):
        taken.touch()
    cli.main([*WRITE, str(file)])
    assert str(file.with_name("passport-3.jsonl")) in capsys.readouterr().err


def test_a_passport_in_no_folder_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*WRITE, str(file.parent / "no folder" / "p.jsonl")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_passport_below_a_file_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("a file, not a folder")
    with pytest.raises(SystemExit, match="2"):
        cli.main([*WRITE, str(file / "p.jsonl")])
    assert f"expected a folder, got the file {file}" in capsys.readouterr().err
