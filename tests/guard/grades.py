"""Grades that `labkit grade` gives to hostile hand-ins, odd hand-ins, and answers to the clinic."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from labkit import cli
from tests.guard.plain import without_places
from tests.guard.processes import Item
from tests.guard.trees import guarded_tree

SEED = "5"
# These hand-ins use all processes or all memory. Their remarks depend on the load of the machine,
# so that only the first columns of their rows, up to the points, are recorded.
DEPENDS_ON_LOAD = (
    "starts processes without end",
    "starts threads without end",
    "eats memory slowly",
)
COLUMNS_UP_TO_POINTS = 4


def items() -> Iterator[Item]:
    """Yield an item for each group of hand-ins."""
    yield Item("grades/hostile", partial(hostile, "BREAKS"))
    yield Item("grades/cheats", partial(hostile, "CHEATS"))
    yield Item("grades/odd", odd)
    from tests.grading.test_clinic_answers import NAMES

    for name in NAMES:
        yield Item(f"grades/clinic_{name}", partial(clinic, name))


def hostile(group: str) -> str:
    """Return the rows of a class whose hand-ins are hostile.

    Args:
        group: The table of `tests.grading.hostile`: "BREAKS" attack the grader, "CHEATS" the grade.
    """
    from tests.grading import hostile as table
    from tests.grading.test_hostile import hand_in

    rows = vars(table)[group]
    with TemporaryDirectory() as place:
        folder = Path(place) / "class"
        for name, row in rows.items():
            hand_in(folder, student_of(name), row.source)
        limits = ["--seconds", "2", "--memory", "512", "--lesson", "06_loss_scaling"]
        return graded(folder, *limits)


def odd() -> str:
    """Return the rows of a class of honest hand-ins in odd forms."""
    from tests.grading.hand_ins import put
    from tests.grading.test_odd_notebooks import ODD

    with TemporaryDirectory() as place:
        folder = Path(place) / "class"
        for name, hand_in in ODD.items():
            for path, content in hand_in.files.items():
                put(folder / student_of(name) / path, content)
        return graded(folder)


def clinic(name: str) -> str:
    """Return the rows of answers to an exercise of the clinic: right, unusual and wrong ones."""
    from tests.grading import test_clinic_answers as answers
    from tests.grading.cases import cells_of
    from tests.grading.hand_ins import code, notebook, put

    cells = cells_of("10_clinic")
    entry = f"exercise-clinic.{name}"
    program = [cell.source for cell in cells if entry in cell.tags]
    forms: dict[str, list[str]] = {"right": program}
    for number, edits in enumerate(answers.EDITS["unusual"][name]):
        forms[f"unusual {number}"] = answers.edited(program, *edits)
    for what, (wrong, _) in answers.falsified(name, program).items():
        forms[what] = wrong
    dropped_edits = answers.EDITS["dropped"][name]["edits"]
    forms["a condition dropped"] = answers.edited(program, *dropped_edits)

    untagged = [code(cell.source) for cell in cells if not cell.tags]
    with TemporaryDirectory() as place:
        folder = Path(place) / "class"
        for form, changed in forms.items():
            answer = code(changed[-1], f"clinic.{name}")
            put(folder / f"{student_of(form)}.ipynb", notebook(*untagged, answer))
        return graded(folder, "--lesson", "10_clinic")


def graded(folder: Path, *options: str) -> str:
    """Grade a folder by the command, and return the exit status and the table that it writes."""
    table = folder.parent / "grades.csv"
    words = ["grade", str(folder), "--csv", str(table), "--seed", SEED, "--workers", "1"]
    status = cli.main([*words, *options])
    cut_students = tuple(student_of(name) for name in DEPENDS_ON_LOAD)
    whole_rows = []
    cut_rows = []
    for line in sorted(table.read_text(encoding="utf-8").splitlines()):
        if line.startswith(cut_students):
            cut_rows.append(",".join(line.split(",")[:COLUMNS_UP_TO_POINTS]))
        else:
            whole_rows.append(line)
    text = "\n".join([f"status {status}", *whole_rows, *cut_rows]) + "\n"
    return without_places(text, {"CLASS": folder, "OUT": folder.parent, "TREE": guarded_tree()})


def student_of(name: str) -> str:
    """Return a name of letters, digits and underscores for the file of a hand-in.

    >>> student_of("os._exit in the cell")
    'os__exit_in_the_cell'
    """
    return "".join(letter if letter.isalnum() else "_" for letter in name)
