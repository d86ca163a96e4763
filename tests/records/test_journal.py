"""A learner's files: the journal of answers, and notebooks whose changed copies are kept."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.amp import RECIPES
from labkit.grading.submission import find
from labkit.records.journal import (
    append_answer,
    current_journal,
    entries,
    home_journal,
    last_answers,
    save_answer,
)
from labkit.records.notebook_copies import DIGESTS, copy_notebooks, version_of_copies
from labkit.train import TASKS, train_grid
from labkit.widgets import recipe_table
from tests.grading.hand_ins import code, notebook, put
from tests.notebook_page import to_html


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of our own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "labkit-answers.jsonl"


def test_worked_example(journal: Path) -> None:
    assert last_answers(journal, "prediction") == {}
    for answer in ("0", "2^-27"):
        append_answer(journal, "prediction", "scaling.order", answer)
    append_answer(journal, "exercise", "scaling.order", "0")
    assert last_answers(journal, "prediction") == {"scaling.order": "2^-27"}
    assert last_answers(journal, "exercise") == {"scaling.order": "0"}
    first, *_ = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert first.pop("when").endswith("+00:00")
    assert first == {"kind": "prediction", "id": "scaling.order", "answer": "0"}


def test_a_damaged_line_costs_no_other(journal: Path) -> None:
    for damage in (
        b"{",
        b"[1]",
        b"\xff\xfe",
        b'{"kind": "prediction", "id": 3, "answer": "0"}',
        b"\n",
    ):
        journal.unlink(missing_ok=True)
        append_answer(journal, "prediction", "scaling.order", "0")
        # the last line without its end
        journal.write_bytes(damage + b"\n" + journal.read_bytes() + damage)
        append_answer(journal, "prediction", "straße", 'both "2⁻²⁴"\nand\u2028\\')
        answers = last_answers(journal, "prediction")
        assert answers == {"scaling.order": "0", "straße": 'both "2⁻²⁴"\nand\u2028\\'}, damage


def test_two_kernels_in_one_folder_lose_nothing_of_each_other(journal: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from labkit.records.journal import append_answer\n"
    )
    program += (
        "for n in range(40): append_answer(Path(sys.argv[1]), 'exercise', "
        "f'{sys.argv[2]}{n}', 'x' * 3000)"
    )
    kernels = [
        subprocess.Popen([sys.executable, "-c", program, str(journal), name]) for name in "ab"
    ]
    assert [kernel.wait() for kernel in kernels] == [0, 0]
    assert set(last_answers(journal, "exercise")) == {
        f"{name}{n}" for name in "ab" for n in range(40)
    }


def test_home_folder_replaces_a_read_only_folder(
    journal: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = (f"2026-01-01T1{hour}:00:00+00:00" for hour in range(5))
    monkeypatch.setattr("labkit.records.journal.now", lambda: next(times))
    journal.mkdir()  # a folder stands where the file belongs
    save_answer(journal, "exercise", "scaling.order", "mine", points=3)
    assert not list(journal.iterdir())
    (line,) = entries(journal, "exercise")
    assert line["answer"] == "mine"
    assert line["points"] == 3
    assert line["folder"] == str(journal.parent)
    assert entries(journal.parent / "another folder" / "labkit-answers.jsonl", "exercise") == []
    assert home_journal().is_relative_to(home)
    journal.rmdir()
    append_answer(journal, "prediction", "p", "first")
    append_answer(home_journal(), "prediction", "p", "second", folder=str(journal.parent))
    assert last_answers(journal, "prediction") == {"p": "second"}, (
        "both places count, and the later answer"
    )
    append_answer(journal, "prediction", "p", "third")
    assert last_answers(journal, "prediction") == {"p": "third"}


def test_nothing_is_logged_outside_of_a_notebook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert current_journal() is None
    monkeypatch.setattr(
        "IPython.core.getipython.get_ipython", lambda: SimpleNamespace(kernel="one")
    )
    monkeypatch.delenv("LABKIT_ANSWERS", raising=False)
    assert current_journal() == Path.cwd() / "labkit-answers.jsonl"
    monkeypatch.setenv("LABKIT_ANSWERS", "off")
    assert current_journal() is None


@pytest.fixture
def lessons(tmp_path: Path) -> Path:
    for name in ("00_start", "01_numbers", "02_rounding"):
        put(tmp_path / "package" / f"{name}.ipynb", f"{name} as of 1.0")
    return put(tmp_path / "package" / "build.py", "not for learners").parent


def what(copied) -> dict[str, str]:
    return {each.name.split("_")[0]: each.status for each in copied}


def test_newer_version_keeps_the_learners_work(lessons: Path, tmp_path: Path):
    mine = tmp_path / "mein Übungsordner"
    assert what(copy_notebooks(lessons, mine, "1.0")) == {"00": "new", "01": "new", "02": "new"}
    assert not (mine / "build.py").exists()
    (mine / "01_numbers.ipynb").write_text("my work")
    for name in ("01_numbers", "02_rounding"):
        (lessons / f"{name}.ipynb").write_text(f"{name} as of 1.1")

    copied = copy_notebooks(lessons, mine, "1.1")
    assert what(copied) == {"00": "the same", "01": "kept", "02": "replaced"}
    assert str(copied[1]) == "01_numbers.ipynb: kept; the newer one is 01_numbers-1.1.ipynb"
    assert (mine / "01_numbers.ipynb").read_text() == "my work"
    assert (mine / "01_numbers-1.1.ipynb").read_text() == "01_numbers as of 1.1"
    assert (mine / "02_rounding.ipynb").read_text() == "02_rounding as of 1.1"


def test_newer_notebook_is_written_beside_once(lessons: Path, tmp_path: Path):
    mine = tmp_path / "mine"
    copy_notebooks(lessons, mine, "1.0")
    (mine / "01_numbers.ipynb").write_text("my work")
    (kept,) = [each for each in copy_notebooks(lessons, mine, "1.0") if each.status == "kept"]
    assert kept.newer is None, "nothing newer came"
    (lessons / "01_numbers.ipynb").write_text("1.1")
    copy_notebooks(lessons, mine, "1.1")
    (mine / "01_numbers-1.1.ipynb").write_text("my work in the newer one")
    copy_notebooks(lessons, mine, "1.1")
    (lessons / "01_numbers.ipynb").write_text("1.1 again, built from another commit")
    copy_notebooks(lessons, mine, "1.1")
    assert {path.name: path.read_text() for path in mine.glob("01*")} == {
        "01_numbers.ipynb": "my work",
        "01_numbers-1.1.ipynb": "my work in the newer one",
        "01_numbers-1.1-2.ipynb": "1.1 again, built from another commit",
    }


def test_older_handout_replaces_nothing(lessons: Path, tmp_path: Path):
    mine = tmp_path / "mine"
    first, second, third = (
        f"0.2.0+class.{part}"
        for part in ("20261126.905.g0000001a", "20261203.5.g0000001b", "20261203.6.g0000001c")
    )
    (lessons / "01_numbers.ipynb").write_text("of week two")
    copy_notebooks(lessons, mine, second)
    assert version_of_copies(mine) == second
    (lessons / "01_numbers.ipynb").write_text("of week one")
    (lessons / "03_more.ipynb").write_text("of week one")
    assert what(copy_notebooks(lessons, mine, first)) == {
        "00": "kept",
        "01": "kept",
        "02": "kept",
        "03": "new",
    }
    assert version_of_copies(mine) == second
    assert (mine / "01_numbers.ipynb").read_text() == "of week two"
    (lessons / "01_numbers.ipynb").write_text("of week three")
    assert what(copy_notebooks(lessons, mine, third))["01"] == "replaced"
    assert version_of_copies(mine) == third


def test_changed_files_count_as_work_without_a_list(lessons: Path, tmp_path: Path):
    for number, listed in enumerate(("", "[]", '{"01_numbers.ipynb": 7}')):
        mine = tmp_path / f"mine {number}"
        put(mine / DIGESTS, listed)
        put(mine / "01_numbers.ipynb", "from somewhere")
        assert what(copy_notebooks(lessons, mine, "1.1")) == {
            "00": "new",
            "01": "kept",
            "02": "new",
        }, listed
        assert (mine / "01_numbers.ipynb").read_text() == "from somewhere"
        assert len(json.loads((mine / DIGESTS).read_text())) == 3


NAMES = [
    "Übung 6",
    "A\u0308nne O'Neil & Söhne",
    "[2026] 100 %",
    *([] if os.name == "nt" else ["C:\\Users\\Jürgen"]),
]


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tmp_path / request.param
    cell = {
        **code("answer = 1", id="exercise-scaling-advance"),
        "outputs": [],
        "execution_count": None,
    }
    put(made / "06_loss_scaling.ipynb", notebook(cell))
    for junk in ("desktop.ini", ".DS_Store", "__MACOSX/._06_loss_scaling.ipynb"):
        put(made / junk, b"\0\x05\x16")
    return made


def test_lessons_are_kept_in_the_learners_folder(folder: Path) -> None:
    copied = copy_notebooks(folder, folder / "mine", "1.0")
    assert [each.name for each in copied] == ["06_loss_scaling.ipynb"]
    save_answer(folder / "journal", "answer", "scaling.scale", "2^10")
    assert last_answers(folder / "journal", "answer") == {"scaling.scale": "2^10"}
    assert ">answer</span>" in to_html(folder / "06_loss_scaling.ipynb").read_text(encoding="utf-8")
    shutil.rmtree(folder / "mine")
    (found,) = find([folder.parent])
    assert found.student == folder.name
    assert found.notebook == "06_loss_scaling.ipynb"
    assert [cell.source for cell in found.cells] == ["answer = 1"]


def test_runs_are_recorded_in_the_learners_folder(
    folder: Path,
) -> None:
    short = replace(TASKS["small_targets"], steps=2)
    (made,) = train_grid(short, [RECIPES["FP32"]], [0], folder, workers=1)
    (read,) = train_grid(short, [RECIPES["FP32"]], [0], folder, workers=1)
    assert read == made
    # what a shell reads differently, on one system or another
    if not set(folder.name) & {"'", "\\"}:
        command = recipe_table(["small_targets"], ["FP16"], folder=folder).missing()
        assert shlex.split(command)[-1] == str(folder)
