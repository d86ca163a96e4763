"""Files are written completely or not at all, for all users to read, and not into the package.

Processes that are killed while they write a checkpoint are in tests/amp/test_checkpoint.py.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main
from labkit.records import (
    data_folder,
    files,
    recorded_files,
    results_folder,
    write_atomic,
    write_line,
)
from labkit.records.files import parse_record
from labkit.train import recorded
from labkit.widgets import recipe_table


@pytest.mark.parametrize(
    "content",
    ["", "[]", "7", "{}", '{"schema": "b/1"}', "[" * 100_000, '{"schema": "a/1"}'],
    ids=["nothing", "list", "number", "no schema", "another schema", "deep", "no field"],
)
def test_what_is_not_a_record_is_refused(content: str) -> None:
    with pytest.raises(ValueError, match=r"^not an a: "):
        parse_record(content, "a/1", lambda fields: fields["n"], "not an a")


@pytest.mark.parametrize(
    "make",
    [lambda fields: fields["n"][0], lambda fields: 1 / len(fields["n"])],
    ids=["index", "division"],
)
def test_a_record_that_cannot_be_made_is_refused(make: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(ValueError, match=r"^not an a: "):
        parse_record('{"schema": "a/1", "n": []}', "a/1", make, "not an a")


def test_content_may_be_written_by_a_function(tmp_path: Path) -> None:
    path = write_atomic(tmp_path / "deep" / "a", lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"


def test_a_folder_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(IsADirectoryError, match=r"expected a file to write, got the folder .*run"):
        write_atomic(tmp_path / "run", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_line_is_in_the_file_before_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    with path.open("w", encoding="utf-8") as file:
        write_line(file, "one")
        write_line(file, "two")
        assert path.read_bytes().splitlines() == [b"one", b"two"]


def test_a_line_is_synced_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with (tmp_path / "lines.jsonl").open("w", encoding="utf-8") as file:
        write_line(file, "one")
        assert synced == [file.fileno()]


def test_a_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = write_atomic(tmp_path / "a", b"new")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to(elsewhere)
    write_atomic(link, b"new")
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"
    assert elsewhere.read_bytes() == b"old"


def test_a_failed_write_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_atomic(tmp_path / "a", b"old")

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    # The partial file is deleted.
    assert list(tmp_path.iterdir()) == [path]


# A program that writes half of a file, and the rest after a line of input.
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


# A name with characters that have a meaning in patterns of files.
NAME = "[a] run.pt"


def begin_to_write(path: Path) -> subprocess.Popen[str]:
    """Start a process that has written half of a file, and waits."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], **pipes)
    assert writer.stdout.readline() == "writing\n"
    return writer


def test_partial_files_of_killed_processes_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / NAME
    for writer in [begin_to_write(path) for _ in range(2)]:
        writer.kill()
        writer.communicate()
    assert len(list(tmp_path.iterdir())) == 2
    write_atomic(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_the_partial_file_of_a_running_process_is_kept(tmp_path: Path) -> None:
    path = tmp_path / NAME
    writer = begin_to_write(path)
    write_atomic(path, b"new")
    (partial,) = set(tmp_path.iterdir()) - {path}
    assert partial.read_bytes() == b"half"
    writer.communicate("the rest\n")
    assert writer.returncode == 0
    assert path.read_bytes() == b"half and half"
    assert list(tmp_path.iterdir()) == [path]


def test_files_with_similar_names_are_kept(tmp_path: Path) -> None:
    names = {
        f".{NAME}.notes.part",
        ".other.0123abcd.part",
        f"{NAME}.0123abcd.part",
        f".{NAME}.0123abcd.part.bak",
    }
    for name in names:
        (tmp_path / name).write_bytes(b"kept")
    folder = tmp_path / f".{NAME}.89abcdef.part"
    folder.mkdir()
    write_atomic(tmp_path / NAME, b"new")
    assert {path.name for path in tmp_path.iterdir()} == {NAME, folder.name, *names}


FP32 = "runs/digits/fp32-seed0.json"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package without a checkout, with one record in its data. The home folder is empty."""
    package = tmp_path / "site-packages" / "labkit"
    for name in (FP32, "digits.npz"):
        (package / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(data_folder() / name, package / "data" / name)
    monkeypatch.setattr(files, "PACKAGE", package)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    return package


def files_in(folder: Path) -> set[str]:
    """Return the paths of all files below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_checkout_keeps_results_in_its_data() -> None:
    assert results_folder() == data_folder()


def test_a_variable_names_another_folder_of_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    assert results_folder() == tmp_path


@pytest.mark.usefixtures("capsys")
def test_a_comparison_without_a_checkout_writes_into_the_home(
    installed: Path, tmp_path: Path
) -> None:
    before = files_in(installed)
    own = tmp_path / "home" / "fp16-lab" / "data"
    what = ["digits", "--recipes", "FP32", "--seeds", "0", "50"]
    assert main(["compare", *what, "--device", "cpu", "--workers", "1"]) == 0
    assert files_in(installed) == before
    assert files_in(own) == {FP32, "runs/digits/fp32-seed50.json"}
    # The run that is on record is copied, not trained again.
    assert (own / FP32).read_bytes() == (installed / "data" / FP32).read_bytes()


@pytest.fixture
def own_record(installed: Path) -> Path:
    """A record of seed 7 in the folder of results; the package has that of seed 0."""
    path = results_folder() / FP32.replace("seed0", "seed7")
    path.parent.mkdir(parents=True)
    shutil.copy(installed / "data" / FP32, path)
    return path


def test_records_of_the_package_and_the_home_folder_are_listed(
    installed: Path, own_record: Path
) -> None:
    paths = recorded_files("runs/digits/*.json").values()
    assert set(paths) == {installed / "data" / FP32, own_record}


@pytest.mark.usefixtures("own_record")
def test_a_record_of_the_home_folder_is_read() -> None:
    assert recorded("digits", "FP32", 7).recipe == "FP32"


@pytest.mark.usefixtures("own_record")
def test_a_command_for_missing_records_spares_the_package(installed: Path) -> None:
    command = recipe_table(["digits"], ["O1"]).missing()
    assert "O1" in command
    assert str(installed) not in command


def test_a_record_of_the_home_folder_replaces_the_packages(own_record: Path) -> None:
    same_name = own_record.with_name("fp32-seed0.json")
    shutil.copy(own_record, same_name)
    assert recorded_files(FP32) == {FP32: same_name}
