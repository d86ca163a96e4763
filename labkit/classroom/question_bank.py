"""Question bank for a learning platform: predictions and quiz, in GIFT.

GIFT is Moodle's text format for questions, which other platforms import as well. The id of a
question is its name, and the reply to a choice is its feedback. Predictions of a number that the
learner's own machine measures are left out, since a platform does not know the answer.

Source: Moodle documentation, "GIFT format".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from labkit.course import Lesson, quiz_questions

# Characters with a meaning in GIFT, which a backslash escapes.
SPECIAL = re.compile(r"([~=#{}:\\])")


@dataclass(frozen=True)
class BankQuestion:
    """A question with one right choice.

    Attributes:
        id: Its name in the bank, as "scaling.order".
        lesson: The lesson that asks the question, or teaches its answer.
        text: The question, in one paragraph.
        choices: Choice -> the reply to it.
        answer: The choice that is right.
    """

    id: str
    lesson: str
    text: str
    choices: Mapping[str, str]
    answer: str


def bank_questions(chosen: Iterable[Lesson]) -> list[BankQuestion]:
    """Return the questions of lessons, those of the quiz last, without measured numbers."""
    lessons = list(chosen)
    questions = []
    for lesson in lessons:
        for id, row in lesson.table("predictions").items():
            # the answer to a question with a ruler is a measured number
            if "ruler" not in row:
                questions.append(
                    BankQuestion(id, lesson.name, row["question"], row["choices"], row["answer"])
                )
    names = {lesson.name for lesson in lessons}
    for id, question in quiz_questions().items():
        if question.lesson in names:
            replies = dict.fromkeys(question.choices, question.why)
            questions.append(
                BankQuestion(
                    id=f"quiz.{id}",
                    lesson=question.lesson,
                    text=question.question,
                    choices=replies,
                    answer=question.answer,
                )
            )
    return questions


def as_gift(questions: Iterable[BankQuestion]) -> str:
    r"""Return questions in GIFT, with a category for each lesson.

    >>> one = BankQuestion("a.b", "01_numbers", "1 + 1 = ?", {"2": "Yes.", "3": "No."}, "2")
    >>> print(as_gift([one]))
    $CATEGORY: $course$/fp16-lab/01_numbers
    <BLANKLINE>
    ::a.b::[plain]1 + 1 \= ?{
    =2#Yes.
    ~3#No.
    }
    <BLANKLINE>
    """
    lines = []
    category = None
    for question in questions:
        if question.lesson != category:
            category = question.lesson
            lines += [f"$CATEGORY: $course$/fp16-lab/{category}", ""]
        lines.append(f"::{_escaped(question.id)}::[plain]{_escaped(question.text)}{{")
        for choice, reply in question.choices.items():
            mark = "=" if choice == question.answer else "~"
            lines.append(f"{mark}{_escaped(choice)}#{_escaped(reply)}")
        lines += ["}", ""]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Return a text in one line, with GIFT's own characters escaped."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))
