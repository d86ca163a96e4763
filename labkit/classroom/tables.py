"""Tables of spreadsheets and schools' systems, in any encoding and with any separator.

Spreadsheets open the lab's tables, so a text that would be a formula is escaped there, and
unescaped when it is read (labkit.grading.results). Cells of other tables are not changed.

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
# A cell in quotes; a doubled quote in it stands for one.
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def read_table(path: Path, *, guarded: bool = False) -> list[Line]:
    """Return the rows of a CSV file: comma, semicolon or tab, with or without a byte order mark.

    Args:
        path: The file.
        guarded: Whether `write_table` escaped its formulas.

    Raises:
        OSError: it cannot be read.
        ValueError: it has no header, names a column twice, has a line with more cells than names,
            or a quote that is not closed.
    """
    return [row for _, row in numbered_rows(path, guarded=guarded)]


def numbered_rows(path: Path, *, guarded: bool = False) -> list[tuple[int, Line]]:
    """Return the rows of a CSV file, each with the number of its first line in the file.

    The arguments and errors are those of `read_table`.
    """
    text = _decoded(path.read_bytes())
    # The separator is what occurs most often in the first line, outside of quotes. Tables of old
    # Macs, which Excel still writes, have \r alone at the end of a line.
    head = re.split(r"[\r\n]", _QUOTED.sub("quoted", text).lstrip("\r\n"), maxsplit=1)[0]
    separator = max(",;\t", key=head.count)
    # strict: a quote that is not closed would make one cell of all lines after it
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    lines: list[list[str]] = []
    numbers: list[int] = []
    # A line of the table is several lines of the file if a cell has line breaks.
    next_number = 1
    try:
        for line in reader:
            if line:
                lines.append(line)
                numbers.append(next_number)
            next_number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path} is not a table: the cells from line {next_number} on cannot be read: {error}"
        ) from error
    if not lines:
        raise ValueError(f"{path} is empty: its first line should name its columns")
    if not any(name.strip() for name in lines[0]):
        raise ValueError(f"{path}, line {numbers[0]}: expected names of columns, got empty cells")
    names = _names(path, lines)
    rows = []
    for number, line in zip(numbers[1:], lines[1:], strict=True):
        if any(cell.strip() for cell in line[len(names) :]):
            raise ValueError(
                f"{path}, line {number}: expected {len(names)} cells, as the first line "
                f"names, got {len(line)}: {','.join(line)[:60]!r}; put quotes around a "
                "text that holds the separator"
            )
        cells = line[: len(names)]
        if guarded:
            cells = [unguard(cell) for cell in cells]
        rows.append((number, dict(zip_longest(names, cells, fillvalue=""))))
    return rows


def write_table(
    path: Path,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, object]],
    *,
    guarded: bool = False,
) -> None:
    """Write rows as CSV that spreadsheets of any language read (UTF-8 with its mark), atomically.

    Args:
        path: The file.
        columns: Names of the columns, in their order.
        rows: Column -> cell; a missing cell is empty.
        guarded: Escape texts that a spreadsheet would take for formulas.
    """
    text = io.StringIO(newline="")
    # A name with a semicolon or a tab must not make `read_table` take it for the separator.
    is_ambiguous = any(separator in name for name in columns for separator in ";\t")
    head = csv.writer(text, quoting=csv.QUOTE_ALL) if is_ambiguous else csv.writer(text)
    head.writerow(columns)
    body = csv.writer(text)
    for row in rows:
        cells = [row.get(name, "") for name in columns]
        if guarded:
            cells = [guard(cell) for cell in cells]
        body.writerow(cells)
    write_atomic(path, text.getvalue().encode("utf-8-sig", errors="backslashreplace"))


def same_name(text: str) -> str:
    r"""Return the normal form of a name, without case, repeated spaces or Unicode composition.

    >>> same_name("Zoe\u0308  Müller ") == same_name("zoë mu\u0308ller")
    True
    """
    folded = unicodedata.normalize("NFC", text).casefold()
    # folding may take a composition apart
    return " ".join(unicodedata.normalize("NFC", folded).split())


class Names:
    """Items by name, matched as exactly as possible: "Ann" matches Ann, or else ann.

    Args:
        names: (name, item) pairs; several items may have one name.

    >>> names = Names([("Ann", 1), ("ann", 2), ("STRASSE", 3)])
    >>> names.find("ann"), names.find("Straße")
    ((0, [2]), (2, [3]))
    """

    def __init__(self, names: Iterable[tuple[str, int]]) -> None:
        # (rank, spelling) -> items; a dict keeps their order, and each once
        self._items = defaultdict[tuple[int, str], dict[int, None]](dict)
        for name, item in names:
            for rank, spelling in enumerate(_spellings(name)):
                self._items[rank, spelling][item] = None
            # The name may be escaped; without that it equals another one at most by its spelling.
            _, normal, folded = _spellings(unguard(name))
            self._items[1, normal][item] = None
            self._items[2, folded][item] = None

    def find(self, name: str) -> tuple[int, list[int]]:
        """Return the rank of the most exact match, and the items that have it.

        Either name may be escaped as in a table of the lab.

        Returns:
            The rank is 0 for equal names, 1 for equal but for blanks and Unicode composition, 2 by
            `same_name`, and 3 without a match.
        """
        pairs = zip(_spellings(name), _spellings(unguard(name)), strict=True)
        for rank, spellings in enumerate(pairs):
            for spelling in spellings:
                if spelling and (rank, spelling) in self._items:
                    return rank, list(self._items[rank, spelling])
        return 3, []


def _spellings(name: str) -> tuple[str, str, str]:
    """Return a name unchanged, with normalized Unicode and blanks, and as by `same_name`."""
    written = name.encode(errors="backslashreplace").decode()
    return written, " ".join(unicodedata.normalize("NFC", written).split()), same_name(written)


def _names(path: Path, lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of the columns, without empty columns at the end."""
    names = list(lines[0])
    filled = 1
    for line in lines:
        for number, cell in enumerate(line, start=1):
            if cell.strip():
                filled = max(filled, number)
    names = names[:filled]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path} has two columns named {name!r}: rename one of them")
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
