"""How is a table read that a spreadsheet or a school's system wrote? Whatever its encoding and its separator.

Invariant: a row keeps its columns' names and order; nothing is dropped in silence.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit.grading.table import cell
from labkit.records import write_whole

Line = dict[str, str]


def read_table(path: Path) -> list[Line]:
    """Return the rows of a CSV file: comma, semicolon or tab, with or without a byte order mark.

    Raises:
        OSError: it cannot be read.
        ValueError: it has no line of names.
    """
    content = path.read_bytes()
    for encoding in ("utf-16",) if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig", "cp1252", "latin-1"):
        try:
            text = content.decode(encoding)
            break
        except UnicodeDecodeError:
            continue
    head = text.split("\n", 1)[0]
    separator = max(",;\t", key=head.count)
    rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, restval="", restkey="…"))
    if not head.strip():
        raise ValueError(f"{path} is empty: its first line should name its columns")
    return [{str(k).strip(): _text(v) for k, v in row.items()} for row in rows if any(row.values())]


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as CSV that spreadsheets of any language read (UTF-8 with its mark), whole or not at all."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([cell(row.get(name, "")) for name in columns] for row in rows)
    write_whole(path, text.getvalue().encode("utf-8-sig", errors="backslashreplace"))


def same_name(text: str) -> str:
    """Return a name in the spelling by which names are compared: case, spaces and the two ways to write ü are one.

    >>> same_name("Zoe\\u0308  Müller ") == same_name("zoë mu\\u0308ller")
    True
    """
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _text(value: str | list[str] | None) -> str:
    return (" ".join(value) if isinstance(value, list) else value or "").strip()
