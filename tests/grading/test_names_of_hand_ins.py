"""Names of files and folders, as learners and school systems give them: whose work each one is."""

from collections import Counter
from pathlib import Path

import pytest

from labkit.classroom.archives import unpack_archives
from labkit.grading.submission import find, nobodys_files
from tests.grading.hand_ins import NOTEBOOK, answered, archive, put

GOOD = answered()
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


@pytest.fixture
def notebooks_of_anna(tmp_path: Path) -> Path:
    """A folder of notebooks that are named after a learner, and of other files."""
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
    return tmp_path


def test_notebooks_of_several_lessons_are_one_learners(notebooks_of_anna: Path) -> None:
    students = Counter(one.student for one in find([notebooks_of_anna]))
    assert students == {"anna": 4, "06_loss_scaling": 1}


def test_a_roster_and_a_readme_are_nobodys(notebooks_of_anna: Path) -> None:
    assert nobodys_files([notebooks_of_anna]) == ["ReadMe.txt", "roster.csv"]


def test_a_dead_link_of_a_learner_is_named(tmp_path: Path) -> None:
    put(tmp_path / "ada.ipynb", GOOD)
    (tmp_path / "dora").symlink_to(tmp_path / "moved")
    reasons = {one.student: one.refused for one in find([tmp_path])}
    assert reasons == {"ada": "", "dora": "handed in dora: no notebook (.ipynb)"}
