"""Imports of lessons in submissions, and `check`, `hint` and `enter` while they are graded."""

from pathlib import Path

from labkit.grading import EXERCISES
from tests.grading.hand_ins import RIGHT, answered, graded, put

ID = "scaling.advance"
POINTS = str(EXERCISES[ID].points)
# Lines at the top of the answer's cell: where one of them fails, the function below is not defined.
LINES = {
    "a plain import": (
        "import labkit_lessons.lesson_03b_rounding_or_fault as lesson\n"
        "assert len(lesson.SIX) == 6 and 'six_operands' in dir(lesson)"
    ),
    "names of lessons": (
        "from labkit_lessons.lesson_10_clinic import CONSULTATIONS, Treatment, look\n"
        "from labkit_lessons.lesson_12_project import FAILING, PROJECT_TASKS\n"
        "assert isinstance(look('clip', lambda model, batches: ([], None)), Treatment)"
    ),
    "former names": (
        "from labkit.grading import CONSULTATIONS, FAILING, SIX, enter, look, show, six_operands\n"
        "from labkit.clinic import CONSULTATIONS as same, treat\n"
        "assert same is CONSULTATIONS"
    ),
    "a package without names": "import labkit_lessons.lesson_05_autocast",
    "no solutions": (
        "try:\n    from labkit_lessons.lesson_10_clinic import exercises\n"
        "except ImportError:\n    pass\nelse:\n    raise AssertionError('it has known mistakes')"
    ),
    "a grade without points": (
        f"from labkit.grading import check\ngrade = check('{ID}', abs)\n"
        "assert (grade.points, grade.mistake, grade.verdicts) == (0, None, ()), str(grade)"
    ),
    "a hint that says nothing": (
        f"from labkit.grading import hint\nassert 'hand-ins are graded' in hint('{ID}').text"
    ),
    "no entrant": (
        "from pathlib import Path\nfrom labkit.grading import check\n"
        "from labkit_lessons.lesson_12_project import enter, show\n"
        "enter('board', 'ada', [check('project.targets', abs)])\n"
        "assert not Path('board').exists() and not show('board').entrants"
    ),
    "no import of check and hint": f"check('{ID}', abs)\nhint('{ID}')",
}


def test_hand_ins_import_lessons_and_check_nothing(tmp_path: Path) -> None:
    for name, lines in LINES.items():
        put(tmp_path / "in" / f"{name}.ipynb", answered(answer=f"{lines}\n{RIGHT}"))
    wrong = f"assert False\n{RIGHT}"
    put(tmp_path / "in" / "a line that fails.ipynb", answered(answer=wrong))
    rows = graded(tmp_path / "in", tmp_path)
    found = {who: row["points"] for (who, id), row in rows.items() if id == ID}
    assert found == dict.fromkeys(LINES, POINTS) | {"a line that fails": "0"}
