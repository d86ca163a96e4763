"""Writing or comparison of generated pages in docs."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(path: Path, text: str) -> int:
    """Write a page; with --check on the command line, return 1 if the file differs."""
    if "--check" not in sys.argv[1:]:
        path.write_text(text, encoding="utf-8", newline="\n")
        return 0
    return int(not path.is_file() or path.read_text(encoding="utf-8") != text)
