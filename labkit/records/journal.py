"""Journal of the learner's answers: a file of JSON lines beside the notebook.

Idea: answers outlive the kernel. A line holds the kind of question (prediction, exercise, hint;
before or after for the quiz), its id, the answer and the time. Lines are only appended, and the
last line about a question counts. If the folder cannot be written, the line is appended to a
journal in the home folder, with the name of the folder.

Invariant: written lines stay. A kill costs at most the line that is being written, and a damaged
line costs no other line. Nothing leaves the machine, and nothing is saved if LABKIT_ANSWERS is
"off".

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

    It is None outside of a notebook, or if LABKIT_ANSWERS is "off".
    """
    from IPython.core.getipython import get_ipython

    is_off = os.environ.get(OFF, "").lower() == "off"
    in_notebook = hasattr(get_ipython(), "kernel")
    if is_off or not in_notebook:
        return None
    return Path.cwd() / NAME


def append_answer(journal: Path, kind: str, id: str, answer: str, **more: str | int) -> None:
    """Append an answer to a journal, which is created if missing.

    Args:
        journal: the file.
        kind: kind of the question.
        id: id of the question.
        answer: the answer.
        more: further fields of the line.

    Raises:
        OSError: the journal cannot be written.
    """
    append_line(journal, {"kind": kind, "id": id, "answer": answer, **more, "when": now()})


def append_line(path: Path, line: Mapping[str, object]) -> None:
    """Append a line of JSON to a file, and sync it to the disk.

    The file and its folder are created if missing.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        # a killed process may have left the last line without its newline
        last_byte = b""
        if file.tell():
            file.seek(-1, os.SEEK_END)
            last_byte = file.read(1)
        text = json.dumps(line, ensure_ascii=False) + "\n"
        if last_byte not in (b"", b"\n"):
            text = "\n" + text
        file.write(text.encode(errors="backslashreplace"))
        file.flush()
        os.fsync(file.fileno())


def save_answer(journal: Path, kind: str, id: str, answer: str, **more: str | int) -> None:
    """Append an answer to a journal, or to the one in the home folder if that fails.

    If neither can be written, it warns. The arguments are those of `append_answer`.
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

    They include those in the journal of the home folder. The two files are merged by time. The
    lines of one file keep their order, since a clock may be set back.
    """
    folder = str(journal.parent)
    in_home = [line for line in _answers(home_journal()) if line.get("folder") == folder]
    merged = merge(_answers(journal), in_home, key=lambda line: str(line.get("when", "")))
    return [line for line in merged if line["kind"] == kind]


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
    objects = []
    # str.splitlines would also split an answer at U+2028
    for line in text.split("\n"):
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
            if isinstance(value, dict):
                objects.append(value)
    return objects


def _answers(journal: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal that have all fields of an answer."""
    keys = ("kind", "id", "answer")
    lines = read_lines(journal)
    return [line for line in lines if all(isinstance(line.get(key), str) for key in keys)]
