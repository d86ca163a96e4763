"""Honest learners get their points, wherever and however the answer stands: notebooks as data, with their rows.

Every answer is a right one, or the starter; what is odd is where and how it stands.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from labkit.grading import EXERCISES, judge
from labkit.grading.batch import grade
from labkit.grading.judge import answers_of, grading_cases
from labkit.grading.plan import plan, read
from labkit.grading.program import program_of
from labkit.grading.sandbox.worker import Limits
from labkit.grading.submission import Unreadable, find
from tests.grading.hand_ins import NOTEBOOK, RIGHT, SETUP, UNSCALE, code, notebook, put, starter

SEED = 13
PLAIN, ADVANCE = RIGHT.lstrip(), RIGHT.lstrip().replace("+ 1", "+ ONE")
CHECK = 'check("scaling.advance", my_advance)\n'
BYTES = "import math\ndef my_bytes(shape, bits):\n    return math.ceil(math.prod(shape) * bits / 8)\n"
SMALLEST = """\
def my_smallest(exponent_bits, significand_bits):
    return 2.0 ** (2 - 2 ** (exponent_bits - 1) - significand_bits)
"""
STARTER, LESSON_01 = starter(), "01_numbers.ipynb"
IDS = {
    "advance": "scaling.advance",
    "unscale": "scaling.unscale",
    "bytes": "numbers.bytes",
    "smallest": "start.smallest",
}
FULL = {id: EXERCISES[id].points for id in IDS.values()}


@dataclass(frozen=True)
class Odd:
    """What a student hands in, and what it is worth: the full points of `earns`, nothing for the other exercises.

    says   part of the reason of scaling.advance
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
    """An answer that needs a name from a cell of its own."""
    return Odd(lesson(cell(source), cell(ADVANCE + CHECK, "advance")))


def line(before: str = "", after: str = "") -> Odd:
    """An answer with other lines in its cell."""
    return Odd(lesson(cell(before + PLAIN + after, "advance")))


# What ONE = 1 looks like, in a cell of its own.
CONSTANTS = {
    "a plain constant": "ONE = 1",
    "a power": "ONE = int(2 ** 0.0)",
    "a power as it is": "ONE = 2 ** 0",
    "arithmetic": "ONE = 3 - 2 * 1",
    "a negative of a negative": "ONE = -(-1)",
    "two at once": "ONE, TWO = 1, 2",
    "two at once, in a list": "[ONE, TWO] = [1, 2]",
    "a star": "ONE, *REST = 1, 2, 3",
    "one value for two": "EINS = ONE = 1",
    "annotated": "ONE: int = 1",
    "annotated first": "ONE: int\nONE = 1",
    "a comprehension": "ONE = [k for k in range(3)][1]",
    "a table": "TABLE = {k: k + 1 for k in range(3)}\nONE = TABLE[0]",
    "a table that is filled": "TABLE = {}\nfor k in range(3):\n    TABLE[k] = k + 1\nONE = TABLE[0]",
    "a list that grows": "ALL = []\nALL.append(1)\nONE = ALL[0]",
    "a sum": "ONE = 0\nONE += 1",
    "a sum in a loop": "ONE = 0\nfor _ in range(1):\n    ONE += 1",
    "while": "ONE = 0\nwhile ONE < 1:\n    ONE += 1",
    "an alias": "EINS = 1\nONE = EINS",
    "a function's result": "def one():\n    return 1\n\nONE = one()",
    "a function's default": "def one(x=1):\n    return x\n\nONE = one()",
    "a lambda": "one = lambda: 1\nONE = one()",
    "a partial": "from functools import partial\none = partial(max, 0, 1)\nONE = one()",
    "a class": "class Numbers:\n    ONE = 1\n\nONE = Numbers.ONE",
    "a data class": "from dataclasses import dataclass\n\n@dataclass\nclass N:\n    one: int = 1\n\nONE = N().one",
    "a class that is changed": "class N:\n    pass\n\nN.one = 1\nONE = N.one",
    "an enum": "from enum import IntEnum\nclass N(IntEnum):\n    ONE = 1\nONE = N.ONE.value",
    "an import": "import math\nONE = math.gcd(2, 3)",
    "an import in brackets": "from math import (\n    gcd,\n)\nONE = gcd(2, 3)",
    "a star import": "from math import *\nONE = gcd(2, 3)",
    "a star import alone": "from operator import *\ndef one():\n    return sub(2, 1)\nONE = one()",
    "try: import": "try:\n    import cupy as xp\nexcept ImportError:\n    import math as xp\nONE = xp.gcd(2, 3)",
    "try: a constant": "try:\n    ONE = 1 / 0\nexcept ZeroDivisionError:\n    ONE = 1",
    "if": "if torch.cuda.is_available():\n    ONE = 1\nelse:\n    ONE = 1",
    "with": "with torch.no_grad():\n    ONE = int(torch.ones(1))",
    "match": "match 3:\n    case 3:\n        ONE = 1",
    "a walrus": "(ONE := 1)",
    "torch": "ONE = int(torch.tensor(1.0).item())",
    "a float by name": "ONE = int(float('1.0'))",
    "an f-string": "ONE = int(f'{1}')",
    "a decorator": "def same(f):\n    return f\n\n@same\ndef one():\n    return 1\n\nONE = one()",
    "a kept answer": "from functools import lru_cache\n@lru_cache\ndef one():\n    return 1\n\nONE = one()",
    "an async function": "async def one():\n    return 1\n\nONE = await one()",
    "the time of it": "ONE = %time 1",
    "time of a statement": "%time ONE = 1",
    "a cell's time": "%%time\nONE = 1",
    "a cell's output": "%%capture\nONE = 1",
    "magic beside it": "%matplotlib inline\n%load_ext autoreload\n%autoreload 2\nONE = 1",
    "a shell command beside it": "!nvidia-smi\nfiles = !ls\nONE = 1",
    "a question beside it": "torch.isfinite?\n?print\nONE = 1",
    "a prompt": ">>> ONE = 1",
    "defined twice": "ONE = 5\nONE = 1",
    "an error behind it": "ONE = 1\nprint(nowhere)\nraise RuntimeError",
}
# Lines before and after an answer, in its own cell.
BEFORE = {
    "a blank line": "\n\n",
    "a comment": "# my answer\n",
    "time of the cell": "%%time\n",
    "magic": "%matplotlib inline\n",
    "a shell command": "!pip list\n",
    "a shell command's output": "files = !ls\n",
    "a question": "ScalerState?\n",
    "display": "from IPython.display import display\ndisplay(ScalerState(1.0))\n",
    "display without import": "display(ScalerState(1.0))\n",
    "the shell": "get_ipython().run_line_magic('matplotlib', 'inline')\n",
    "await": "import asyncio\nawait asyncio.sleep(0)\n",
    "an import in the cell": "import torch\nimport numpy as np\n",
    "a print": "print('my answer')\n",
}
AFTER = {
    "the check": CHECK,
    "the check, shown": f"display({CHECK.strip()})\n",
    "a timed check": f"%time {CHECK}",
    "an indented %timeit": "for n in range(2):\n    %timeit -n1 -r1 ScalerState(1.0)\n",
    "a question at the end": "my_advance?\n",
    "an assertion": "assert my_advance(ScalerState(8.0, 1), True, ScalerConfig()).growth_tracker == 0\n",
    "an error": "my_advance(nothing)\n",
    "a run's result": "print(run.metric)\n",
    "sys.exit": "import sys\nsys.exit()\n",
    "await at the end": "import asyncio\nawait asyncio.sleep(0)\n",
    "async for": "async def two():\n    yield 1\nprint([x async for x in two()])\n",
}
SLOW_RUN = cell("import time\ntime.sleep(600)\nrun = [time.sleep(600) for _ in range(9)]\ngrads = time.sleep(600)")
SOLVED, OPEN, HELPED = cell(PLAIN, "advance"), cell(STARTER, "advance"), cell(ADVANCE, "advance")
UNSCALED, BY_BYTES, EARLIER = cell(UNSCALE, "unscale"), cell(BYTES, "bytes"), cell(SMALLEST, "smallest")
BY_LAMBDA = "my_unscale = lambda g, s: ([x.float() / s for x in g], any(bool((~x.isfinite()).any()) for x in g))"

ODD: dict[str, Odd] = {
    **{f"ONE: {name}": helper(source) for name, source in CONSTANTS.items()},
    **{f"before: {name}": line(before=source) for name, source in BEFORE.items()},
    **{f"after: {name}": line(after=source) for name, source in AFTER.items()},
    "a helper behind it": Odd(lesson(HELPED, cell("ONE = 1"))),
    "a helper with a name of Python's own": Odd(
        lesson(cell("def abs(x):\n    return 1"), cell(PLAIN.replace("+ 1", "+ abs(7)"), "advance"), cell("max = 3"))
    ),
    "a helper before and another behind it": Odd(lesson(cell("ONE = 1"), HELPED, cell("ONE = 7"))),
    "a long run elsewhere": Odd(lesson(SLOW_RUN, cell(PLAIN + "print(run)\n" + CHECK, "advance"))),
    "a local name that is a long run elsewhere": Odd(lesson(SLOW_RUN, UNSCALED), "unscale"),
    "helpers of helpers": Odd(lesson(cell("a = 0"), cell("def b():\n    return a + 1"), cell("ONE = b()"), HELPED)),
    "an alias of the answer": Odd(lesson(cell(PLAIN.replace("my_advance", "f") + "my_advance = f\n", "advance"))),
    "a lambda for an answer": Odd(lesson(cell(BY_LAMBDA, "unscale")), "unscale"),
    "copied as it is": Odd(lesson(SOLVED, SOLVED)),
    "copied, the first one solved": Odd(lesson(SOLVED, OPEN)),
    "copied, the second one solved": Odd(lesson(OPEN, SOLVED)),
    "copied and improved": Odd(lesson(cell(PLAIN.replace("1", "2"), "advance"), SOLVED)),
    "copied, an attempt that is no Python": Odd(lesson(cell("def my_advance(:", "advance"), SOLVED)),
    "split behind the helper": Odd(lesson(cell("ONE = 1\n", "advance"), HELPED)),
    "split before the check": Odd(lesson(SOLVED, cell(CHECK, "advance"))),
    "split, the tag gone": Odd(lesson(cell("# Exercise", "advance"), cell(PLAIN), cell(CHECK))),
    "the answer in the next cell": Odd(lesson(cell(STARTER + CHECK, "advance"), cell(PLAIN + CHECK))),
    "the answer in the cell before": Odd(lesson(cell(PLAIN), cell(CHECK, "advance"))),
    "its cell deleted, the answer elsewhere": Odd(lesson(cell(PLAIN), UNSCALED), "advance unscale"),
    "its id, no tag": Odd(lesson(cell(PLAIN, id="exercise-scaling-advance"))),
    "both in one cell": Odd(lesson(cell(PLAIN + UNSCALE, "advance"), cell("# above", "unscale")), "advance unscale"),
    "pasted into another lesson": Odd(lesson(BY_BYTES, cell("x = 1"), SOLVED, name=LESSON_01), "bytes advance"),
    "an earlier lesson's cell in this one": Odd(lesson(EARLIER, SOLVED, UNSCALED), "smallest advance unscale"),
    "two lessons, one answer pasted into the other": Odd(
        lesson(OPEN, UNSCALED) | lesson(BY_BYTES, SOLVED, name=LESSON_01), "advance unscale bytes"
    ),
    "01, not 06": Odd({LESSON_01: notebook(BY_BYTES)}, "bytes", "no notebook of lesson 06_loss_scaling was handed in"),
    "a byte order mark": Odd({NOTEBOOK: "\ufeff" + notebook(cell(SETUP), SOLVED)}),
    "Windows' line ends": Odd(lesson(cell(PLAIN.replace("\n", "\r\n"), "advance"))),
    "tabs": Odd(lesson(cell(PLAIN.replace("    ", "\t"), "advance"))),
    "indented as a whole": Odd(lesson(cell("    " + PLAIN.rstrip().replace("\n", "\n    "), "advance"))),
    "another name for the file": Odd(lesson(SOLVED, name="homework (1).ipynb")),
    "twice, the later one solved": Odd(lesson(OPEN, name=f"1/{NOTEBOOK}") | lesson(SOLVED, name=f"2/{NOTEBOOK}")),
    "a copy that is the starter": Odd(lesson(SOLVED) | {f"z/{NOTEBOOK}": notebook(OPEN)}),
    "notes beside it": Odd({**lesson(SOLVED), "notes.ipynb": notebook(cell("x = 1"))}),
    "nothing but the starter": Odd(lesson(OPEN), "", "unsolved"),
    "no cell of it": Odd(lesson(UNSCALED), "unscale", "its cell was deleted"),
    "an import that this machine lacks": Odd(lesson(cell("import cupy"), cell("cupy.zeros(1)\n"), SOLVED)),
}  # fmt: skip


# A name that only running the other cells binds: the whole notebook runs, where an answer misses a name.
BOUND_BY_RUNNING = {
    "exec": "exec('ONE = 1')",
    "globals": "globals()['ONE'] = 1",
    "a global in a function": "def prepare():\n    global ONE\n    ONE = 1\n\nprepare()",
    "the names of a module": "import math\nglobals().update(ONE=math.gcd(2, 3))",
}


def points_here(program: list[str], id: str) -> int:
    """Run a program in this process, as the grading process does, and return its points: these learners are honest."""
    names: dict[str, object] = {"__name__": "__main__", "check": lambda *_: None, **EXERCISES[id].provides}
    for source in program:
        try:
            code = compile(source, "<a cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if inspect.iscoroutine(waiting := eval(code, names)):
                with ThreadPoolExecutor() as kernel:  # a browser's tests leave an event loop running in this thread
                    kernel.submit(asyncio.run, waiting).result()
        except (Exception, SystemExit):
            continue
    whole = grading_cases(EXERCISES[id], SEED)
    paper = replace(whole, cases=tuple(cases[:4] for cases in whole.cases))  # right or not there: a few calls tell
    return judge(paper, answers_of(paper, names.get(EXERCISES[id].entry))).points


def points_here_of(submission: Any, id: str) -> int:
    """Return the points of one exercise; nothing to run earns nothing."""
    try:
        return 0 if submission.problem else points_here(program_of(submission.cells, EXERCISES[id]), id)
    except Unreadable:
        return 0


def hand_in(folder: Path, students: dict[str, Odd] = ODD) -> None:
    """Write the files of every student."""
    for number, odd in enumerate(students.values()):
        for name, content in odd.files.items():
            put(folder / f"{number:03}" / name, content)


def test_every_odd_notebook_gets_its_points(tmp_path: Path) -> None:
    hand_in(tmp_path)
    found: dict[str, dict[str, int]] = {f"{number:03}": {} for number in range(len(ODD))}
    for submission, exercises in plan([read(one) for one in find([tmp_path])], None):
        for exercise in exercises:
            row = found[submission.submission.student]
            assert exercise.id not in row, "one row for each"
            row[exercise.id] = points_here_of(submission, exercise.id)
    for (name, odd), row in zip(ODD.items(), found.values(), strict=True):
        assert {id: points for id, points in row.items() if points} == odd.points, name


@pytest.mark.slow
def test_the_class_of_odd_notebooks_gets_its_rows(tmp_path: Path) -> None:
    everything = ODD | {f"ONE, by running: {name}": helper(source) for name, source in BOUND_BY_RUNNING.items()}
    hand_in(tmp_path, everything)
    rows = {(row.student, row.exercise): row for row in grade(find([tmp_path]), SEED, Limits())}
    for number, (name, odd) in enumerate(everything.items()):
        points = {id: row.points for (who, id), row in rows.items() if who == f"{number:03}" and row.points}
        assert points == odd.points, name
        assert odd.says == "" or odd.says in rows[f"{number:03}", "scaling.advance"].reason, name
