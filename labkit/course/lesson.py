"""Lessons as folders: their location, content and import.

A lesson is a folder `lesson_NN_name`; its notebook is `NN_name.ipynb`. In the folder are

- lesson.py: the text with solutions, in jupytext's py:percent form; not for learners
- exercises.py: EXERCISES, the checks and known mistakes of each exercise; not for learners
- judge.pkl.gz: replaces these two in a learner's lab
- predictions.toml: questions that are answered before the lesson shows the answer
- hints.toml: three hints for each exercise
- questions.toml: questions of the quiz, asked before and after the course
- cases.py: what exercises pass to learners' code, or train; the sandbox imports it before that
  code runs
- __init__.py: what the notebook imports from labkit_lessons.<folder>, if anything

and any other modules that these import. The lab's own lessons are the package labkit_lessons,
beside labkit in a checkout and in a wheel; `add_folders` and the environment variable LABKIT_COURSE
name further ones. Nothing in labkit names a lesson's folder.

Invariant: modules of a lesson are imported as labkit_lessons.<folder>.<module>, wherever the folder
is, so that objects pickled in one lab can be unpickled in another.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.records.files import PACKAGE as LABKIT

# environment variable: folders of further lessons, separated as in PATH
COURSE = "LABKIT_COURSE"
PACKAGE = "labkit_lessons"
NOT_FOR_LEARNERS = ("lesson", "exercises")  # how the names of such files begin
JUDGE = "judge.pkl.gz"
OWN = LABKIT.parent / PACKAGE
_FOLDER = re.compile(r"lesson_\w+")
_hidden = False


class CourseError(ValueError):
    """A lesson folder is not as it should be.

    The message names the file and, if known, the exercise.
    """


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

    def package(self) -> ModuleType:
        """Import the lesson's package, from which its notebook imports.

        Raises:
            CourseError: its __init__.py does not run.
        """
        return self._imported(f"{PACKAGE}.{self.folder.name}", "__init__.py")

    def module(self, stem: str) -> ModuleType | None:
        """Import a module of the lesson, or return None where the folder has no such file.

        Raises:
            CourseError: it does not run.
        """
        if not (self.folder / f"{stem}.py").is_file():
            return None
        return self._imported(f"{PACKAGE}.{self.folder.name}.{stem}", f"{stem}.py")

    def _imported(self, module: str, file: str) -> ModuleType:
        self.register()
        try:
            return importlib.import_module(module)
        except Exception as error:  # whatever its author wrote
            raise CourseError(
                f"{self.folder / file} does not run: {type(error).__name__}: {error}"
            ) from error

    def register(self) -> None:
        """Let the package of lessons find this one.

        In a new process it finds those that LABKIT_COURSE names by itself.

        Raises:
            CourseError: there is no package of lessons, or it is not the one beside labkit.
        """
        remedy = "install the lab again: `make setup` in a checkout, else pip"
        try:
            package = importlib.import_module(PACKAGE)
        except ModuleNotFoundError as error:
            raise CourseError(
                f"expected the package {PACKAGE} in {OWN}, got: {error}; {remedy}"
            ) from error
        if Path(package.__file__ or "").parent.resolve() != OWN.resolve():
            raise CourseError(
                f"expected the package {PACKAGE} in {OWN}, got the one in {package.__file__}; "
                f"{remedy}"
            )
        if str(self.folder.parent) not in package.__path__:
            package.__path__.append(str(self.folder.parent))
            importlib.invalidate_caches()

    def table(self, stem: str) -> dict[str, Any]:
        """Return the content of a TOML file of the lesson, not to be changed.

        It is empty if the folder has no such file.

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
    """Return the folder of the lab's own lessons: their package, which is beside labkit."""
    return OWN


def lessons() -> tuple[Lesson, ...]:
    """Return all lessons in order: the lab's own, and those in the folders of LABKIT_COURSE.

    >>> [lesson.name for lesson in lessons()][:2]
    ['00_start', '01_numbers']

    Raises:
        CourseError: a folder holds no lesson, a lesson has no text, or two lessons have the same
            name.
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
                    f"{lesson.folder} and {found[lesson.name].folder} have the same name; rename "
                    "one"
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
        if before is None:
            os.environ.pop(COURSE)
        else:
            os.environ[COURSE] = before
        raise


def lessons_named(names: Sequence[str]) -> list[Lesson]:
    """Return the lessons that these names begin, in the order of the course.

    Without names it returns all lessons.

    >>> [lesson.name for lesson in lessons_named(["01", "00_start"])]
    ['00_start', '01_numbers']

    Raises:
        ValueError: there is no lesson of a name; the message lists the lessons.
    """
    every = lessons()
    for name in names:
        if not any(_is_called(lesson, name) for lesson in every):
            raise ValueError(
                f"there is no lesson {name!r}; there are: {', '.join(each.name for each in every)}"
            )
    return [
        lesson for lesson in every if not names or any(_is_called(lesson, name) for name in names)
    ]


def _is_called(lesson: Lesson, name: str) -> bool:
    return lesson.name == name or lesson.name.split("_")[0] == name


def moved_to_lessons(module: str) -> dict[str, str]:
    """Return the names that moved from a module of labkit to lessons: former name -> new place."""
    table: dict[str, str] = importlib.import_module(PACKAGE).MOVED
    rows = ((*former.rpartition("."), place) for former, place in table.items())
    return {name: place for former_module, _, name, place in rows if former_module == module}


def hide() -> None:
    """Hide all lessons from this process.

    The sandbox calls this before it runs learners' code.

    What has been imported of lessons stays importable.

    Raises:
        CourseError: a module that is not for learners has been imported, by a lesson's cases.py for
            instance.
    """
    global _hidden
    _hidden = True
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != PACKAGE:
            continue
        if name.count(".") > 1 and name.split(".")[2].startswith(NOT_FOR_LEARNERS):
            raise CourseError(
                f"expected no module with solutions or known mistakes, got {name}; import it "
                "neither in the lesson's __init__.py nor in its cases.py"
            )
        if hasattr(module, "__path__"):
            module.__path__ = []


def lessons_hidden() -> bool:
    """Return whether this process runs the hand-ins of learners, and sees no lesson (`hide`)."""
    return _hidden


def added_parents() -> list[str]:
    """Return the folders that LABKIT_COURSE names, as parts of the package's search path."""
    found = (lesson.folder.parent for folder in _added() for lesson in lessons_in(folder))
    return list(dict.fromkeys(map(str, found)))


def _added() -> list[Path]:
    return [Path(folder) for folder in os.environ.get(COURSE, "").split(os.pathsep) if folder]


def lessons_in(folder: Path) -> list[Lesson]:
    """Return the lessons in a folder, in their order.

    If the folder is a lesson itself, it is the only one.
    """
    if _FOLDER.fullmatch(folder.name):
        return [Lesson(folder)] if folder.is_dir() else []
    return [
        Lesson(path)
        for path in sorted(folder.glob("lesson_*"))
        if path.is_dir() and _FOLDER.fullmatch(path.name)
    ]
