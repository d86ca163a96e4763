"""Killed processes, full disks, wrong clocks and simultaneous commands: nothing is lost.

docs/teachers.md has a table of these faults. A killed hub is tested in test_hub.py.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from labkit.classroom.class_pages import minutes_of
from labkit.classroom.release import _put_aside
from labkit.classroom.tables import read_table
from labkit.cli import main
from labkit.grading.plan import implausible_times, late_days
from labkit.grading.submission import Submission
from labkit.records import exclusive_lock
from labkit.records.journal import NAME, append_answer, entries, last_answers
from tests.grading.hand_ins import NOTEBOOK, notebook, put, solved, starter
from tests.slowness import slowness

LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="signals, locks and small disks are Linux's"
)
RUN = "import sys; from labkit.cli import main; sys.exit(main())"


def hand_in(folder: Path, name: str, **changed: str) -> Path:
    return put(folder / name / NOTEBOOK, notebook(*solved(**changed)))


# --- clocks ---


@pytest.fixture
def set_back(tmp_path: Path) -> Path:
    """A journal whose clock was set back between two answers."""
    journal = tmp_path / NAME
    for answer, when in (
        ("first", "2026-11-22T10:00:00+00:00"),
        ("second", "2026-11-22T09:00:00+00:00"),
    ):
        line = {
            "kind": "exercise",
            "id": "scaling.clip",
            "answer": answer,
            "points": len(answer),
            "when": when,
        }
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return journal


def test_clock_set_back_leaves_the_later_answer_the_last(set_back: Path) -> None:
    assert last_answers(set_back, "exercise") == {"scaling.clip": "second"}


def test_clock_set_back_leaves_the_minutes_unknown(set_back: Path) -> None:
    assert minutes_of("scaling.clip", [set_back]) == []


def time_of(year: int) -> float:
    """Return the seconds since 1970 at about the start of a year."""
    return (year - 1970) * 365.25 * 86400


@pytest.mark.parametrize(
    ("year", "is_plausible", "days"), [(1980, False, 0), (2025, True, 0), (2099, False, 26664)]
)
def test_an_implausible_time_of_a_notebook_is_reported(
    year: int, is_plausible: bool, days: int, tmp_path: Path
) -> None:
    path = hand_in(tmp_path, "ada")
    one = Submission("ada", path.name, path)
    now = time_of(2026)
    os.utime(path, (time_of(year), time_of(year)))
    remarks = implausible_times([one, Submission("bob", "", None)], now)
    assert len(remarks) == (0 if is_plausible else 1)
    assert late_days(one, now) == days, "73 years late, where the clock was ahead"


# --- two at once ---


@LINUX
def test_two_gradings_into_one_file_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hand_in(tmp_path / "class", "ada")
    alone_with = f"with exclusive_lock(Path({str(tmp_path / 'g.csv')!r}))"
    holds = f"from pathlib import Path; from labkit.records import exclusive_lock\n{alone_with}:"
    words = [sys.executable, "-c", f"{holds} print('in', flush=True); input()"]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "in\n"
    assert main(["grade", str(tmp_path / "class"), "--csv", str(tmp_path / "g.csv")]) == 2
    assert "wait until it has ended" in capsys.readouterr().err
    assert not list(tmp_path.glob("g.csv*")), "the other one's journal is left alone"
    other.kill()
    other.communicate()
    with exclusive_lock(tmp_path / "g.csv"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["class"]


@LINUX
def test_one_of_many_holds_the_lock_at_a_time(tmp_path: Path) -> None:
    mark = tmp_path / "held"
    entered: list[bool] = []
    met: list[FileExistsError] = []

    def enter(_: int) -> None:
        with suppress(BlockingIOError), exclusive_lock(tmp_path / "x"):
            entered.append(True)
            # Files let other threads run: one that is inside as well finds the mark.
            try:
                mark.touch(exist_ok=False)
            except FileExistsError as error:
                met.append(error)
            mark.unlink(missing_ok=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter, range(200)))
    assert entered
    assert met == []
    assert list(tmp_path.iterdir()) == [], "the lock's file goes with the lock"


def test_second_release_moves_the_first_aside(tmp_path: Path) -> None:
    notebooks = tmp_path / "learners" / "notebooks"
    notebooks.mkdir(parents=True)
    for name, text in (
        ("00.ipynb", "same"),
        ("01.ipynb", "changed"),
        ("06.ipynb", "of another lesson"),
    ):
        (notebooks / name).write_text(text)
    (tmp_path / "learners" / "fp16_lab-0.1-py3-none-any.whl").write_text("old")
    new = {"notebooks/00.ipynb": b"same", "notebooks/01.ipynb": b"new"}
    for _ in range(2):
        notices = _put_aside(tmp_path / "learners", new, tmp_path / "earlier")
        (notebooks / "01.ipynb").write_text("changed again")
    assert len(notices) == 1
    assert [path.name for path in notebooks.iterdir() if path.name != "01.ipynb"] == ["00.ipynb"]
    found = {path.name: path.read_text() for path in (tmp_path / "earlier").iterdir()}
    assert found == {
        "01.ipynb": "changed",
        "011.ipynb": "changed again",
        "06.ipynb": "of another lesson",
        "fp16_lab-0.1-py3-none-any.whl": "old",
    }


# --- kill -9 ---


@LINUX
@pytest.mark.slow
@pytest.mark.timeout(600 * slowness())
def test_killed_kernel_loses_no_acknowledged_answer(tmp_path: Path) -> None:
    journal = tmp_path / NAME
    program = f"""if True:
        from pathlib import Path
        from labkit.records.journal import append_answer
        for number in range(10**9):
            append_answer(Path({str(journal)!r}), "prediction", str(number), "x" * 50_000)
            print(number, flush=True)"""
    acknowledged = -1
    for wanted in (1, 7, 20):
        kernel = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        )
        assert kernel.stdout is not None
        for line in kernel.stdout:
            acknowledged = int(line)
            if acknowledged == wanted:
                kernel.send_signal(signal.SIGKILL)
        kernel.wait()
        assert set(map(str, range(acknowledged + 1))) <= {
            line["id"] for line in entries(journal, "prediction")
        }
    append_answer(journal, "prediction", "after", "it")
    assert entries(journal, "prediction")[-1]["id"] == "after"


@LINUX
@pytest.mark.slow
def test_a_terminated_grader_leaves_whole_grades(tmp_path: Path) -> None:
    hand_in(tmp_path / "class", "ada")
    hand_in(tmp_path / "class", "bob", clip="import time\ntime.sleep(10 ** 6)")
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-c", RUN, "grade", "class", "--csv", "g.csv", "--seed", "5"]
    own = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    grading = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=own)
    assert grading.stderr is not None
    assert any("[1/2] ada" in line for line in grading.stderr)
    grading.send_signal(signal.SIGTERM)
    grading.communicate()
    first = (tmp_path / "g.csv").read_text(encoding="utf-8")
    assert grading.returncode == 130
    assert "ada" in first
    assert "bob" not in first
    assert list((tmp_path / "tmp").iterdir()) == []

    hand_in(tmp_path / "class", "bob")
    printed = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, env=own
    ).stderr
    assert "notebooks are taken from an earlier grading" in printed
    assert "[1/1] bob" in printed
    assert (tmp_path / "g.csv").read_text(encoding="utf-8").startswith(first)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["class", "g.csv", "tmp"]


@LINUX
@pytest.mark.slow
@pytest.mark.timeout(1500 * slowness())
def test_grader_killed_at_any_line_writes_the_same_file(tmp_path: Path) -> None:
    for name, changed in (
        ("ada", {}),
        ("Zoë Müller", {"clip": starter("scaling.clip")}),
        ("bob", {"advance": "1/0"}),
    ):
        hand_in(tmp_path / "class", name, **changed)
    words = [
        "class",
        "--seed",
        "5",
        "--csv",
        "g.csv",
        "--feedback",
        "back",
        "--report",
        "class.html",
    ]
    command = [sys.executable, "-c", RUN, "grade", *words, "--gradebook", "book.csv"]
    whole = tmp_path / "whole"
    whole.mkdir()
    shutil.copytree(tmp_path / "class", whole / "class")
    lines = subprocess.run(
        command, cwd=whole, capture_output=True, text=True, check=True
    ).stderr.splitlines()
    for stop in range(1, len(lines)):
        grading = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        assert grading.stderr is not None
        for number, _ in enumerate(grading.stderr, start=1):
            if number == stop:
                grading.kill()
        grading.communicate()
        for page in [*tmp_path.glob("*.html"), *tmp_path.glob("back/*.html")]:
            assert page.read_text(encoding="utf-8").endswith("</html>\n")
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    for path in [path.relative_to(whole) for path in whole.rglob("*") if path.is_file()]:
        assert (tmp_path / path).read_bytes() == (whole / path).read_bytes(), path


# --- a full disk ---


@contextmanager
def small_disk(place: Path, kibibytes: int) -> Iterator[Path]:
    """Mount a disk of this size; without root's rights, the test is skipped."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("no small disk: only root mounts one, and not in every container")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@LINUX
@pytest.mark.slow
@pytest.mark.timeout(900 * slowness())
def test_full_disk_is_reported_and_grading_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ada", "bob", "carl"):
        hand_in(tmp_path / "class", name)
    with small_disk(tmp_path / "disk", 64) as disk:
        words = [
            "grade",
            str(tmp_path / "class"),
            "--csv",
            str(disk / "g.csv"),
            "--feedback",
            str(disk / "back"),
        ]
        words += ["--changed", "--seed", "5"]
        # full before, in the journal, in the table, and in the pages
        for free_kib in (0, 8, 16, 24, 40):
            (disk / "ballast").write_bytes(
                bytes((64 - free_kib) << 10)[: shutil.disk_usage(disk).free]
            )
            assert main(words) == 2, f"{free_kib} KiB free"
            assert "No space left" in capsys.readouterr().err
            assert all(
                page.read_bytes().endswith(b"</html>\n") for page in disk.glob("back/*.html")
            )
            (disk / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        assert main(words) == 0
        assert len(list(disk.glob("back/*.html"))) == 3
        rows = Counter(line["student"] for line in read_table(disk / "g.csv"))
        assert rows.keys() == {"ada", "bob", "carl"}
        assert len({*rows.values()}) == 1, "each has a row for each exercise"
