"""A class of learners who hand in right, odd and unreadable work, and what each of them earns.

Large texts are made when they are written, not when this module is imported.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.grading.hand_ins import (
    ADVANCE,
    CLIP,
    JOURNAL,
    NOTEBOOK,
    SETUP,
    SOLUTIONS,
    UNSCALE,
    WRONG,
    answered,
    archive,
    code,
    notebook,
    put,
    solved,
    starter,
)

Write = Callable[[Path, str], object]
Says = Mapping[str, str]
ID = "scaling.advance"
ONE = ("scaling.advance",)
ALL = tuple(SOLUTIONS)


@dataclass(frozen=True)
class HandIn:
    """How a learner hands work in, and what it is worth.

    Attributes:
        write: Writes the work into the folder of the class, under the learner's name.
        earns: The exercises that earn all their points; the others earn nothing.
        says: Words of the reason, by exercise.
    """

    write: Write
    earns: tuple[str, ...] = ()
    says: Says = field(default_factory=dict)


def flat(content: str | bytes, ending: str = ".ipynb") -> Write:
    """Hand in one file: <name><ending>."""
    return lambda folder, name: put(folder / f"{name}{ending}", content)


def behind(source: str) -> Write:
    """Hand in a notebook whose answer stands behind other code in its cell."""

    def write(folder: Path, name: str) -> None:
        put(folder / f"{name}.ipynb", answered(answer=f"{source}\n{ADVANCE}"))

    return write


def inside(content: str | bytes, file: str = NOTEBOOK, /, **others: str | bytes) -> Write:
    """Hand in a folder: <name>/<file>, and other files beside it."""

    def write(folder: Path, name: str) -> None:
        for other, text in {file: content, **others}.items():
            put(folder / name / other, text)

    return write


def link(target: str, file: str = "", **others: str | bytes) -> Write:
    """Hand in a symbolic link: <name>/<file>, with other files beside it.

    If `file` is empty or begins with a point, it is a suffix, and the link is <name><file>.
    """

    def write(folder: Path, name: str) -> None:
        path = folder / name / file if file[:1].isalnum() else folder / f"{name}{file}"
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(target)
        for other, text in others.items():
            put(folder / name / other, text)

    return write


def from_the_far_future(folder: Path, name: str) -> None:
    """Hand in a notebook with a time, in seconds since 1970, that `datetime` cannot represent."""
    os.utime(put(folder / f"{name}.ipynb", GOOD), (10.0**15, 10.0**15))


def a_file_of_eve(folder: Path, name: str) -> None:
    """Hand in a hard link to the notebook of eve."""
    (folder / name).mkdir()
    os.link(folder / "eve" / "final.ipynb", folder / name / "own.ipynb")


def deep(folder: Path, name: str) -> None:
    """Hand in nested folders whose path is longer than the system allows."""
    (folder / name).mkdir()
    here = os.open(folder / name, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("a", dir_fd=here)
        inner = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def many_dictionaries(folder: Path, name: str) -> None:
    """Hand in a notebook whose metadata has more values than are read."""
    values = '"metadata": {"x": [' + "{}," * 2_000_000 + "1]}"
    put(folder / f"{name}.ipynb", GOOD.replace('"metadata": {}', values, 1))


def much_code(folder: Path, name: str) -> None:
    """Hand in a notebook with more code than is read."""
    put(folder / f"{name}.ipynb", answered("# " + "x" * (1 << 20)))


def each(says: str) -> Says:
    """Return the same reason for every exercise."""
    return dict.fromkeys(ALL, says)


# Long or deeply nested code that Python runs: it costs no points in the answer's own cell.
HARMLESS = {
    "900 terms": "x = " + "+".join(["1"] * 900),
    "400 attributes": "class A: pass\na = A()\na.a = a\nx = a" + ".a" * 400,
    "1000 elif": "n = 0\nif n: pass\n" + "elif n: pass\n" * 1000,
    "an integer of 6,000 digits": "x = 0x" + "f" * 5000,
    "200,000 blank lines": "\n" * 200_000,
    "8,000 names": "a0 = 0\n" + "".join(f"a{i + 1} = a{i}\n" for i in range(8_000)),
}
# Code that Python or the grader refuses. In another cell it costs no points; in the answer's own
# cell it costs all.
BROKEN = {
    "10,000 terms": "x = " + "+".join(["1"] * 10_000),
    "a decimal of 5,000 digits": "x = " + "9" * 5000,
    "600 shell commands": "!true\n" * 600 + "(",
}
LATER = ["2026-01-01T10:00:00", "2026-01-01T10:00:00+00:00", "0001-01-01T00:00:00+14:00"]
LINE = {"kind": "exercise", "id": ID, "answer": "x"}
JOURNALS = {
    "deep": "[" * 100_000,
    "two zones": "\n".join(
        json.dumps({**LINE, "points": n, "when": when}) for n, when in enumerate(LATER)
    ),
    "long numbers": json.dumps({**LINE, "points": 0})[:-2] + "9" * 5000 + "}",
    "odd": "[" * 100_000 + "\n{}\n\xff",
}
NAMES = [
    "Bo",
    "bo",
    "Straße",
    "STRASSE",
    "Zo\u00eb",
    "Zoe\u0308",
    "=HYPERLINK(1)",
    "-minus",
    'O\'Neil, "Bo"; x',
]
STEERING = "\x1b[2J\x00\u202e\u2066\u200f\u2028\x9b=1+1"
STEERS = f"def my_advance(*_): raise ValueError({STEERING!r})"
OUTSIDE = "a link to something outside of what its learner handed in"
UNREADABLE, NOWHERE = "without any readable file: no notebook", "a link that leads nowhere"
GOOD = answered()
UNHELPFUL = answered(answer=WRONG)
NOTES = notebook(code("x = 1"))
STARTERS = notebook(code(SETUP), *(code(starter(id), id) for id in ALL))
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
TEXT = {**code(ADVANCE, ID), "cell_type": "markdown"}
CELLS = [
    code(SETUP),
    code(ADVANCE, ID),
    code(starter(), ID),
    code(CLIP.replace("my_clip_step", "clip_of_mine"), "scaling.clip"),
    code(UNSCALE.replace(":", "", 1), "scaling.unscale"),
]
LOST = {
    "scaling.static_step": (
        "its cell was deleted: no code cell has the tag exercise-scaling.static_step"
    ),
    "scaling.clip": "its cell no longer defines my_clip_step(scaled_grads, scale, max_norm)",
    "scaling.unscale": f"syntax error in line 2: expected ':' (graded by Python {PYTHON})",
}

CLASS: dict[str, HandIn] = {
    # Right answers, handed in in ordinary and in odd ways.
    "honest": HandIn(flat(GOOD), ONE),
    "solved": HandIn(flat(notebook(*solved())), ALL, {ID: "5 of 5 checks pass"}),
    "Ada Lovelace": HandIn(inside(notebook(*solved()), **{"my notes.ipynb": NOTES}), ALL),
    "ada": HandIn(inside(GOOD), ONE),
    "Ada": HandIn(inside(GOOD), ONE),
    "cem in a zip": HandIn(inside(archive({NOTEBOOK: GOOD}), "all.zip"), ONE),
    "dora beside": HandIn(flat(archive({f"my work/{NOTEBOOK}": GOOD}), ".zip"), ONE),
    "emil deep": HandIn(inside(GOOD, f"a/b/c/{NOTEBOOK}"), ONE),
    "capitals": HandIn(inside(GOOD, "06_LOSS_SCALING.IPYNB"), ONE),
    "two notebooks": HandIn(inside(answered(answer=starter()), **{"copy.ipynb": GOOD}), ONE),
    "far future": HandIn(from_the_far_future, ONE),
    **{name: HandIn(flat(GOOD), ONE) for name in [*NAMES, "x" * 249]},
    **{
        f"journal {name}": HandIn(inside(GOOD, **{JOURNAL: lines}), ONE)
        for name, lines in JOURNALS.items()
    },
    **{f"beside {name}": HandIn(flat(answered(source)), ONE) for name, source in BROKEN.items()},
    **{f"before {name}": HandIn(behind(source), ONE) for name, source in HARMLESS.items()},
    # Links and archives: with the learner's own work, with another learner's, and with none.
    "ann": HandIn(inside(GOOD, **{"copy.zip": archive({"other/notes.txt": "mine"})}), ONE),
    "eve": HandIn(link("final.ipynb", NOTEBOOK, **{"final.ipynb": GOOD}), ONE),
    "gus": HandIn(a_file_of_eve, ONE),
    "ida": HandIn(link("/dev/zero", JOURNAL, **{NOTEBOOK: GOOD}), ONE),
    "work of ann": HandIn(flat(archive({NOTEBOOK: GOOD}), ".zip"), ONE),
    "bob": HandIn(link(f"../ann/{NOTEBOOK}", NOTEBOOK), says={ID: OUTSIDE}),
    "carl": HandIn(link("../ann", "work")),
    "dora": HandIn(link("ann"), says={ID: OUTSIDE}),
    "dan": HandIn(link(f"ann/{NOTEBOOK}", ".ipynb"), says={ID: OUTSIDE}),
    "fay": HandIn(link("../work of ann.zip", "work.zip"), says={ID: OUTSIDE}),
    "hal": HandIn(link("/dev/zero", NOTEBOOK)),
    "dots": HandIn(
        inside(archive({f"../../ada/{NOTEBOOK}": UNHELPFUL, f"../{NOTEBOOK}": GOOD}), "all.zip")
    ),
    "circle": HandIn(link("circle.ipynb", ".ipynb"), says={ID: NOWHERE}),
    "archive": HandIn(flat(b"PK\x03\x04 no archive", ".zip"), says={ID: "cannot be unpacked"}),
    "broken zip": HandIn(inside(archive({NOTEBOOK: GOOD})[:-30], "all.zip")),
    # Wrong answers, and files that cannot be read.
    "unsolved": HandIn(flat(STARTERS), says=each("unsolved: the starter is still in place")),
    "starter": HandIn(flat(answered(answer=starter()))),
    "cells": HandIn(flat(notebook(*CELLS)), ONE, LOST),
    "steers": HandIn(flat(answered(answer=STEERS)), says={ID: "ValueError"}),
    "notes": HandIn(inside(NOTES, "my notes.ipynb")),
    "empty": HandIn(flat(notebook()), says=each("empty notebook")),
    "a cell of text": HandIn(
        flat(notebook(code(SETUP), TEXT, code(UNSCALE, "scaling.unscale"))),
        ("scaling.unscale",),
        {ID: "its cell is a cell of text: select it, press Y"},
    ),
    "two cells": HandIn(
        flat(notebook(code(SETUP), code(WRONG, ID), code(ADVANCE, ID))),
        ONE,
        {ID: "2 cells answer this exercise: the last one counts"},
    ),
    "many dictionaries": HandIn(
        many_dictionaries,
        says=each("more than 2,000,000 values: clear the outputs"),
    ),
    "not json": HandIn(flat("I could not export it, sorry"), says=each("its text is not JSON")),
    "odd json": HandIn(
        flat(json.dumps({"cells": [None, 3, {"cell_type": "code", "source": {"a": 1}}]}))
    ),
    "not a notebook": HandIn(flat("[1, 2, 3]"), says=each("it has no list of cells")),
    "only a pdf": HandIn(
        inside(b"%PDF-1.4", "homework.pdf"),
        says=each("handed in homework.pdf: no notebook (.ipynb)"),
    ),
    "pipe": HandIn(
        lambda folder, name: os.mkfifo(folder / f"{name}.ipynb"),
        says={ID: "it is not a regular file"},
    ),
    "folder": HandIn(
        lambda folder, name: (folder / f"{name}.ipynb").mkdir(), says={ID: UNREADABLE}
    ),
    "deep": HandIn(deep, says={ID: UNREADABLE}),
    "much": HandIn(much_code, says={ID: "more code than a lesson takes"}),
    **{f"before {name}": HandIn(behind(source)) for name, source in BROKEN.items()},
}
