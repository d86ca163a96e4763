"""Whatever somebody hands in, `labkit grade` ends well: its learner has a row with a reason, and the class goes on."""

import json
import os
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from labkit.grading.exercises import EXERCISES
from labkit.grading.program import CodeCell, Unreadable, as_python, program_of
from tests.grading.hand_ins import ADVANCE, JOURNAL, LESSON, NOTEBOOK, SETUP, answered, everything, graded, put

IN_LESSON = {exercise.id for exercise in EXERCISES.values() if exercise.lesson == LESSON}
GOOD = answered()
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
def test_a_program_is_found_or_reported_missing(sources: list[str], own: int) -> None:
    exercise = EXERCISES["scaling.advance"]
    cells = [CodeCell("", (exercise.tag,) if i == own else (), source) for i, source in enumerate(sources)]
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


def dumped(content: object) -> bytes:
    return json.dumps(content).encode()


def cut(content: bytes, start: int, length: int, instead: bytes) -> bytes:
    start %= len(content) + 1
    return content[:start] + instead + content[start + length :]


DAMAGE = (st.integers(0, 10**6), st.integers(0, 40), st.binary(max_size=6))
CONTENT = st.one_of(
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
LINES = st.lists(LINE, max_size=4).map(b"\n".join)
NAME = st.text(min_size=1, max_size=12) | st.sampled_from([
    "..", ".", "/", "a/../../b", "/etc/x", "C:\\x", "x" * 300, "é", "e\u0301", "=1+1", "-x", "__MACOSX", "a\0b", LESSON,
    "Ann_1_assignsubmission_file_", "ann_12_34_x", "ann_LATE_12_34_x", "a.zip", "\ud800",
])  # fmt: skip
SUFFIX = st.sampled_from([".ipynb", f"/{NOTEBOOK}", ".zip", f"/{JOURNAL}", "/", ".IPYNB", ".pdf", ""])


def zipped(path: Path, members: list[tuple[str, str, bytes, int]], damage: tuple[int, int, bytes] | None) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, suffix, content, method in members:
            with suppress(ValueError, UserWarning):  # a name that no zip file can have
                archive.writestr(zipfile.ZipInfo(name + suffix), content, method)
    if damage:
        path.write_bytes(cut(path.read_bytes(), *damage))


PACKED = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
MEMBERS = st.lists(st.tuples(NAME, SUFFIX, CONTENT | LINES, PACKED), max_size=4)


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
            path = put(folder / f"{learner}.ipynb", self.notebook)
        else:
            put(folder / learner / JOURNAL, self.journal)
            path = folder / learner / (NOTEBOOK if self.kind == 1 else "work.zip")
            if self.kind == 1:
                path.write_bytes(self.notebook)
            else:
                zipped(path, self.members, self.damage)
        os.utime(path, (self.when, self.when))
        return learner


HAND_IN = st.builds(
    HandIn, NAME, st.integers(0, 2), CONTENT, LINES, MEMBERS, st.none() | st.tuples(*DAMAGE),
    st.sampled_from([0.0, 1.7e9, 1.7e12, 1e15]),
)  # fmt: skip


def drawn(count: int) -> list[HandIn]:
    """Return hand-ins, the same ones each time."""
    found: list[HandIn] = []
    no_limits = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}
    fixed = settings(max_examples=count, derandomize=True, phases=[Phase.generate], **no_limits)
    fixed(given(HAND_IN)(lambda one: found.append(one)))()
    return found


@pytest.mark.parametrize(
    "count", [40, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])], ids=["some", "many"]
)
def test_nothing_that_is_handed_in_ends_the_grading_of_a_class(count: int, tmp_path: Path) -> None:
    folder, out = tmp_path / "class", tmp_path / "out"
    out.mkdir()
    learners = {one.write(folder, number) for number, one in enumerate(drawn(count))}
    put(folder / "honest.ipynb", GOOD)
    marks = graded(folder, out, *everything(out), "--due", "2026-11-30", "--late", "10")
    assert {student for student, _ in marks} >= learners | {"honest"}
    assert all(line["reason"] for line in marks.values())
    for learner in learners | {"honest"}:
        assert {exercise for student, exercise in marks if student == learner} == IN_LESSON
    assert marks["honest", "scaling.advance"]["points"] == str(EXERCISES["scaling.advance"].points)
