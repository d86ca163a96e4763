"""The journal of a learner's answers: lines are added, the last one counts, a damaged one costs no other."""

import errno
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.records.journal import entries, home_journal, journal_here, keep, last_answers, note


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
        note(journal, "prediction", "scaling.order", answer)
    note(journal, "exercise", "scaling.order", "0")
    assert last_answers(journal, "prediction") == {"scaling.order": "2^-27"}
    assert last_answers(journal, "exercise") == {"scaling.order": "0"}
    first, *_ = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert first.pop("when").endswith("+00:00")
    assert first == {"kind": "prediction", "id": "scaling.order", "answer": "0"}


def test_a_damaged_line_costs_no_other(journal: Path) -> None:
    for damage in (b"{", b"[1]", b"\xff\xfe", b'{"kind": "prediction", "id": 3, "answer": "0"}', b"\n"):
        journal.unlink(missing_ok=True)
        note(journal, "prediction", "scaling.order", "0")
        journal.write_bytes(damage + b"\n" + journal.read_bytes() + damage)  # the last line without its end
        note(journal, "prediction", "straße", 'both "2⁻²⁴"\nand\u2028\\')
        answers = last_answers(journal, "prediction")
        assert answers == {"scaling.order": "0", "straße": 'both "2⁻²⁴"\nand\u2028\\'}, damage


def test_two_kernels_in_one_folder_lose_nothing_of_each_other(journal: Path) -> None:
    program = "import sys; from pathlib import Path; from labkit.records.journal import note\n"
    program += "for n in range(40): note(Path(sys.argv[1]), 'exercise', f'{sys.argv[2]}{n}', 'x' * 3000)"
    kernels = [subprocess.Popen([sys.executable, "-c", program, str(journal), name]) for name in "ab"]
    assert [kernel.wait() for kernel in kernels] == [0, 0]
    assert set(last_answers(journal, "exercise")) == {f"{name}{n}" for name in "ab" for n in range(40)}


def test_where_the_folder_cannot_be_written_the_home_folder_keeps_it(journal: Path, home: Path) -> None:
    journal.mkdir()  # a folder stands where the file belongs
    keep(journal, "exercise", "scaling.order", "mine", points=3)
    assert not list(journal.iterdir())
    (line,) = entries(journal, "exercise")
    assert (line["answer"], line["points"], line["folder"]) == ("mine", 3, str(journal.parent))
    assert entries(journal.parent / "another folder" / "labkit-answers.jsonl", "exercise") == []
    assert home_journal().is_relative_to(home)


def test_both_places_count_and_the_later_answer_is_the_last(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(["2026-01-01T10:00:00+00:00", "2026-01-01T11:00:00+00:00", "2026-01-01T12:00:00+00:00"])
    monkeypatch.setattr("labkit.records.journal.now", lambda: next(times))
    note(journal, "prediction", "p", "first")
    note(home_journal(), "prediction", "p", "second", folder=str(journal.parent))
    assert last_answers(journal, "prediction") == {"p": "second"}
    note(journal, "prediction", "p", "third")
    assert last_answers(journal, "prediction") == {"p": "third"}


def test_a_full_disk_is_a_warning(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("labkit.records.journal.note", full)
    with pytest.warns(UserWarning, match="could not be kept for next time: .*No space left on device"):
        keep(journal, "exercise", "scaling.order", "mine")


def test_nothing_is_kept_outside_of_a_notebook_or_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert journal_here() is None
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: SimpleNamespace(kernel="one"))
    monkeypatch.delenv("LABKIT_ANSWERS", raising=False)
    assert journal_here() == Path.cwd() / "labkit-answers.jsonl"
    monkeypatch.setenv("LABKIT_ANSWERS", "off")
    assert journal_here() is None
