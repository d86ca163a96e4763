"""The public surface, as public_surface.json lists it. A name is removed only with a reason in
CHANGELOG.md.

A name that goes is taken out of the file by hand, and its row in CHANGELOG says why. What is new is
written down by `python -m tests.surface`, in the commit that adds it.
"""

import json

import pytest

from labkit.grading import EXERCISES
from tests.surface import FILE, TRAINS, answers, surface

WRITTEN = json.loads(FILE.read_text(encoding="utf-8"))


def test_everything_written_down_exists() -> None:
    found = json.loads(json.dumps(surface()))
    assert WRITTEN.keys() - {"answers"} == found.keys()
    for kind, rows in found.items():
        if isinstance(rows, list):
            assert sorted(set(WRITTEN[kind]) - set(rows)) == [], kind
        else:
            assert {
                name: row for name, row in WRITTEN[kind].items() if rows.get(name) != row
            } == {}, kind


@pytest.mark.parametrize(
    "everything", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_references_and_known_mistakes_answer_as_they_did(everything: bool) -> None:
    """The structure is equal, and the sum of the numbers up to what processors differ by.

    The quick test asks references that need no training; that each mistake keeps its name is in
    tests/grading.
    """
    chosen = [id for id in WRITTEN["answers"] if everything or not id.startswith(TRAINS)]
    assert chosen
    differing = []
    for id in chosen:
        found = answers(id, mistakes=everything)
        for name, (structure, total) in WRITTEN["answers"][id].items():
            if name and not everything:
                continue
            now = found.get(name, ["gone", 0.0])
            same = (
                now[1] == total
                if isinstance(total, str)
                else now[1] == pytest.approx(total, rel=1e-6, abs=1e-9)
            )
            if now[0] != structure or not same:
                differing.append((id, name or "the reference", [structure, total], now))
    assert differing == []
    assert {exercise.id for exercise in EXERCISES.values()} <= set(WRITTEN["answers"]), (
        "run python -m tests.surface"
    )
