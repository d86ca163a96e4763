"""A learner's files: the journal of answers, and notebooks whose changed copies are kept."""

import json
import os
import shlex
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
    """The path of a journal that does not exist yet."""
    return tmp_path / "labkit-answers.jsonl"


def test_a_missing_journal_has_no_answers(journal: Path) -> None:
    assert last_answers(journal, "prediction") == {}


def test_the_last_answer_of_each_kind_counts(journal: Path) -> None:
    for answer in ("0", "2^-27"):
        append_answer(journal, "prediction", "scaling.order", answer)
    append_answer(journal, "exercise", "scaling.order", "0")
    assert last_answers(journal, "prediction") == {"scaling.order": "2^-27"}
    assert last_answers(journal, "exercise") == {"scaling.order": "0"}


def test_an_answer_is_a_line_of_json_with_its_time(journal: Path) -> None:
    append_answer(journal, "prediction", "scaling.order", "0")
    (line,) = journal.read_text(encoding="utf-8").splitlines()
    entry = json.loads(line)
    assert entry.pop("when").endswith("+00:00")
    assert entry == {"kind": "prediction", "id": "scaling.order", "answer": "0"}


@pytest.mark.parametrize(
    "damage",
    [b"{", b"[1]", b"\xff\xfe", b'{"kind": "prediction", "id": 3, "answer": "0"}', b"\n"],
    ids=["cut", "a list", "not UTF-8", "wrong type", "empty"],
)
def test_a_damaged_line_costs_no_other_answer(journal: Path, damage: bytes) -> None:
    append_answer(journal, "prediction", "scaling.order", "0")
    # One damaged line before the answer, and one without its end after it.
    journal.write_bytes(damage + b"\n" + journal.read_bytes() + damage)
    answer = 'both "2⁻²⁴"\nand\u2028\\'
    append_answer(journal, "prediction", "straße", answer)
    assert last_answers(journal, "prediction") == {"scaling.order": "0", "straße": answer}


# Appends 150 long answers to the journal of the first argument, after a line of input; the second
# argument begins their ids.
WRITER = """
import sys
from pathlib import Path
from labkit.records.journal import append_answer
print("ready", flush=True)
sys.stdin.readline()
for number in range(150):
    append_answer(Path(sys.argv[1]), "exercise", f"{sys.argv[2]}{number}", "x" * 3000)
"""


def test_two_kernels_in_one_folder_lose_no_answer(journal: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    kernels = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(journal), name], **pipes)
        for name in "ab"
    ]
    # Both have imported the lab before one of them begins.
    assert [kernel.stdout.readline() for kernel in kernels] == ["ready\n", "ready\n"]
    for kernel in kernels:
        kernel.stdin.write("begin\n")
        kernel.stdin.flush()
    for kernel in kernels:
        kernel.communicate()
    assert [kernel.returncode for kernel in kernels] == [0, 0]
    ids = {f"{name}{number}" for name in "ab" for number in range(150)}
    assert last_answers(journal, "exercise").keys() == ids


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is an hour later than the one before."""
    hours = (f"2026-01-01T1{hour}:00:00+00:00" for hour in range(5))
    monkeypatch.setattr("labkit.records.journal.now", lambda: next(hours))


def test_the_journal_of_the_home_folder_is_in_it(home: Path) -> None:
    assert home_journal().is_relative_to(home)


@pytest.fixture
def saved_at_home(journal: Path) -> None:
    """An answer whose journal cannot be written, since a folder has its name."""
    journal.mkdir()
    save_answer(journal, "exercise", "scaling.order", "mine", points=3)
    assert not list(journal.iterdir())


@pytest.mark.usefixtures("saved_at_home")
def test_the_home_folder_replaces_a_read_only_folder(journal: Path) -> None:
    (entry,) = entries(journal, "exercise")
    assert entry["answer"] == "mine"
    assert entry["points"] == 3
    assert entry["folder"] == str(journal.parent)


@pytest.mark.usefixtures("saved_at_home")
def test_answers_at_home_are_of_one_folder_only(journal: Path) -> None:
    other = journal.parent / "another folder" / "labkit-answers.jsonl"
    assert entries(other, "exercise") == []


@pytest.mark.usefixtures("times")
def test_the_later_answer_of_both_journals_counts(journal: Path) -> None:
    append_answer(journal, "prediction", "p", "first")
    append_answer(home_journal(), "prediction", "p", "second", folder=str(journal.parent))
    assert last_answers(journal, "prediction") == {"p": "second"}
    append_answer(journal, "prediction", "p", "third")
    assert last_answers(journal, "prediction") == {"p": "third"}


def test_outside_of_a_notebook_there_is_no_journal() -> None:
    assert current_journal() is None


@pytest.fixture
def in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython with a kernel, as in a notebook."""
    ipython = SimpleNamespace(kernel="one")
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: ipython)
    monkeypatch.delenv("LABKIT_ANSWERS", raising=False)


@pytest.mark.usefixtures("in_a_notebook")
def test_the_journal_of_a_notebook_is_in_its_folder() -> None:
    assert current_journal() == Path.cwd() / "labkit-answers.jsonl"


@pytest.mark.usefixtures("in_a_notebook")
def test_the_journal_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_ANSWERS", "off")
    assert current_journal() is None


@pytest.fixture
def lessons(tmp_path: Path) -> Path:
    """A folder of three notebooks, and of a file that is not copied."""
    for name in ("00_start", "01_numbers", "02_rounding"):
        put(tmp_path / "package" / f"{name}.ipynb", f"{name} as of 1.0")
    return put(tmp_path / "package" / "build.py", "not for learners").parent


def statuses(copies) -> dict[str, str]:
    """Return number of a notebook -> what became of it."""
    return {copy.name.split("_")[0]: copy.status for copy in copies}


def test_only_notebooks_are_copied(lessons: Path, tmp_path: Path):
    mine = tmp_path / "mine"
    copies = copy_notebooks(lessons, mine, "1.0")
    assert statuses(copies) == {"00": "new", "01": "new", "02": "new"}
    assert not (mine / "build.py").exists()


def test_newer_version_keeps_the_learners_work(lessons: Path, tmp_path: Path):
    mine = tmp_path / "mein Übungsordner"
    copy_notebooks(lessons, mine, "1.0")
    (mine / "01_numbers.ipynb").write_text("my work")
    for name in ("01_numbers", "02_rounding"):
        (lessons / f"{name}.ipynb").write_text(f"{name} as of 1.1")

    copied = copy_notebooks(lessons, mine, "1.1")
    assert statuses(copied) == {"00": "the same", "01": "kept", "02": "replaced"}
    assert str(copied[1]) == "01_numbers.ipynb: kept; the newer one is 01_numbers-1.1.ipynb"
    assert (mine / "01_numbers.ipynb").read_text() == "my work"
    assert (mine / "01_numbers-1.1.ipynb").read_text() == "01_numbers as of 1.1"
    assert (mine / "02_rounding.ipynb").read_text() == "02_rounding as of 1.1"


def test_without_a_newer_notebook_none_is_written_beside(lessons: Path, tmp_path: Path):
    mine = tmp_path / "mine"
    copy_notebooks(lessons, mine, "1.0")
    (mine / "01_numbers.ipynb").write_text("my work")
    (kept,) = [copy for copy in copy_notebooks(lessons, mine, "1.0") if copy.status == "kept"]
    assert kept.newer is None


def test_a_newer_notebook_is_written_beside_once(lessons: Path, tmp_path: Path):
    mine = tmp_path / "mine"
    copy_notebooks(lessons, mine, "1.0")
    (mine / "01_numbers.ipynb").write_text("my work")
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


# Versions of three handouts, by time.
WEEK_ONE = "0.2.0+class.20261126.905.g0000001a"
WEEK_TWO = "0.2.0+class.20261203.5.g0000001b"
WEEK_TWO_CORRECTED = "0.2.0+class.20261203.6.g0000001c"


@pytest.fixture
def copies_of_week_two(lessons: Path, tmp_path: Path) -> Path:
    """A learner's folder with the notebooks of the second handout."""
    (lessons / "01_numbers.ipynb").write_text("of week two")
    copy_notebooks(lessons, tmp_path / "mine", WEEK_TWO)
    return tmp_path / "mine"


def test_the_version_of_copies_is_that_of_their_handout(copies_of_week_two: Path):
    assert version_of_copies(copies_of_week_two) == WEEK_TWO


def test_an_older_handout_replaces_nothing(lessons: Path, copies_of_week_two: Path):
    (lessons / "01_numbers.ipynb").write_text("of week one")
    (lessons / "03_more.ipynb").write_text("of week one")
    copies = copy_notebooks(lessons, copies_of_week_two, WEEK_ONE)
    assert statuses(copies) == {"00": "kept", "01": "kept", "02": "kept", "03": "new"}
    assert version_of_copies(copies_of_week_two) == WEEK_TWO
    assert (copies_of_week_two / "01_numbers.ipynb").read_text() == "of week two"


def test_a_newer_handout_replaces_copies(lessons: Path, copies_of_week_two: Path):
    (lessons / "01_numbers.ipynb").write_text("corrected")
    copies = copy_notebooks(lessons, copies_of_week_two, WEEK_TWO_CORRECTED)
    assert statuses(copies)["01"] == "replaced"
    assert version_of_copies(copies_of_week_two) == WEEK_TWO_CORRECTED


@pytest.mark.parametrize(
    "digests", ["", "[]", '{"01_numbers.ipynb": 7}'], ids=["empty", "a list", "wrong type"]
)
def test_files_count_as_work_if_the_list_of_copies_is_damaged(
    lessons: Path, tmp_path: Path, digests: str
):
    mine = tmp_path / "mine"
    put(mine / DIGESTS, digests)
    put(mine / "01_numbers.ipynb", "from somewhere")
    copies = copy_notebooks(lessons, mine, "1.1")
    assert statuses(copies) == {"00": "new", "01": "kept", "02": "new"}
    assert (mine / "01_numbers.ipynb").read_text() == "from somewhere"
    assert len(json.loads((mine / DIGESTS).read_text())) == 3


# Names of folders with characters that shells, patterns, addresses and Unicode treat specially.
NAMES = [
    "Übung 6",
    "A\u0308nne O'Neil & Söhne",
    "[2026] 100 %",
    *([] if os.name == "nt" else ["C:\\Users\\Jürgen"]),
]


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of each of NAMES, with lesson 06 and with files that systems leave in folders."""
    folder = tmp_path / request.param
    cell = {
        **code("answer = 1", id="exercise-scaling-advance"),
        "outputs": [],
        "execution_count": None,
    }
    put(folder / "06_loss_scaling.ipynb", notebook(cell))
    for junk in ("desktop.ini", ".DS_Store", "__MACOSX/._06_loss_scaling.ipynb"):
        put(folder / junk, b"\0\x05\x16")
    return folder


def test_notebooks_are_copied_into_any_folder(folder: Path) -> None:
    copies = copy_notebooks(folder, folder / "mine", "1.0")
    assert [copy.name for copy in copies] == ["06_loss_scaling.ipynb"]


def test_answers_are_saved_in_any_folder(folder: Path) -> None:
    save_answer(folder / "journal", "answer", "scaling.scale", "2^10")
    assert last_answers(folder / "journal", "answer") == {"scaling.scale": "2^10"}


def test_a_notebook_of_any_folder_becomes_a_page(folder: Path) -> None:
    page = to_html(folder / "06_loss_scaling.ipynb").read_text(encoding="utf-8")
    assert ">answer</span>" in page


def test_a_hand_in_of_any_folder_is_read(folder: Path) -> None:
    (submission,) = find([folder.parent])
    assert submission.student == folder.name
    assert submission.notebook == "06_loss_scaling.ipynb"
    assert [cell.source for cell in submission.cells] == ["answer = 1"]


def test_runs_are_recorded_in_any_folder(folder: Path) -> None:
    short = replace(TASKS["small_targets"], steps=2)
    (trained,) = train_grid(short, [RECIPES["FP32"]], [0], folder, workers=1)
    assert [path.name for path in folder.rglob("*.json")] == ["fp32-seed0.json"]
    (recorded,) = train_grid(short, [RECIPES["FP32"]], [0], folder, workers=1)
    assert recorded == trained


def test_the_command_for_missing_runs_names_any_folder(folder: Path) -> None:
    if set(folder.name) & {"'", "\\"}:
        pytest.skip("shells of different systems read quotes and backslashes differently")
    command = recipe_table(["small_targets"], ["FP16"], folder=folder).missing()
    assert shlex.split(command)[-1] == str(folder)
