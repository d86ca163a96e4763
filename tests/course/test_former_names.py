"""Names of lessons: plain imports find them, and former names in labkit warn until version 0.4."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import labkit_lessons
from labkit import clinic, grading
from labkit.course import COURSE
from labkit.moved import moved

ROOT = Path(__file__).parents[2]
PUBLIC = {
    "lesson_03b_rounding_or_fault": {"SIX", "six_operands"},
    "lesson_10_clinic": {"CONSULTATIONS", "Consultation", "Treatment", "look", "treat"},
    "lesson_12_project": {"FAILING", "PROJECT_TASKS", "enter", "show"},
}


def run(program: str, course: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in a new process, which has imported nothing, outside of the checkout."""
    environment = {"PYTHONPATH": str(ROOT), COURSE: str(course or ""), "PATH": ""}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT.anchor,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", PUBLIC)
def test_a_new_process_imports_a_lesson_by_its_name(name: str) -> None:
    program = f"import labkit_lessons.{name} as lesson; print(sorted(lesson.__all__))"
    done = run(program)
    assert done.stderr == ""
    assert done.stdout == f"{sorted(PUBLIC[name])}\n"


@pytest.mark.parametrize("name", PUBLIC)
def test_dir_of_a_lesson_has_its_names(name: str) -> None:
    done = run(f"import labkit_lessons.{name} as lesson; print(*dir(lesson))")
    assert set(done.stdout.split()) >= PUBLIC[name]


def test_new_process_imports_a_lesson_of_another_folder(tmp_path: Path) -> None:
    folder = tmp_path / "lesson_20_powers"
    folder.mkdir()
    (folder / "lesson.py").write_text("", encoding="utf-8")
    (folder / "__init__.py").write_text("WIDTH = 8\n", encoding="utf-8")
    program = "from labkit_lessons.lesson_20_powers import WIDTH; print(WIDTH)"
    assert run(program, folder).stdout == "8\n"
    assert "No module named 'labkit_lessons.lesson_20_powers'" in run(program).stderr


def test_every_former_name_is_the_lessons_object_and_warns() -> None:
    assert {place.split(".")[1] for place in labkit_lessons.MOVED.values()} == {*PUBLIC}
    for former, place in labkit_lessons.MOVED.items():
        module, _, name = former.rpartition(".")
        with pytest.warns(DeprecationWarning, match=rf"^{former} is now {place}$") as warned:
            value = getattr(importlib.import_module(module), name)
        # The warning names the line that uses the former name.
        assert [warning.filename for warning in warned] == [__file__]
        lesson, _, own = place.rpartition(".")
        assert value is vars(importlib.import_module(lesson))[own]


def test_former_names_are_listed_by_neither_dir_nor_star() -> None:
    for module in (grading, clinic):
        former = {name.rpartition(".")[2] for name in labkit_lessons.MOVED}
        assert not former & {*dir(module), *module.__all__}
    assert run("from labkit.grading import *; from labkit.clinic import *").stderr == ""


def test_a_former_name_names_a_missing_lesson() -> None:
    places = {"look": "labkit_lessons.lesson_99_gone.look"}
    with (
        pytest.warns(DeprecationWarning, match="is now labkit_lessons.lesson_99_gone.look"),
        pytest.raises(ModuleNotFoundError, match=r"labkit_lessons\.lesson_99_gone"),
    ):
        moved("labkit.grading", "look", places)
