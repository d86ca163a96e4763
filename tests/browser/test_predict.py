"""Predictions in a real JupyterLab: waiting text, numbers, links to the glossary."""

import json

import nbformat
import pytest

from labkit.course.notebook import folded
from notebooks import build

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

ANSWERS = {"tags": ["answer-start.warm_up"]}
CHOICE = [
    "from labkit.widgets import predict\npredict('start.warm_up')",
    nbformat.v4.new_markdown_cell("Press what you like: an instruction."),
    nbformat.v4.new_code_cell("print('the answer')", metadata=ANSWERS),
    nbformat.v4.new_markdown_cell(folded("The answer is an explanation.", ["start.warm_up"])),
    "print('another part')",
    nbformat.v4.new_code_cell("1 / 0", metadata=ANSWERS),
]
GUESS_FIRST = [f"import os\nos.environ['LABKIT_GUESS_FIRST'] = '1'\n{CHOICE[0]}", *CHOICE[1:]]
NUMBERS = [
    "from labkit.widgets import predict",
    "predict('scaling.window', lambda: 2.0**22)",
    "predict('numbers.tenth', lambda: 0.0244)",
    "predict('gradients.scale', lambda: 4096.0)",
    "from labkit.grading import check\ncheck('start.smallest', lambda *_: 0)",
]
# Whether no mark overlaps the one to its left.
APART = """(marks) => marks.map((mark) => mark.getBoundingClientRect()).every(
  (box, i, all) => i === 0 || all[i - 1].right < box.left
)"""


@pytest.fixture(autouse=True)
def first_time(lab):
    """Delete the journal, so that nothing is answered yet."""
    (lab.folder / "labkit-answers.jsonl").unlink(missing_ok=True)


def test_what_a_tag_names_waits_for_the_prediction(lab):
    with lab.shown(CHOICE, ".labkit-predict[data-right='']") as notebook:
        page = notebook.page

        def output(text):
            return page.locator(f".jp-OutputArea-output pre:has-text('{text}')").last

        def paragraph(text):
            return page.locator(f".jp-RenderedMarkdown p:has-text('{text}')")

        answer = output("the answer")
        explanation = paragraph("an explanation")
        answer.wait_for(state="attached")
        assert not answer.is_visible()
        assert not explanation.is_visible()
        assert paragraph("an instruction").is_visible()
        assert output("another part").is_visible()
        # An error is shown, also in a cell that answers.
        assert output("ZeroDivisionError").is_visible()
        page.locator(".labkit-predict input[type=radio]").first.check()
        page.locator(".labkit-predict button").click()
        answer.wait_for()
        explanation.wait_for()


def test_the_keyboard_opens_an_answer_before_the_prediction(lab):
    with lab.shown(CHOICE, ".labkit-predict[data-right='']") as notebook:
        page = notebook.page
        explanation = page.locator(".jp-RenderedMarkdown p:has-text('an explanation')")
        page.locator("details.labkit-answer summary").focus()
        page.keyboard.press("Enter")
        explanation.wait_for()


def test_guess_first_keeps_an_answer_shut_until_the_commit(lab):
    with lab.shown(GUESS_FIRST, ".labkit-predict[data-right='']") as notebook:
        page = notebook.page
        text = page.locator("details.labkit-answer")
        explanation = page.locator(".jp-RenderedMarkdown p:has-text('an explanation')")
        summary = text.locator("summary")
        summary.click()
        assert "stays shut until you have committed" in summary.inner_text()
        summary.focus()
        page.keyboard.press("Enter")
        assert not explanation.is_visible()
        page.locator(".labkit-predict input[type=radio]").first.check()
        page.locator(".labkit-predict button").click()
        explanation.wait_for()


def test_guess_first_closes_what_a_search_has_opened(lab):
    with lab.shown(GUESS_FIRST, ".labkit-predict[data-right='']") as notebook:
        page = notebook.page
        # As the search of a browser does with a closed text.
        page.locator("details.labkit-answer").evaluate("(text) => { text.open = true; }")
        page.locator("details.labkit-answer:not([open]) [role=status]").wait_for()


def test_answered_prediction_opens_its_text(lab):
    with lab.shown(CHOICE, ".labkit-predict[data-right='']") as notebook:
        notebook.page.locator(".labkit-predict input[type=radio]").first.check()
        notebook.page.locator(".labkit-predict button").click()
        notebook.page.locator(".labkit-predict:not([data-right=''])").wait_for()
    with lab.shown(CHOICE, ".labkit-predict:not([data-right=''])") as notebook:
        notebook.page.locator(".jp-RenderedMarkdown p:has-text('an explanation')").wait_for()


@pytest.fixture
def predictions_of_numbers(lab):
    """A notebook with three predictions of numbers, and their locators."""
    with lab.shown(NUMBERS, ".labkit-grade", height=800) as notebook:
        page = notebook.page
        page.wait_for_function("document.querySelectorAll('.labkit-predict').length === 3")
        yield notebook, page.locator(".labkit-predict").all()


def test_the_result_of_a_check_does_not_wait_for_predictions(predictions_of_numbers):
    notebook, _ = predictions_of_numbers
    assert notebook.page.locator(".labkit-grade").is_visible()


def test_marks_of_a_number_with_a_long_unit_do_not_overlap(predictions_of_numbers):
    _, (_, _, with_times) = predictions_of_numbers
    assert with_times.locator(".lk-mark").evaluate_all(APART)


def test_a_typed_number_is_compared_with_the_truth(predictions_of_numbers):
    _, (typed, _, _) = predictions_of_numbers
    field = typed.get_by_role("textbox", name="Your number, from 1 to 1e12")
    commit = typed.get_by_role("button")
    assert commit.is_disabled()
    field.press_sequentially("2^60")
    assert typed.get_by_role("alert").inner_text() == "Write a number from 1 to 1e12."
    assert commit.is_disabled()
    field.fill("1,024")
    # The slider has two digits.
    assert typed.get_by_role("slider").get_attribute("aria-valuetext") == "1,000"
    field.press("Enter")
    typed.locator(
        ".lk-reply:text-matches('^Not quite: you said 1,024, it was 4,190,000: ')"
    ).wait_for()
    assert typed.locator(".lk-mark[data-kind=guess]").inner_text() == "you: 1,024"


def test_a_number_on_the_line_is_compared_with_the_truth(predictions_of_numbers):
    notebook, (_, slid, _) = predictions_of_numbers
    line = slid.get_by_role("slider", name="Your number on a logarithmic line from 1e-4% to 10%")
    line.focus()
    notebook.press("Home", "PageUp")
    assert slid.get_by_role("textbox").input_value() == "0.001"
    notebook.press("End")
    slid.get_by_role("button", name="Commit").press("Enter")
    slid.locator(
        ".lk-reply:focus:has-text('you said 10%, it was 0.0244%: 410 times less.')"
    ).wait_for()
    assert not line.is_visible()


# Whether the heading of a word of the glossary is in the visible part of the page.
SEEN = """(name) => {
  const page = jupyterapp.shell.currentWidget.node;
  const headings = [...page.querySelectorAll("h3")];
  const heading = headings.find((one) => one.dataset.jupyterId === name);
  const box = heading?.getBoundingClientRect();
  return Boolean(box && box.top > 0 && box.bottom < innerHeight);
}"""


def test_links_lead_to_words_of_the_glossary(lab):
    """The first link to the glossary opens it at its top, and further links lead to their words.

    JupyterLab 4 opens a notebook that is not open yet at its top.
    """
    (lab.folder / "glossary.ipynb").write_text(build.text_of(build.glossary()), encoding="utf-8")
    (source,) = [source for source in build.sources() if source.name == "01_numbers"]
    lesson = nbformat.reads(json.dumps(build.learners(source)), as_version=4)
    lesson.cells = [cell for cell in lesson.cells if cell.cell_type == "markdown"]
    notebook = lab.open(lesson, "words")
    own = notebook.page.evaluate("jupyterapp.shell.currentWidget.id")
    # A word may be in an answer, which is folded.
    notebook.page.locator("details").evaluate_all(
        "all => all.forEach((one) => { one.open = true })"
    )
    for name in ("significand", "ulp", "subnormal"):
        notebook.page.evaluate("id => jupyterapp.shell.activateById(id)", own)
        notebook.page.locator("a[href*='glossary']:visible", has_text=name).first.click()
        notebook.page.wait_for_function(
            "() => jupyterapp.shell.currentWidget.title.label === 'glossary.ipynb'"
        )
        if name != "significand":
            notebook.page.wait_for_function(SEEN, arg=name)
    lab.close(notebook)
