"""Zip archives of hand-ins: members that cannot be unpacked, wrappers, and too large a one."""

from pathlib import Path

import pytest

from labkit.classroom.archives import unpack_archives
from labkit.grading.submission import find
from tests.grading.hand_ins import (
    NOTEBOOK,
    Lines,
    answered,
    archive,
    graded,
    points_for,
    points_of,
    put,
)

GOOD = answered()
ID = "scaling.advance"
LONG = "x" * 300
ALPHABET = "/".join("abcdefghijklmnopqrstuvwxyz")
# Larger than the largest file that is unpacked.
LARGE = 65 << 20
# Learner -> the name of the member of an archive, its content, and words of the reason.
ODD_MEMBERS = {
    # Its content is as long as LARGE says, and made when it is written.
    "large": (f"large/{NOTEBOOK}", "", "larger than 64 MiB"),
    "dots": (f"../dots/{NOTEBOOK}", GOOD, "leads out of the archive"),
    "root": (f"/root/{NOTEBOOK}", GOOD, "leads out of the archive"),
    LONG: (f"{LONG}/{NOTEBOOK}", GOOD, "its name has a part of more than 255 bytes"),
    "deep": (f"deep/{ALPHABET}/{NOTEBOOK}", GOOD, "more than 20 folders"),
    "damaged": ("damaged/work.zip", "PK no", "cannot be unpacked"),
}


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """The grades of an archive with the members above and a good one."""
    members = dict[str, str | bytes]()
    for name, content, _ in ODD_MEMBERS.values():
        members[name] = content
    members[f"large/{NOTEBOOK}"] = " " * LARGE
    members[f"good/{NOTEBOOK}"] = GOOD
    out = tmp_path_factory.mktemp("members")
    return graded(put(out / "class.zip", archive(members)), out)


def test_each_learner_of_an_archive_has_rows(marks: Lines) -> None:
    assert {learner for learner, _ in marks} == {*ODD_MEMBERS, "good"}


def test_files_that_cannot_be_unpacked_cost_no_other_learner_points(marks: Lines) -> None:
    assert points_of(marks, "good") == points_for(ID)


@pytest.mark.parametrize("learner", ODD_MEMBERS)
def test_a_file_that_cannot_be_unpacked_earns_nothing(learner: str, marks: Lines) -> None:
    assert points_of(marks, learner) == points_for()


@pytest.mark.parametrize("learner", ODD_MEMBERS)
def test_the_reason_says_why_a_file_was_not_unpacked(learner: str, marks: Lines) -> None:
    assert ODD_MEMBERS[learner][2] in marks[learner, ID]["reason"]


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
    put(tmp_path / "class" / "greedy" / "bomb.zip", bomb)
    put(tmp_path / "class" / "modest" / NOTEBOOK, GOOD)
    marks = graded(tmp_path / "class", tmp_path)
    points = {learner: points_of(marks, learner) for learner in ("greedy", "modest")}
    assert points == {"greedy": points_for(), "modest": points_for(ID)}
