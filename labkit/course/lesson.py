"""Lessons as folders: their location, content and import.

A lesson is a folder `lesson_NN_name`; its notebook is `NN_name.ipynb`. In the folder are

- lesson.py: the text with solutions, in jupytext's py:percent form; hidden from learners
- exercises.py: EXERCISES, the checks and known mistakes of each exercise; hidden from learners
- judge.pkl.gz: replaces these two files in a learner's lab
- predictions.toml: questions that learners answer before the lesson shows the answer
- hints.toml: three hints for each exercise
- questions.toml: questions of the quiz before and after the course
- cases.py: the arguments and trainings that exercises pass to learners' code; the sandbox imports
  this module before learners' code runs
- __init__.py: names that the notebook imports from labkit_lessons.<folder>
- any other modules that these import

The lab's own lessons are the package labkit_lessons, beside labkit in a checkout and in a wheel.
`add_folders` and the environment variable LABKIT_COURSE add folders of other lessons. No module of
labkit refers to a lesson by name.

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

# The environment variable that names folders of other lessons, separated as in PATH.
COURSE = "LABKIT_COURSE"
PACKAGE = "labkit_lessons"
# Prefixes of the names of modules that are hidden from learners.
NOT_FOR_LEARNERS = ("lesson", "exercises")
JUDGE = "judge.pkl.gz"
OWN = LABKIT.parent / PACKAGE
_FOLDER = re.compile(r"lesson_\w+")
_hidden = False


class CourseError(ValueError):
    """A lesson folder is invalid.

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
            CourseError: If its __init__.py does not run.
        """
        return self._import(f"{PACKAGE}.{self.folder.name}", "__init__.py")

    def module(self, stem: str) -> ModuleType | None:
        """Import a module of the lesson; return None if the folder has no such file.

        Raises:
            CourseError: If the module does not run.
        """
        if not (self.folder / f"{stem}.py").is_file():
            return None
        return self._import(f"{PACKAGE}.{self.folder.name}.{stem}", f"{stem}.py")

    def _import(self, module: str, file: str) -> ModuleType:
        self.register()
        try:
            return importlib.import_module(module)
        # The module is its author's code, which can raise anything, SystemExit included.
        except (Exception, SystemExit) as error:
            raise CourseError(
                f"{self.folder / file} does not run: {type(error).__name__}: {error}"
            ) from error

    def register(self) -> None:
        """Add the lesson to the search path of the package of lessons.

        The package does this itself for the folders in LABKIT_COURSE when a process imports it.

        Raises:
            CourseError: If the package of lessons is missing, or is not the one beside labkit.
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
        """Return the content of a TOML file of the lesson, or {} if the folder has no such file.

        Do not change the result: it is cached.

        Raises:
            CourseError: If the file is not valid TOML.
        """
        path = self.folder / f"{stem}.toml"
        if not path.is_file():
            return {}
        try:
            return _parse_toml(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CourseError(f"{path}: {error}") from error


@lru_cache(maxsize=256)
def _parse_toml(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


def lessons_folder() -> Path:
    """Return the folder of the lab's own lessons, the package beside labkit."""
    return OWN


def lessons() -> tuple[Lesson, ...]:
    """Return all lessons in order: the lab's own and those in the folders of LABKIT_COURSE.

    >>> [lesson.name for lesson in lessons()][:2]
    ['00_start', '01_numbers']

    Raises:
        CourseError: If a folder holds no lesson, a lesson has no text, or two lessons have the
            same name.
    """
    if _hidden:
        return ()
    by_name = {lesson.name: lesson for lesson in lessons_in(lessons_folder())}
    for folder in _added_folders():
        added = lessons_in(folder)
        if not added:
            raise CourseError(
                f"expected a folder lesson_NN_name, or a folder of such folders, got {folder}"
            )
        for lesson in added:
            if lesson.name in by_name:
                raise CourseError(
                    f"{lesson.folder} and {by_name[lesson.name].folder} have the same name; rename "
                    "one"
                )
            if not lesson.text.is_file() and not lesson.judge.is_file():
                raise CourseError(
                    f"{lesson.folder} has no lesson.py: the text of the lesson, with its solutions"
                )
            by_name[lesson.name] = lesson
    return tuple(by_name[name] for name in sorted(by_name))


def add_folders(folders: Iterable[Path]) -> None:
    """Add folders of lessons to the course, in this process and in those that it starts.

    Raises:
        CourseError: If `lessons` raises it for one of the folders. None is added then.
    """
    paths = [str(folder) for folder in _added_folders()]
    paths += [str(folder.expanduser().resolve()) for folder in folders]
    before = os.environ.get(COURSE)
    os.environ[COURSE] = os.pathsep.join(dict.fromkeys(paths))
    try:
        lessons()
    except BaseException:
        if before is None:
            os.environ.pop(COURSE)
        else:
            os.environ[COURSE] = before
        raise


def lessons_named(names: Sequence[str]) -> list[Lesson]:
    """Return the lessons with these names or numbers, in the order of the course.

    Without names it returns all lessons.

    >>> [lesson.name for lesson in lessons_named(["01", "00_start"])]
    ['00_start', '01_numbers']

    Raises:
        ValueError: If no lesson has one of the names. The message lists the lessons.
    """
    if not names:
        return list(lessons())
    selected = set()
    for name in names:
        matching = [
            lesson for lesson in lessons() if name in (lesson.name, lesson.name.split("_")[0])
        ]
        if not matching:
            known = ", ".join(lesson.name for lesson in lessons())
            raise ValueError(f"there is no lesson {name!r}; there are: {known}")
        selected.update(matching)
    return [lesson for lesson in lessons() if lesson in selected]


def moved_to_lessons(module: str) -> dict[str, str]:
    """Return the names that moved from a module of labkit to lessons: former name -> new place."""
    table: dict[str, str] = importlib.import_module(PACKAGE).MOVED
    moved = {}
    for former, place in table.items():
        former_module, _, name = former.rpartition(".")
        if former_module == module:
            moved[name] = place
    return moved


def hide() -> None:
    """Hide all lessons from this process.

    The sandbox calls this before it runs learners' code. Modules of lessons that are already
    imported stay importable.

    Raises:
        CourseError: If a module that is hidden from learners has been imported, for instance by a
            lesson's cases.py.
    """
    global _hidden
    _hidden = True
    for name, module in list(sys.modules.items()):
        # labkit_lessons.<folder>.<module>
        parts = name.split(".")
        if parts[0] != PACKAGE:
            continue
        if len(parts) > 2 and parts[2].startswith(NOT_FOR_LEARNERS):
            raise CourseError(
                f"expected no module with solutions or known mistakes, got {name}; import it "
                "neither in the lesson's __init__.py nor in its cases.py"
            )
        # Without a search path, a package can import no further modules.
        if hasattr(module, "__path__"):
            module.__path__ = []


def lessons_hidden() -> bool:
    """Return whether `hide` has been called: this process runs learners' submissions."""
    return _hidden


def added_parents() -> list[str]:
    """Return the parents of the lessons in LABKIT_COURSE, for the search path of the package."""
    parents = []
    for folder in _added_folders():
        parents += [str(lesson.folder.parent) for lesson in lessons_in(folder)]
    return list(dict.fromkeys(parents))


def _added_folders() -> list[Path]:
    """Return the folders that LABKIT_COURSE names."""
    return [Path(folder) for folder in os.environ.get(COURSE, "").split(os.pathsep) if folder]


def lessons_in(folder: Path) -> list[Lesson]:
    """Return the lessons in a folder, in their order; a lesson's own folder holds only itself."""
    if _FOLDER.fullmatch(folder.name):
        return [Lesson(folder)] if folder.is_dir() else []
    return [
        Lesson(path)
        for path in sorted(folder.glob("lesson_*"))
        if path.is_dir() and _FOLDER.fullmatch(path.name)
    ]
