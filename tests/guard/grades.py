"""Grades of hostile and odd hand-ins and of edited answers to the clinic, by the command `labkit
grade`.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from labkit import cli
from tests.guard.plain import without_places
from tests.guard.processes import Item
from tests.guard.trees import guarded_tree

SEED = "5"
# how a hand-in ends that takes all it can get of processes or memory depends on the machine's load:
# only its points
BY_LOAD = ("starts processes without end", "starts threads without end", "eats memory slowly")


def items() -> Iterator[Item]:
    """Yield an item for each group of hand-ins."""
    yield Item("grades/hostile", partial(hostile, "BREAKS"))
    yield Item("grades/cheats", partial(hostile, "CHEATS"))
    yield Item("grades/odd", odd)
    from tests.grading.test_clinic_answers import NAMES

    for name in NAMES:
        yield Item(f"grades/clinic_{name}", partial(clinic, name))


def hostile(group: str) -> str:
    """Return the rows of a class of hostile hand-ins, or of cheats."""
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
        for name, one in ODD.items():
            for path, content in one.files.items():
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
    forms: Mapping[str, list[str]] = {
        "right": program,
        **{
            f"unusual {number}": answers.edited(program, *edits)
            for number, edits in enumerate(answers.EDITS["unusual"][name])
        },
        **{what: wrong for what, (wrong, _) in answers.falsified(name, program).items()},
        "a condition dropped": answers.edited(program, *answers.EDITS["dropped"][name]["edits"]),
    }
    with TemporaryDirectory() as place:
        folder = Path(place) / "class"
        for form, changed in forms.items():
            others = [
                code(cell.source) for cell in cells if entry not in cell.tags and not cell.tags
            ]
            answer = code(changed[-1], f"clinic.{name}")
            put(folder / f"{student_of(form)}.ipynb", notebook(*others, answer))
        return graded(folder, "--lesson", "10_clinic")


def graded(folder: Path, *options: str) -> str:
    """Grade a folder by the command, and return the exit status and the table that it writes."""
    table = folder.parent / "grades.csv"
    words = ["grade", str(folder), "--csv", str(table), "--seed", SEED, "--workers", "1"]
    status = cli.main([*words, *options])
    lines = sorted(table.read_text(encoding="utf-8").splitlines())
    shown = [line for line in lines if not line.startswith(tuple(map(student_of, BY_LOAD)))]
    shown += [",".join(line.split(",")[:4]) for line in lines if line not in shown]
    text = f"status {status}\n" + "".join(f"{line}\n" for line in shown)
    return without_places(text, {"CLASS": folder, "OUT": folder.parent, "TREE": guarded_tree()})


def student_of(name: str) -> str:
    """Return a name of letters, digits and underscores for the file of a hand-in.

    >>> student_of("os._exit in the cell")
    'os__exit_in_the_cell'
    """
    return "".join(letter if letter.isalnum() else "_" for letter in name)
