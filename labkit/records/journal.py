"""What did the learner answer last time? One line of JSON for each answer, in a file beside the notebook.

Idea: a kernel forgets, a file does not. A line says what kind of question it was, which, what was answered, and when;
lines are only added, and the last one about a question counts.

Invariant: the file is whole at every moment. Where it is damaged by hand, the lines that can be read still count.
"""

from __future__ import annotations

import json
from pathlib import Path

from labkit.records.files import write_whole
from labkit.records.provenance import now

NAME = "labkit-answers.jsonl"


def journal_here() -> Path | None:
    """Return the journal beside the notebook that runs this, or None outside of a notebook."""
    from IPython.core.getipython import get_ipython

    return Path.cwd() / NAME if hasattr(get_ipython(), "kernel") else None


def note(journal: Path, kind: str, id: str, answer: str) -> None:
    """Add an answer at the end of the journal, which is begun where there is none.

    Raises:
        OSError: it cannot be written.
    """
    line = {"kind": kind, "id": id, "answer": answer, "when": now()}
    before = journal.read_bytes().rstrip(b"\n") if journal.exists() else b""
    write_whole(journal, (before + b"\n").lstrip(b"\n") + json.dumps(line, ensure_ascii=False).encode() + b"\n")


def last_answers(journal: Path, kind: str) -> dict[str, str]:
    """Return id -> the last answer, for the questions of this kind; {} where there is no journal."""
    if not journal.exists():
        return {}
    text = journal.read_text(encoding="utf-8", errors="replace")
    lines = [_entry(line) for line in text.split("\n")]  # splitlines would also cut an answer at its U+2028
    return {line["id"]: line["answer"] for line in lines if line.get("kind") == kind}


def _entry(line: str) -> dict[str, str]:
    """Return what a line says, or {} where it says nothing that a journal would."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    fits = isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("kind", "id", "answer"))
    return entry if fits else {}
