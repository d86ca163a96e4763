"""Lessons as folders: discovery, texts, notebooks and imports."""

from labkit.course.lesson import (
    COURSE,
    NOT_FOR_LEARNERS,
    PACKAGE,
    CourseError,
    Lesson,
    add_folders,
    added_parents,
    hide,
    lessons,
    lessons_folder,
    lessons_hidden,
    lessons_named,
    moved_to_lessons,
)
from labkit.course.notebook import learners_notebook, notebook_of, slug, text_of
from labkit.course.quiz import UNKNOWN, QuizQuestion, quiz_questions
from labkit.course.text import (
    Cell,
    Question,
    answered,
    cells_of,
    questions,
    solution_of,
    starter_of,
)

__all__ = [
    "COURSE",
    "NOT_FOR_LEARNERS",
    "PACKAGE",
    "UNKNOWN",
    "Cell",
    "CourseError",
    "Lesson",
    "Question",
    "QuizQuestion",
    "add_folders",
    "added_parents",
    "answered",
    "cells_of",
    "hide",
    "learners_notebook",
    "lessons",
    "lessons_folder",
    "lessons_hidden",
    "lessons_named",
    "moved_to_lessons",
    "notebook_of",
    "questions",
    "quiz_questions",
    "slug",
    "solution_of",
    "starter_of",
    "text_of",
]
