"""Writes the generated pages of docs, or checks that they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(path: Path, text: str) -> int:
    """Write a page, or compare it with the file if --check is on the command line.

    Returns:
        The exit status: 1 if the file is missing or differs, else 0.
    """
    if "--check" not in sys.argv[1:]:
        path.write_text(text, encoding="utf-8", newline="\n")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{path.name} is not up to date; `make docs` writes it\n")
    return 1
