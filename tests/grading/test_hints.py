"""Three hints for each exercise, asked for one by one, and none of them the solution."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.grading import EXERCISES, hint
from labkit.grading.hints import hints
from labkit.records.journal import last_answers, note
from tests.grading.cases import cells_of


def test_hints_come_one_by_one_and_the_journal_counts_them(tmp_path: Path) -> None:
    journal = tmp_path / "answers.jsonl"
    said = [hint("scaling.advance", journal) for _ in range(4)]
    assert [one.step for one in said] == [1, 2, 3, 3]
    assert len({one.text for one in said}) == 3
    assert last_answers(journal, "hint") == {"scaling.advance": "3"}
    assert hint("scaling.clip", journal).step == 1
    assert str(said[0]).startswith("Hint 1 of 3: There are three cases")


def test_a_damaged_journal_begins_again(tmp_path: Path) -> None:
    note(tmp_path / "answers.jsonl", "hint", "scaling.advance", "many")
    assert hint("scaling.advance", tmp_path / "answers.jsonl").step == 1


def test_an_unknown_exercise_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"the nearest name is 'scaling.advance'"):
        hint("scaling.advnce")


def test_every_exercise_has_three_short_hints_of_its_own() -> None:
    assert hints().keys() == EXERCISES.keys()
    every = [text for steps in hints().values() for text in steps]
    assert all(len(steps) == 3 for steps in hints().values())
    assert len(set(every)) == len(every)
    assert all(20 < len(text) < 140 for text in every)


def test_no_hint_holds_a_line_of_the_solution() -> None:
    for lesson in {exercise.lesson for exercise in EXERCISES.values()}:
        source = "".join(cell.source for cell in cells_of(lesson))
        lines = [line.strip() for line in source.splitlines() if len(line.strip()) > 12]
        texts = [text for id, steps in hints().items() if EXERCISES[id].lesson == lesson for text in steps]
        assert not [(line, text) for line in lines for text in texts if line in text]
