"""Honest notebooks in unusual forms, with the rows that they must get.

Almost every answer is a right one or the starter; it is in an unexpected cell, notebook or form.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labkit.grading import EXERCISES
from labkit.grading.batch import grade
from labkit.grading.sandbox.worker import Limits
from labkit.grading.submission import find
from tests.grading.hand_ins import NOTEBOOK, RIGHT, SETUP, UNSCALE, code, notebook, put, starter

SEED = 13
PLAIN = RIGHT.lstrip()
ADVANCE = RIGHT.lstrip().replace("+ 1", "+ ONE")
CHECK = 'check("scaling.advance", my_advance)\n'
BYTES = (
    "import math\ndef my_bytes(shape, bits):\n    return math.ceil(math.prod(shape) * bits / 8)\n"
)
SMALLEST = """\
def my_smallest(exponent_bits, significand_bits):
    return 2.0 ** (2 - 2 ** (exponent_bits - 1) - significand_bits)
"""
STARTER = starter()
LESSON_01 = "01_numbers.ipynb"
IDS = {
    "advance": "scaling.advance",
    "unscale": "scaling.unscale",
    "bytes": "numbers.bytes",
    "smallest": "start.smallest",
}
FULL = {id: EXERCISES[id].points for id in IDS.values()}


@dataclass(frozen=True)
class Odd:
    """What a student hands in, and the points that it must get.

    Attributes:
        files: Name -> content.
        earns: The exercises that earn full points, as words of IDS. The others earn nothing.
        says: Words in the reason of scaling.advance.
    """

    files: dict[str, str | bytes]
    earns: str = "advance"
    says: str = ""

    @property
    def points(self) -> dict[str, int]:
        return {IDS[word]: FULL[IDS[word]] for word in self.earns.split()}


def cell(source: str, word: str = "", id: str = "") -> dict[str, Any]:
    return code(source, IDS.get(word, ""), id)


def lesson(*cells: dict[str, Any], name: str = NOTEBOOK) -> dict[str, str | bytes]:
    return {name: notebook(cell(SETUP), *cells)}


def helper(source: str) -> Odd:
    """Return an answer that uses the name ONE, which another cell binds."""
    return Odd(lesson(cell(source), cell(ADVANCE + CHECK, "advance")))


def helpers_of_a_call(sources: str) -> Odd:
    """Return an answer that calls one(), whose result depends on what other cells do.

    Args:
        sources: The other cells, separated by lines of three dashes.
    """
    called = cell(ADVANCE.replace("ONE", "one()"), "advance")
    return Odd(lesson(*map(cell, sources.split("\n---\n")), called))


def line(before: str = "", after: str = "") -> Odd:
    """Return an answer with other lines before and after it in its cell."""
    return Odd(lesson(cell(before + PLAIN + after, "advance")))


# Texts of cells. CONSTANTS bind ONE to 1 in various ways; BEFORE and AFTER are lines before and
# after an answer in its cell.
TEXTS = tomllib.loads(Path(__file__).with_name("odd_notebooks.toml").read_text(encoding="utf-8"))
CONSTANTS = TEXTS["constants"]
BEFORE = TEXTS["before"]
AFTER = {name: text.replace("CHECK", CHECK.strip()) for name, text in TEXTS["after"].items()}
SLOW_RUN = cell(
    "import time\ntime.sleep(600)\nrun = [time.sleep(600) for _ in range(9)]\n"
    "grads = time.sleep(600)"
)
SOLVED = cell(PLAIN, "advance")
OPEN = cell(STARTER, "advance")
HELPED = cell(ADVANCE, "advance")
UNSCALED = cell(UNSCALE, "unscale")
BY_BYTES = cell(BYTES, "bytes")
EARLIER = cell(SMALLEST, "smallest")
BY_LAMBDA = (
    "my_unscale = lambda g, s, limit: ([x.float() / s for x in g], "
    "any(bool((~(x.isfinite() & (x.float().abs() / s <= limit))).any()) for x in g))"
)

ODD: dict[str, Odd] = {
    **{f"ONE: {name}": helper(source) for name, source in CONSTANTS.items()},
    **{f"before: {name}": line(before=source) for name, source in BEFORE.items()},
    **{f"after: {name}": line(after=source) for name, source in AFTER.items()},
    **{
        f"ONE, by running: {name}": helper(source)
        for name, source in TEXTS["bound by running"].items()
    },
    **{
        f"one(): {name}": helpers_of_a_call(source)
        for name, source in TEXTS["bound by effect"].items()
    },
    "a helper behind it": Odd(lesson(HELPED, cell("ONE = 1"))),
    "a helper with a name of Python's own": Odd(
        lesson(
            cell("def abs(x):\n    return 1"),
            cell(PLAIN.replace("+ 1", "+ abs(7)"), "advance"),
            cell("max = 3"),
        )
    ),
    "a helper before and another behind it": Odd(lesson(cell("ONE = 1"), HELPED, cell("ONE = 7"))),
    "a long run elsewhere": Odd(lesson(SLOW_RUN, cell(PLAIN + "print(run)\n" + CHECK, "advance"))),
    "a local name that is a long run elsewhere": Odd(lesson(SLOW_RUN, UNSCALED), "unscale"),
    "helpers of helpers": Odd(
        lesson(cell("a = 0"), cell("def b():\n    return a + 1"), cell("ONE = b()"), HELPED)
    ),
    "an alias of the answer": Odd(
        lesson(cell(PLAIN.replace("my_advance", "f") + "my_advance = f\n", "advance"))
    ),
    "a lambda for an answer": Odd(lesson(cell(BY_LAMBDA, "unscale")), "unscale"),
    "copied as it is": Odd(lesson(SOLVED, SOLVED)),
    "copied, the first one solved": Odd(lesson(SOLVED, OPEN)),
    "copied, the second one solved": Odd(lesson(OPEN, SOLVED)),
    "copied and improved": Odd(lesson(cell(PLAIN.replace("1", "2"), "advance"), SOLVED)),
    "copied, an attempt that is not Python": Odd(
        lesson(cell("def my_advance(:", "advance"), SOLVED)
    ),
    "split behind the helper": Odd(lesson(cell("ONE = 1\n", "advance"), HELPED)),
    "split before the check": Odd(lesson(SOLVED, cell(CHECK, "advance"))),
    "split, the tag gone": Odd(lesson(cell("# Exercise", "advance"), cell(PLAIN), cell(CHECK))),
    "the answer in the next cell": Odd(
        lesson(cell(STARTER + CHECK, "advance"), cell(PLAIN + CHECK))
    ),
    "the answer in the cell before": Odd(lesson(cell(PLAIN), cell(CHECK, "advance"))),
    "its cell deleted, the answer elsewhere": Odd(lesson(cell(PLAIN), UNSCALED), "advance unscale"),
    "its id, no tag": Odd(lesson(cell(PLAIN, id="exercise-scaling-advance"))),
    "both in one cell": Odd(
        lesson(cell(PLAIN + UNSCALE, "advance"), cell("# above", "unscale")), "advance unscale"
    ),
    "pasted into another lesson": Odd(
        lesson(BY_BYTES, cell("x = 1"), SOLVED, name=LESSON_01), "bytes advance"
    ),
    "an earlier lesson's cell in this one": Odd(
        lesson(EARLIER, SOLVED, UNSCALED), "smallest advance unscale"
    ),
    "two lessons, one answer pasted into the other": Odd(
        lesson(OPEN, UNSCALED) | lesson(BY_BYTES, SOLVED, name=LESSON_01), "advance unscale bytes"
    ),
    "01, not 06": Odd(
        {LESSON_01: notebook(BY_BYTES)},
        "bytes",
        "no notebook of lesson 06_loss_scaling was handed in",
    ),
    "a byte order mark": Odd({NOTEBOOK: "\ufeff" + notebook(cell(SETUP), SOLVED)}),
    "Windows' line ends": Odd(lesson(cell(PLAIN.replace("\n", "\r\n"), "advance"))),
    "tabs": Odd(lesson(cell(PLAIN.replace("    ", "\t"), "advance"))),
    "indented as a whole": Odd(
        lesson(cell("    " + PLAIN.rstrip().replace("\n", "\n    "), "advance"))
    ),
    "another name for the file": Odd(lesson(SOLVED, name="homework (1).ipynb")),
    "twice, the later one solved": Odd(
        lesson(OPEN, name=f"1/{NOTEBOOK}") | lesson(SOLVED, name=f"2/{NOTEBOOK}")
    ),
    "a copy that is the starter": Odd(lesson(SOLVED) | {f"z/{NOTEBOOK}": notebook(OPEN)}),
    "notes beside it": Odd({**lesson(SOLVED), "notes.ipynb": notebook(cell("x = 1"))}),
    "nothing but the starter": Odd(lesson(OPEN), "", "unsolved"),
    "no cell of it": Odd(lesson(UNSCALED), "unscale", "its cell was deleted"),
    "an import that this machine lacks": Odd(
        lesson(cell("import cupy"), cell("cupy.zeros(1)\n"), SOLVED)
    ),
}


def hand_in(folder: Path, students: dict[str, Odd]) -> None:
    """Write the files of every student."""
    for number, odd in enumerate(students.values()):
        for name, content in odd.files.items():
            put(folder / f"{number:03}" / name, content)


@pytest.mark.parametrize(
    "part", [3, pytest.param(1, marks=pytest.mark.slow)], ids=["a third", "all"]
)
def test_every_odd_notebook_gets_its_points(part: int, tmp_path: Path) -> None:
    odd_ones = dict(list(ODD.items())[::part])
    hand_in(tmp_path, odd_ones)
    rows = {(row.student, row.exercise): row for row in grade(find([tmp_path]), SEED, Limits())}
    for number, (name, odd) in enumerate(odd_ones.items()):
        points = {
            id: row.points
            for (who, id), row in rows.items()
            if who == f"{number:03}" and row.points
        }
        assert points == odd.points, name
        assert odd.says == "" or odd.says in rows[f"{number:03}", "scaling.advance"].reason, name


@pytest.mark.slow
def test_a_long_run_costs_no_points_of_an_answer_that_fails(tmp_path: Path) -> None:
    """An answer that fails is graded again behind all cells, one of which takes too long here."""
    fails = "def one():\n    raise KeyError\n"
    slow_run = "import time\ntime.sleep(600)\nrun = [time.sleep(600) for _ in range(9)]"
    hand_in(tmp_path, {"": helpers_of_a_call(f"{fails}\n---\n{slow_run}")})
    rows = {row.exercise: row for row in grade(find([tmp_path]), SEED, Limits(seconds=1))}
    assert rows[IDS["advance"]].points > 0
    assert rows[IDS["advance"]].reason.startswith("1 of 5 checks pass")
