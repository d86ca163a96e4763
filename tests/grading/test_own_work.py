"""Everybody gets points for what is theirs: no link, archive or name brings somebody else's, or loses one's own."""

from __future__ import annotations

import os
import signal
import unicodedata
import zipfile
from pathlib import Path
from typing import Any

import pytest

from labkit.grading.submission import find, shared
from labkit.grading.table import visible
from labkit.records import linux, system
from tests.grading.test_class import ADVANCE, SETUP, code
from tests.grading.test_whatever import FULL, LESSON, answered, graded, notebook

ADVANCE_ID = "scaling.advance"
OUTSIDE = "a link to something outside of what its learner handed in"
NAMES = ["Bo", "bo", "Straße", "STRASSE", "Zoë", "Zoe\u0308"]
LONG = "x" * 300
STEERING = "\x1b[2J\x00\u202e\u2066\u200f\u2028\x9b"


def of_class(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ann solved it. The others hand in what leads to her work, or to their own in odd ways."""
    folder = tmp_path_factory.mktemp("class")
    of_class(folder, "ann", "bob", "carl", "eve", "fay", "gus", "hal", "ida")
    (folder / "ann" / f"{LESSON}.ipynb").write_text(answered(), encoding="utf-8")
    with zipfile.ZipFile(folder / "ann" / "copy.zip", "w") as archive:
        archive.writestr("other/notes.txt", "mine")
    (folder / "bob" / f"{LESSON}.ipynb").symlink_to(f"../ann/{LESSON}.ipynb")
    (folder / "carl" / "work").symlink_to("../ann")
    (folder / "dora").symlink_to("ann")
    (folder / "dan.ipynb").symlink_to(f"ann/{LESSON}.ipynb")
    (folder / "eve" / f"{LESSON}.ipynb").symlink_to("final.ipynb")  # her own file, under a name of its own
    (folder / "eve" / "final.ipynb").write_text(answered(), encoding="utf-8")
    with zipfile.ZipFile(folder / "work of ann.zip", "w") as archive:
        archive.writestr(f"{LESSON}.ipynb", answered())
    (folder / "fay" / "work.zip").symlink_to("../work of ann.zip")
    os.link(folder / "eve" / "final.ipynb", folder / "gus" / "own.ipynb")  # a file is a file
    (folder / "hal" / f"{LESSON}.ipynb").symlink_to("/dev/zero")
    (folder / "ida" / f"{LESSON}.ipynb").write_text(answered(), encoding="utf-8")
    (folder / "ida" / "labkit-answers.jsonl").symlink_to("/dev/zero")
    for name in NAMES:
        (folder / f"{name}.ipynb").write_text(answered(), encoding="utf-8")
    says = "def my_advance(state, found_inf, config):\n    raise ValueError(" + repr(STEERING) + ")"
    (folder / "steers.ipynb").write_text(notebook(code(SETUP), code(says, "advance")), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def marks(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, str]]:
    return graded(folder, tmp_path_factory.mktemp("out"))


def test_a_link_to_somebody_elses_work_or_to_a_device_brings_nothing_and_says_so(
    marks: dict[Any, dict[str, str]],
) -> None:
    lines = {learner: marks[learner, ADVANCE_ID] for learner in ("bob", "dora", "dan", "fay", "carl", "hal")}
    assert {learner for learner, line in lines.items() if line["points"] != "0"} == set()
    assert {learner for learner, line in lines.items() if OUTSIDE not in line["reason"]} <= {"carl", "hal"}


def test_a_file_that_two_learners_share_is_reported_and_a_copy_is_not(folder: Path) -> None:
    """Each keeps the points: who made the link cannot be told from it."""
    (group,) = shared(find([folder]))
    assert {(one.student, one.notebook) for one in group} >= {("eve", "final.ipynb"), ("gus", "own.ipynb")}
    assert {one.student for one in group} == {"eve", "gus"}


def test_who_handed_in_work_of_their_own_gets_its_points(marks: dict[Any, dict[str, str]]) -> None:
    learners = ("ann", "eve", "gus", "ida", "work of ann", *NAMES)
    assert {learner: marks[learner, ADVANCE_ID]["points"] for learner in learners} == dict.fromkeys(learners, str(FULL))


def test_the_reason_steers_no_terminal_and_no_reading_direction(marks: dict[Any, dict[str, str]]) -> None:
    reason = marks["steers", ADVANCE_ID]["reason"]
    assert "ValueError" in reason
    assert not [c for c in reason if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]
    assert visible(STEERING) == r"\x1b[2J\x00\u202e\u2066\u200f\u2028\x9b"


ODD_MEMBERS = {
    f"large/{LESSON}.ipynb": (" " * (65 << 20), "larger than 64 MiB"),
    f"../dots/{LESSON}.ipynb": (answered(), "leads out of the archive"),
    f"/root/{LESSON}.ipynb": (answered(), "leads out of the archive"),
    f"{LONG}/{LESSON}.ipynb": (answered(), "its name has more than 255 bytes"),
    "/".join(["deep", *"abcdefghijklmnopqrstuvwxyz", f"{LESSON}.ipynb"]): (answered(), "more than 20 folders"),
    "damaged/work.zip": ("PK no", "cannot be unpacked"),
}


def test_what_an_archive_holds_and_cannot_be_unpacked_is_its_learners_row(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "class.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (content, _) in ODD_MEMBERS.items():
            archive.writestr(name, content)
        archive.writestr(f"good/{LESSON}.ipynb", answered())
    marks = graded(tmp_path / "class.zip", tmp_path)
    for name, (_, says) in ODD_MEMBERS.items():
        learner = next((part for part in name.split("/") if part not in ("..", "")), "")
        line = marks[learner, ADVANCE_ID]
        assert (line["points"], says in line["reason"]) == ("0", True), line
    assert marks["good", ADVANCE_ID]["points"] == str(FULL)
    assert {student for student, _ in marks} == {"large", "dots", "root", LONG, "deep", "damaged", "good"}


def test_an_archive_that_unpacks_to_too_much_costs_its_learner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.classroom.archives.MAX_UNPACKED", 1 << 20)
    of_class(tmp_path, "class/greedy", "class/modest")
    with zipfile.ZipFile(tmp_path / "class" / "greedy" / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(9):
            archive.writestr(f"{number}/{LESSON}.ipynb", b" " * (200 << 10))
    (tmp_path / "class" / "modest" / f"{LESSON}.ipynb").write_text(answered(), encoding="utf-8")
    marks = graded(tmp_path / "class", tmp_path)
    assert marks["greedy", ADVANCE_ID]["points"] == "0"
    assert marks["modest", ADVANCE_ID]["points"] == str(FULL)


FORKS = """
import os, time
HOG = b"1" * (60 << 20)
LEFT = [8]
def my_advance(state, found_inf, config):
    while LEFT[0]:
        LEFT[0] -= 1
        if os.fork() == 0:
            own = b"2" * (EACH << 20)
            time.sleep(60)
            os._exit(0)
        time.sleep(0.5)
    return right(state, found_inf, config)
"""
RIGHT = ADVANCE.split("check(")[0].replace("my_advance", "right")


@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.exists("/proc/self/smaps_rollup"), reason="the system does not tell what processes share"
)
def test_memory_is_that_of_a_submission_and_not_of_each_of_its_processes(tmp_path: Path) -> None:
    """Eight processes of 150 MiB are too much for 300 MiB together; eight that share 60 MiB are not."""
    (tmp_path / "class").mkdir()
    for learner, each in (("hog", 150), ("sharer", 1)):
        source = RIGHT + FORKS.replace("EACH", str(each))
        content = notebook(code(SETUP), code(source, "advance"))
        (tmp_path / "class" / f"{learner}.ipynb").write_text(content, encoding="utf-8")
    marks = graded(tmp_path / "class", tmp_path, "--memory", "300", "--seconds", "20")
    assert marks["hog", ADVANCE_ID]["points"] == "0"
    assert "memory" in marks["hog", ADVANCE_ID]["reason"]
    assert marks["sharer", ADVANCE_ID]["points"] == str(FULL), marks["sharer", ADVANCE_ID]["reason"]


BURNS = {
    "lives": "while True: pass",
    "ends": "while time.process_time() < 0.4: pass\n            os._exit(0)",
}


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="the system does not tell what processes took")
def test_time_is_that_of_a_submission_and_not_of_its_first_process(tmp_path: Path) -> None:
    """One child that computes for ever, or one after another that ends: the first process does nothing but wait."""
    (tmp_path / "class").mkdir()
    for learner, burns in BURNS.items():
        source = f"""
import os, time
def my_advance(state, found_inf, config):
    while True:
        if os.fork() == 0:
            {burns}
        os.wait()
"""
        content = notebook(code(SETUP), code(source, "advance"))
        (tmp_path / "class" / f"{learner}.ipynb").write_text(content, encoding="utf-8")
    marks = graded(tmp_path / "class", tmp_path, "--seconds", "2")
    for learner in BURNS:
        assert "stopped after 2 s of CPU time" in marks[learner, ADVANCE_ID]["reason"]


def test_what_processes_share_is_counted_once() -> None:
    shared = b"1" * (64 << 20)
    ready, tell = os.pipe()
    children = []
    for _ in range(4):
        if (child := os.fork()) == 0:
            os.write(tell, shared[:1])
            signal.pause()
        children.append(child)
    try:
        for _ in children:
            os.read(ready, 1)
        assert set(children) <= set(linux.descendants())
        assert 0 < sum(map(linux.memory_of, children)) < 2 * system.resident(), "not four times"
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
