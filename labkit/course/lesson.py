"""Lessons as folders: their location, content and import.

A lesson is a folder `lesson_NN_name`; its notebook is `NN_name.ipynb`. In the folder are

    lesson.py         the text with solutions, in jupytext's py:percent form       not for learners
    exercises.py      EXERCISES: the checks and known mistakes of each exercise    not for learners
    judge.pkl.gz      replaces these two in a learner's lab
    predictions.toml  questions that are answered before the lesson shows the answer
    hints.toml        three hints for each exercise
    questions.toml    questions of the quiz, asked before and after the course
    cases.py          what exercises pass to learners' code, or train; the sandbox imports it before that code runs.
                      CASES: trainings that learners diagnose (labkit.clinic.Consultation), by name

and any other modules that these import. The lab's own lessons are in notebooks/lessons; `add_folders` and the
environment variable LABKIT_COURSE name further ones. labkit imports no lesson by its name.

Invariant: modules of a lesson are imported as labkit_lessons.<folder>.<module>, wherever the folder is, so that objects
pickled in one lab can be unpickled in another.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.records import notebooks_folder

COURSE = "LABKIT_COURSE"  # environment variable: folders of further lessons, separated as in PATH
PACKAGE = "labkit_lessons"
NOT_FOR_LEARNERS = ("lesson", "exercises")  # how the names of such files begin
JUDGE = "judge.pkl.gz"
_FOLDER = re.compile(r"lesson_\w+")
_hidden = False


class CourseError(ValueError):
    """A lesson folder is not as it should be; the message names the file and, where there is one, the exercise."""


@dataclass(frozen=True)
class Lesson:
    """A lesson's folder."""

    folder: Path

    @property
    def name(self) -> str:
        """The name of the lesson's notebook, without its suffix: "06_loss_scaling"."""
        return self.folder.name.removeprefix("lesson_")

    @property
    def text(self) -> Path:
        """The lesson's text, with solutions; a learner's lab has none."""
        return self.folder / "lesson.py"

    @property
    def judge(self) -> Path:
        """The file that takes the place of text and exercises in a learner's lab."""
        return self.folder / JUDGE

    def module(self, stem: str) -> ModuleType | None:
        """Import a module of the lesson, or return None where the folder has no such file.

        Raises:
            CourseError: it does not run.
        """
        if not (self.folder / f"{stem}.py").is_file():
            return None
        self.register()
        try:
            return importlib.import_module(f"{PACKAGE}.{self.folder.name}.{stem}")
        except Exception as error:  # whatever its author wrote
            raise CourseError(
                f"{self.folder / stem}.py does not run: {type(error).__name__}: {error}"
            ) from error

    def register(self) -> None:
        """Make the modules of this lesson importable, in a package without a file that spans all lesson folders."""
        package = sys.modules.setdefault(
            PACKAGE, ModuleType(PACKAGE, "The lessons of the course (labkit.course).")
        )
        parents = [*getattr(package, "__path__", ()), str(self.folder.parent)]
        package.__path__ = list(dict.fromkeys(parents))
        importlib.invalidate_caches()

    def table(self, stem: str) -> dict[str, Any]:
        """Return the content of a TOML file of the lesson, not to be changed; {} where the folder has no such file.

        Raises:
            CourseError: it is not valid TOML.
        """
        path = self.folder / f"{stem}.toml"
        try:
            return _parsed(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CourseError(f"{path}: {error}") from error


@lru_cache(maxsize=256)
def _parsed(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


def lessons_folder() -> Path:
    """Return the folder of the lab's own lessons: in the checkout, or in the installed package."""
    return notebooks_folder() / "lessons"


def lessons() -> tuple[Lesson, ...]:
    """Return all lessons in their order: the lab's own, and those in the folders that LABKIT_COURSE names.

    >>> [lesson.name for lesson in lessons()][:2]
    ['00_start', '01_numbers']

    Raises:
        CourseError: a folder holds no lesson, a lesson has no text, or two lessons have the same name.
    """
    if _hidden:
        return ()
    found = {lesson.name: lesson for lesson in lessons_in(lessons_folder())}
    for folder in _added():
        own = lessons_in(folder)
        if not own:
            raise CourseError(
                f"expected a folder lesson_NN_name, or a folder of such folders, got {folder}"
            )
        for lesson in own:
            if lesson.name in found:
                raise CourseError(
                    f"{lesson.folder} and {found[lesson.name].folder} have the same name; rename one"
                )
            if not lesson.text.is_file() and not lesson.judge.is_file():
                raise CourseError(
                    f"{lesson.folder} has no lesson.py: the text of the lesson, with its solutions"
                )
            found[lesson.name] = lesson
    return tuple(found[name] for name in sorted(found))


def add_folders(folders: Iterable[Path]) -> None:
    """Add folders of lessons to the course, in this process and in those that it starts.

    Raises:
        CourseError: one of them holds no lesson; see `lessons`.
    """
    every = dict.fromkeys(
        [*map(str, _added()), *(str(folder.expanduser().resolve()) for folder in folders)]
    )
    before = os.environ.get(COURSE)
    os.environ[COURSE] = os.pathsep.join(every)
    try:
        lessons()
    except CourseError:
        os.environ.pop(COURSE) if before is None else os.environ.__setitem__(COURSE, before)
        raise


def hide() -> None:
    """Make this process see no lesson from now on: the sandbox calls it before it runs code of learners."""
    global _hidden
    _hidden = True
    if PACKAGE in sys.modules:
        sys.modules[PACKAGE].__path__ = []


def _added() -> list[Path]:
    return [Path(folder) for folder in os.environ.get(COURSE, "").split(os.pathsep) if folder]


def lessons_in(folder: Path) -> list[Lesson]:
    """Return the lessons in a folder, in their order; where the folder is a lesson itself, that one."""
    if _FOLDER.fullmatch(folder.name):
        return [Lesson(folder)] if folder.is_dir() else []
    return [
        Lesson(path)
        for path in sorted(folder.glob("lesson_*"))
        if path.is_dir() and _FOLDER.fullmatch(path.name)
    ]
