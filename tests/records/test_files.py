"""A file is whole or not there, readable by others, and its folder is made. (Kills: tests/amp/test_checkpoint.py.)"""

import os
import subprocess
import sys
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


WRITER = """
import sys
from pathlib import Path
from labkit.records import write_whole

def content(file):
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.readline()
    file.write(b" and half")

write_whole(Path(sys.argv[1]), content)
"""


def test_what_a_killed_process_left_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "[a] run.pt"

    def in_the_middle() -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], **pipes)  # type: ignore[call-overload]
        assert writer.stdout.readline() == "writing\n"
        return writer  # type: ignore[no-any-return]

    killed, alive = [in_the_middle() for _ in range(2)], in_the_middle()
    for writer in killed:
        writer.kill()
        writer.communicate()
    assert len(list(tmp_path.iterdir())) == 3
    others = [tmp_path / name for name in (
        ".[a] run.pt.notes.part", ".other.0123abcd.part", "[a] run.pt.0123abcd.part", ".[a] run.pt.0123abcd.part.bak"
    )]  # fmt: skip
    for other in others:
        other.write_bytes(b"kept")
    folder = tmp_path / ".[a] run.pt.89abcdef.part"
    folder.mkdir()
    write_whole(path, b"new")
    assert len(left := set(tmp_path.iterdir()) - {path, folder, *others}) == 1, "that of the one that is alive"
    assert left.pop().read_bytes() == b"half"
    alive.communicate("go on\n")
    assert (alive.returncode, path.read_bytes()) == (0, b"half and half")
    assert set(tmp_path.iterdir()) == {path, folder, *others}
