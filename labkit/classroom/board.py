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

from labkit.classroom.class_pages import learned, page
from labkit.classroom.model_answers import predictions
from labkit.grading.results import logged_rows
from labkit.grading.submission import is_own
from labkit.records.journal import NAME, entries

BODY = """<p id="state" role="status"></p>
<div id="guesses"></div><div id="learned"></div><div id="leaders"></div><script>{script}</script>"""


def guesses(folder: Path) -> list[dict[str, Any]]:
    """Return the answered questions, latest first, each with the learners per answer.

    A learner is a folder in `folder`, and counts once, with the last answer.
    """
    latest: dict[tuple[str, str], str] = {}
    answered: dict[str, tuple[str, int]] = {}
    for journal in _journals(folder):
        learner = journal.relative_to(folder).parts[0]
        for number, line in enumerate(entries(journal, "prediction")):
            latest[learner, line["id"]] = line["answer"]
            answered[line["id"]] = max(
                answered.get(line["id"], ("", 0)), (str(line.get("when", "")), number)
            )
    known = predictions()
    found = []
    for id in sorted(
        (id for id in answered if id in known), key=lambda id: answered[id], reverse=True
    ):
        bars = [
            bar
            for (_, other), answer in latest.items()
            if other == id and (bar := _bar(known[id], answer))
        ]
        if bars:
            found.append(
                {
                    "id": id,
                    "question": " ".join(known[id]["question"].split()),
                    "bars": _counts(known[id], bars),
                }
            )
    return found


def _journals(folder: Path) -> list[Path]:
    """Return the journals below a folder that are their learners' own."""
    found = sorted(
        path for pattern in (NAME, f"*/{NAME}", f"*/*/{NAME}") for path in folder.glob(pattern)
    )
    return [
        path for path in found if is_own(path, folder.resolve() / path.relative_to(folder).parts[0])
    ]


def leaders(kept: Path) -> list[tuple[int, str, int, int, int]]:
    """Return (place, learner, points, out of, bytes) from the grades kept of lesson 12.

    Most points come first, of equals fewer bytes; equals share a place.

    Raises:
        ValueError: the file is not the log of a grading.
    """
    found: dict[str, tuple[int, int, int]] = {}  # learner -> points, out of, bytes
    for row in logged_rows(kept):
        if row.exercise.startswith("project."):
            points, out_of, size = found.get(row.student, (0, 0, 0))
            size += int(row.details.get("bytes", 0))
            found[row.student] = points + row.points, out_of + row.out_of, size
    ranks = sorted((-points, size, name) for name, (points, _, size) in found.items())
    places = [rank[:2] for rank in ranks]
    return [(places.index(rank[:2]) + 1, rank[2], *found[rank[2]]) for rank in ranks]


def serve(folder: Path, kept: Path | None, address: str, port: int) -> ThreadingHTTPServer:
    """Return a server of the page for this folder; call `serve_forever`.

    Port 0 is any free port.

    Raises:
        OSError: the address or the port is not available.
    """
    return ThreadingHTTPServer((address, port), partial(_Handler, folder, kept))


def state(folder: Path, kept: Path | None) -> dict[str, Any]:
    """Return what the page shows, as plain data."""
    return {
        "guesses": guesses(folder),
        "learned": [asdict(row) for row in learned(_journals(folder))],
        "leaders": leaders(kept) if kept is not None and kept.is_file() else [],
    }


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, folder: Path, kept: Path | None, *connection: Any) -> None:
        self.folder = folder
        self.kept = kept
        super().__init__(*connection)

    def do_GET(self) -> None:
        """Serve the page and its state."""
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
        """Print nothing: the terminal is the teacher's."""


def _bar(row: Mapping[str, Any], answer: str) -> str:
    """Return the bar that an answer belongs to; "" if the question does not take it."""
    if "ruler" not in row:
        return answer if answer in row["choices"] else ""
    try:
        number = float(answer)
    except ValueError:
        return ""
    if not (math.isfinite(number) and number > 0):
        return ""
    decade = math.floor(math.log10(number))
    # A guess may be 1e308, and 10.0 ** 309 raises.
    return f"{float(f'1e{decade}'):g} to {float(f'1e{decade + 1}'):g}"


def _counts(row: Mapping[str, Any], bars: list[str]) -> list[tuple[str, int]]:
    counts = Counter(bars)
    if "ruler" in row:
        return sorted(counts.items(), key=lambda bar: float(bar[0].split()[0]))
    return [(choice, counts[choice]) for choice in row["choices"]]
