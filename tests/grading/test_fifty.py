"""Fifty as docs/teachers.md lets them hand in, hostile, clumsy and odd: who is right has the points, nobody else."""

from __future__ import annotations

import csv
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main

NOTEBOOK, ADVANCE = "06_loss_scaling.ipynb", "scaling.advance"
RIGHT = """\
def my_advance(state, found_inf, config):
    if found_inf:
        return ScalerState(state.scale * config.backoff_factor, 0)
    if state.growth_tracker + 1 >= config.growth_interval:
        return ScalerState(state.scale * config.growth_factor, 0)
    return ScalerState(state.scale, state.growth_tracker + 1)
"""
HELPED = RIGHT.replace("state.scale * config.backoff_factor", "back(state, config)")
WRONG = "def my_advance(state, found_inf, config):\n    return state\n"
STARTER = "def my_advance(state, found_inf, config):\n    raise NotImplementedError('your code goes here')\n"
SETUP = "import torch\nfrom labkit.amp import ScalerConfig, ScalerState\nfrom labkit.grading import check\n"
FULL, NOTHING = 8, 0
Write = Callable[[Path, str], None]


def cells(*sources: str, tag: str = "exercise-scaling.advance", **more: Any) -> str:
    """A notebook whose last cell is the exercise's."""
    *others, own = sources
    content = [{"cell_type": "code", "metadata": {}, "source": source, "outputs": [], **more} for source in others]
    content.append({"cell_type": "code", "metadata": {"tags": [tag]}, "source": own, "outputs": []})
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": content})


def flat(content: str | bytes) -> Write:
    """NAME.ipynb."""
    return lambda folder, name: put(folder / f"{name}.ipynb", content)


def inside(content: str | bytes, file: str = NOTEBOOK, **others: str | bytes) -> Write:
    """NAME/06_loss_scaling.ipynb, and other files beside it."""

    def write(folder: Path, name: str) -> None:
        put(folder / name / file, content)
        for other, text in others.items():
            put(folder / name / other.replace("__", "."), text)

    return write


def packed(members: dict[str, str | bytes], beside: bool = False) -> Write:
    """An archive in the learner's folder, or beside the folders under the learner's name."""
    return lambda folder, name: put(folder / f"{name}.zip" if beside else folder / name / "all.zip", archive(members))


def archive(members: dict[str, str | bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in members.items():
            file.writestr(zipfile.ZipInfo(name, (2026, 11, 29, 12, 0, 0)), text)
    return content.getvalue()


def link(target: str, file: str = NOTEBOOK) -> Write:
    def write(folder: Path, name: str) -> None:
        (folder / name).mkdir()
        (folder / name / file).symlink_to(target)

    return write


def put(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


GOOD = cells(SETUP, RIGHT)
PEER = "open('../ada/06_loss_scaling.ipynb').read()"
CLASS: dict[str, tuple[Write, int]] = {
    # right, in odd ways
    "ada": (inside(GOOD), FULL),
    "Ada": (inside(GOOD), FULL),
    "bert": (flat(GOOD), FULL),
    "cem in a zip": (packed({NOTEBOOK: GOOD}), FULL),
    "dora beside": (packed({f"my work/{NOTEBOOK}": GOOD}, beside=True), FULL),
    "emil deep": (inside(GOOD, f"a/b/c/{NOTEBOOK}"), FULL),
    "Straße": (flat(GOOD), FULL),
    "STRASSE": (flat(GOOD), FULL),
    "Zo\u00eb": (flat(GOOD), FULL),
    "Zoe\u0308": (flat(GOOD), FULL),
    "=HYPERLINK(1)": (flat(GOOD), FULL),
    "-minus": (flat(GOOD), FULL),
    "O'Neil, \"Bo\"; x": (flat(GOOD), FULL),
    "bom": (flat(b"\xef\xbb\xbf" + GOOD.encode()), FULL),
    "another name": (inside(GOOD, "final (2).ipynb"), FULL),
    "capitals": (inside(GOOD, "06_LOSS_SCALING.IPYNB"), FULL),
    "two notebooks": (inside(cells(SETUP, STARTER), copy__ipynb=GOOD), FULL),
    "magics": (flat(cells("%matplotlib inline\n!ls\n%time x = 1\n" + SETUP, "%%time\n" + RIGHT)), FULL),
    "helper elsewhere": (flat(cells(SETUP, "def back(s, c): return s.scale * c.backoff_factor", HELPED)), FULL),
    "a cell that fails": (flat(cells(SETUP, "1 / 0", "undefined", RIGHT)), FULL),
    "long sum": (flat(cells(SETUP, "x = " + "+".join(["1"] * 2000), RIGHT)), FULL),
    "long number": (flat(cells(SETUP, "x = 0x" + "f" * 9000, RIGHT)), FULL),
    "blank lines": (flat(cells(SETUP, "\n" * 200_000 + RIGHT)), FULL),
    "prints much": (flat(cells(SETUP, RIGHT + "print('x' * 10 ** 7)")), FULL),
    "exits at the end": (flat(cells(SETUP, RIGHT + "import sys; sys.exit()")), FULL),
    "odd journal": (inside(GOOD, **{"labkit-answers__jsonl": "[" * 100_000 + "\n{}\n\xff"}), FULL),
    # wrong, and honest
    "starter": (flat(cells(SETUP, STARTER)), NOTHING),
    "syntax": (flat(cells(SETUP, RIGHT.replace(":", "", 1))), NOTHING),
    "another function": (flat(cells(SETUP, RIGHT.replace("my_advance", "advance"))), NOTHING),
    "no notebook": (lambda folder, name: put(folder / name / "essay.pdf", b"%PDF"), NOTHING),
    "empty file": (flat(b""), NOTHING),
    "not json": (flat("I could not export it"), NOTHING),
    "deep json": (flat("[" * 200_000), NOTHING),
    "odd json": (flat(json.dumps({"cells": [None, 3, {"cell_type": "code", "source": {"a": 1}}]})), NOTHING),
    "broken zip": (lambda folder, name: put(folder / name / "all.zip", archive({NOTEBOOK: GOOD})[:-30]), NOTHING),
    "random bytes": (flat(random.Random(1).randbytes(3000)), NOTHING),
    # hostile
    "dots": (packed({f"../../ada/{NOTEBOOK}": cells(SETUP, WRONG), f"../{NOTEBOOK}": GOOD}), NOTHING),
    "link": (link(f"../ada/{NOTEBOOK}"), NOTHING),
    "link to a folder": (link("../ada", "work"), NOTHING),
    "link to itself": (link(NOTEBOOK), NOTHING),
    "link to a device": (link("/dev/zero"), NOTHING),
    "reads a neighbour": (flat(cells(SETUP, f"import json\nexec(json.loads({PEER})['cells'][1]['source'])")), NOTHING),
    "loops": (flat(cells(SETUP, "def my_advance(*_):\n    while True: pass")), NOTHING),
    "sleeps": (flat(cells(SETUP, "import time\ntime.sleep(10 ** 6)\n" + RIGHT)), NOTHING),
    "eats memory": (flat(cells(SETUP, "hog = []\nwhile True: hog.append(b'1' * 10 ** 8)\n" + RIGHT)), NOTHING),
    "forks": (flat(cells(SETUP, "import os\ndef my_advance(*_):\n    while True: os.fork()")), NOTHING),
    "kills": (flat(cells(SETUP, "import os\nos.kill(os.getpid(), 9)\n" + RIGHT)), NOTHING),
    "asks the lab": (flat(cells("import labkit.amp", "def my_advance(*a): return labkit.amp.advance(*a)")), NOTHING),
    "equals all": (flat(cells(SETUP, "class Yes(ScalerState):\n    def __eq__(s, o): return True\n"
                              "def my_advance(*_): return Yes(1.0)")), NOTHING),
    "steers": (flat(cells(SETUP, "def my_advance(*_): raise ValueError('\\x1b[2J\\u202e=1+1\\0')")), NOTHING),
    "z" * 240: (flat(GOOD), FULL),
}  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grade them all, once, with a roster and the teacher's own word on three; return the folder of what came back."""
    folder, out = tmp_path_factory.mktemp("hand-in"), tmp_path_factory.mktemp("out")
    for name, (write, _) in CLASS.items():
        write(folder, name)
    with (out / "roster.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["name", "Handle"])
        table.writerows([name, f"@{name}"] for name in [*map(learner, CLASS), "nobody handed in"])
    with (out / "mine.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["student", "exercise", "points", "comment"])
        table.writerows(
            [["Ada", ADVANCE, 3, "copied?"], ["'=HYPERLINK(1)", ADVANCE, 4, ""], ["starter", "", "", "Come!"]]
        )
    words = ["--csv", "grades.csv", "--feedback", "back", "--report", "class.html", "--roster", "roster.csv",
             "--gradebook", "marks.csv", "--manual", "mine.csv", "--due", "2027-01-01", "--late", "10"]  # fmt: skip
    files = [word if word.startswith("--") or word[0].isdigit() else str(out / word) for word in words]
    assert main(["grade", str(folder), *files, "--seconds", "3", "--memory", "512"]) == 0
    return out


def learner(name: str) -> str:
    return name.removesuffix(".ipynb")


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_they_are_fifty_and_one() -> None:
    assert len(CLASS) == 51


def test_everybody_has_a_row_for_every_exercise_of_the_lesson_with_a_reason(out: Path) -> None:
    rows = lines(out / "grades.csv")
    exercises = {row["exercise"] for row in rows}
    assert len(rows) == len(exercises) * len(CLASS)
    assert {row["student"].removeprefix("'") for row in rows} == set(CLASS)
    assert all(row["reason"] for row in rows)
    assert not any(ord(c) < 32 or 0x202A <= ord(c) <= 0x202E for row in rows for c in row["reason"])


def test_who_is_right_has_the_points_and_nobody_else_has_any(out: Path) -> None:
    points = {row["student"].removeprefix("'"): int(row["points"])
              for row in lines(out / "grades.csv") if row["exercise"] == ADVANCE}  # fmt: skip
    full = {name for name, (_, earned) in CLASS.items() if earned == FULL}
    assert {name for name in points if points[name] == FULL} == full
    others = {row["student"] for row in lines(out / "grades.csv") if row["exercise"] != ADVANCE and int(row["points"])}
    assert not others


def test_marks_and_the_teachers_word_reach_the_schools_table(out: Path) -> None:
    table = {line["name"]: line for line in lines(out / "marks.csv")}
    assert all(line["Handle"] == f"@{name}" for name, line in table.items())
    own = {"Ada": "3", "=HYPERLINK(1)": "4", "nobody handed in": ""}
    right = {name: own.get(name, str(FULL)) for name, (_, earned) in CLASS.items() if earned == FULL}
    assert {name: table[name][ADVANCE] for name in right} == right
    assert table["nobody handed in"]["total"] == ""


def test_everybody_gets_a_page(out: Path) -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in (out / "back").iterdir()}
    assert len(pages) == len(CLASS)
    assert "Come!" in pages["starter.html"]
    assert "nobody handed in handed nothing in" in (out / "class.html").read_text(encoding="utf-8")
