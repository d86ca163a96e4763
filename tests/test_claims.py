"""Claims of tutorials about FP16: the table and the lessons agree on which are settled, and where."""

import csv
import re
import warnings
from pathlib import Path

from labkit.course import lessons

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
    for lesson in lessons():
        for tags in re.findall(r"^# %% .*tags=\[(.*?)\]", lesson.text.read_text(encoding="utf-8"), flags=re.MULTILINE):
            for claim in re.findall(r'"claim-(\w+)"', tags):
                found.setdefault(claim, set()).add(lesson.name)
    return found


def test_the_table_is_whole() -> None:
    rows = table()
    assert list(rows) == [f"C{n:02}" for n in range(1, len(rows) + 1)]
    assert {row["verdict"] for row in rows.values()} <= VERDICTS
    for row in rows.values():
        settled = row["verdict"] != "open"
        assert bool(row["evidence"]) == bool(row["lesson"]) == settled, f"{row['id']} is half settled"
        assert not row["again"] or settled, f"{row['id']} is looked at again, and not settled"


def test_a_claim_is_settled_where_a_learner_runs_something() -> None:
    rows = table().values()
    settled = {row["id"]: {row["lesson"], row["again"]} - {""} for row in rows if row["verdict"] != "open"}
    assert tagged() == settled


def told() -> dict[tuple[str, str], str]:
    """(claim id, lesson) -> the verdict as the lesson's last table has it."""
    row = re.compile(r"^# \| (C\d\d) [^|]*\| ([^|]*)\|", re.MULTILINE)
    rows = {lesson.name: row.findall(lesson.text.read_text(encoding="utf-8")) for lesson in lessons()}
    return {(id, lesson): said for lesson, some in rows.items() for id, said in some}


def test_a_lesson_gives_the_verdict_that_the_table_has() -> None:
    settled = {id: row["verdict"] for id, row in table().items() if row["verdict"] != "open"}
    assert told().keys() == {(id, lesson) for id, those in tagged().items() for lesson in those}
    assert not {at: said for at, said in told().items() if not re.match(rf"{settled[at[0]]}\b", said)}


def test_a_second_lesson_says_that_it_is_one() -> None:
    again = {(row["id"], row["again"]) for row in table().values() if row["again"]}
    assert {at for at, said in told().items() if f"again in {at[1][:2]}" in said} == again != set()


def test_open_claims_are_reported() -> None:
    waiting = [id for id, row in table().items() if row["verdict"] == "open"]
    if waiting:
        warnings.warn(f"{len(waiting)} of {len(table())} claims are open: {' '.join(waiting)}", stacklevel=1)
    assert set(waiting).isdisjoint(tagged())
