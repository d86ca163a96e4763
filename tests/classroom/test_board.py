"""The page of a class: what it shows, and what it keeps private."""

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.classroom.board import guesses, leaders, serve, state
from labkit.classroom.class_pages import report
from labkit.cli import main
from labkit.grading.results import GradeRow, GradingLog
from labkit.records.journal import NAME, append_answer, append_line
from tests.slowness import slowness

QUESTION = "start.warm_up"
RULER = "numbers.tenth"


def commit(folder: Path, learner: str, id: str, answer: str) -> None:
    append_answer(folder / learner / NAME, "prediction", id, answer)


@pytest.fixture
def class_folder(tmp_path: Path) -> Path:
    for learner, answer in (
        ("ada", "about a quarter"),
        ("Zoë", "about a quarter"),
        ("bob", "about three quarters"),
    ):
        commit(tmp_path, learner, QUESTION, answer)
    return tmp_path


def test_learner_counts_once_with_the_last_answer(class_folder: Path) -> None:
    commit(class_folder, "bob", QUESTION, "about a quarter")
    (found,) = guesses(class_folder)
    assert dict(found["bars"]) == {
        "about one in a thousand": 0,
        "about a quarter": 3,
        "about three quarters": 0,
    }


def test_an_answer_that_is_no_choice_is_not_counted(class_folder: Path) -> None:
    before = guesses(class_folder)
    commit(class_folder, "eve", QUESTION, "<script>alert(1)</script>")
    assert guesses(class_folder) == before


def test_an_unknown_question_is_not_shown(class_folder: Path) -> None:
    before = guesses(class_folder)
    commit(class_folder, "eve", "no.such", "x")
    assert guesses(class_folder) == before


def test_the_counted_answers_have_no_names(class_folder: Path) -> None:
    shown = json.dumps(guesses(class_folder), ensure_ascii=False)
    assert [name for name in ("ada", "bob", "Zoë") if name in shown] == []


def test_of_two_journals_of_a_learner_the_later_answer_counts(tmp_path: Path) -> None:
    line = {"kind": "prediction", "id": QUESTION}
    answers = {"ada": "about a quarter", "ada/copy": "about three quarters"}
    for place, when in (("ada", "2026-11-02T08:00:00"), ("ada/copy", "2026-11-01T08:00:00")):
        append_line(tmp_path / place / NAME, {**line, "answer": answers[place], "when": when})
    (found,) = guesses(tmp_path)
    assert dict(found["bars"])["about a quarter"] == 1
    assert dict(found["bars"])["about three quarters"] == 0


def test_the_question_answered_last_is_shown_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = (f"2026-01-01T1{hour}:00:00+00:00" for hour in range(4))
    monkeypatch.setattr("labkit.records.journal.now", lambda: next(hours))
    commit(tmp_path, "ada", QUESTION, "about a quarter")
    commit(tmp_path, "ada", RULER, "0.02")
    assert [found["id"] for found in guesses(tmp_path)] == [RULER, QUESTION]
    commit(tmp_path, "bob", QUESTION, "about a quarter")
    assert [found["id"] for found in guesses(tmp_path)] == [QUESTION, RULER]


def test_numbers_are_counted_by_their_power_of_ten(tmp_path: Path) -> None:
    for learner, answer in (
        ("a", "0.02"),
        ("b", "0.05"),
        ("c", "3"),
        ("d", "nan"),
        ("e", "-1"),
        ("f", "much"),
    ):
        commit(tmp_path, learner, RULER, answer)
    assert guesses(tmp_path)[0]["bars"] == [("0.01 to 0.1", 2), ("1 to 10", 1)]


# learner -> answers to the question `odd` of the quiz, before the course and after it
QUIZ = {
    "ada": ("2049", "2048"),
    "bob": ("2048", "2050"),
    "cleo": ("I do not know", "2048"),
    "dan": ("2048", ""),
}


@pytest.fixture
def quiz_folder(tmp_path: Path) -> Path:
    """The folder of a class that took the quiz; Eve answered one question, after the course."""
    for learner, both in QUIZ.items():
        for kind, answer in zip(("before", "after"), both, strict=True):
            append_answer(tmp_path / learner / NAME, kind, "odd", answer)
    append_answer(tmp_path / "eve" / NAME, "after", "tiny", "0")
    return tmp_path


def quiz_table(folder: Path) -> str:
    """Return the table of the quiz on the page of the class."""
    text = report([], sorted(folder.glob(f"*/{NAME}"))).decode()
    (table,) = re.findall("Before and after.*?</table>", text, re.DOTALL)
    return str(table.replace("\N{NO-BREAK SPACE}", " "))


def test_the_quiz_is_counted_by_question(quiz_folder: Path) -> None:
    tiny, odd = sorted(state(quiz_folder, None)["quiz"], key=lambda row: row["question"])
    counts = {"before": (2, 4), "after": (2, 3), "improved": 2, "declined": 1}
    assert odd == {"question": "What is 2048 + 1 in FP16?", **counts}
    assert tiny["before"] == (0, 0)
    assert tiny["after"] == (1, 1)


def test_the_class_page_has_a_table_of_the_quiz(quiz_folder: Path) -> None:
    table = quiz_table(quiz_folder)
    assert "<td>2 of 4 (50%)</td><td>2 of 3 (67%)</td><td>2</td><td>1</td>" in table
    assert "<td>no answer</td><td>1 of 1 (100%)</td>" in table


def test_the_table_of_the_quiz_names_no_learner(quiz_folder: Path) -> None:
    table = quiz_table(quiz_folder)
    assert [learner for learner in (*QUIZ, "eve") if learner in table] == []


def test_journals_without_a_prediction_are_told(quiz_folder: Path) -> None:
    text = report([], sorted(quiz_folder.glob(f"*/{NAME}"))).decode()
    assert "No prediction of these lessons was answered." in text


def test_a_class_without_a_quiz_has_no_table_of_it() -> None:
    assert "Before and after" not in report([], []).decode()


def kept(folder: Path) -> Path:
    """Write the log that a grading keeps, of three learners, two of them with equal points.

    Returns:
        The path of the log.
    """
    journal = GradingLog(folder / "g.csv.part", {"seed": 1}, folder / "g.csv.kept")
    journal.read(1)
    journal.begin()
    for name, points, size in (("ada", 6, 400), ("zoe", 8, 900), ("bob", 8, 800)):
        rows = [GradeRow(name, "12.ipynb", "project.targets", points, 8, "", 1, {"bytes": size})]
        journal.add(name, [*rows, GradeRow(name, "12.ipynb", "scaling.clip", 10, 10, "", 1)])
    journal.all_rows(["ada", "zoe", "bob"])
    journal.end()
    return folder / "g.csv.kept"


def test_the_leader_board_comes_from_graded_rows(tmp_path: Path) -> None:
    path = kept(tmp_path)
    rows = [(place, name, points, size) for place, name, points, _, size in leaders(path)]
    assert rows == [(1, "bob", 8, 800), (2, "zoe", 8, 900), (3, "ada", 6, 400)]


def test_damaged_lines_of_a_log_have_no_rows(tmp_path: Path) -> None:
    path = kept(tmp_path)
    whole = leaders(path)
    with path.open("a", encoding="utf-8") as log:
        log.write('{"notebook": "eve"}\n{"notebook": "eve", "rows": [["eve", "12.ipynb"]]}\n')
    assert leaders(path) == whole
    journal = GradingLog(None, {"seed": None}, path)
    assert journal.read(1) == []
    assert set(journal.rows) == {"ada", "zoe", "bob"}


def test_the_leader_board_says_out_of_how_many_points(tmp_path: Path) -> None:
    assert {out_of for _, _, _, out_of, _ in leaders(kept(tmp_path))} == {8}


def test_a_learner_who_left_leaves_the_leader_board(tmp_path: Path) -> None:
    path = kept(tmp_path)
    journal = GradingLog(tmp_path / "g.csv.part", {"seed": None}, path)
    assert journal.read(1) == []
    assert set(journal.rows) == {"ada", "zoe", "bob"}
    journal.all_rows(["ada"])
    journal.end()
    assert [name for _, name, *_ in leaders(path)] == ["ada"]


def test_a_file_that_a_learner_wrote_is_not_a_leader_board(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(
        '{"schema": "labkit.leader_board/1", "name": "eve", "points": 24}'
    )
    with pytest.raises(ValueError, match="expected the log that `labkit grade --changed` writes"):
        leaders(tmp_path / "own.json")


@pytest.fixture
def address(class_folder: Path, tmp_path: Path) -> Iterator[str]:
    server = serve(class_folder, kept(tmp_path), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_server_answers_with_the_state_of_the_class(address: str) -> None:
    with urllib.request.urlopen(f"{address}/state", timeout=30 * slowness()) as answer:
        assert json.load(answer)["leaders"][0][:3] == [1, "bob", 8]


def test_the_page_of_the_board_loads_nothing_from_elsewhere(address: str) -> None:
    with urllib.request.urlopen(address, timeout=30 * slowness()) as answer:
        text = answer.read().decode()
    assert "What the class thinks" in text
    assert "http" not in text.split("<body>")[1]


@pytest.mark.parametrize("path", ["/../g.csv.kept", "/labkit-answers.jsonl", "/state/x"])
def test_the_server_answers_no_other_path(address: str, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(address + path, timeout=30 * slowness())


def test_an_error_of_the_state_is_sent_in_ascii(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> None:
        raise ValueError("Zoë's file is damaged")

    monkeypatch.setattr("labkit.classroom.board.state", unreadable)
    with pytest.raises(urllib.error.HTTPError, match=r"500: Zo\?'s file is damaged"):
        urllib.request.urlopen(f"{address}/state", timeout=30 * slowness())


def test_a_board_of_a_missing_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["board", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_shows_the_answers_of_the_class(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    page.get_by_text("about a quarter: 2").wait_for()
    page.get_by_role("cell", name="zoe").wait_for()
    page.close()


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_shows_why_there_is_no_state(browser: Any, address: str, tmp_path: Path) -> None:
    (tmp_path / "g.csv.kept").write_text("{}")
    page = browser.new_page()
    page.goto(address)
    page.get_by_text("The board reports an error: expected the log").wait_for()
    page.close()
