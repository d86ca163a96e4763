"""The journal of a learner's answers: lines are added, the last one counts, a damaged one costs no other."""

import json
from pathlib import Path

import pytest

from labkit.records.journal import journal_here, last_answers, note


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "labkit-answers.jsonl"


def test_worked_example(journal: Path) -> None:
    assert last_answers(journal, "prediction") == {}
    for answer in ("0", "2^-27"):
        note(journal, "prediction", "scaling.order", answer)
    note(journal, "exercise", "scaling.order", "0")
    assert last_answers(journal, "prediction") == {"scaling.order": "2^-27"}
    assert last_answers(journal, "exercise") == {"scaling.order": "0"}
    first, *_ = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert first.pop("when").endswith("+00:00")
    assert first == {"kind": "prediction", "id": "scaling.order", "answer": "0"}


def test_any_text_comes_back(journal: Path) -> None:
    note(journal, "prediction", "straße", 'both "2⁻²⁴"\nand\u2028\\')
    assert last_answers(journal, "prediction") == {"straße": 'both "2⁻²⁴"\nand\u2028\\'}


@pytest.mark.parametrize(
    "damage", [b"{", b"[1]", b"\xff\xfe", b'{"kind": "prediction", "id": 3, "answer": "0"}', b"\n"]
)
def test_a_damaged_line_costs_no_other(journal: Path, damage: bytes) -> None:
    note(journal, "prediction", "scaling.order", "0")
    journal.write_bytes(damage + b"\n" + journal.read_bytes() + damage)  # the last line without its end
    note(journal, "prediction", "start.warm_up", "about a quarter")
    assert last_answers(journal, "prediction") == {"scaling.order": "0", "start.warm_up": "about a quarter"}


def test_outside_of_a_notebook_nothing_is_kept() -> None:
    assert journal_here() is None
