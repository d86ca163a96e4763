"""Whatever somebody hands in, `labkit grade` ends well: its learner has a row with a reason, and the class goes on."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from labkit.cli import main
from labkit.grading.exercises import EXERCISES
from labkit.grading.program import as_python, program_of
from labkit.grading.submission import Cell, Unreadable
from tests.grading.test_class import ADVANCE, SETUP, code

LESSON = "06_loss_scaling"
IN_LESSON = [exercise for exercise in EXERCISES.values() if exercise.lesson == LESSON]
FULL = EXERCISES["scaling.advance"].points


def notebook(*cells: dict[str, Any]) -> str:
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells)})


def answered(*others: str, before: str = "") -> str:
    """A notebook with the right answer to scaling.advance, `before` in its cell, and other cells around it."""
    return notebook(code(SETUP), *map(code, others), code(before + ADVANCE, "advance"))


def graded(folder: Path, out: Path, *options: str) -> dict[tuple[str, str], dict[str, str]]:
    """Grade a folder by the command, and return (learner, exercise) -> the line of the table."""
    words = ["grade", str(folder), "--csv", str(out / "grades.csv"), "--seed", "3", "--lesson", LESSON]
    assert main([*words, "--seconds", "5", *options]) == 0
    with (out / "grades.csv").open(newline="", encoding="utf-8") as file:
        return {(line["student"], line["exercise"]): line for line in csv.DictReader(file)}


def everything(out: Path) -> list[str]:
    """Return the options by which a teacher gets all pages and tables."""
    files = {"--report": "class.html", "--feedback": "back", "--gradebook": "all.csv"}
    return [word for option, name in files.items() for word in (option, str(out / name))]


# What Python runs in a notebook, however deep or long: beside an answer it costs nothing, in its cell neither.
HARMLESS = {
    "330 terms": "x = " + "+".join(["1"] * 330),
    "900 terms": "x = " + "+".join(["1"] * 900),
    "400 attributes": "class A: pass\na = A()\na.a = a\nx = a" + ".a" * 400,
    "400 calls": "def f(): return f\nx = f" + "()" * 400,
    "400 texts": "x = " + "+".join(['"a"'] * 400),
    "1000 elif": "n = 0\nif n: pass\n" + "elif n: pass\n" * 1000,
    "an integer of 6,000 digits": "x = 0x" + "f" * 5000,
    "100,000 blank lines": "\n" * 100_000,
    "40,000 names": "a0 = 0\n" + "".join(f"a{i + 1} = a{i}\n" for i in range(40_000)),
}
# What no notebook runs. Beside an answer it costs nothing; in its cell all.
BROKEN = {
    "10,000 terms": "x = " + "+".join(["1"] * 10_000),
    "10,000 attributes": "x = x" + ".a" * 10_000,
    "a decimal of 5,000 digits": "x = " + "9" * 5000,
    "600 shell commands": "!true\n" * 600 + "(",
    "50,000 questions": "?x\n" * 50_000,
}
JOURNALS = {
    "deep": "[" * 100_000,
    "two zones": "\n".join(
        json.dumps({"kind": "exercise", "id": "scaling.advance", "answer": "x", "points": points, "when": when})
        for points, when in enumerate(["2026-01-01T10:00:00", "2026-01-01T10:00:00+00:00", "0001-01-01T00:00:00+14:00"])
    ),
    "long numbers": '{"kind": "exercise", "id": "scaling.advance", "answer": "x", "points": ' + "9" * 5000 + "}",
}
LATE = 10.0**15  # seconds since 1970; no calendar has it


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, str]]:
    """A class that is graded once, with all pages that a teacher may ask for."""
    folder, out = tmp_path_factory.mktemp("class"), tmp_path_factory.mktemp("out")
    for name, source in BROKEN.items():
        (folder / f"beside {name}.ipynb").write_text(answered(source), encoding="utf-8")
    for name, source in (HARMLESS | BROKEN).items():
        (folder / f"before {name}.ipynb").write_text(answered(before=source + "\n"), encoding="utf-8")
    for name, lines in JOURNALS.items():
        (folder / f"journal {name}").mkdir()
        (folder / f"journal {name}" / f"{LESSON}.ipynb").write_text(answered(), encoding="utf-8")
        (folder / f"journal {name}" / "labkit-answers.jsonl").write_text(lines, encoding="utf-8")
    (folder / "circle.ipynb").symlink_to("circle.ipynb")
    (folder / "in a circle").mkdir()
    (folder / "in a circle" / f"{LESSON}.ipynb").symlink_to(f"{LESSON}.ipynb")
    os.mkfifo(folder / "pipe.ipynb")
    (folder / "folder.ipynb").mkdir()
    (folder / "much.ipynb").write_text(answered("# " + "x" * (1 << 20)), encoding="utf-8")
    (folder / "far future.ipynb").write_text(answered(), encoding="utf-8")
    os.utime(folder / "far future.ipynb", (LATE, LATE))
    deep = folder / "deep"
    deep.mkdir()
    here = os.open(deep, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("a", dir_fd=here)
        inner = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    (folder / ("x" * 249 + ".ipynb")).write_text(answered(), encoding="utf-8")
    (folder / "archive.zip").write_bytes(b"PK\x03\x04 no archive")
    (folder / "honest.ipynb").write_text(answered(), encoding="utf-8")
    found = graded(folder, out, *everything(out), "--due", "2026-11-30")
    assert {path.name for path in (out / "back").iterdir()} >= {"honest.html", "circle.html"}
    page = (out / "class.html").read_text(encoding="utf-8")
    assert "honest" in page
    assert "see yourself whether it is late" in page, "of the one from the far future"
    subprocess.run(["rm", "-r", deep], check=True)  # deeper than pytest's own tidying goes
    return found


def test_everybody_has_a_row_for_every_exercise_and_every_row_a_reason(marks: dict[Any, dict[str, str]]) -> None:
    learners = {f"beside {name}" for name in BROKEN} | {f"before {name}" for name in HARMLESS | BROKEN}
    learners |= {f"journal {name}" for name in JOURNALS}
    learners |= {"circle", "in a circle", "pipe", "folder", "much", "far future", "deep", "x" * 249, "archive"}
    assert {student for student, _ in marks} == learners | {"honest"}
    assert len(marks) == len(IN_LESSON) * (len(learners) + 1)
    assert all(line["reason"] for line in marks.values())


def test_a_right_answer_earns_its_points_beside_an_odd_cell_and_behind_one_that_a_notebook_runs(
    marks: dict[Any, dict[str, str]],
) -> None:
    learners = ["honest", "far future", "x" * 249, *(f"journal {name}" for name in JOURNALS)]
    learners += [f"beside {name}" for name in BROKEN] + [f"before {name}" for name in HARMLESS]
    points = {learner: marks[learner, "scaling.advance"]["points"] for learner in learners}
    assert points == dict.fromkeys(learners, str(FULL))


def test_what_no_notebook_runs_says_why(marks: dict[Any, dict[str, str]]) -> None:
    for name in BROKEN:
        line = marks[f"before {name}", "scaling.advance"]
        assert line["points"] == "0", name
        assert "syntax error" in line["reason"] or "its cell stopped with" in line["reason"], name


def test_what_cannot_be_read_says_why(marks: dict[Any, dict[str, str]]) -> None:
    for learner, says in {
        "circle": "a link that leads nowhere",
        "in a circle": "a link that leads nowhere",
        "pipe": "not a file",
        "folder": "no notebook in this student's folder",
        "deep": "no notebook in this student's folder",
        "much": "more code than a lesson takes",
        "archive": "cannot be unpacked",
    }.items():
        line = marks[learner, "scaling.advance"]
        assert (line["points"], says in line["reason"]) == ("0", True), line["reason"]


# --- what nobody thought of ---

PIECES = [
    "\n", "\r", "\f", "\\\n", "\t", "    ", " ", "(", ")", "[", "]", "{", "}", "+", "-", "**", ";", ":", ",", "# ", "@",
    "x", "my_advance", "state", " = ", "=", "1", "0x" + "f" * 4000, "9" * 4301, ".a", "()", "'", '"', "'''", "f'{",
    "b'\\xff'", "?", "??", "!ls\n", "%", "%%", "%time ", "%%time\n", "%%bash\n", "x = %time ", "x = !ls\n", "/f 1\n",
    ",f a\n", ">>> ", "In [1]: ", "...: ", "\0", "\ud800", "\ufeff", "\u2028", "\u202e", "\x1b[31m", "é", "ﬁ", "𝔵",
    "if x:\n", "elif x:\n", "else:\n", "try:\n", "except* E:\n", "while True: pass\n", "match x:\n    case _: pass\n",
    "def my_advance(state, found_inf, config):\n", "return state\n", "yield", "lambda: ", "class A:\n",
    "async def f():\n", "await x", "global my_advance\n", "nonlocal x\n", "del x\n", "pass\n", "type X = int\n",
    "my_advance = 5\n",
    "import torch\n", "from math import *\n", "import os; os._exit(1)\n", "raise NotImplementedError\n",
    "with open('/etc/passwd') as f: pass\n", ADVANCE, SETUP,
]  # fmt: skip


def repeated(before: str, piece: str, after: str, times: int) -> str:
    return before + piece * min(times, 20_000 // max(1, len(piece)) + 1) + after


PIECE = st.sampled_from(PIECES)
SOURCE = st.one_of(
    st.lists(PIECE, max_size=12).map("".join),
    st.builds(repeated, PIECE, PIECE, PIECE, st.sampled_from([2, 99, 330, 1000, 5000, 100_000])),
    st.text(max_size=40),
)
SOURCES = st.lists(SOURCE, max_size=4)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(SOURCES, st.integers(0, 3))
def test_a_program_is_found_or_its_lack_is_told(sources: list[str], own: int) -> None:
    exercise = EXERCISES["scaling.advance"]
    cells = [Cell("", (exercise.tag,) if i == own else (), source) for i, source in enumerate(sources)]
    with suppress(Unreadable):
        program = program_of(cells, exercise)
        assert program[-1] in {as_python(source) for source in sources} or "my_advance" in program[-1]


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
TAGS = st.one_of(st.just(["exercise-scaling.advance"]), st.just([]), JSON)
CELL = JSON | st.fixed_dictionaries({
    "cell_type": st.just("code"),
    "id": st.just("exercise-scaling-advance") | st.text(max_size=4),
    "metadata": st.fixed_dictionaries({"tags": TAGS}),
    "source": SOURCE | SOURCE.map(lambda source: source.splitlines(True)),
})  # fmt: skip
GOOD = answered()


def dumped(content: object) -> bytes:
    return json.dumps(content).encode()


def cut(content: bytes, start: int, length: int, instead: bytes) -> bytes:
    start %= len(content) + 1
    return content[:start] + instead + content[start + length :]


DAMAGE = (st.integers(0, 10**6), st.integers(0, 40), st.binary(max_size=6))
NOTEBOOK = st.one_of(
    st.lists(CELL, max_size=4).map(lambda cells: dumped({"cells": cells})),
    JSON.map(dumped),
    st.binary(max_size=20),
    st.builds(cut, st.just(GOOD.encode()), *DAMAGE),
    st.sampled_from([b"[" * 100_000, b'{"cells": [' + b"9" * 5000 + b"]}", b"\xff\xfe", b"", GOOD.encode("utf-16")]),
)
LINE = st.one_of(
    st.fixed_dictionaries({
        "kind": st.sampled_from(["prediction", "exercise", "hint"]),
        "id": st.sampled_from(["scaling.advance", "scaling.lost", ""]),
        "answer": st.text(max_size=5),
        "points": JSON,
        "when": st.datetimes().map(str) | st.text(max_size=5) | st.just("2026-01-01T00:00+00:00"),
    }).map(dumped),
    JSON.map(dumped),
    st.sampled_from([b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000, b"\xff"]),
)  # fmt: skip
JOURNAL = st.lists(LINE, max_size=4).map(b"\n".join)
NAME = st.text(min_size=1, max_size=12) | st.sampled_from([
    "..", ".", "/", "a/../../b", "/etc/x", "C:\\x", "x" * 300, "é", "e\u0301", "=1+1", "-x", "__MACOSX", "a\0b", LESSON,
    "Ann_1_assignsubmission_file_", "ann_12_34_x", "ann_LATE_12_34_x", "a.zip", "\ud800",
])  # fmt: skip
SUFFIX = st.sampled_from([".ipynb", f"/{LESSON}.ipynb", ".zip", "/labkit-answers.jsonl", "/", ".IPYNB", ".pdf", ""])


def zipped(path: Path, members: list[tuple[str, str, bytes, int]], damage: tuple[int, int, bytes] | None) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, suffix, content, method in members:
            with suppress(ValueError, UserWarning):  # a name that no zip file can have
                archive.writestr(zipfile.ZipInfo(name + suffix), content, method)
    if damage:
        path.write_bytes(cut(path.read_bytes(), *damage))


PACKED = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
MEMBERS = st.lists(st.tuples(NAME, SUFFIX, NOTEBOOK | JOURNAL, PACKED), max_size=4)


@dataclass(frozen=True)
class HandIn:
    """What one learner leaves: files of a folder, an archive, or a notebook alone."""

    name: str
    kind: int
    notebook: bytes
    journal: bytes
    members: list[tuple[str, str, bytes, int]]
    damage: tuple[int, int, bytes] | None
    when: float

    def write(self, folder: Path, number: int) -> str:
        """Write it into a class's folder; return the name by which its learner stands in the table."""
        odd = "".join(c for c in self.name if c not in "/\0_" and not 0xD800 <= ord(c) < 0xE000)
        learner = f"{number:04}{odd}".encode()[:60].decode(errors="ignore").rstrip(".")
        if self.kind == 0:
            path = folder / f"{learner}.ipynb"
            path.write_bytes(self.notebook)
        else:
            path = folder / learner / f"{LESSON}.ipynb"
            path.parent.mkdir()
            (path.parent / "labkit-answers.jsonl").write_bytes(self.journal)
            if self.kind == 1:
                path.write_bytes(self.notebook)
            else:
                path = path.parent / "work.zip"
                zipped(path, self.members, self.damage)
        os.utime(path, (self.when, self.when))
        return learner


HAND_IN = st.builds(
    HandIn, NAME, st.integers(0, 2), NOTEBOOK, JOURNAL, MEMBERS, st.none() | st.tuples(*DAMAGE),
    st.sampled_from([0.0, 1.7e9, 1.7e12, 1e15]),
)  # fmt: skip


def drawn(count: int) -> list[HandIn]:
    """Return hand-ins, the same ones each time."""
    found: list[HandIn] = []

    no_limits = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}

    @settings(max_examples=count, derandomize=True, phases=[Phase.generate], **no_limits)
    @given(HAND_IN)
    def note(one: HandIn) -> None:
        found.append(one)

    note()
    return found


@pytest.mark.parametrize(
    "count", [40, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])], ids=["some", "many"]
)
def test_nothing_that_is_handed_in_ends_the_grading_of_a_class(count: int, tmp_path: Path) -> None:
    folder, out = tmp_path / "class", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    learners = {one.write(folder, number) for number, one in enumerate(drawn(count))}
    (folder / "honest.ipynb").write_text(GOOD, encoding="utf-8")
    marks = graded(folder, out, *everything(out), "--due", "2026-11-30", "--late", "10")
    assert {student for student, _ in marks} >= learners | {"honest"}
    assert all(line["reason"] for line in marks.values())
    for learner in learners | {"honest"}:
        assert {exercise for student, exercise in marks if student == learner} == {e.id for e in IN_LESSON}
    assert marks["honest", "scaling.advance"]["points"] == str(FULL)
