"""The learner's answers: one line of JSON for each, in a file beside the notebook; nothing is lost.

Idea: a kernel forgets, a file does not. A line says what kind of question it was (prediction, exercise, hint), which,
what was answered, and when; lines are only added, and the last one about a question counts. Where the folder cannot be
written, the line goes to a journal in the home folder and names the folder it belongs to.

Invariant: what was once written stays. A kill costs at most the line that is being written, and a damaged line costs no
other. Nothing leaves the machine, and nothing is kept where LABKIT_ANSWERS is "off".

Source: open(2), O_APPEND: each write goes to the end, so two kernels in one folder lose nothing of each other.
"""

from __future__ import annotations

import json
import os
import warnings
from contextlib import suppress
from heapq import merge
from pathlib import Path
from typing import Any

from labkit.records.provenance import now

NAME = "labkit-answers.jsonl"
OFF = "LABKIT_ANSWERS"


def home_journal() -> Path:
    """Return the journal in the home folder, for folders that cannot be written."""
    return Path.home() / ".labkit" / NAME


def current_journal() -> Path | None:
    """Return the journal beside the notebook that runs this; None outside of a notebook, or where none is wanted."""
    from IPython.core.getipython import get_ipython

    wanted = os.environ.get(OFF, "").lower() != "off"
    return Path.cwd() / NAME if wanted and hasattr(get_ipython(), "kernel") else None


def append_answer(journal: Path, kind: str, id: str, answer: str, **more: str | int) -> None:
    """Add an answer at the end of the journal, which is begun where there is none; `more` stands in the line, too.

    Raises:
        OSError: it cannot be written.
    """
    line = {"kind": kind, "id": id, "answer": answer, **more, "when": now()}
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
        begun = file.read(1) not in (b"", b"\n")  # what a kill left without an end keeps to a line of its own
        file.write(b"\n" * begun + json.dumps(line, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def save_answer(journal: Path, kind: str, id: str, answer: str, **more: str | int) -> None:
    """Note an answer beside the notebook, or else in the home folder; where neither can be, warn and go on."""
    try:
        append_answer(journal, kind, id, answer, **more)
    except OSError as error:
        try:
            append_answer(home_journal(), kind, id, answer, **more, folder=str(journal.parent))
        except OSError:
            warnings.warn(f"This answer could not be kept for next time: {error}. All else works.", stacklevel=3)


def entries(journal: Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of this kind that belong to a journal's folder; [] without any.

    A file's lines stay in its order, for a clock may be set back; between the two files their times decide.
    """
    elsewhere = [line for line in _lines(home_journal()) if line.get("folder") == str(journal.parent)]
    both = merge(_lines(journal), elsewhere, key=lambda line: str(line.get("when", "")))
    return [line for line in both if line["kind"] == kind]


def last_answers(journal: Path, kind: str) -> dict[str, str]:
    """Return id -> the last answer, for the questions of this kind; {} where there is no journal."""
    return {line["id"]: line["answer"] for line in entries(journal, kind)}


def _lines(journal: Path) -> list[dict[str, Any]]:
    """Return what can be read of a journal."""
    try:
        text = journal.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for line in text.split("\n"):  # splitlines would also cut an answer at its U+2028
        with suppress(ValueError, RecursionError):  # a damaged line costs no other
            entry = json.loads(line)
            if isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("kind", "id", "answer")):
                found.append(entry)
    return found
