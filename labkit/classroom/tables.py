"""Tables of spreadsheets and schools' systems, whatever their encoding and separator.

Spreadsheets open our tables, so a text that would be a formula is escaped, and unescaped when it is
read (labkit.grading.results). Cells of other tables are not changed.

Invariant: a table is read as it was written. A row keeps the names and the order of its columns,
and nothing is dropped silently.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from labkit.grading.results import guard, unguard
from labkit.records import write_atomic

Line = dict[str, str]
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def read_table(path: Path, *, guarded: bool = False) -> list[Line]:
    """Return the rows of a CSV file: comma, semicolon or tab, with or without a byte order mark.

    `guarded` means that `write_table` escaped its formulas.

    Raises:
        OSError: it cannot be read.
        ValueError: it has no header, names a column twice, or has a line with more cells than
            names.
    """
    text = _decoded(path.read_bytes())
    head = _QUOTED.sub("quoted", text).lstrip("\r\n").split("\n", 1)[0]
    separator = max(",;\t", key=head.count)
    try:
        lines = [
            line for line in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if line
        ]
    except csv.Error as error:
        raise ValueError(f"{path} is not a table: {error}") from error
    if not lines or not any(name.strip() for name in lines[0]):
        raise ValueError(f"{path} is empty: its first line should name its columns")
    names = _names(path, lines)
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        if any(cell.strip() for cell in line[len(names) :]):
            raise ValueError(
                f"{path}, line {number}: expected {len(names)} cells, as the first line "
                f"names, got {len(line)}: {','.join(line)[:60]!r}; put quotes around a "
                "text that holds the separator"
            )
        cells = [unguard(cell) for cell in line] if guarded else line
        rows.append(dict(zip_longest(names, cells[: len(names)], fillvalue="")))
    return rows


def write_table(
    path: Path,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, object]],
    *,
    guarded: bool = False,
) -> None:
    """Write rows as CSV that spreadsheets of any language read (UTF-8 with its mark), atomically.

    `guarded` escapes texts that a spreadsheet would take for formulas.
    """
    text = io.StringIO(newline="")
    # of other tables: quoted, they are not taken for that
    separators = set("".join(columns)) & set(";\t")
    csv.writer(text, quoting=csv.QUOTE_ALL if separators else csv.QUOTE_MINIMAL).writerow(columns)
    cells = ([row.get(name, "") for name in columns] for row in rows)
    csv.writer(text).writerows(
        [guard(cell) for cell in line] if guarded else line for line in cells
    )
    write_atomic(path, text.getvalue().encode("utf-8-sig", errors="backslashreplace"))


def same_name(text: str) -> str:
    r"""Return the normal form of a name, without case, repeated spaces or Unicode composition.

    >>> same_name("Zoe\u0308  Müller ") == same_name("zoë mu\u0308ller")
    True
    """
    return " ".join(
        unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).split()
    )


class Names:
    """Items by name, found as exactly as possible: Ann is Ann, and ann if there is no Ann.

    >>> names = Names([("Ann", 1), ("ann", 2), ("STRASSE", 3)])
    >>> names.find("ann"), names.find("Straße")
    ((0, [2]), (2, [3]))
    """

    def __init__(self, names: Iterable[tuple[str, int]]) -> None:
        self._known = defaultdict[tuple[int, str], dict[int, None]](dict)
        for name, item in names:
            own = _spellings(name)
            bare = _spellings(unguard(name))
            for key in (*enumerate(own), (1, bare[1]), (2, bare[2])):
                self._known[key][item] = None

    def find(self, name: str) -> tuple[int, list[int]]:
        """Return the rank of a match, 0 for equal and 2 by `same_name`, and the items it finds.

        Either name may be escaped as in a table of ours.
        """
        pairs = zip(_spellings(name), _spellings(unguard(name)), strict=True)
        keys = [
            (exactness, spelling)
            for exactness, pair in enumerate(pairs)
            for spelling in pair
            if spelling
        ]
        return next(
            ((key[0], list(self._known[key])) for key in keys if key in self._known), (3, [])
        )


def _spellings(name: str) -> tuple[str, str, str]:
    """Return a name unchanged, with normalized Unicode and blanks, and as by `same_name`."""
    written = name.encode(errors="backslashreplace").decode()
    return written, " ".join(unicodedata.normalize("NFC", written).split()), same_name(written)


def _names(path: Path, lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of the columns, without empty ones at the end."""
    names = list(lines[0])
    while (
        len(names) > 1
        and not names[-1].strip()
        and not any(cell.strip() for line in lines[1:] for cell in line[len(names) - 1 :])
    ):
        names.pop()
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise ValueError(f"{path} has two columns named {twice!r}: rename one of them")
    return names


def _decoded(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    return content.decode("latin-1")
