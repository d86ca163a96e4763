"""Archives of hand-ins, as platforms export them."""

from pathlib import Path

import pytest

from labkit.classroom.archives import unpack_archives
from labkit.grading.plan import due_time, late_days
from labkit.grading.submission import Submission, find
from tests.grading.hand_ins import ADVANCE, NOTEBOOK, archive, code, notebook, put

WORK = notebook(code(ADVANCE, "scaling.advance"))
ID = "scaling.advance"


@pytest.fixture
def unpacked(tmp_path: Path) -> list[Submission]:
    """What is found in an archive of Canvas, one of Moodle and one of a teacher.

    One file leads out of its archive, and one archive in an archive is damaged.
    """
    inner = archive({f"work/{NOTEBOOK}": WORK})
    canvas = put(
        tmp_path / "canvas.zip",
        archive(
            {
                "muellerzoe_77_901_06_loss_scaling.ipynb": WORK,
                "carlc_LATE_78_902_06_loss_scaling-1.ipynb": WORK,
                "__MACOSX/._x.ipynb": b"",
                "../evil.ipynb": WORK,
            }
        ),
    )
    moodle = put(
        tmp_path / "moodle.zip",
        archive(
            {
                f"Zoë Müller_1_assignsubmission_file_/{NOTEBOOK}": WORK,
                "Ada_2_assignsubmission_file_/all.zip": inner,
                "Eve_3_assignsubmission_file_/broken.zip": b"PK no",
            }
        ),
    )
    around = put(
        tmp_path / "class.zip", archive({"class/dan/x.ipynb": WORK, "class/fay.ipynb": WORK})
    )
    return find(*unpack_archives([canvas, moodle, around], tmp_path / "out"))


def test_archives_of_each_platform_become_learners(unpacked: list[Submission]) -> None:
    assert {(one.student, Path(one.notebook).name) for one in unpacked} == {
        ("muellerzoe_77", NOTEBOOK),
        ("carlc_78", "06_loss_scaling-1.ipynb"),
        ("Zoë Müller_1", NOTEBOOK),
        ("Ada_2", NOTEBOOK),
        ("Eve_3", "broken"),
        ("dan", "x.ipynb"),
        ("fay", "fay.ipynb"),
        ("evil", "evil.ipynb"),
    }


def test_a_file_that_leads_out_of_its_archive_is_not_written(
    unpacked: list[Submission], tmp_path: Path
) -> None:
    (evil,) = [one for one in unpacked if one.student == "evil"]
    assert "leads out of the archive" in evil.problem
    assert not list(tmp_path.glob("**/evil*"))


def test_a_damaged_archive_in_an_archive_is_reported(unpacked: list[Submission]) -> None:
    (eve,) = [one for one in unpacked if one.student == "Eve_3"]
    assert "cannot be unpacked" in eve.problem


def test_what_canvas_calls_late_is_late(unpacked: list[Submission]) -> None:
    (carl,) = [one for one in unpacked if one.student == "carlc_78"]
    assert late_days(carl, due_time("2999-12-24")) == 1


def test_a_named_archive_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.zip is not a readable zip archive"):
        unpack_archives([put(tmp_path / "x.zip", b"no")], tmp_path / "out")


def test_an_archive_of_one_learner_names_no_other(tmp_path: Path) -> None:
    """An archive in a learner's folder, or named after a learner, belongs to that learner.

    One beside the learners' folders is a class, unless it names a learner who has a submission
    beside it.
    """
    put(
        tmp_path / "class" / "Moodle export.zip",
        archive(
            {
                f"Course-9/Ada Ö_12_assignsubmission_file_/deep/er/{NOTEBOOK}": WORK,
                "Course-9/Bob_13_assignsubmission_file_/": b"",
            }
        ),
    )
    put(tmp_path / "class" / "dan" / "work.zip", archive({"a_1_2_b.ipynb": WORK}))
    put(tmp_path / "class" / "Ada_11" / NOTEBOOK, WORK)
    put(
        tmp_path / "class" / "bob.zip",
        archive(
            {
                f"Ada_11_assignsubmission_file_/{NOTEBOOK}": WORK,
                f"Eve_13_assignsubmission_file_/{NOTEBOOK}": WORK,
            }
        ),
    )
    put(
        tmp_path / "class" / "carl.zip",
        archive({f"Carl_12_assignsubmission_file_/{NOTEBOOK}": WORK}),
    )
    found = find(*unpack_archives([tmp_path / "class"], tmp_path / "out"))
    students = sorted(one.student for one in found if one.path)
    assert students == ["Ada Ö_12", "Ada_11", "carl", "dan"]
    assert {one.student for one in found if not one.path} == {"Bob_13", "bob"}
    (bob,) = [one for one in found if one.student == "bob"]
    assert "names Ada_11, who has a submission beside it" in bob.problem


def test_an_unreadable_archive_named_like_an_export_is_reported(tmp_path: Path) -> None:
    """Its name without .zip is one of Blackboard's, of a learner with a submission beside it."""
    name = "lab_ada_attempt_2026-11-27-10-15-30"
    put(tmp_path / "class" / f"{name}.zip", b"PK no")
    put(tmp_path / "class" / "ada" / NOTEBOOK, WORK)
    found = find(*unpack_archives([tmp_path / "class"], tmp_path / "out"))
    assert {one.student for one in found} == {"ada"}
    (problem,) = [one.problem for one in found if one.problem]
    assert "cannot be unpacked" in problem
