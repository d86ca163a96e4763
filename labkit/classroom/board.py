"""Web page for the classroom: predictions by number of learners, and the leader board.

Learners' journals lie in folders below one; each request reads them again. Only counts leave the
machine: no names, and no answer that is not a choice of its question. The leader board of lesson 12
comes from graded rows, never from files that learners wrote.

Invariant: it writes nothing, and listens on loopback unless the caller names another address.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from labkit.classroom.class_pages import page, quiz_results
from labkit.classroom.model_answers import predictions
from labkit.grading.results import logged_rows
from labkit.grading.submission import is_own
from labkit.records.journal import NAME, entries
from labkit.records.templates import markup


def guesses(folder: Path) -> list[dict[str, Any]]:
    """Return the answered questions, latest first, each with the learners per answer.

    A learner is a folder in `folder`, and counts once, with the last answer.
    """
    # (learner, question) -> the last line about it; a learner may have journals in two folders
    last_lines: dict[tuple[str, str], Mapping[str, Any]] = {}
    # question -> when it was last answered; lines without a time are in the order of the journal
    answered: dict[str, tuple[str, int]] = {}
    for journal in _journals(folder):
        learner = journal.relative_to(folder).parts[0]
        lines = entries(journal, "prediction")
        for number, line in enumerate(lines):
            when = (_when(line), number)
            answered[line["id"]] = max(answered.get(line["id"], when), when)
        # Of one journal the last line counts, since a clock may be set back; of two the later time.
        for id, line in {line["id"]: line for line in lines}.items():
            earlier = last_lines.get((learner, id), {})
            if _when(line) >= _when(earlier):
                last_lines[learner, id] = line

    known = predictions()
    latest_first = sorted(answered, key=lambda id: answered[id], reverse=True)
    rows = []
    for id in latest_first:
        if id not in known:
            continue
        answers = [line["answer"] for (_, other), line in last_lines.items() if other == id]
        bars = [bar for bar in (_bar(known[id], answer) for answer in answers) if bar]
        if bars:
            question = " ".join(known[id]["question"].split())
            rows.append({"id": id, "question": question, "bars": _counts(known[id], bars)})
    return rows


def _when(line: Mapping[str, Any]) -> str:
    return str(line.get("when", ""))


def _journals(folder: Path) -> list[Path]:
    """Return the journals below a folder that are their learners' own."""
    journals: list[Path] = []
    for pattern in (NAME, f"*/{NAME}", f"*/*/{NAME}"):
        journals += folder.glob(pattern)
    own = []
    for journal in sorted(journals):
        learners_folder = folder.resolve() / journal.relative_to(folder).parts[0]
        if is_own(journal, learners_folder):
            own.append(journal)
    return own


def leaders(log: Path) -> list[tuple[int, str, int, int, int]]:
    """Return (place, learner, points, out of, bytes) from the log of a grading of lesson 12.

    Most points come first, of equals fewer bytes; equals share a place.

    Raises:
        ValueError: the file is not the log of a grading.
    """
    # learner -> (points, out of, bytes)
    totals: dict[str, tuple[int, int, int]] = {}
    for row in logged_rows(log):
        if row.exercise.startswith("project."):
            points, out_of, size = totals.get(row.student, (0, 0, 0))
            size += int(row.details.get("bytes", 0))
            totals[row.student] = (points + row.points, out_of + row.out_of, size)
    order = sorted((-points, size, name) for name, (points, _, size) in totals.items())
    results = [(points, size) for points, size, _ in order]
    rows = []
    for result, (_, _, name) in zip(results, order, strict=True):
        # The place of the first learner with this result: equals share it.
        place = results.index(result) + 1
        rows.append((place, name, *totals[name]))
    return rows


def serve(folder: Path, log: Path | None, address: str, port: int) -> ThreadingHTTPServer:
    """Return a server of the page for this folder; call `serve_forever`.

    Port 0 is any free port.

    Raises:
        OSError: the address or the port is not available.
    """
    return ThreadingHTTPServer((address, port), partial(_Handler, folder, log))


def state(folder: Path, log: Path | None) -> dict[str, Any]:
    """Return what the page shows, as plain data."""
    return {
        "guesses": guesses(folder),
        "quiz": [asdict(result) for result in quiz_results(_journals(folder))],
        "leaders": leaders(log) if log is not None and log.is_file() else [],
    }


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, folder: Path, log: Path | None, *connection: Any) -> None:
        self.folder = folder
        self.log = log
        super().__init__(*connection)

    def do_GET(self) -> None:
        """Serve the page and its state."""
        if self.path == "/":
            script = files("labkit.classroom").joinpath("board.js").read_text(encoding="utf-8")
            title = "What the class thinks"
            self._send("text/html", page("board.html.jinja", title, script=markup(script)))
        elif self.path == "/state":
            try:
                self._send("application/json", json.dumps(state(self.folder, self.log)).encode())
            except (OSError, ValueError) as error:
                # a status line takes ASCII only
                self.send_error(500, str(error)[:100].encode("ascii", "replace").decode())
        else:
            self.send_error(404)

    def _send(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing: the terminal is the teacher's."""


def _bar(row: Mapping[str, Any], answer: str) -> str:
    """Return the bar that an answer belongs to; "" if it does not fit the question.

    A choice is its own bar. Numbers share a bar for each power of ten.
    """
    if "ruler" not in row:
        return answer if answer in row["choices"] else ""
    try:
        number = float(answer)
    except ValueError:
        return ""
    if not (math.isfinite(number) and number > 0):
        return ""
    decade = math.floor(math.log10(number))
    # From text: a guess may be 1e308, and 10.0 ** 309 raises an error.
    return f"{float(f'1e{decade}'):g} to {float(f'1e{decade + 1}'):g}"


def _counts(row: Mapping[str, Any], bars: list[str]) -> list[tuple[str, int]]:
    counts = Counter(bars)
    if "ruler" in row:
        return sorted(counts.items(), key=lambda bar: float(bar[0].split()[0]))
    return [(choice, counts[choice]) for choice in row["choices"]]
