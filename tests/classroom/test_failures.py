"""Failures on class and feedback pages: kinds, first cases, code, links and equal answers."""

from pathlib import Path

import pytest

from labkit.classroom.class_pages import addresses, feedback, report, write_feedback
from labkit.classroom.failures import KINDS, OTHER, equal_answers, failures, kind_of
from labkit.classroom.marks import marks_of
from labkit.grading import EXERCISES
from labkit.grading.results import GradeRow
from tests.grading.hand_ins import ADVANCE, CLIP, SETUP, UNSCALE, code, graded, notebook, put

ID = "scaling.advance"
REASONS = {
    "handed in work.rar: no notebook (.ipynb)": "handed in no readable notebook",
    "it is larger than 64 MiB": "handed in no readable notebook",
    "its archive holds more than 5000 files": "handed in no readable notebook",
    "unsolved: the starter is still in place": "left the starter",
    "syntax error in line 2: expected ':' (graded by Python 3.11)": "syntax error",
    "0 of 5 checks pass; stopped after 20 s of CPU time": "endless loop",
    "stopped after 65 s: it waits for something": "waited",
    "stopped: its processes took more than 1024 MiB of memory together": "took too much memory",
    "its cell was deleted: no code cell has the tag x": "cell deleted or renamed",
    "first: it is called as f(x), but yours takes (y)": "other arguments",
    "first: it stopped with NameError: name 'a' is not defined": "undefined name",
    "first: it changes `x`, an argument": "changed an argument",
    "first: f(x=1): expected 2, got None": "returned None",
    "first: it stopped with KeyError: 'scale'": "stopped with an error",
    "3 of 5 checks pass; known mistake: grows one step late": "known mistake",
    "first: expected 2, got 3": "another answer",
}


def row(student: str, reason: str, points: int = 0, exercise: str = ID, text: str = "") -> GradeRow:
    return GradeRow(student, "06.ipynb", exercise, points, 8, reason, 1, {"code": text})


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_has_one_kind(reason: str) -> None:
    kind = kind_of(row("ada", reason))
    assert kind is not None
    assert kind.name == REASONS[reason]


def test_a_row_with_full_points_has_no_kind() -> None:
    assert kind_of(row("ada", "5 of 5 checks pass", 8)) is None


def test_the_most_frequent_failure_comes_first_with_a_sentence() -> None:
    rows = [
        row("ada", "got None"),
        row("ada", "got None", exercise="scaling.clip"),
        row("bob", "got None"),
        row("bob", "unsolved: the starter", exercise="scaling.clip"),
    ]
    first, second = failures(marks_of(rows, {}, 0, {}))
    assert first[:3] == ("2", "returned None (3 answers)", "scaling.advance, scaling.clip")
    assert "without `return` returns None" in first[3]
    assert second[1] == "left the starter (1 answer)"


def test_every_kind_of_failure_has_a_sentence_of_its_own() -> None:
    assert len({kind.sentence for kind in (*KINDS, OTHER)}) == len(KINDS) + 1


LONG = "def f(x):\n    total = 0\n" + "".join(f"    total = total * {n} + x\n" for n in range(9))


def test_equal_answers_are_listed_with_their_learners() -> None:
    rows = [
        row("ada", "", 8, text=LONG),
        row("bob", "", 8, text=LONG.replace("total = 0", "total = 0  # of mine\n")),
        row("carl", "", 8, text=LONG.replace("total", "result")),
        *(row(name, "", 8, "scaling.clip", "def g(x):\n    return x") for name in ("ada", "bob")),
    ]
    assert [found[:2] for found in equal_answers(rows)] == [("ada, bob", ID)]


@pytest.mark.parametrize(("authors", "groups"), [(3, 1), (4, 0)])
def test_answer_of_more_than_a_third_is_not_a_hint(authors: int, groups: int) -> None:
    """Three of nine learners are a third, four of ten are more."""
    rows = [row(f"learner{n}", "", 8, text=LONG) for n in range(authors)]
    others = [row(f"other{n}", "", 8, text=LONG.replace("total", f"t{n}")) for n in range(6)]
    assert len(equal_answers([*rows, *others])) == groups


@pytest.mark.parametrize(("length", "groups"), [(119, 0), (120, 1)])
def test_short_equal_answers_are_not_listed(length: int, groups: int) -> None:
    """Comments are not counted."""
    text = "def f(x):\n    return ".ljust(length, "x")
    rows = [row("ada", "", 8, text=text), row("bob", "", 8, text=f"# of mine\n{text}")]
    assert len(equal_answers(rows)) == groups


def test_kind_of_failure_names_three_exercises() -> None:
    reason = "unsolved: the starter is still in place"
    ids = ["numbers.ulp", "numbers.bytes", "scaling.advance", "scaling.clip"]
    rows = [
        row(f"learner{n}", reason, exercise=id)
        for place, id in enumerate(ids)
        for n in range(4 - place)
    ]
    (failure,) = failures(marks_of(rows, {}, 0, {}))
    assert failure[2] == "numbers.ulp, numbers.bytes, scaling.advance"


def test_feedback_shows_the_graded_code() -> None:
    rows = [row("Zoë & co", "got None", text="def f():\n    <b>"), row("ada", "", 8)]
    marks = marks_of(rows, {}, 0, {})
    assert b"The code that was graded</summary><pre>def f():\n    &lt;b&gt;</pre>" in feedback(
        "Zoë & co", marks[:1]
    )


def test_the_class_page_links_the_feedback_pages(tmp_path: Path) -> None:
    # the last name is that of a folder in Latin-1
    rows = [row("Zoë & co", "got None"), row("ada", "", 8), row("Ren\udce9", "", 8)]
    marks = marks_of(rows, {}, 0, {})
    pages = write_feedback(tmp_path / "back", marks, {})
    links = addresses(marks, pages, tmp_path / "class.html")
    assert links["Zoë & co"] == "back/Zo%C3%AB%20%26%20co.html"
    assert links["Ren\udce9"] == "back/Ren%E9.html"
    text = report(marks, [], (), links).decode()
    assert '<a href="back/ada.html">ada</a>' in text
    assert "<h2>What failed most</h2>" in text


def test_each_learner_has_a_page_of_its_own(tmp_path: Path) -> None:
    names = ["Ann", "ann", "ann (2)"]
    pages = write_feedback(tmp_path, marks_of([row(name, "") for name in names], {}, 0, {}), {})
    assert len({page.name.lower() for page in pages}) == 3
    for name, page in zip(names, pages, strict=True):
        assert f"Feedback for {name}<" in page.read_text(encoding="utf-8")


@pytest.fixture
def returns_none(tmp_path: Path) -> tuple[str, str]:
    """The reason and the feedback page of an answer that returns None for a clean step."""
    wrong = ADVANCE.replace(
        "return ScalerState(state.scale, state.growth_tracker + 1)", "return None"
    )
    cells = [
        code(SETUP),
        code(wrong, ID),
        code(UNSCALE, "scaling.unscale"),
        code(CLIP, "scaling.clip"),
    ]
    put(tmp_path / "class" / "ada.ipynb", notebook(*cells))
    rows = graded(tmp_path / "class", tmp_path, "--feedback", str(tmp_path / "back"))
    page = (tmp_path / "back" / "ada.html").read_text(encoding="utf-8")
    return rows["ada", ID]["reason"], page


def test_a_reason_has_the_first_case_that_failed(returns_none: tuple[str, str]) -> None:
    reason, _ = returns_none
    assert "first: my_advance(state=ScalerState(scale=" in reason
    assert "found_inf=False" in reason


def test_a_feedback_page_has_the_first_case_that_failed(returns_none: tuple[str, str]) -> None:
    _, page = returns_none
    # the code of the answer comes after its cases
    section = page.partition(f"<h2>{EXERCISES[ID].title}")[2].partition("The code that was graded")[
        0
    ]
    assert "found_inf" in section
    assert "None" in section
