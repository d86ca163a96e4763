"""A class of about eighty submissions, right, odd and unreadable: points, rows and reasons.

The command grades CLASS once, with all options of a teacher, and the tests read its table, its
pages and its output. Further tests grade single archives and folders.
"""

import io
import json
import os
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from labkit.classroom.archives import unpack_archives
from labkit.classroom.tables import read_table, write_table
from labkit.cli import main
from labkit.grading import EXERCISES
from labkit.grading.results import GradeRow, visible, write
from labkit.grading.submission import find, hard_linked, nobodys_files
from tests.grading.hand_ins import (
    ADVANCE,
    CLIP,
    JOURNAL,
    NOTEBOOK,
    SETUP,
    SOLUTIONS,
    UNSCALE,
    WRONG,
    Lines,
    answered,
    archive,
    code,
    everything,
    graded,
    notebook,
    put,
    solved,
    starter,
)

Write = Callable[[Path, str], object]
Says = Mapping[str, str]
FULL = {id: EXERCISES[id].points for id in SOLUTIONS}
ID = "scaling.advance"
ONE = ("scaling.advance",)
ALL = tuple(SOLUTIONS)
NOTHING = ()


def flat(content: str | bytes, ending: str = ".ipynb") -> Write:
    """Hand in one file: <name><ending>."""
    return lambda folder, name: put(folder / f"{name}{ending}", content)


def inside(content: str | bytes, file: str = NOTEBOOK, **others: str | bytes) -> Write:
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
    # Seconds since 1970: a time that `datetime` cannot represent.
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

# Learner -> how the work is handed in, the exercises that earn all their points (the others earn
# nothing), and words of reasons by exercise.
CLASS: dict[str, tuple[Write, Iterable[str], Says]] = {
    # Right answers, handed in in ordinary and in odd ways.
    "honest": (flat(GOOD), ONE, {}),
    "solved": (flat(notebook(*solved())), ALL, {ID: "5 of 5 checks pass"}),
    "Ada Lovelace": (inside(notebook(*solved()), **{"my notes.ipynb": NOTES}), ALL, {}),
    "ada": (inside(GOOD), ONE, {}),
    "Ada": (inside(GOOD), ONE, {}),
    "cem in a zip": (inside(archive({NOTEBOOK: GOOD}), "all.zip"), ONE, {}),
    "dora beside": (flat(archive({f"my work/{NOTEBOOK}": GOOD}), ".zip"), ONE, {}),
    "emil deep": (inside(GOOD, f"a/b/c/{NOTEBOOK}"), ONE, {}),
    "capitals": (inside(GOOD, "06_LOSS_SCALING.IPYNB"), ONE, {}),
    "two notebooks": (inside(answered(answer=starter()), **{"copy.ipynb": GOOD}), ONE, {}),
    "far future": (from_the_far_future, ONE, {}),
    **{name: (flat(GOOD), ONE, {}) for name in [*NAMES, "x" * 249]},
    **{
        f"journal {name}": (inside(GOOD, **{JOURNAL: lines}), ONE, {})
        for name, lines in JOURNALS.items()
    },
    **{f"beside {name}": (flat(answered(source)), ONE, {}) for name, source in BROKEN.items()},
    **{
        f"before {name}": (flat(answered(answer=f"{source}\n{ADVANCE}")), ONE, {})
        for name, source in HARMLESS.items()
    },
    # Links and archives: with the learner's own work, with another learner's, and with none.
    "ann": (inside(GOOD, **{"copy.zip": archive({"other/notes.txt": "mine"})}), ONE, {}),
    "eve": (link("final.ipynb", NOTEBOOK, **{"final.ipynb": GOOD}), ONE, {}),
    "gus": (a_file_of_eve, ONE, {}),
    "ida": (link("/dev/zero", JOURNAL, **{NOTEBOOK: GOOD}), ONE, {}),
    "work of ann": (flat(archive({NOTEBOOK: GOOD}), ".zip"), ONE, {}),
    "bob": (link(f"../ann/{NOTEBOOK}", NOTEBOOK), NOTHING, {ID: OUTSIDE}),
    "carl": (link("../ann", "work"), NOTHING, {}),
    "dora": (link("ann"), NOTHING, {ID: OUTSIDE}),
    "dan": (link(f"ann/{NOTEBOOK}", ".ipynb"), NOTHING, {ID: OUTSIDE}),
    "fay": (link("../work of ann.zip", "work.zip"), NOTHING, {ID: OUTSIDE}),
    "hal": (link("/dev/zero", NOTEBOOK), NOTHING, {}),
    "dots": (
        inside(archive({f"../../ada/{NOTEBOOK}": UNHELPFUL, f"../{NOTEBOOK}": GOOD}), "all.zip"),
        NOTHING,
        {},
    ),
    "circle": (link("circle.ipynb", ".ipynb"), NOTHING, {ID: NOWHERE}),
    "archive": (flat(b"PK\x03\x04 no archive", ".zip"), NOTHING, {ID: "cannot be unpacked"}),
    "broken zip": (inside(archive({NOTEBOOK: GOOD})[:-30], "all.zip"), NOTHING, {}),
    # Wrong answers, and files that cannot be read.
    "unsolved": (flat(STARTERS), NOTHING, each("unsolved: the starter is still in place")),
    "starter": (flat(answered(answer=starter())), NOTHING, {}),
    "cells": (flat(notebook(*CELLS)), ONE, LOST),
    "steers": (flat(answered(answer=STEERS)), NOTHING, {ID: "ValueError"}),
    "notes": (inside(NOTES, "my notes.ipynb"), NOTHING, {}),
    "empty": (flat(notebook()), NOTHING, each("empty notebook")),
    "a cell of text": (
        flat(notebook(code(SETUP), TEXT, code(UNSCALE, "scaling.unscale"))),
        ("scaling.unscale",),
        {ID: "its cell is a cell of text: select it, press Y"},
    ),
    "two cells": (
        flat(notebook(code(SETUP), code(WRONG, ID), code(ADVANCE, ID))),
        ONE,
        {ID: "2 cells answer this exercise: the last one counts"},
    ),
    "many dictionaries": (
        flat(GOOD.replace('"metadata": {}', '"metadata": {"x": [' + "{}," * 2_000_000 + "1]}", 1)),
        NOTHING,
        each("more than 2,000,000 values: clear the outputs"),
    ),
    "not json": (flat("I could not export it, sorry"), NOTHING, each("its text is not JSON")),
    "odd json": (
        flat(json.dumps({"cells": [None, 3, {"cell_type": "code", "source": {"a": 1}}]})),
        NOTHING,
        {},
    ),
    "not a notebook": (flat("[1, 2, 3]"), NOTHING, each("it has no list of cells")),
    "only a pdf": (
        inside(b"%PDF-1.4", "homework.pdf"),
        NOTHING,
        each("handed in homework.pdf: no notebook (.ipynb)"),
    ),
    "pipe": (
        lambda folder, name: os.mkfifo(folder / f"{name}.ipynb"),
        NOTHING,
        {ID: "it is not a regular file"},
    ),
    "folder": (lambda folder, name: (folder / f"{name}.ipynb").mkdir(), NOTHING, {ID: UNREADABLE}),
    "deep": (deep, NOTHING, {ID: UNREADABLE}),
    "much": (
        flat(answered("# " + "x" * (1 << 20))),
        NOTHING,
        {ID: "more code than a lesson takes"},
    ),
    **{
        f"before {name}": (flat(answered(answer=f"{text}\n{ADVANCE}")), NOTHING, {})
        for name, text in BROKEN.items()
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("class")
    for name, (hand_in, *_) in CLASS.items():
        if hand_in is not deep:
            hand_in(folder, name)
    return folder


@pytest.fixture(scope="module")
def out(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grade the class with a roster, and a teacher's points and comments on three learners.

    Return the folder of the results.
    """
    out = tmp_path_factory.mktemp("out")
    names = [*CLASS, "nobody handed in"]
    write_table(
        out / "roster.csv",
        ["name", "Handle"],
        [{"name": name, "Handle": f"@{name}"} for name in names],
    )
    own = [
        ("Ada", ID, "3", "copied?"),
        ("'=HYPERLINK(1)", ID, "4", ""),
        ("starter", "", "", "Come!"),
    ]
    columns = ["student", "exercise", "points", "comment"]
    write_table(out / "mine.csv", columns, [dict(zip(columns, line, strict=True)) for line in own])
    options = [
        *everything(out),
        "--roster",
        str(out / "roster.csv"),
        "--manual",
        str(out / "mine.csv"),
    ]
    try:
        deep(folder, "deep")
        with redirect_stderr(io.StringIO()) as printed:
            graded(folder, out, *options, "--due", "2026-11-30")
    finally:
        # It is nested too deeply for pytest and shutil to remove.
        subprocess.run(["rm", "-rf", folder / "deep"], check=True)
    put(out / "printed.txt", printed.getvalue())
    return out


@pytest.fixture(scope="module")
def marks(out: Path) -> Lines:
    return {
        (line["student"], line["exercise"]): line
        for line in read_table(out / "grades.csv", guarded=True)
    }


def expect(marks: Lines, rows: Mapping[str, tuple[object, Iterable[str], Says]]) -> None:
    """Require of each learner the points of every exercise, and words of reasons, as in CLASS."""
    for name, (_, earns, says) in rows.items():
        points = {id: int(marks[name, id]["points"]) for id in FULL}
        assert points == {id: FULL[id] if id in earns else 0 for id in FULL}, (
            name,
            marks[name, ID]["reason"],
        )
        assert [id for id in says if says[id] not in marks[name, id]["reason"]] == [], name


def test_everybody_has_a_row_for_every_exercise(marks: Lines) -> None:
    assert set(marks) == {(name, id) for name in CLASS for id in FULL}
    assert all(line["reason"] for line in marks.values())
    assert all(int(line["out_of"]) == FULL[id] for (_, id), line in marks.items())


def test_right_submissions_get_the_points_and_others_the_reason(marks: Lines) -> None:
    expect(marks, CLASS)
    assert {marks["unsolved", id]["reason"] for id in ALL} == {
        "unsolved: the starter is still in place"
    }
    for name in BROKEN:
        reason = marks[f"before {name}", ID]["reason"]
        assert "syntax error" in reason or "its cell stopped with" in reason, name


def test_notes_are_passed_over_and_a_missing_lesson_is_not(marks: Lines, out: Path) -> None:
    notebooks = {
        name: {marks[name, id]["notebook"] for id in ALL} for name in ("Ada Lovelace", "notes")
    }
    assert notebooks == {"Ada Lovelace": {NOTEBOOK}, "notes": {"my notes.ipynb"}}
    printed = (out / "printed.txt").read_text(encoding="utf-8")
    assert any(
        "ignored, as" in line and "Ada Lovelace, my notes.ipynb" in line
        for line in printed.splitlines()
    )
    assert "--seed 3 repeats it" in printed


def test_only_a_file_that_two_learners_share_is_reported(folder: Path) -> None:
    """Both keep their points, since a hard link does not show who made it."""
    (group,) = hard_linked(find([folder]))
    assert {(one.student, one.notebook) for one in group} >= {
        ("eve", "final.ipynb"),
        ("gus", "own.ipynb"),
    }
    assert {one.student for one in group} == {"eve", "gus"}


def test_no_reason_steers_a_terminal_or_the_reading_direction(marks: Lines) -> None:
    reasons = "".join(line["reason"] for line in marks.values())
    assert not [c for c in reasons if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]
    assert visible(STEERING) == r"\x1b[2J\x00\u202e\u2066\u200f\u2028\x9b=1+1"


def test_marks_and_the_teachers_word_reach_the_schools_table(marks: Lines, out: Path) -> None:
    table = {line["name"]: line for line in read_table(out / "all.csv")}
    assert all(line["Handle"] == f"@{name}" for name, line in table.items())
    earned = {name: marks[name, ID]["points"] for name in CLASS}
    own = {"Ada": "3", "=HYPERLINK(1)": "4", "nobody handed in": ""}
    assert {name: line[ID] for name, line in table.items()} == earned | own
    assert table["nobody handed in"]["total"] == ""


def test_everybody_gets_a_page(out: Path) -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in (out / "back").iterdir()}
    assert len(pages) == len(CLASS)
    assert {"honest.html", "circle.html"} <= set(pages)
    assert "Come!" in pages["starter.html"]
    text = (out / "class.html").read_text(encoding="utf-8")
    assert "nobody handed in handed nothing in" in text
    assert "check yourself whether it is late" in text, "of the one from the far future"


LONG = "x" * 300
ALPHABET = "/".join("abcdefghijklmnopqrstuvwxyz")
# Learner -> the name of the member of an archive, its content, and words of the reason.
ODD_MEMBERS = {
    "large": (f"large/{NOTEBOOK}", " " * (65 << 20), "larger than 64 MiB"),
    "dots": (f"../dots/{NOTEBOOK}", GOOD, "leads out of the archive"),
    "root": (f"/root/{NOTEBOOK}", GOOD, "leads out of the archive"),
    LONG: (f"{LONG}/{NOTEBOOK}", GOOD, "its name has a part of more than 255 bytes"),
    "deep": (f"deep/{ALPHABET}/{NOTEBOOK}", GOOD, "more than 20 folders"),
    "damaged": ("damaged/work.zip", "PK no", "cannot be unpacked"),
}


def test_file_that_cannot_be_unpacked_is_its_learners_row(tmp_path: Path) -> None:
    members = {name: content for name, content, _ in ODD_MEMBERS.values()}
    members[f"good/{NOTEBOOK}"] = GOOD
    marks = graded(put(tmp_path / "class.zip", archive(members)), tmp_path)
    rows = {learner: (None, NOTHING, {ID: says}) for learner, (_, _, says) in ODD_MEMBERS.items()}
    rows["good"] = (None, ONE, {})
    expect(marks, rows)
    assert {student for student, _ in marks} == set(rows)


# Ending of a file's name -> its content, and the reason if it has no notebook.
KINDS: dict[str, tuple[str | bytes, str]] = {
    ".IPYNB": (GOOD, ""),
    ".ipynb": (GOOD, ""),
    ".ipynb.txt": (GOOD, ""),
    ".ipynb.json": (GOOD, ""),
    ".zip": (archive({NOTEBOOK: GOOD}), ""),
    ".ZIP": (archive({"scan.pdf": b"%PDF"}), "scan.pdf: no notebook"),
    ".py": ("x = 1", "handed in NAME: no notebook"),
    ".html": ("<p>", "handed in NAME: no notebook"),
    ".pdf": (b"%PDF-1.4", "handed in NAME: no notebook"),
    ".docx": (b"PK", "handed in NAME: no notebook"),
    ".rar": (b"Rar!", "handed in NAME: no notebook (.ipynb); a zip archive can be unpacked"),
    ".7z": (b"7z", "a zip archive can be unpacked"),
    ".tar.gz": (b"\x1f\x8b", "a zip archive can be unpacked"),
}
SYSTEMS = {
    "flat": "{who}{ending}",
    "flat, with the lesson": "{who}_06_loss_scaling{ending}",
    "folders": "{who}/work{ending}",
    "Canvas": "{who}_12{n:03}_99_work{ending}",
    "Moodle": "{who}_12{n:03}_assignsubmission_file_/work{ending}",
    "Moodle, flat": "{who}_12{n:03}_assignsubmission_file_work{ending}",
    "Blackboard": "Lab_6_{who}_attempt_2026-11-27-10-15-{n:02}_work{ending}",
}


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_each_learner_whom_a_name_shows_has_one_submission(
    system: str, packed: bool, tmp_path: Path
) -> None:
    files = dict[str, str | bytes]()
    expected = dict[str, str]()
    for n, (ending, (content, says)) in enumerate(KINDS.items()):
        who = f"learner{n}"
        name = SYSTEMS[system].format(who=who, ending=ending, n=n)
        files[name] = content
        student = f"{who}_12{n:03}" if system.startswith(("Canvas", "Moodle")) else who
        shown = name.rpartition("/")[2]
        if not system.startswith("flat"):
            shown = f"work{ending}"
        elif "lesson" in system:
            shown = f"06_loss_scaling{ending}"
        expected[student] = says.replace("NAME", shown)
    if packed:
        places = [put(tmp_path / "class.zip", archive(files))]
    else:
        for name, content in files.items():
            put(tmp_path / "class" / name, content)
        places = [tmp_path / "class"]
    found = find(*unpack_archives(places, tmp_path / "unpacked"))
    names = [one.student for one in found]
    assert sorted(names) == sorted(expected)
    wrong = [one for one in found if expected[one.student] not in one.problem]
    wrong += [one for one in found if one.problem and not expected[one.student]]
    assert not wrong


def test_notebooks_of_one_learner_are_one_learners(tmp_path: Path) -> None:
    for name in (
        "anna_00_start.ipynb",
        "anna-06_loss_scaling (1).ipynb",
        "anna_06_loss_scaling_final.IPYNB",
        "anna_01_numbers/work.ipynb",
        "anna.pdf",
        "06_loss_scaling.ipynb",
        "roster.csv",
        "ReadMe.txt",
    ):
        put(tmp_path / name, GOOD)
    assert Counter(one.student for one in find([tmp_path])) == {"anna": 4, "06_loss_scaling": 1}
    assert nobodys_files([tmp_path]) == ["ReadMe.txt", "roster.csv"]


def test_a_dead_link_of_a_learner_is_named(tmp_path: Path) -> None:
    put(tmp_path / "ada.ipynb", GOOD)
    (tmp_path / "dora").symlink_to(tmp_path / "moved")
    reasons = {one.student: one.refused for one in find([tmp_path])}
    assert reasons == {"ada": "", "dora": "handed in dora: no notebook (.ipynb)"}


def test_results_beside_the_learners_are_nobodys(tmp_path: Path) -> None:
    put(tmp_path / "class" / "ada.ipynb", GOOD)
    where = tmp_path / "class"
    options = ["--feedback", f"{where / 'back'}", "--report", f"{where / 'class.html'}"]
    for _ in range(2):
        marks = graded(where, where, *options, "--anonymous", f"{where / 'shown'}")
        assert {student for student, _ in marks} == {"ada"}
    # They are recognized, too, if the next command does not name them. A page that a learner saved
    # counts as work.
    put(where / "bob.html", "<p>my work")
    (where / "cyd").mkdir()
    put(where / "cyd" / "feedback.html", (where / "class.html").read_bytes())
    assert {student for student, _ in graded(where, where)} == {"ada", "bob", "cyd"}


def test_a_wrapped_class_with_a_readme_is_a_class(tmp_path: Path) -> None:
    names = ["term/ada.ipynb", "term/bob.pdf", "README.txt", "__MACOSX/x"]
    path = put(tmp_path / "class.zip", archive(dict.fromkeys(names, GOOD)))
    found = find(*unpack_archives([path], tmp_path / "unpacked"))
    assert [one.student for one in found] == ["ada", "bob"]


def test_too_large_an_archive_costs_its_learner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.classroom.archives.MAX_UNPACKED", 1 << 20)
    bomb = archive({f"{number}/{NOTEBOOK}": b" " * (200 << 10) for number in range(9)})
    inside(bomb, "bomb.zip")(tmp_path / "class", "greedy")
    inside(GOOD)(tmp_path / "class", "modest")
    marks = graded(tmp_path / "class", tmp_path)
    expect(marks, {"greedy": (None, NOTHING, {}), "modest": (None, ONE, {})})


def test_nothing_to_grade_is_reported_and_no_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, says in (
        (put(tmp_path / "empty/.x", "").parent, "there is no notebook (.ipynb)"),
        (put(tmp_path / "train.py", "x = 1"), "expected notebooks (.ipynb)"),
        (put(tmp_path / "week/ada/1.pdf", "").parents[1], "The first one, ada, handed in 1.pdf"),
        (tmp_path / "nowhere", "nowhere; give a folder of notebooks"),
    ):
        assert main(["grade", str(folder), "--csv", str(tmp_path / "grades.csv")]) == 2
        assert says in capsys.readouterr().err
    assert not (tmp_path / "grades.csv").exists()


def test_notebooks_of_other_lessons_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        "06_loss_scaling.ipynb": GOOD,
        "00_start.ipynb": notebook(code("pass", "start.smallest")),
        "07.ipynb": notebook(code("x = 1")),
    }
    members = {f"{who}/{name}": text for who in ("ada", "bob") for name, text in texts.items()}
    path = put(tmp_path / "class.zip", archive(members))
    graded(path, tmp_path, "--lesson", "06_loss_scaling")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ignored")]
    assert sorted(lines) == [
        "ignored, as it holds no exercise that is graded: ada, 07.ipynb",
        "ignored, as it holds no exercise that is graded: bob, 07.ipynb",
        "ignored: notebooks of other lessons, 2 in all",
    ]


def test_a_folder_with_hardly_a_notebook_is_called_a_wrong_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "class"
    put(where / "ada.ipynb", GOOD)
    put(where / "bob.pdf", "")
    graded(where, tmp_path)
    assert "right folder" not in capsys.readouterr().err
    put(where / "train.py", "x = 1")
    (where / "report").mkdir()
    graded(where, tmp_path)
    assert "! 3 of 4 learners have no notebook that can be read" in capsys.readouterr().err


def test_the_order_of_rows_does_not_change_the_file(tmp_path: Path) -> None:
    rows = [
        GradeRow(student, "06.ipynb", exercise, 0, 10, "")
        for student in ("ada", "bob")
        for exercise in ("scaling.clip", "an.earlier", "another.earlier")
    ]
    for name, each in (("a.csv", rows), ("b.csv", rows[::-1])):
        write(each, tmp_path / name)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_grades_are_written_whatever_their_text(tmp_path: Path) -> None:
    path = tmp_path / "grades.csv"
    write(
        [GradeRow("=1+1", "06.ipynb", "scaling.clip", 0, 10, "it stopped with ValueError: \ud800")],
        path,
    )
    assert "ValueError: \\ud800" in path.read_text(encoding="utf-8")
