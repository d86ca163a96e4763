"""A file is whole or not there, readable by others, and its folder is made. (Kills: tests/amp/test_checkpoint.py.)"""

import os
from pathlib import Path

import pytest

from labkit.records import write_whole


def test_content_may_be_written_by_a_function_and_read_by_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = write_whole(tmp_path / "deep" / "a", lambda file: file.write(b"new"))
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_whole(tmp_path / "a", b"old")

    def broken(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="full"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path], "nothing is left lying about"
