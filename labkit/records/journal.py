"""Journal of the learner's answers: a file of JSON lines beside the notebook.

Idea: answers outlive the kernel. A line holds the kind of question (prediction, exercise, hint;
before or after for the quiz), its id, the answer and the time. Lines are only appended, and the
last one about a question counts. Where the folder cannot be written, the line goes to a journal in
the home folder and names the folder it belongs to.

Invariant: written lines stay. A kill costs at most the line being written; a damaged line costs no
other line. Nothing leaves the machine, and nothing is saved where LABKIT_ANSWERS is "off".

Source: open(2), O_APPEND: each write goes to the end, so two kernels in one folder do not overwrite
    each other's lines.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from heapq import merge
from pathlib import Path
from typing import Any

from labkit.records.provenance import now

NAME = "labkit-answers.jsonl"
OFF = "LABKIT_ANSWERS"


def home_journal() -> Path:
    """Return the journal for folders that cannot be written."""
    return Path.home() / ".labkit" / NAME


def current_journal() -> Path | None:
    """Return the journal beside the running notebook.

    It is None outside of a notebook, or where LABKIT_ANSWERS is "off".
    """
    from IPython.core.getipython import get_ipython

    enabled = os.environ.get(OFF, "").lower() != "off"
    return Path.cwd() / NAME if enabled and hasattr(get_ipython(), "kernel") else None


def append_answer(journal: Path, kind: str, id: str, answer: str, **more: str | int) -> None:
    """Append an answer, with the fields `more`, to a journal, which is created if missing.

    Raises:
        OSError: the journal cannot be written.
    """
    append_line(journal, {"kind": kind, "id": id, "answer": answer, **more, "when": now()})


def append_line(path: Path, line: Mapping[str, object]) -> None:
    """Append a line of JSON to a file, created with its folder if missing.

    On return the line is on the disk.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
        # a killed process may have left the last line without an end
        is_cut = file.read(1) not in (b"", b"\n")
        text = json.dumps(line, ensure_ascii=False) + "\n"
        if is_cut:
            text = "\n" + text
        file.write(text.encode(errors="backslashreplace"))
        file.flush()
        os.fsync(file.fileno())


def save_answer(journal: Path, kind: str, id: str, answer: str, **more: str | int) -> None:
    """Append an answer to a journal, else to the one in the home folder.

    It warns if neither can be written.
    """
    try:
        append_answer(journal, kind, id, answer, **more)
    except OSError as error:
        try:
            append_answer(home_journal(), kind, id, answer, **more, folder=str(journal.parent))
        except OSError:
            warnings.warn(
                f"This answer could not be saved: {error}. Everything else works.", stacklevel=3
            )


def entries(journal: Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of a kind that belong to a journal's folder.

    Lines in the home folder's journal are included.

    Lines of one file keep their order, since a clock may be set back; the two files are merged by
    time.
    """
    elsewhere = [
        line for line in _lines(home_journal()) if line.get("folder") == str(journal.parent)
    ]
    both = merge(_lines(journal), elsewhere, key=lambda line: str(line.get("when", "")))
    return [line for line in both if line["kind"] == kind]


def last_answers(journal: Path, kind: str) -> dict[str, str]:
    """Return id -> last answer, for the questions of a kind."""
    return {line["id"]: line["answer"] for line in entries(journal, kind)}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines, without damaged lines.

    The list is empty if the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for line in text.split("\n"):  # splitlines would also cut a text at its U+2028
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                found.append(entry)
    return found


def _lines(journal: Path) -> list[dict[str, Any]]:
    """Return the answers in a journal."""
    keys = ("kind", "id", "answer")
    return [
        line for line in read_lines(journal) if all(isinstance(line.get(key), str) for key in keys)
    ]
