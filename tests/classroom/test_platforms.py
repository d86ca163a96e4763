"""Questions in GIFT, read by an independent parser, and an autograder for Gradescope."""

import csv
import io
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from labkit.classroom.gradescope import autograder, main, results_of
from labkit.classroom.question_bank import BankQuestion, as_gift, bank_questions
from labkit.course import lessons, quiz_questions
from labkit.widgets import predictions
from tests.grading.hand_ins import answered
from tests.javascript.node import node

ROOT = Path(__file__).parents[2]
PARSER = ROOT / "node_modules" / "gift-pegjs"
READ = """
const { parse } = require(process.argv[1]);
const text = require("fs").readFileSync(0, "utf8");
const questions = parse(text).filter((question) => question.type === "MC");
process.stdout.write(JSON.stringify(questions));
"""
needs_the_parser = pytest.mark.skipif(
    (node() is None or not PARSER.is_dir()) and "LABKIT_REQUIRE_JAVASCRIPT" not in os.environ,
    reason="gift-pegjs, a public parser of GIFT, comes with `npm ci`",
)


def read(text):
    """Return the questions of choices that the public parser finds."""
    done = subprocess.run(
        [node() or "node", "-e", READ, str(PARSER)],
        input=text,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def questions():
    return bank_questions(lessons())


def test_every_prediction_with_choices_is_in_the_bank(questions):
    wanted = {id for id, row in predictions().items() if row.ruler is None}
    assert wanted == {each.id for each in questions if not each.id.startswith("quiz.")}


def test_every_question_of_the_quiz_is_in_the_bank(questions):
    assert {f"quiz.{id}" for id in quiz_questions()} <= {each.id for each in questions}


@needs_the_parser
def test_a_public_parser_reads_the_same_questions(questions):
    found = read(as_gift(questions))
    assert [each["title"] for each in found] == [each.id for each in questions]
    texts = [" ".join(each.text.split()) for each in questions]
    assert [each["stem"]["text"] for each in found] == texts


@needs_the_parser
def test_a_public_parser_reads_the_same_choices_and_replies(questions):
    for question, found in zip(questions, read(as_gift(questions)), strict=True):
        replies = {each["text"]["text"]: each["feedback"]["text"] for each in found["choices"]}
        wanted = {
            " ".join(choice.split()): " ".join(reply.split())
            for choice, reply in question.choices.items()
        }
        assert replies == wanted
        (right,) = [each["text"]["text"] for each in found["choices"] if each["isCorrect"]]
        assert right == " ".join(question.answer.split())


@needs_the_parser
def test_characters_of_the_format_are_escaped():
    hostile = BankQuestion("a:b", "x", "{1} ~ 2 # 3 = :", {"a=b": "c#d", "~": "{}"}, "~")
    (found,) = read(as_gift([hostile]))
    assert found["stem"]["text"] == "{1} ~ 2 # 3 = :"
    assert [each["text"]["text"] for each in found["choices"]] == ["a=b", "~"]


def test_the_archive_has_what_gradescope_asks_for():
    archive = zipfile.ZipFile(
        io.BytesIO(autograder("lab.whl", b"wheel", b"numpy==2", ["06_loss_scaling"]))
    )
    assert set(archive.namelist()) == {"setup.sh", "run_autograder", "lab.whl", "constraints.txt"}
    for script in ("setup.sh", "run_autograder"):
        assert archive.getinfo(script).external_attr >> 16 & 0o111, "it can be run"
        subprocess.run(["bash", "-n"], input=archive.read(script), check=True)
    assert b"06_loss_scaling" in archive.read("run_autograder")


def test_results_have_the_fields_of_the_specification():
    table = "student,exercise,points,out_of,reason\nada,a.b,2,5,one check fails\nada,c.d,3,3,\n"
    results = results_of(csv.DictReader(io.StringIO(table)))
    assert [test["score"] for test in results["tests"]] == [2.0, 3.0]
    assert results["tests"][0] == {
        "name": "a.b",
        "score": 2.0,
        "max_score": 5.0,
        "output": "one check fails",
        "visibility": "visible",
    }


def test_a_submission_without_notebooks_gets_a_sentence(tmp_path):
    (tmp_path / "submission").mkdir()
    assert main([str(tmp_path / "submission"), str(tmp_path / "results.json")]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["score"] == 0
    assert "No notebook" in results["output"]


def test_a_submission_is_graded_as_by_labkit_grade(tmp_path):
    submission = tmp_path / "submission"
    # neither a folder of such a name nor a dead link is a notebook
    (submission / "07_amp_engine.ipynb").mkdir(parents=True)
    (submission / "old").mkdir()
    (submission / "old" / "06_loss_scaling.ipynb").symlink_to("nowhere.ipynb")
    # some browsers add the second suffix
    (submission / "06_loss_scaling.ipynb.txt").write_text(answered())
    assert main([str(submission), str(tmp_path / "results.json"), "06_loss_scaling"]) == 0
    tests = json.loads((tmp_path / "results.json").read_text())["tests"]
    scores = {test["name"]: (test["score"], test["max_score"]) for test in tests}
    assert scores["scaling.advance"][0] == scores["scaling.advance"][1]
    assert scores["scaling.advance"][1] > 0


def test_a_renamed_notebook_is_graded_by_its_cells(tmp_path):
    """Browsers number the second download of a notebook."""
    submission = tmp_path / "submission"
    submission.mkdir()
    (submission / "06_loss_scaling (1).ipynb").write_text(answered())
    assert main([str(submission), str(tmp_path / "results.json"), "06_loss_scaling"]) == 0
    tests = json.loads((tmp_path / "results.json").read_text())["tests"]
    assert any(test["score"] > 0 for test in tests)


def test_a_damaged_notebook_gets_its_reason(tmp_path):
    """Its cells cannot say which lesson it is, and its name does not."""
    submission = tmp_path / "submission"
    submission.mkdir()
    (submission / "homework.ipynb").write_text("[1")
    assert main([str(submission), str(tmp_path / "results.json"), "06_loss_scaling"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["score"] == 0
    assert "homework.ipynb: not a notebook: its text is not JSON" in results["output"]


def test_a_notebook_in_another_folder_replaces_none(tmp_path):
    submission = tmp_path / "submission"
    for folder, text in (("a", answered()), ("b", "{}")):
        (submission / folder).mkdir(parents=True)
        (submission / folder / "06_loss_scaling.ipynb").write_text(text)
    assert main([str(submission), str(tmp_path / "results.json"), "06_loss_scaling"]) == 0
    tests = json.loads((tmp_path / "results.json").read_text())["tests"]
    assert any(test["score"] > 0 for test in tests), "the notebook that can be read is graded"


def test_notebooks_of_other_lessons_are_left_out(tmp_path):
    submission = tmp_path / "submission"
    submission.mkdir()
    (submission / "06_loss_scaling.ipynb").write_text(answered())
    assert main([str(submission), str(tmp_path / "results.json"), "01_numbers"]) == 0
    assert json.loads((tmp_path / "results.json").read_text())["tests"] == []
