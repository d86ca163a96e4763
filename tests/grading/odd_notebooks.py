"""Notebooks as honest learners hand them in, as data: files of one student each, and the points that they must get.

Every answer is a right one, or the starter; what is odd is where and how it stands.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SETUP = "import torch\nfrom labkit.amp import ScalerConfig, ScalerState\nfrom labkit.grading import check"
ADVANCE = """\
def my_advance(state, found_inf, config):
    if found_inf:
        return ScalerState(state.scale * config.backoff_factor, 0)
    if state.growth_tracker + ONE == config.growth_interval:
        return ScalerState(state.scale * config.growth_factor, 0)
    return ScalerState(state.scale, state.growth_tracker + ONE)
"""
PLAIN = ADVANCE.replace("ONE", "1")
UNSCALE = """\
def my_unscale(scaled_grads, scale):
    grads = [grad.float() / scale for grad in scaled_grads]
    return grads, not all(bool(torch.isfinite(grad).all()) for grad in grads)
"""
BYTES = "import math\ndef my_bytes(shape, bits):\n    return math.ceil(math.prod(shape) * bits / 8)\n"
SMALLEST = """\
def my_smallest(exponent_bits, significand_bits):
    return 2.0 ** (2 - 2 ** (exponent_bits - 1) - significand_bits)
"""
STARTER = "def my_advance(state, found_inf, config):\n    raise NotImplementedError('your code goes here')\n"
CHECK = 'check("scaling.advance", my_advance)\n'
FULL = {"scaling.advance": 8, "scaling.unscale": 6, "numbers.bytes": 3, "start.smallest": 2}
IDS = {
    "advance": "scaling.advance",
    "unscale": "scaling.unscale",
    "bytes": "numbers.bytes",
    "smallest": "start.smallest",
}
LESSON_06, LESSON_01 = "06_loss_scaling.ipynb", "01_numbers.ipynb"


@dataclass(frozen=True)
class Odd:
    """What a student hands in, and what it is worth: the full points of `earns`, nothing for the other exercises.

    says   part of a row's reason, by exercise
    """

    files: dict[str, bytes]
    earns: tuple[str, ...] = ("scaling.advance",)
    says: dict[str, str] = field(default_factory=dict)


def cell(source: str, word: str = "", id: str = "") -> dict[str, Any]:
    tags = [f"exercise-{IDS[word]}"] if word else []
    return {"cell_type": "code", "id": id, "metadata": {"tags": tags}, "source": source.splitlines(keepends=True)}


def notebook(*cells: dict[str, Any]) -> bytes:
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


def lesson(*cells: dict[str, Any]) -> dict[str, bytes]:
    return {LESSON_06: notebook(cell(SETUP), *cells)}


def helper(source: str, answer: str = ADVANCE) -> Odd:
    """An answer that needs a name from a cell of its own."""
    return Odd(lesson(cell(source), cell(answer + CHECK, "advance")))


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

ODD: dict[str, Odd] = {
    **{f"ONE: {name}": helper(source) for name, source in CONSTANTS.items()},
    **{f"before: {name}": line(before=source) for name, source in BEFORE.items()},
    **{f"after: {name}": line(after=source) for name, source in AFTER.items()},
    "a helper behind it": Odd(lesson(cell(ADVANCE, "advance"), cell("ONE = 1"))),
    "a helper before and another behind it": Odd(lesson(cell("ONE = 1"), cell(ADVANCE, "advance"), cell("ONE = 7"))),
    "a long run elsewhere": Odd(lesson(SLOW_RUN, cell(PLAIN + "print(run)\n" + CHECK, "advance"))),
    "a local name that is a long run elsewhere": Odd(lesson(SLOW_RUN, cell(UNSCALE, "unscale")), ("scaling.unscale",)),
    "helpers of helpers": Odd(
        lesson(cell("a = 0"), cell("def b():\n    return a + 1"), cell("ONE = b()"), cell(ADVANCE, "advance"))
    ),
    "an alias of the answer": Odd(lesson(cell(PLAIN.replace("my_advance", "f") + "my_advance = f\n", "advance"))),
    "a lambda for an answer": Odd(
        lesson(
            cell(
                "my_unscale = lambda g, s: ([x.float() / s for x in g], any(bool((~x.isfinite()).any()) for x in g))",
                "unscale",
            )
        ),
        ("scaling.unscale",),
    ),
    "copied as it is": Odd(lesson(cell(PLAIN, "advance"), cell(PLAIN, "advance"))),
    "copied, the first one solved": Odd(lesson(cell(PLAIN, "advance"), cell(STARTER, "advance"))),
    "copied, the second one solved": Odd(lesson(cell(STARTER, "advance"), cell(PLAIN, "advance"))),
    "copied and improved": Odd(lesson(cell(PLAIN.replace("1", "2"), "advance"), cell(PLAIN, "advance"))),
    "copied, an attempt that is no Python": Odd(lesson(cell("def my_advance(:", "advance"), cell(PLAIN, "advance"))),
    "split behind the helper": Odd(lesson(cell("ONE = 1\n", "advance"), cell(ADVANCE, "advance"))),
    "split before the check": Odd(lesson(cell(PLAIN, "advance"), cell(CHECK, "advance"))),
    "split, the tag gone": Odd(lesson(cell("# Exercise", "advance"), cell(PLAIN), cell(CHECK))),
    "the answer in the next cell": Odd(lesson(cell(STARTER + CHECK, "advance"), cell(PLAIN + CHECK))),
    "the answer in the cell before": Odd(lesson(cell(PLAIN), cell(CHECK, "advance"))),
    "its cell deleted, the answer elsewhere": Odd(
        lesson(cell(PLAIN), cell(UNSCALE, "unscale")), ("scaling.advance", "scaling.unscale")
    ),
    "its id, no tag": Odd(lesson(cell(PLAIN, id="exercise-scaling-advance"))),
    "both in one cell": Odd(
        lesson(cell(PLAIN + UNSCALE, "advance"), cell("# see above", "unscale")), ("scaling.advance", "scaling.unscale")
    ),
    "pasted into another lesson": Odd(
        {LESSON_01: notebook(cell(SETUP), cell(BYTES, "bytes"), cell("x = 1"), cell(PLAIN, "advance"))},
        ("numbers.bytes", "scaling.advance"),
    ),
    "a cell of an earlier lesson in this one": Odd(
        lesson(cell(SMALLEST, "smallest"), cell(PLAIN, "advance"), cell(UNSCALE, "unscale")),
        ("start.smallest", "scaling.advance", "scaling.unscale"),
    ),
    "two lessons, one answer pasted into the other": Odd(
        {
            LESSON_06: notebook(cell(SETUP), cell(STARTER, "advance"), cell(UNSCALE, "unscale")),
            LESSON_01: notebook(cell(SETUP), cell(BYTES, "bytes"), cell(PLAIN, "advance")),
        },
        ("scaling.advance", "scaling.unscale", "numbers.bytes"),
    ),
    "01 and not 06": Odd(
        {LESSON_01: notebook(cell(BYTES, "bytes"))},
        ("numbers.bytes",),
        {"scaling.advance": "no notebook of lesson 06_loss_scaling was handed in"},
    ),
    "a byte order mark": Odd({LESSON_06: b"\xef\xbb\xbf" + notebook(cell(SETUP), cell(PLAIN, "advance"))}),
    "Windows' line ends": Odd(lesson(cell(PLAIN.replace("\n", "\r\n"), "advance"))),
    "tabs": Odd(lesson(cell(PLAIN.replace("    ", "\t"), "advance"))),
    "indented as a whole": Odd(lesson(cell("    " + PLAIN.rstrip().replace("\n", "\n    "), "advance"))),
    "another name for the file": Odd({"homework (1).ipynb": lesson(cell(PLAIN, "advance"))[LESSON_06]}),
    "handed in twice, the later one solved": Odd(
        {
            "1/06_loss_scaling.ipynb": notebook(cell(SETUP), cell(STARTER, "advance")),
            "2/06_loss_scaling.ipynb": notebook(cell(SETUP), cell(PLAIN, "advance")),
        }
    ),
    "a copy that is the starter": Odd(
        {
            LESSON_06: notebook(cell(SETUP), cell(PLAIN, "advance")),
            "z/06_loss_scaling.ipynb": notebook(cell(STARTER, "advance")),
        }
    ),
    "notes beside it": Odd({**lesson(cell(PLAIN, "advance")), "notes.ipynb": notebook(cell("x = 1"))}),
    "nothing but the starter": Odd(lesson(cell(STARTER, "advance")), (), {"scaling.advance": "unsolved"}),
    "no cell of it": Odd(
        lesson(cell(UNSCALE, "unscale")), ("scaling.unscale",), {"scaling.advance": "its cell was deleted"}
    ),
    "an import that this machine lacks": Odd(
        lesson(cell("import cupy"), cell("cupy.zeros(1)\n"), cell(PLAIN, "advance"))
    ),
}


def hand_in(folder: Path, student: str, odd: Odd) -> None:
    """Write a student's files."""
    for name, content in odd.files.items():
        path = folder / student / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
