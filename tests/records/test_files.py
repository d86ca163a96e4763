"""A file is whole or not there, readable by others, and its folder is made. (Kills: tests/amp/test_checkpoint.py.)"""

import os
from pathlib import Path

import pytest

from labkit.records import write_whole


def test_content_may_be_written_by_a_function(tmp_path: Path) -> None:
    assert write_whole(tmp_path / "deep" / "a", lambda file: file.write(b"new")).read_bytes() == b"new"


def test_others_may_read_what_was_written(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        assert write_whole(tmp_path / "a", b"x").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_whole(tmp_path / "a", b"old")

    def broken(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="full"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path], "nothing is left lying about"
