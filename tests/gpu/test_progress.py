"""The file of progress of `labkit gpu --progress`."""

from pathlib import Path

import pytest

from labkit import cli, gpu
from labkit.gpu.progress import PartProgress, read_progress

PARTS = ("size", "mma")


def run_with_progress(folder: Path, file: Path, *words: str) -> int:
    """Run the two parts with a file of progress, and return the exit status."""
    command = ["gpu", "--device", "cpu", "--folder", str(folder), "--only", *PARTS]
    return cli.main([*command, "--progress", str(file), *words])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "progress.jsonl"


@pytest.fixture
def read_during_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path
) -> list[list[PartProgress]]:
    """What the file says while each of the two parts runs; both fail."""
    read = []

    def run_part(*_: object) -> str:
        read.append(read_progress(file))
        return "failed, for once"

    monkeypatch.setattr(gpu.command, "run_part", run_part)
    file.write_text("of another run")
    assert run_with_progress(tmp_path, file) == 1
    return read


@pytest.mark.usefixtures("read_during_parts")
def test_progress_describes_each_part(file: Path) -> None:
    expected = []
    for number, name in enumerate(PARTS, 1):
        part = gpu.PARTS[name]
        expected.append(PartProgress(name, number, 2, part.about, part.seconds, "failed, for once"))
    assert read_progress(file) == expected


def test_a_part_that_runs_has_no_outcome(read_during_parts: list[list[PartProgress]]) -> None:
    during_size, during_mma = read_during_parts
    assert [(part.name, part.outcome) for part in during_size] == [("size", "")]
    assert [(part.name, part.outcome) for part in during_mma] == [
        ("size", "failed, for once"),
        ("mma", ""),
    ]


@pytest.mark.usefixtures("read_during_parts")
def test_progress_has_a_line_at_both_ends_of_a_part(file: Path) -> None:
    assert len(file.read_text().splitlines()) == 4


@pytest.fixture
def file_without_time(tmp_path: Path, file: Path) -> Path:
    """The file of progress of a run that had no time for its two parts."""
    assert run_with_progress(tmp_path, file, "--seconds", "1") == 1
    return file


def test_progress_has_one_line_of_a_part_without_time(file_without_time: Path) -> None:
    parts = read_progress(file_without_time)
    assert [part.outcome for part in parts] == 2 * ["not begun, the time was up"]
    assert len(file_without_time.read_text().splitlines()) == 2


def test_a_line_of_progress_that_is_being_written_is_not_read(file_without_time: Path) -> None:
    before = read_progress(file_without_time)
    with file_without_time.open("a") as unfinished:
        unfinished.write('{"name": "spe')
    assert read_progress(file_without_time) == before


def test_a_file_of_progress_in_no_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with_progress(tmp_path, tmp_path / "none" / "p.jsonl") == 2
    assert "cannot be written (No such file or directory)" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--passport", "--read"])
def test_progress_of_a_passport_is_refused(
    option: str, tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["gpu", "--device", "cpu", "--progress", str(file), option, str(tmp_path / "q")]
    assert cli.main(words) == 2
    assert "--progress reports on parts" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
