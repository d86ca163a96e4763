"""Submissions: notebooks in a folder, the program of an exercise, and grading of random content."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from labkit.grading import EXERCISES
from labkit.grading.program import CodeCell, Unreadable, as_python, program_of
from labkit.grading.sandbox.cell import run_cell
from labkit.grading.submission import Submission, find
from tests.grading import hand_ins
from tests.grading.hand_ins import (
    JOURNAL,
    LESSON,
    NOTEBOOK,
    SETUP,
    answered,
    code,
    everything,
    graded,
    notebook,
    put,
)

ADVANCE = EXERCISES["scaling.advance"]


def own(source: str) -> CodeCell:
    return CodeCell("", (ADVANCE.tag,), source)


def other(source: str) -> CodeCell:
    return CodeCell("", (), source)


def test_students_are_files_or_folders(tmp_path: Path) -> None:
    for name in (
        "ada.ipynb",
        "bob/06_loss_scaling.ipynb",
        "bob/late/07.IPYNB",
        "bob/.ipynb_checkpoints/06.ipynb",
        ".git/x.ipynb",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "cleo").mkdir()
    found = [(submission.student, submission.notebook) for submission in find([tmp_path])]
    assert found == [
        ("ada", "ada.ipynb"),
        ("bob", "06_loss_scaling.ipynb"),
        ("bob", "late/07.IPYNB"),
        ("cleo", ""),
    ]


def test_only_what_the_cell_names_comes_along() -> None:
    cells = [
        other("import torch\nimport math as m\nfrom labkit.widgets import live"),
        other("HALF = 0.5\nrun = train(task)\nprint('again?')"),
        other("def back_off(scale):\n    return m.floor(scale * HALF)\n\ndef unused():\n    pass"),
        own("def my_advance(state, found_inf, config):\n    return back_off(state.scale)"),
    ]
    *definitions, last = program_of(cells, ADVANCE)
    assert [line.split("\n")[0] for line in definitions] == [
        "import math as m",
        "HALF = 0.5",
        "def back_off(scale):",
    ]
    assert last == cells[-1].source


def test_a_name_that_a_pattern_binds_comes_along() -> None:
    match = """\
match {"up": 2.0, "down": [0.5, 0.25], "left": 1}:
    case {"up": GROWTH, "down": [BACKOFF, *FURTHER], **REST}:
        pass"""
    for name in ("GROWTH", "BACKOFF", "FURTHER", "REST"):
        answer = own(f"def my_advance(state, found_inf, config):\n    return {name}")
        assert program_of([other(match), answer], ADVANCE) == [match, answer.source], name


def test_a_name_that_the_cell_updates_comes_along() -> None:
    answer = own("COUNT += 1\ndef my_advance(state, found_inf, config):\n    return COUNT")
    assert program_of([other("COUNT = 1"), answer], ADVANCE) == ["COUNT = 1", answer.source]


def test_a_notebook_cannot_replace_what_an_exercise_provides() -> None:
    cells = [
        other("class ScalerState:\n    pass"),
        own("def my_advance(*_):\n    return ScalerState(1.0)"),
    ]
    assert len(program_of(cells, ADVANCE)) == 1


def test_annotations_of_a_cell_are_objects_as_in_a_notebook() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    source = """\
from dataclasses import dataclass
from typing import ClassVar

@dataclass
class Table:
    known: ClassVar[dict] = {}
    size: int = 0
"""
    # a dataclass reads the annotation; as a text it would make `known` a field, and raise an error
    assert run_cell(source, "<cell>", names) == ""
    assert names["Table"].__annotations__["size"] is int


def test_an_error_without_a_line_names_none() -> None:
    problem = run_cell("x = '\0'", "<cell>", {})
    assert "null bytes" in problem
    assert "line" not in problem


def test_lines_for_ipython_become_calls_on_their_lines() -> None:
    assert as_python("\n%%time\n!ls\nx = 5 % 3\n?x").split("\n") == [
        "",
        "# %%time",
        "get_ipython().system('ls')",
        "x = 5 % 3",
        "get_ipython().run_line_magic('pinfo', 'x')",
    ]


def test_what_is_not_a_notebook_or_cannot_be_run_says_so(tmp_path: Path) -> None:
    """Further reasons are tested in test_odd_class.py."""
    path = tmp_path / "ada.ipynb"
    for text, says in (
        ("\xff\xfe", "its text is not JSON"),
        ("[" * 100_000, "its text is not JSON"),
        ('{"cells": [5, {"cell_type": "code", "source": 7, "metadata": []}]}', "empty notebook"),
    ):
        path.write_text(text, encoding="latin-1")
        assert says in Submission("ada", "ada.ipynb", path).problem
    with pytest.raises(Unreadable, match="syntax error"):
        program_of([own("x = '\0'")], ADVANCE)


def test_a_lesson_is_recognised_by_its_exercises_or_its_file(tmp_path: Path) -> None:
    for name, exercise, lesson in (
        ("00_start", ADVANCE.id, "06_loss_scaling"),
        ("06_loss_scaling", "", "06_loss_scaling"),
        ("ada", ADVANCE.id, "06_loss_scaling"),
        ("ada", "", None),
    ):
        path = put(tmp_path / f"{name}.ipynb", notebook(code("x = 1", exercise)))
        assert Submission("ada", path.name, path).lesson == lesson, (name, exercise)


# --- random content: `labkit grade` gives each learner a row with a reason ---

IN_LESSON = {exercise.id for exercise in EXERCISES.values() if exercise.lesson == LESSON}
GOOD = answered()
PIECES = [
    "\n",
    "\r",
    "\f",
    "\\\n",
    "\t",
    "    ",
    " ",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "+",
    "-",
    "**",
    ";",
    ":",
    ",",
    "# ",
    "@",
    "x",
    "my_advance",
    "state",
    " = ",
    "=",
    "1",
    "0x" + "f" * 4000,
    "9" * 4301,
    ".a",
    "()",
    "'",
    '"',
    "'''",
    "f'{",
    "b'\\xff'",
    "?",
    "??",
    "!ls\n",
    "%",
    "%%",
    "%time ",
    "%%time\n",
    "%%bash\n",
    "x = %time ",
    "x = !ls\n",
    "/f 1\n",
    ",f a\n",
    ">>> ",
    "In [1]: ",
    "...: ",
    "\0",
    "\ud800",
    "\ufeff",
    "\u2028",
    "\u202e",
    "\x1b[31m",
    "é",
    "ﬁ",
    "𝔵",
    "if x:\n",
    "elif x:\n",
    "else:\n",
    "try:\n",
    "except* E:\n",
    "while True: pass\n",
    "match x:\n    case _: pass\n",
    "def my_advance(state, found_inf, config):\n",
    "return state\n",
    "yield",
    "lambda: ",
    "class A:\n",
    "async def f():\n",
    "await x",
    "global my_advance\n",
    "nonlocal x\n",
    "del x\n",
    "my_advance = 5\n",
    "import torch\n",
    "from math import *\n",
    "import os; os._exit(1)\n",
    "raise NotImplementedError\n",
    "with open('/etc/passwd') as f: pass\n",
    hand_ins.ADVANCE,
    SETUP,
]


def repeated(before: str, piece: str, after: str, times: int) -> str:
    """Return a source with a piece repeated, at most up to about 20,000 characters."""
    return before + piece * min(times, 20_000 // max(1, len(piece)) + 1) + after


PIECE = st.sampled_from(PIECES)
SOURCE = st.one_of(
    st.lists(PIECE, max_size=12).map("".join),
    st.builds(repeated, PIECE, PIECE, PIECE, st.sampled_from([2, 99, 330, 1000, 5000, 100_000])),
    st.text(max_size=40),
)
SOURCES = st.lists(SOURCE, max_size=4)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(SOURCES, st.integers(0, 3))
def test_a_program_is_found_or_reported_missing(sources: list[str], place: int) -> None:
    cells = [
        CodeCell("", (ADVANCE.tag,) if i == place else (), source)
        for i, source in enumerate(sources)
    ]
    with suppress(Unreadable):
        program = program_of(cells, ADVANCE)
        is_tagged_cell = place < len(sources) and program[-1] == as_python(sources[place])
        assert is_tagged_cell or "my_advance" in program[-1]


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=8)
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)
TAGS = st.one_of(st.just(["exercise-scaling.advance"]), st.just([]), JSON)
CELL = JSON | st.fixed_dictionaries(
    {
        "cell_type": st.just("code"),
        "id": st.just("exercise-scaling-advance") | st.text(max_size=4),
        "metadata": st.fixed_dictionaries({"tags": TAGS}),
        "source": SOURCE | SOURCE.map(lambda source: source.splitlines(True)),
    }
)


def dumped(content: object) -> bytes:
    return json.dumps(content).encode()


def cut(start: int, length: int, instead: bytes) -> bytes:
    """Return a valid notebook with a part replaced."""
    content = GOOD.encode()
    start %= len(content) + 1
    return content[:start] + instead + content[start + length :]


CONTENT = st.one_of(
    st.lists(CELL, max_size=4).map(lambda cells: dumped({"cells": cells})),
    JSON.map(dumped),
    st.binary(max_size=20),
    st.builds(cut, st.integers(0, 10**6), st.integers(0, 40), st.binary(max_size=6)),
    st.sampled_from(
        [
            b"[" * 100_000,
            b'{"cells": [' + b"9" * 5000 + b"]}",
            b"\xff\xfe",
            b"",
            GOOD.encode("utf-16"),
        ]
    ),
)
LINE = st.one_of(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["prediction", "exercise", "hint"]),
            "id": st.sampled_from(["scaling.advance", "scaling.lost", ""]),
            "answer": st.text(max_size=5),
            "points": JSON,
            "when": st.datetimes().map(str)
            | st.text(max_size=5)
            | st.just("2026-01-01T00:00+00:00"),
        }
    ).map(dumped),
    JSON.map(dumped),
    st.sampled_from([b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000, b"\xff"]),
)
LINES = st.lists(LINE, max_size=4).map(b"\n".join)


def drawn(count: int) -> list[tuple[bytes, bytes]]:
    """Return random pairs of a notebook and a journal; each call returns the same."""
    found: list[tuple[bytes, bytes]] = []
    no_limits = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}
    fixed = settings(max_examples=count, derandomize=True, phases=[Phase.generate], **no_limits)
    fixed(given(CONTENT, LINES)(lambda content, lines: found.append((content, lines))))()
    return found


@pytest.mark.parametrize(
    "count",
    [40, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
    ids=["some", "many"],
)
def test_nothing_that_is_handed_in_ends_the_grading_of_a_class(count: int, tmp_path: Path) -> None:
    folder = tmp_path / "class"
    out = tmp_path / "out"
    out.mkdir()
    handed_in = {f"{number:04}": one for number, one in enumerate(drawn(count))} | {
        "honest": (GOOD.encode(), b"")
    }
    for learner, (content, journal) in handed_in.items():
        put(folder / learner / NOTEBOOK, content)
        put(folder / learner / JOURNAL, journal)
    marks = graded(folder, out, *everything(out), "--due", "2026-11-30", "--late", "10")
    assert set(marks) == {(learner, exercise) for learner in handed_in for exercise in IN_LESSON}
    assert all(line["reason"] for line in marks.values())
    assert marks["honest", "scaling.advance"]["points"] == str(EXERCISES["scaling.advance"].points)
