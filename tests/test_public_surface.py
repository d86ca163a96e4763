"""Everything that public_surface.json lists still exists, and answers as it did.

A commit that adds a name runs `python -m tests.surface`, which writes the file. A commit that
removes a name takes it out of the file by hand, and CHANGELOG.md says why.
"""

import json
from typing import Any

import pytest

from labkit.grading import EXERCISES
from tests.surface import FILE, TRAINS, answers, surface

LISTED = json.loads(FILE.read_text(encoding="utf-8"))


def test_everything_listed_exists() -> None:
    current = json.loads(json.dumps(surface()))
    assert LISTED.keys() - {"answers"} == current.keys()
    for kind, rows in current.items():
        listed = LISTED[kind]
        if isinstance(rows, list):
            differing = sorted(set(listed) - set(rows))
        else:
            differing = [name for name in listed if rows.get(name) != listed[name]]
        assert differing == [], kind


def test_each_exercise_is_listed() -> None:
    assert EXERCISES.keys() - LISTED["answers"].keys() == set(), "run python -m tests.surface"


def is_same_sketch(listed: list[Any], current: list[Any]) -> bool:
    """Return whether two sketches of answers are equal up to what processors differ by."""
    structure, total = listed
    current_structure, current_total = current
    if current_structure != structure:
        return False
    # A sum that is not finite is a text.
    if isinstance(total, str) or isinstance(current_total, str):
        return bool(current_total == total)
    return bool(current_total == pytest.approx(total, rel=1e-6, abs=1e-9))


@pytest.mark.parametrize(
    "everything", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_references_and_known_mistakes_answer_as_they_did(everything: bool) -> None:
    """The quick test asks the references that train nothing; the slow one also the mistakes.

    That each mistake keeps its name is in tests/grading.
    """
    chosen = [id for id in LISTED["answers"] if everything or not id.startswith(TRAINS)]
    assert chosen
    differing = []
    for id in chosen:
        current = answers(id, mistakes=everything)
        # The reference has the empty name.
        names = LISTED["answers"][id] if everything else [""]
        for name in names:
            listed = LISTED["answers"][id][name]
            if name not in current or not is_same_sketch(listed, current[name]):
                differing.append((id, name or "the reference", listed, current.get(name)))
    assert differing == []
