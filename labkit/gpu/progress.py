"""The progress of `labkit gpu`: a file with a line of JSON as each part begins and as it ends.

Idea: programs that follow a run read this file and need not parse what is printed for people.

Invariant: a line is written before anything is printed about it. A last line without a newline is
still being written, and is ignored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.records import write_line

DONE = "done"


@dataclass(frozen=True)
class PartProgress:
    """State of a part of a run.

    Attributes:
        name: the part.
        number: number of the part, from 1, in the order of the run.
        of: number of parts of the run.
        about: what the part does.
        seconds: time limit.
        outcome: "" while it runs; then DONE, or why it was not completed.
    """

    name: str
    number: int
    of: int
    about: str
    seconds: float
    outcome: str = ""


def start_progress(path: Path) -> None:
    """Write an empty file of progress.

    Raises:
        OSError: it cannot be written.
    """
    path.write_text("", encoding="utf-8")


def add_progress(path: Path, part: PartProgress) -> None:
    """Add a line to a file of progress.

    Raises:
        OSError: it cannot be written.
    """
    with path.open("a", encoding="utf-8") as file:
        write_line(file, json.dumps(asdict(part)))


def read_progress(path: Path) -> list[PartProgress]:
    """Return each part with a line, in the order of the run, as its last line describes it.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is not one that `add_progress` writes.
    """
    parts: dict[str, PartProgress] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
        try:
            part = PartProgress(**json.loads(line))
            parts[part.name] = part
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: expected in line {number} a part that `labkit gpu --progress` wrote, "
                f"got {line[:60]!r}"
            ) from error
    return list(parts.values())
