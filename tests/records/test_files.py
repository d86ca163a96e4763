"""Files: written completely or not at all, readable by others, and never into the installed
package.

Kills: tests/amp/test_checkpoint.py.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.cli import main
from labkit.records import data_folder, files, recorded_files, results_folder, write_atomic
from labkit.train import recorded
from labkit.widgets import recipe_table


def test_content_may_be_written_by_a_function_and_read_by_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = write_atomic(tmp_path / "deep" / "a", lambda file: file.write(b"new"))
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_atomic(tmp_path / "a", b"old")

    def broken(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path], "nothing is left lying about"


WRITER = """
import sys
from pathlib import Path
from labkit.records import write_atomic

def content(file):
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.readline()
    file.write(b" and half")

write_atomic(Path(sys.argv[1]), content)
"""


def test_what_a_killed_process_left_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "[a] run.pt"

    def in_the_middle() -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], **pipes)
        assert writer.stdout.readline() == "writing\n"
        return writer

    killed = [in_the_middle() for _ in range(2)]
    alive = in_the_middle()
    for writer in killed:
        writer.kill()
        writer.communicate()
    assert len(list(tmp_path.iterdir())) == 3
    others = [
        tmp_path / name
        for name in (
            ".[a] run.pt.notes.part",
            ".other.0123abcd.part",
            "[a] run.pt.0123abcd.part",
            ".[a] run.pt.0123abcd.part.bak",
        )
    ]
    for other in others:
        other.write_bytes(b"kept")
    folder = tmp_path / ".[a] run.pt.89abcdef.part"
    folder.mkdir()
    write_atomic(path, b"new")
    assert len(left := set(tmp_path.iterdir()) - {path, folder, *others}) == 1, (
        "that of the one that is alive"
    )
    assert left.pop().read_bytes() == b"half"
    alive.communicate("go on\n")
    assert alive.returncode == 0
    assert path.read_bytes() == b"half and half"
    assert set(tmp_path.iterdir()) == {path, folder, *others}


FP32 = "runs/digits/fp32-seed0.json"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a package far from any checkout, with one record in its data; the home folder is
    empty.
    """
    package = tmp_path / "site-packages" / "labkit"
    for name in (FP32, "digits.npz"):
        (package / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(data_folder() / name, package / "data" / name)
    monkeypatch.setattr(files, "PACKAGE", package)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    return package


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_checkout_keeps_results_beside_what_travels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert results_folder() == data_folder()
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    assert results_folder() == tmp_path


def test_a_race_without_a_checkout_writes_into_the_home_folder(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_in(installed)
    own = tmp_path / "home" / "fp16-lab" / "data"
    assert (
        main(
            [
                "compare",
                "digits",
                "--recipes",
                "FP32",
                "--seeds",
                "0",
                "50",
                "--device",
                "cpu",
                "--workers",
                "1",
            ]
        )
        == 0
    )
    assert files_in(installed) == before
    assert files_in(own) == {FP32, "runs/digits/fp32-seed50.json"}
    assert (own / FP32).read_bytes() == (installed / "data" / FP32).read_bytes(), (
        "on record: not trained again"
    )


def test_lessons_see_both_and_ones_own_first(installed: Path) -> None:
    own = results_folder() / FP32.replace("seed0", "seed7")
    own.parent.mkdir(parents=True)
    shutil.copy(installed / "data" / FP32, own)
    assert {
        path.is_relative_to(installed) for path in recorded_files("runs/digits/*.json").values()
    } == {True, False}
    assert recorded("digits", "FP32", 7).recipe == "FP32"
    assert str(installed) not in recipe_table(["digits"], ["O1"]).missing(), (
        "nobody is told to write there"
    )
    shutil.copy(own, own.with_name("fp32-seed0.json"))
    assert recorded_files(FP32) == {FP32: own.with_name("fp32-seed0.json")}
