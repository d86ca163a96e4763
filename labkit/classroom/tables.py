"""How is a table read that a spreadsheet or a school's system wrote? Whatever its encoding and its separator.

Idea: a table of ours is opened in spreadsheets, so a text in it that would be a formula is guarded, and the guard is
taken off when it is read (labkit.grading.results). Somebody else's table is theirs: its cells go through as they are.

Invariant: what was written is read, to the letter; a row keeps its columns' names and order; nothing is dropped in
silence.
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

    guarded   it is one that `write_table` guarded

    Raises:
        OSError: it cannot be read.
        ValueError: it has no line of names, names a column twice, or has a line with more cells than names.
    """
    text = _decoded(path.read_bytes())
    head = _QUOTED.sub("", text).lstrip("\r\n").split("\n", 1)[0]
    separator = max(",;\t", key=head.count)
    try:
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if line]
    except csv.Error as error:
        raise ValueError(f"{path} is no table: {error}") from error
    if not lines or not any(name.strip() for name in lines[0]):
        raise ValueError(f"{path} is empty: its first line should name its columns")
    names = _names(path, lines)
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        if any(cell.strip() for cell in line[len(names) :]):
            raise ValueError(
                f"{path}, line {number}: expected {len(names)} cells, as the first line names, got {len(line)}: "
                f"{','.join(line)[:60]!r}; put quotes around a text that holds the separator"
            )
        cells = [unguard(cell) for cell in line] if guarded else line
        rows.append(dict(zip_longest(names, cells[: len(names)], fillvalue="")))
    return rows


def write_table(
    path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]], *, guarded: bool = False
) -> None:
    """Write rows as CSV that spreadsheets of any language read (UTF-8 with its mark), whole or not at all.

    guarded   a text that a spreadsheet would take for a formula is guarded: for tables of ours
    """
    text = io.StringIO(newline="")
    separators = set("".join(columns)) & set(";\t")  # of other tables: quoted, they are not taken for that
    csv.writer(text, quoting=csv.QUOTE_ALL if separators else csv.QUOTE_MINIMAL).writerow(columns)
    cells = ([row.get(name, "") for name in columns] for row in rows)
    csv.writer(text).writerows([guard(cell) for cell in line] if guarded else line for line in cells)
    write_atomic(path, text.getvalue().encode("utf-8-sig", errors="backslashreplace"))


def same_name(text: str) -> str:
    """Return a name in the spelling by which names are compared: case, spaces and the two ways to write ü are one.

    >>> same_name("Zoe\\u0308  Müller ") == same_name("zoë mu\\u0308ller")
    True
    """
    return " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).split())


class Names:
    """Things that have names, found by a name as exactly as can be: Ann is Ann, and ann if there is no Ann.

    >>> names = Names([("Ann", 1), ("ann", 2), ("STRASSE", 3)])
    >>> names.find("ann"), names.find("Straße")
    ((0, [2]), (2, [3]))
    """

    def __init__(self, names: Iterable[tuple[str, int]]) -> None:
        self._known: list[dict[str, dict[int, None]]] = [defaultdict(dict) for _ in range(3)]
        for name, thing in names:
            for known, own, bare in zip(self._known, _spellings(name), _spellings(unguard(name)), strict=True):
                known[own][thing] = None
                if known is not self._known[0]:
                    known[bare][thing] = None

    def find(self, name: str) -> tuple[int, list[int]]:
        """Return how exact the match is, 0 to the letter, 2 by `same_name`, and what has this name; [] where nothing.

        A name may also stand here or there as a table of ours guards it.
        """
        for exactness, known in enumerate(self._known):
            for written in (name, unguard(name)):
                spelling = _spellings(written)[exactness]
                if spelling and spelling in known:
                    return exactness, list(known[spelling])
        return len(self._known), []


def _spellings(name: str) -> tuple[str, str, str]:
    """Return a name to the letter, with one way to write ü and one blank between words, and as it is compared."""
    written = name.encode(errors="backslashreplace").decode()
    return written, " ".join(unicodedata.normalize("NFC", written).split()), same_name(written)


def _names(path: Path, lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of the columns, without those at the end that are empty and hold nothing."""
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
