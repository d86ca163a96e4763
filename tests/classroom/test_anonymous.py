"""One learner graded again, and an export of the class without names."""

import csv
import json
import unicodedata
from pathlib import Path
from typing import Literal

import pytest

from labkit.classroom.anonymous import _pseudonyms, _scrubbed_code, _scrubber
from labkit.classroom.tables import read_table
from labkit.cli import main
from tests.grading.hand_ins import ADVANCE, NOTEBOOK, SETUP, WRONG, code, notebook, put

ID = "scaling.advance"
NAMES = {"Max Maier": "learner001", "Zoë Ort": "learner002"}


def grade(folder: Path, *options: str) -> dict[tuple[str, str], str]:
    words = ["grade", str(folder / "class"), "--csv", str(folder / "g.csv"), *options]
    assert main(words) == 0
    with (folder / "g.csv").open(encoding="utf-8") as file:
        return {
            (line["student"], line["exercise"]): line["points"] for line in csv.DictReader(file)
        }


def hand_in(folder: Path, name: str, answer: str) -> None:
    text = {"cell_type": "markdown", "metadata": {}, "source": [f"By {name}, max@school.org"]}
    put(folder / "class" / name / NOTEBOOK, notebook(text, code(SETUP), code(answer, ID)))


def test_a_regraded_learner_joins_the_tables_of_the_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in NAMES:
        hand_in(tmp_path, name, WRONG)
    before = grade(tmp_path, "--changed", "--gradebook", str(tmp_path / "book.csv"))
    for name in NAMES:
        hand_in(tmp_path, name, ADVANCE)
    capsys.readouterr()
    after = grade(tmp_path, "--student", "Zoë Ort", "--gradebook", str(tmp_path / "book.csv"))
    assert "[1/1] Zoë Ort: 8 of 50" in capsys.readouterr().err
    assert before["Zoë Ort", ID] != after["Zoë Ort", ID]
    assert after["Zoë Ort", ID] == "8"
    assert after["Max Maier", ID] == before["Max Maier", ID], "what changed meanwhile waits"
    totals = {line["learner"]: line["total"] for line in read_table(tmp_path / "book.csv")}
    assert totals["Zoë Ort"] == "8"
    assert grade(tmp_path, "--changed")["Max Maier", ID] == "8"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("g.csv*")}


def test_a_refused_name_changes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hand_in(tmp_path, "Max Maier", WRONG)
    grade(tmp_path, "--changed")
    before = files_of(tmp_path)
    words = ["grade", str(tmp_path / "class"), "--csv", str(tmp_path / "g.csv")]
    assert main([*words, "--student", "Max Meier"]) == 2
    assert "the nearest name is 'Max Maier'" in capsys.readouterr().err
    assert files_of(tmp_path) == before


def test_one_learner_before_the_class_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hand_in(tmp_path, "Max Maier", WRONG)
    words = ["grade", str(tmp_path / "class"), "--csv", str(tmp_path / "g.csv")]
    assert main([*words, "--student", "Max Maier"]) == 2
    printed = capsys.readouterr().err
    assert "needs an earlier grading of the class: grade it with --changed first" in printed
    assert "g.csv.part" not in files_of(tmp_path)


def test_who_handed_in_since_the_last_grading_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hand_in(tmp_path, "Max Maier", WRONG)
    grade(tmp_path, "--changed")
    hand_in(tmp_path, "Zoë Ort", ADVANCE)
    roster = put(tmp_path / "r.csv", "name\nMax Maier\nZoë Ort\n")
    grade(tmp_path, "--student", "Max Maier", "--roster", str(roster))
    printed = capsys.readouterr().err
    assert "without a row until --changed grades them: Zoë Ort" in printed
    assert "handed nothing in" not in printed


def test_an_unknown_learner_of_a_class_never_graded_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for student in NAMES:
        hand_in(tmp_path, student, WRONG)
    words = ["grade", str(tmp_path / "class"), "--csv", str(tmp_path / "g.csv")]
    assert main([*words, "--student", "Zoe"]) == 2
    assert "the nearest name is 'Zoë Ort'" in capsys.readouterr().err


def test_only_the_key_beside_an_anonymous_folder_has_names(tmp_path: Path) -> None:
    home = "/" + "home/max/fp16"
    own = f"# by Max Maier, in {home}\n" + ADVANCE + "x = max(1, 2)  # Zoë Ort helped\n"
    hand_in(tmp_path, "Max Maier", own + 'print("C:\\\\Users\\\\max\\\\x")\n')
    hand_in(tmp_path, "Zoë Ort", WRONG)
    grade(tmp_path, "--anonymous", str(tmp_path / "out"))
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) == 5, "a table, two pages, two notebooks"
    for path in files:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = "".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        for word in ("Maier", "Zoë", "Ort", "/home", "Users", "school.org"):
            assert word not in text, (path, word)
        assert "Max" not in f"{path}{text}".replace(str(tmp_path), "")
    key = {line["student"]: line["learner"] for line in read_table(tmp_path / "out-key.csv")}
    assert key.keys() == NAMES.keys()
    shown = (tmp_path / "out" / "notebooks" / key["Max Maier"] / NOTEBOOK).read_text("utf-8")
    assert "x = max(1, 2)" in shown


def test_a_second_export_keeps_the_pseudonyms(tmp_path: Path) -> None:
    keys = []
    for learners in (["Zoë Ort"], ["Max Maier", "Zoë Ort"]):
        for name in learners:
            hand_in(tmp_path, name, ADVANCE)
        grade(tmp_path, "--anonymous", str(tmp_path / "out"))
        lines = read_table(tmp_path / "out-key.csv")
        keys.append({line["student"]: line["learner"] for line in lines})
    first, second = keys
    assert second == first | {"Max Maier": "learner002"}


def test_a_second_export_replaces_the_files_of_the_first(tmp_path: Path) -> None:
    hand_in(tmp_path, "Max Maier", WRONG)
    exports = []
    for _ in range(2):
        grade(tmp_path, "--anonymous", str(tmp_path / "out"))
        exports.append({path for path in (tmp_path / "out").rglob("*") if path.is_file()})
    first, second = exports
    assert first == second


def test_a_name_that_is_a_word_of_the_lab_marks_no_sentence() -> None:
    names = {"Ann Small": "learner001", "will": "learner002", "Zhang": "learner003"}
    scrub = _scrubber("Ann Small", names)
    for sentence in ("a clean step is counted", "small numbers underflow", "what will it be?"):
        assert scrub(sentence) == sentence, "a pseudonym here says whose name it is"
    assert scrub("Ann Small, SMALL and Zhang") == "learner001, learner001 and learner003"


def test_of_names_that_differ_by_case_a_text_has_its_authors() -> None:
    names = {"Ann Ort": "learner001", "ann ort": "learner002"}
    for name, pseudonym in names.items():
        assert _scrubber(name, names)("by Ann Ort") == f"by {pseudonym}", name


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_name_goes_however_its_accents_are_written(form: Literal["NFC", "NFD"]) -> None:
    other_form: Literal["NFC", "NFD"] = "NFD" if form == "NFC" else "NFC"
    name = unicodedata.normalize(form, "Jos\u00e9 Garc\u00eda")
    scrub = _scrubber(name, {name: "learner001"})
    text = unicodedata.normalize(other_form, "by Jos\u00e9 Garc\u00eda: GARC\u00cdA, Jos\u00e9")
    assert scrub(text) == "by learner001: learner001, learner001"


def test_code_keeps_its_names_and_loses_those_of_people() -> None:
    scrub = _scrubber("Max Maier", NAMES)
    source = 'y = max(x)  # Max\nz = """\nMAIER\n""" + f"{max} {{Max}} {{{max}}}"\n'
    assert _scrubbed_code(source, scrub) == (
        'y = max(x)  # learner001\nz = """\nlearner001\n""" + f"{max} {{learner001}} {{{max}}}"\n'
    )
    assert _scrubbed_code("def (: Maier", scrub) == "def (: learner001"


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_names_go_from_code_with_rare_separators(separator: str) -> None:
    scrub = _scrubber("Max Maier", NAMES)
    source = f'# a{separator}b\ny = "by Maier"\n'
    assert _scrubbed_code(source, scrub) == f'# a{separator}b\ny = "by learner001"\n'


def test_a_gap_in_the_key_gives_no_number_twice(tmp_path: Path) -> None:
    key = tmp_path / "out-key.csv"
    put(key, "learner,student\nlearner001,ada\nlearner003,carl\n")
    assert _pseudonyms(["ada", "carl", "dora"], key) == {
        "ada": "learner001",
        "carl": "learner003",
        "dora": "learner004",
    }


@pytest.mark.parametrize(
    "text",
    [
        "pseudonym,student\nlearner001,ada\n",
        "learner,name\nlearner001,ada\n",
        "learner,student\nada,learner001\n",
        "learner,student\nlearner001,ada\nlearner001,bob\n",
    ],
)
def test_a_damaged_key_is_refused_and_not_replaced(text: str, tmp_path: Path) -> None:
    key = put(tmp_path / "out-key.csv", text)
    with pytest.raises(ValueError, match="is not the key of an earlier export"):
        _pseudonyms(["ada", "bob"], key)
    assert key.read_text(encoding="utf-8") == text
