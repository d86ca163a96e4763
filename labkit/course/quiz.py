"""Quiz of the course: questions before and after it, from the questions.toml of the lessons."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.course.lesson import lessons

UNKNOWN = "I do not know"


@dataclass(frozen=True)
class QuizQuestion:
    """A question of the quiz.

    Attributes:
        choices: in the order shown, without "I do not know", which is added.
        answer: the choice that is right.
        why: one or two sentences, shown after the second time.
        lesson: the notebook that teaches it.
    """

    question: str
    choices: tuple[str, ...]
    answer: str
    why: str
    lesson: str

    @property
    def all_choices(self) -> tuple[str, ...]:
        """All choices, in the order shown."""
        return (*self.choices, UNKNOWN)

    def __post_init__(self) -> None:
        if self.answer not in self.choices or UNKNOWN in self.choices:
            raise ValueError(
                f"expected the answer among the choices, without {UNKNOWN!r}, got {self}"
            )


def quiz_questions() -> dict[str, QuizQuestion]:
    """Return the questions by id, from the questions.toml of all lessons."""
    rows = {id: row for lesson in lessons() for id, row in lesson.table("questions").items()}
    return {
        id: QuizQuestion(**row | {"choices": tuple(row["choices"])}) for id, row in rows.items()
    }
