"""The quiz before and after the course, from the questions.toml of the lessons."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.course.lesson import CourseError, lessons

UNKNOWN = "I do not know"


@dataclass(frozen=True)
class QuizQuestion:
    """A question of the quiz.

    Attributes:
        question: The question, in Markdown.
        choices: The choices in the order shown, without `UNKNOWN`, which is added.
        answer: The right choice.
        why: One or two sentences of explanation, shown after the second quiz.
        lesson: The name of the notebook that teaches the answer.

    Raises:
        ValueError: If the answer is not among the choices, or `UNKNOWN` is.
    """

    question: str
    choices: tuple[str, ...]
    answer: str
    why: str
    lesson: str

    @property
    def all_choices(self) -> tuple[str, ...]:
        """All choices in the order shown, with `UNKNOWN` last."""
        return (*self.choices, UNKNOWN)

    def __post_init__(self) -> None:
        if self.answer not in self.choices:
            raise ValueError(
                f"answer: expected one of the choices {self.choices}, got {self.answer!r}"
            )
        if UNKNOWN in self.choices:
            raise ValueError(f"choices: expected them without {UNKNOWN!r}, which is added")


def quiz_questions() -> dict[str, QuizQuestion]:
    """Return the questions of all lessons by id.

    Raises:
        CourseError: If a question lacks a key or has another one, or its answer is not a choice.
    """
    questions = {}
    for lesson in lessons():
        for id, row in lesson.table("questions").items():
            try:
                questions[id] = QuizQuestion(**{**row, "choices": tuple(row["choices"])})
            except (KeyError, TypeError, ValueError) as error:
                raise CourseError(
                    f"{lesson.folder / 'questions.toml'}: question {id}: expected a question, "
                    f"choices, answer, why and lesson, got: {type(error).__name__}: {error}"
                ) from error
    return questions
