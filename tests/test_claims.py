"""Sixty-two things that tutorials say about FP16: the table and the lessons agree on which are settled, and where."""

from __future__ import annotations

import csv
import re
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERDICTS = {"true", "half true", "false", "open"}


def table() -> dict[str, dict[str, str]]:
    with (ROOT / "data" / "claims.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len({row["id"] for row in rows}) == len(rows), "an id stands twice"
    return {row["id"]: row for row in rows}


def tagged() -> dict[str, set[str]]:
    """Claim id -> the lessons in which a code cell carries its tag."""
    found: dict[str, set[str]] = {}
    for source in sorted((ROOT / "notebooks" / "source").glob("*.py")):
        for tags in re.findall(r"^# %% .*tags=\[(.*?)\]", source.read_text(encoding="utf-8"), flags=re.MULTILINE):
            for claim in re.findall(r'"claim-(\w+)"', tags):
                found.setdefault(claim, set()).add(source.stem)
    return found


def test_the_table_is_whole() -> None:
    rows = table()
    assert list(rows) == [f"C{n:02}" for n in range(1, 63)]
    assert {row["verdict"] for row in rows.values()} <= VERDICTS
    for row in rows.values():
        settled = row["verdict"] != "open"
        assert bool(row["evidence"]) == bool(row["lesson"]) == settled, f"{row['id']} is half settled"


def test_a_claim_is_settled_where_a_learner_runs_something() -> None:
    settled = {id: {row["lesson"]} for id, row in table().items() if row["verdict"] != "open"}
    assert tagged() == settled


def told() -> dict[str, str]:
    """Claim id -> the verdict as a lesson's last table has it."""
    sources = sorted((ROOT / "notebooks" / "source").glob("*.py"))
    row = re.compile(r"^# \| (C\d\d) [^|]*\| ([^|]*)\|", re.MULTILINE)
    rows = [row.findall(source.read_text(encoding="utf-8")) for source in sources]
    return {id: said for some in rows for id, said in some}


def test_a_lesson_gives_the_verdict_that_the_table_has() -> None:
    settled = {id: row["verdict"] for id, row in table().items() if row["verdict"] != "open"}
    assert told().keys() == settled.keys()
    assert not {id: (said, settled[id]) for id, said in told().items() if not re.match(rf"{settled[id]}\b", said)}


def test_what_is_open_is_said() -> None:
    waiting = [id for id, row in table().items() if row["verdict"] == "open"]
    if waiting:
        warnings.warn(f"{len(waiting)} of 62 claims are open: {' '.join(waiting)}", stacklevel=1)
    assert set(waiting).isdisjoint(tagged())
