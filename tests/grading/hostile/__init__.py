"""Hostile submissions to the exercise scaling.advance, and the row of grades that each must get.

A submission is a program in `breaks` or `cheats`. Its suffix is .py.txt, so that no tool imports it
and thereby runs it. The table `expected.toml` says what its row holds.

Every notebook also answers scaling.unscale correctly. That answer must keep its points: a hostile
cell costs no more than its own exercise.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.grading.hand_ins import RIGHT, WRONG

FOLDER = Path(__file__).parent
# The answer that follows a program: see `then` in expected.toml.
ANSWERS = {"": "", "right": RIGHT, "wrong": WRONG}


@dataclass(frozen=True)
class Row:
    """A submission and its row of grades.

    Attributes:
        source: The source of the notebook's cell.
        reason: Words that the row's reason must contain.
        points: Points of the exercise.
    """

    source: str
    reason: str
    points: int = 0


def read_rows(group: str) -> dict[str, Row]:
    """Return the submissions of a folder by name, such as "loops in the cell"."""
    table = tomllib.loads((FOLDER / "expected.toml").read_text(encoding="utf-8"))[group]
    rows = {}
    for name, expected in table.items():
        program = (FOLDER / group / f"{name}.py.txt").read_text(encoding="utf-8")
        source = program + ANSWERS[expected.get("then", "")]
        points = expected.get("points", 0)
        rows[name.replace("_", " ")] = Row(source, expected["reason"], points)
    return rows


BREAKS = read_rows("breaks")
# Generated: its program would be 100 kB.
BREAKS["a hundred thousand brackets"] = Row("x = " + "(" * 10**5, "too many nested parentheses")
CHEATS = read_rows("cheats")
