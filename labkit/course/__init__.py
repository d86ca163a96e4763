"""Lessons as folders: discovery, texts, notebooks and imports."""

from labkit.course.lesson import (
    COURSE,
    NOT_FOR_LEARNERS,
    CourseError,
    Lesson,
    add_folders,
    hide,
    lessons,
    lessons_folder,
)
from labkit.course.notebook import learners_notebook, notebook_of, text_of
from labkit.course.quiz import UNKNOWN, QuizQuestion, quiz_questions
from labkit.course.text import Cell, Question, cells_of, questions, solution_of, starter_of

__all__ = [
    "COURSE",
    "NOT_FOR_LEARNERS",
    "UNKNOWN",
    "Cell",
    "CourseError",
    "Lesson",
    "Question",
    "QuizQuestion",
    "add_folders",
    "cells_of",
    "hide",
    "learners_notebook",
    "lessons",
    "lessons_folder",
    "notebook_of",
    "questions",
    "quiz_questions",
    "solution_of",
    "starter_of",
    "text_of",
]
