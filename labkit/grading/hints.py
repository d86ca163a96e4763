"""Three hints for each exercise, shown one at a time.

Hints are rows of data and cost no points. The journal beside the notebook records each hint that was read, so that the
next call shows the next one, even after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from labkit.course import lessons
from labkit.grading.judge import find_exercise
from labkit.records.journal import append_answer, current_journal, last_answers


@dataclass(frozen=True, repr=False)
class Hint:
    """One hint; a notebook shows it as a line. step: from 1 to `of`."""

    text: str
    step: int
    of: int

    def __str__(self) -> str:
        more = f" (Ask again for hint {self.step + 1}.)" if self.step < self.of else " (That was the last one.)"
        return f"Hint {self.step} of {self.of}: {self.text}{more}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>"


def hints() -> dict[str, tuple[str, ...]]:
    """Return the hints of every exercise, the first step first."""
    return {id: tuple(steps) for lesson in lessons() for id, steps in lesson.table("hints").items()}


def hint(exercise_id: str, journal: Path | None = None) -> Hint:
    """Return the next hint for an exercise; after the last one, the last again.

    journal   records hints that were read; None: the journal beside the notebook; without any, the first is returned

    >>> hint("start.smallest").text
    'The formula is in the docstring. It has two parts: the bias, and a power of two.'

    Raises:
        ValueError: the exercise does not exist; the message names the nearest.
    """
    steps = hints().get(find_exercise(exercise_id).id)
    if not steps:
        raise ValueError(f"exercise {exercise_id!r} has no hints: its lesson's hints.toml holds none")
    journal = journal or current_journal()
    if journal is None:
        return Hint(steps[0], 1, len(steps))
    read = last_answers(journal, "hint").get(exercise_id, "0")
    step = min(int(read) + 1 if read.isdigit() else 1, len(steps))
    append_answer(journal, "hint", exercise_id, str(step))
    return Hint(steps[step - 1], step, len(steps))
