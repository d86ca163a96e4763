"""Who writes a page of docs? Each script beside this one makes its text; here it is written, or compared."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(path: Path, text: str) -> int:
    """Write a page; with --check on the command line, return 1 where another text stands there."""
    if "--check" not in sys.argv[1:]:
        path.write_text(text, encoding="utf-8", newline="\n")
        return 0
    return int(not path.is_file() or path.read_text(encoding="utf-8") != text)
