"""Templates: escaping, refusals, and hostile names on every page."""

import json
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest

from labkit.classroom.class_pages import feedback, report
from labkit.classroom.marks import Mark
from labkit.findings import Finding, Status
from labkit.grading.results import GradeRow
from labkit.instrument.report import Report
from labkit.instrument.report_page import page
from labkit.records.templates import markup, render, script_json
from labkit.widgets import recipe_table

HOSTILE = "<script>alert('1')</script>&\""
ESCAPED = "&lt;script&gt;alert("


def test_values_are_escaped() -> None:
    html = render("site/live_exercise.html.jinja", id='"', title=HOSTILE, starter="&", solve="'")
    assert 'data-exercise="&#34;"' in html
    assert f'data-title="{ESCAPED}' in html


def test_markup_is_inserted_as_it_is() -> None:
    html = render("instrument/report_page.html.jinja", title="a", body=markup("<p>b</p>"))
    assert "<body><p>b</p></body>" in html


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="title"):
        render("instrument/report_page.html.jinja", body="")


@pytest.mark.parametrize("hostile", [HOSTILE, "<!--<script>"])
def test_json_in_a_script_can_neither_end_nor_extend_it(hostile: str) -> None:
    text = script_json({"text": hostile})
    assert "<" not in text
    assert json.loads(text) == {"text": hostile}


def test_a_report_escapes_names_of_a_model() -> None:
    bad = Finding(
        HOSTILE, Status.BAD, HOSTILE, HOSTILE, line=HOSTILE, layer=HOSTILE, faults=(HOSTILE,)
    )
    html = page(Report(findings=(bad,), model=HOSTILE, steps=1, unseen=(HOSTILE,)))
    assert "<script" not in html
    # title, headline and run; name, line, layer, text, remedy and fault of the finding; unseen
    assert html.count(ESCAPED) == 10


def hostile_mark() -> Mark:
    row = GradeRow(HOSTILE, "06.ipynb", "scaling.advance", 0, 8, f"NameError {HOSTILE}", 1, {})
    return Mark(replace(row, details={"code": HOSTILE}), 0.0)


def test_a_feedback_page_escapes_what_a_learner_wrote() -> None:
    html = feedback(HOSTILE, [hostile_mark()]).decode()
    assert "<script" not in html
    # the title and the heading, the reason, and the code
    assert html.count(ESCAPED) == 4


def test_the_class_page_escapes_what_learners_wrote() -> None:
    html = report([hostile_mark()], [], [HOSTILE], {HOSTILE: HOSTILE}).decode()
    assert "<script" not in html
    # the notice, learner and reason of the NameError, the address and the name of the page
    assert html.count(ESCAPED) == 5


def test_a_table_of_recipes_escapes_names(tmp_path: Path) -> None:
    html = recipe_table([HOSTILE], [HOSTILE], folder=tmp_path / "a b<i>")._repr_html_()
    assert "<script" not in html
    assert "<i>" not in html
    # the heads of a column and of a row, and both in the command for the missing runs
    assert html.count(ESCAPED) == 4
