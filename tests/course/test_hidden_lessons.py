"""Lessons that are hidden from the processes of hand-ins, and a package from elsewhere."""

from pathlib import Path

import pytest

import labkit_lessons
from labkit.course import CourseError, Lesson
from tests.course.test_former_names import run

# A program that hides the lessons, and prints which modules with solutions can still be imported.
HIDES = """
from labkit.course import hide, lessons
{import_}
for lesson in lessons():
    lesson.package()
    lesson.module("cases")
hide()
import labkit_lessons.lesson_10_clinic, labkit_lessons.lesson_05_autocast
for name in (
    "lesson_10_clinic.exercises",
    "lesson_05_autocast.exercises",
    "lesson_12_project.lesson",
):
    try:
        __import__("labkit_lessons." + name)
        print(name)
    except ModuleNotFoundError:
        pass
print(lessons())
from labkit.grading import earned
try:
    earned("scaling.advance", abs, seed=1)
except ValueError as error:
    print(error)
"""


def test_hidden_lessons_have_no_module_with_solutions() -> None:
    done = run(HIDES.format(import_=""))
    none = "there is no exercise 'scaling.advance': no lesson here has exercises"
    assert done.stdout == f"()\n{none}\n"
    assert done.stderr == ""


def test_hiding_fails_after_an_import_of_solutions() -> None:
    done = run(HIDES.format(import_="import labkit_lessons.lesson_05_autocast.exercises"))
    assert "got labkit_lessons.lesson_05_autocast.exercises; import it neither" in done.stderr


def test_a_package_of_lessons_from_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labkit_lessons, "__file__", str(tmp_path / "labkit_lessons/__init__.py"))
    with pytest.raises(CourseError, match=r"expected the package labkit_lessons in .*install the"):
        Lesson(tmp_path / "lesson_20_powers").register()
