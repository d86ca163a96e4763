"""How is a file whole at every moment, a kill included? It is written aside and renamed.

Idea: the new file stands beside the old one under a hidden name, is forced onto the disk and then renamed, which the
file system does in one go.

Invariant: at any moment the path holds the old content or the new one, never a part.

Source: rename(2) and fsync(2).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO


def write_whole(path: Path, content: bytes | Callable[[IO[bytes]], object]) -> Path:
    """Write a file aside, make sure it is on the disk, and rename it: whoever looks sees the old one or the new one.

    Who is killed in between leaves a hidden `.NAME.*.part` beside it, which may be deleted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with aside.open("xb") as file:  # by its own open, so that the file may be read by whom the umask lets
            file.write(content) if isinstance(content, bytes) else content(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return path


def _sync_folder(folder: Path) -> None:
    """Force the new name onto the disk too, where the system lets a folder be opened."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
