"""What does the class think, now? One page that shows how many guessed what, as they commit, and who leads.

Idea: learners' journals lie in folders below one; each look at the page reads them anew. Counts leave this machine, and
no name, no answer in a learner's own words: a guess that is no choice of the question is not counted. The leader board
of lesson 12 comes from graded rows, never from files that learners wrote.

Invariant: it reads and writes nothing; it answers on loopback unless another address is asked for.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from labkit.classroom.model_answers import predictions
from labkit.classroom.pages import page
from labkit.grading.leader_board import Board, Entrant, in_order
from labkit.grading.results import logged_rows
from labkit.grading.submission import is_own
from labkit.records.journal import NAME, entries

BODY = '<p id="state" role="status"></p><div id="guesses"></div><div id="leaders"></div><script>{script}</script>'


def guesses(folder: Path) -> list[dict[str, Any]]:
    """Return the questions that somebody answered, the latest first, each with how many gave which answer.

    A learner is a folder in `folder`; who has several journals counts once, with the last answer.
    """
    latest: dict[tuple[str, str], str] = {}
    asked: dict[str, tuple[str, int]] = {}
    for journal in sorted(path for pattern in (NAME, f"*/{NAME}", f"*/*/{NAME}") for path in folder.glob(pattern)):
        learner = journal.relative_to(folder).parts[0]
        if not is_own(journal, folder.resolve() / learner):
            continue
        for number, line in enumerate(entries(journal, "prediction")):
            latest[learner, line["id"]] = line["answer"]
            asked[line["id"]] = max(asked.get(line["id"], ("", 0)), (str(line.get("when", "")), number))
    known = predictions()
    found = []
    for id in sorted((id for id in asked if id in known), key=lambda id: asked[id], reverse=True):
        given = [bar for (_, other), answer in latest.items() if other == id and (bar := _bar(known[id], answer))]
        if given:
            found.append(
                {"id": id, "question": " ".join(known[id]["question"].split()), "bars": _counted(known[id], given)}
            )
    return found


def leaders(kept: Path) -> Board:
    """Return the leader board from what `labkit grade --changed` kept: points of lesson 12, of equals fewer bytes.

    Raises:
        ValueError: the file is none that a grading kept.
    """
    rows = [row for row in logged_rows(kept) if row.exercise.startswith("project.")]
    found = []
    for student in dict.fromkeys(row.student for row in rows):
        own = [row for row in rows if row.student == student]
        points, out_of = sum(row.points for row in own), sum(row.out_of for row in own)
        found.append(Entrant(student, points, out_of, sum(int(row.details.get("bytes", 0)) for row in own)))
    return Board(in_order(found))


def serve(folder: Path, kept: Path | None, address: str, port: int) -> ThreadingHTTPServer:
    """Return a server of the page for this folder; `serve_forever` begins.

    port   0: any that is free

    Raises:
        OSError: the address or the port cannot be had.
    """
    return ThreadingHTTPServer((address, port), partial(_Handler, folder, kept))


def state(folder: Path, kept: Path | None) -> dict[str, Any]:
    """Return what the page shows, as plain data."""
    board = leaders(kept) if kept is not None and kept.is_file() else Board(())
    rows = [(place, e.name, e.points, e.out_of, e.bytes) for place, e in zip(board.places, board.entrants, strict=True)]
    return {"guesses": guesses(folder), "leaders": rows}


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, folder: Path, kept: Path | None, *connection: Any) -> None:
        self.folder, self.kept = folder, kept
        super().__init__(*connection)

    def do_GET(self) -> None:
        """Answer the page, its state, and nothing else."""
        if self.path == "/":
            script = files("labkit.classroom").joinpath("board.js").read_text(encoding="utf-8")
            self._send("text/html", page("What the class thinks", BODY.format(script=script)))
        elif self.path == "/state":
            try:
                self._send("application/json", json.dumps(state(self.folder, self.kept)).encode())
            except (OSError, ValueError) as error:
                self.send_error(500, f"{error}"[:100].encode("ascii", "replace").decode())
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
        """Say nothing: the terminal is the teacher's."""


def _bar(row: Mapping[str, Any], answer: str) -> str:
    """Return the bar that an answer belongs to; "" where it is no answer to the question."""
    if "ruler" not in row:
        return answer if answer in row["choices"] else ""
    try:
        number = float(answer)
    except ValueError:
        return ""
    if not (math.isfinite(number) and number > 0):
        return ""
    decade = math.floor(math.log10(number))
    return f"{float(f'1e{decade}'):g} to {float(f'1e{decade + 1}'):g}"  # 1e308 is a guess, and 10.0 ** 309 an error


def _counted(row: Mapping[str, Any], given: list[str]) -> list[tuple[str, int]]:
    counts = Counter(given)
    if "ruler" in row:
        return sorted(counts.items(), key=lambda bar: float(bar[0].split()[0]))
    return [(choice, counts[choice]) for choice in row["choices"]]
