"""Quiz: the same questions before and after the course, so that learning can be measured.

The questions (labkit.course.quiz) are asked twice, and each may be skipped. Before the course there
is no reply. After the course each answer gets its reply, and a table compares both answers. Answers
are stored in the learner's journal, as kinds "before" and "after".

Invariant: the browser does not have the right answer to a question before the learner has committed
to one. A committed answer stays. A page without a kernel is an exception: it has all right answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import traitlets

from labkit.course import quiz_questions
from labkit.records.journal import current_journal, last_answers, save_answer
from labkit.widgets.base.figures import still
from labkit.widgets.base.widget import LabWidget

PHASES = ("before", "after")


class Quiz(LabWidget, folder="quiz"):
    """Widget that asks all questions in turn; `quiz(phase)` returns one.

    Args:
        phase: "before" or "after" the course.
        answers: The answers in this phase so far: id of a question -> choice. Answers to other
            questions, and other choices than those of the question, are left out.
        earlier: The answers before the course; {} in the phase "before".
    """

    phase = traitlets.Enum(PHASES).tag(sync=True)
    # The id, the question and the choices of each.
    questions = traitlets.List(traitlets.Dict()).tag(sync=True)
    # Id -> choice.
    answers = traitlets.Dict().tag(sync=True)
    earlier = traitlets.Dict().tag(sync=True)
    # Id -> right answer, why and lesson, of each answered question; {} in the phase "before".
    results = traitlets.Dict().tag(sync=True)

    def __init__(self, phase: str, answers: Mapping[str, str], earlier: Mapping[str, str]) -> None:
        self._questions = quiz_questions()
        rows = self._questions.items()
        shown = [
            {"id": id, "question": row.question, "choices": list(row.all_choices)}
            for id, row in rows
        ]
        super().__init__(phase=phase, questions=shown, earlier=self._known(earlier))
        self.answers = dict(answers)

    def _known(self, answers: Mapping[str, object]) -> dict[str, object]:
        """Return the answers that are one of the choices of their question."""
        questions = self._questions
        return {
            id: choice
            for id, choice in answers.items()
            if id in questions and choice in questions[id].all_choices
        }

    @traitlets.validate("answers")
    def _committed_answers_stay(self, proposal: Mapping[str, Any]) -> dict[str, object]:
        return {**self._known(proposal["value"]), **self.answers}

    @traitlets.observe("answers")
    def _reply(self, change: Mapping[str, Any]) -> None:
        if self.phase == "after":
            self.results = self._results(change["new"])

    def _results(self, ids: Mapping[str, object]) -> dict[str, dict[str, str]]:
        rows = {id: self._questions[id] for id in ids}
        return {
            id: {"answer": row.answer, "why": row.why, "lesson": row.lesson}
            for id, row in rows.items()
        }

    def page_state(self) -> dict[str, Any]:
        """Return the state with the right answers after the course: a page has no kernel."""
        known = self._results(self._questions) if self.phase == "after" else {}
        return {**super().page_state(), "results": known, "_on_page": True}

    def still(self) -> dict[str, Any]:
        lines = "\n".join(
            f"{number}. {row['question']}" for number, row in enumerate(self.questions, 1)
        )
        return still(lines, "(Widgets do not run here: note your answers, then go on.)")


def quiz(phase: str) -> Quiz:
    """Return a widget that asks the questions of the course.

    Questions that were answered in this folder in the same phase are not asked again.

    Args:
        phase: "before" or "after" the course.

    Raises:
        ValueError: `phase` is neither of them.
    """
    if phase not in PHASES:
        raise ValueError(f"phase: expected one of {', '.join(map(repr, PHASES))}, got {phase!r}")
    journal = current_journal()
    if journal is None:
        return Quiz(phase, {}, {})
    saved = {kind: last_answers(journal, kind) for kind in PHASES}
    widget = Quiz(phase, saved[phase], saved["before"] if phase == "after" else {})

    def committed(change: Mapping[str, Any]) -> None:
        for id in change["new"].keys() - change["old"].keys():
            save_answer(journal, phase, id, change["new"][id])

    widget.observe(committed, "answers")
    return widget
