"""Keys in and out of widgets, in a real JupyterLab.

Once a notebook has run, or is open, a test acts on its page by keys: it clicks nothing and calls no
command of JupyterLab. WHERE tells what has the focus.
"""

import re

import nbformat
import pytest

from labkit.widgets.base.widget import script
from notebooks import build

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

SETUP = """
from labkit.amp import RECIPES
from labkit.train import TASKS
from labkit.widgets import BitExplorer, Workbench, predict
"""
CELLS = [
    SETUP,
    "question = predict('start.warm_up')\nquestion",
    "bits = BitExplorer()\nbits",
    "bench = Workbench(TASKS['digits'], RECIPES['FP16'])\nbench",
    "'the last cell'",
]
# The indices of the cells with widgets.
QUESTION, BITS, BENCH = range(1, 4)
# What has the focus ("widget", "cell" or a tag), the active cell, and the notebook's mode.
WHERE = """() => {
  const { content } = jupyterapp.shell.currentWidget;
  const on = document.activeElement;
  let place = on.tagName;
  if (on.closest(".labkit")) place = "widget";
  else if (on === content.activeCell.node) place = "cell";
  return `${place} ${content.activeCellIndex} ${content.mode}`;
}"""
SOURCES = (
    "jupyterapp.shell.currentWidget.content.widgets.map((cell) => "
    "cell.model.sharedModel.getSource())"
)
COUNTS = "jupyterapp.shell.currentWidget.content.widgets.map((cell) => cell.model.executionCount)"
# Whether a cell has run, or has no code.
HAS_RUN = """index => {
  const cell = jupyterapp.shell.currentWidget.content.widgets[index];
  if (cell.model.type !== "code" || !cell.model.sharedModel.getSource().trim()) return true;
  return cell.model.executionCount > 0 && cell.model.executionState !== "running";
}"""
HAS_WIDGET = (
    "index => jupyterapp.shell.currentWidget.content.widgets[index].node.querySelector('.labkit')"
)


def wait_for_focus(page, place):
    """Wait until a place has the focus, such as "widget 3 command", inside the widget of cell 3."""
    page.wait_for_function(f"place => ({WHERE})() === place", arg=place, timeout=10_000)


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def go_to(page, index):
    """Go to a cell by arrow keys, from whichever cell has the focus."""
    here = page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex")
    key = "ArrowDown" if index > here else "ArrowUp"
    for _ in range(abs(index - here)):
        press(page, key)
    wait_for_focus(page, f"cell {index} command")


def enter(page, index):
    """Go to a cell, and by one Tab into its widget, as lesson 00 teaches."""
    go_to(page, index)
    page.wait_for_function(HAS_WIDGET, arg=index)
    press(page, "Tab")
    wait_for_focus(page, f"widget {index} command")


def forget_answers(lab):
    """Delete the journal of predictions, so that they are asked again."""
    (lab.folder / "labkit-answers.jsonl").unlink(missing_ok=True)


def focus_first_cell(page):
    """Give the focus to the first cell, as a click into the notebook does."""
    page.evaluate("jupyterapp.shell.currentWidget.content.widgets[0].node.focus()")
    wait_for_focus(page, "cell 0 command")


@pytest.fixture(scope="module")
def notebook(lab):
    forget_answers(lab)
    with lab.shown(CELLS, name="keys", width=1280, height=720) as notebook:
        notebook.page.wait_for_function("() => document.querySelectorAll('.labkit').length === 3")
        yield notebook


@pytest.fixture
def page(notebook):
    """The page, with the focus on the first cell."""
    press(notebook.page, "Escape")
    focus_first_cell(notebook.page)
    return notebook.page


@pytest.mark.parametrize(("keys", "focused"), [("Control+Enter", BITS), ("Shift+Enter", BENCH)])
def test_keys_that_run_a_cell_run_that_of_the_widget(page, keys, focused):
    enter(page, BITS)
    before = page.evaluate(COUNTS)
    press(page, keys)
    wait_for_focus(page, f"cell {focused} command")
    page.wait_for_function(f"before => {COUNTS}[{BITS}] > before", arg=max(before))
    page.wait_for_function(HAS_WIDGET, arg=BITS)
    after = page.evaluate(COUNTS)
    # No other cell has run.
    del before[BITS], after[BITS]
    assert after == before


def test_alt_enter_runs_the_cell_and_adds_one_below(page):
    enter(page, QUESTION)
    before = page.evaluate(SOURCES)
    press(page, "Alt+Enter")
    page.wait_for_function(f"({WHERE})().endsWith('{QUESTION + 1} edit')")
    assert page.evaluate(SOURCES) == [*before[: QUESTION + 1], "", *before[QUESTION + 1 :]]
    press(page, "Escape", "d", "d")
    page.wait_for_function(f"before => {SOURCES}.length === before", arg=len(before))
    page.wait_for_function(HAS_WIDGET, arg=QUESTION)


def test_ctrl_s_saves_and_the_focus_stays(notebook, lab, page):
    enter(page, BITS)
    saved = lab.folder / "keys.ipynb"
    page.evaluate("jupyterapp.shell.currentWidget.context.model.setMetadata('by_key', 'control s')")
    page.evaluate(
        "addEventListener('keydown', (e) => setTimeout(() => (window.pageKept = "
        "e.defaultPrevented)), true)"
    )
    press(page, "Control+s")
    page.wait_for_function("() => !jupyterapp.shell.currentWidget.context.model.dirty")
    assert nbformat.read(saved, 4).metadata["by_key"] == "control s"
    # The browser does not save the page as well.
    page.wait_for_function("() => window.pageKept === true")
    wait_for_focus(page, f"widget {BITS} command")


def test_esc_closes_what_is_open_first(page):
    enter(page, BENCH)
    summary = page.locator(".wb-details summary")
    summary.focus()
    press(page, "Enter")
    page.wait_for_selector(".wb-details[open]")
    press(page, "Escape")
    page.wait_for_selector(".wb-details:not([open])")
    assert summary.evaluate("e => e === document.activeElement")
    press(page, "Escape")
    wait_for_focus(page, f"cell {BENCH} command")


def test_in_a_box_enter_and_ctrl_a_mean_its_text(notebook, page):
    enter(page, BITS)
    assert page.evaluate("document.activeElement.className") == "be-box"
    press(page, "Control+a")
    page.keyboard.type("0.1")
    page.wait_for_selector('.labkit-bits[data-code="0x2e66"]')
    press(page, "Enter")
    wait_for_focus(page, f"widget {BITS} command")
    assert page.evaluate("document.activeElement.value") == "0.1"
    press(page, "Control+a")
    assert page.evaluate("getSelection().toString()") == "0.1"


def test_enter_commits_the_choice(lab):
    forget_answers(lab)
    with lab.shown([*CELLS[:2], "'next'"], ".labkit-predict", height=720) as notebook:
        page = notebook.page
        focus_first_cell(page)
        press(page, "Shift+Enter")
        wait_for_focus(page, f"cell {QUESTION} command")
        before = page.evaluate(SOURCES)
        run(page, QUESTION)
        wait_for_focus(page, f"cell {QUESTION + 1} command")
        page.wait_for_function(HAS_WIDGET, arg=QUESTION)
        press(page, "ArrowUp", "Tab")
        assert page.evaluate("document.activeElement.matches('.labkit-predict input[type=radio]')")
        # Without a choice, Enter does nothing.
        press(page, "Enter", "Enter")
        wait_for_focus(page, f"widget {QUESTION} command")
        assert notebook.python("question.choice") == ""
        press(page, "Space", "Enter")
        page.wait_for_selector(".lk-reply:focus:text-matches('^(Yes|Not quite)')")
        assert notebook.python("question.choice == question.choices[0]")
        # After the answer, it does nothing either.
        press(page, "Enter")
        wait_for_focus(page, f"widget {QUESTION} command")
        assert page.evaluate(SOURCES) == before


ELSEWHERE = """async (source) => {
  const blob = new Blob([source], { type: "text/javascript" });
  const { default: widget } = await import(URL.createObjectURL(blob));
  const traits = {
    choices: ["a", "b"],
    choice: "",
    question: "?",
    answered: "",
    right: false,
    ruler: {},
  };
  const model = { get: (name) => traits[name], set() {}, save_changes() {}, on() {}, off() {} };
  window.heard = [];
  document.addEventListener("keydown", (event) => heard.push(event.key));
  widget.render({ model, el: document.body.appendChild(document.createElement("div")) });
  document.querySelector(".labkit input").focus();
}"""


def test_another_host_handles_only_the_notebooks_own_keys(browser):
    """In VS Code and Colab, a widget cannot give the focus to its cell."""
    page = browser.new_page()
    page.evaluate(ELSEWHERE, script("predict"))
    press(page, "d", "d", "Enter", "ArrowDown", "x")
    assert page.evaluate("heard") == []
    press(page, "Shift+Enter", "Escape")
    assert page.evaluate("heard") == ["Enter", "Escape"]
    assert page.evaluate("document.activeElement.tagName") == "INPUT"
    page.close()


def lesson(name):
    """Return the notebook of a lesson as it is handed out, and with its solutions."""
    source = build.lesson(name)
    return [
        nbformat.reads(build.text_of(form(source)), 4) for form in (build.learners, build.solved)
    ]


def run(page, index):
    """Run the active cell, whose index is known, and wait for its end."""
    press(page, "Shift+Enter")
    page.wait_for_function(HAS_RUN, arg=index)


def visit(page, index):
    """Answer the question of the widget of the cell that has just run, and go to the next cell."""
    enter(page, index)
    # In command mode of JupyterLab this would delete the cell.
    press(page, "d", "d")
    answers = {".labkit-predict input[type=radio]": ["Space"], ".lk-guess": ["Control+a", "1"]}
    for control, keys in answers.items():
        if page.evaluate(f"document.activeElement.matches('{control}')"):
            press(page, *keys, "Enter")
            page.wait_for_selector(".lk-reply:focus:text-matches('^(Yes|Not quite)')")
    press(page, "d", "d", "Escape")
    wait_for_focus(page, f"cell {index} command")
    press(page, "ArrowDown")


WIDGETS = "predict|BitExplorer|NumberLine|GradientZoom|ScalerPresets|CastPasses|FaultWall|Workbench"
WIDGET = re.compile(rf"^({WIDGETS})\(", re.MULTILINE)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        "01_numbers",
        "04_seeing_gradients",
        "09_frameworks",
        "09b_many_workers",
        "10_clinic",
        "11b_eight_and_four_bits",
    ],
)
def test_a_lesson_by_keyboard_alone(lab, name):
    learners, solved = lesson(name)
    forget_answers(lab)
    notebook = lab.open(learners, name, width=1280, height=720)
    page = notebook.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    focus_first_cell(page)
    exercises = 0
    for index, (before, after) in enumerate(zip(learners.cells, solved.cells, strict=True)):
        if before.source != after.source:
            exercises += 1
            press(page, "Enter", "Control+a")
            page.evaluate("text => navigator.clipboard.writeText(text)", after.source)
            press(page, "Control+v")
        run(page, index)
        if WIDGET.search(before.source):
            visit(page, index)
    expected = [cell.source for cell in solved.cells]
    # Running the last cell adds an empty one.
    sources = page.evaluate(SOURCES)
    assert [source for source in sources if source] == expected
    assert len(sources) <= len(expected) + 1
    predict = re.compile(r"^predict\(", re.MULTILINE)
    predictions = [cell for cell in learners.cells if predict.search(cell.source)]
    replies = page.locator(".lk-reply").all_inner_texts()
    assert len(replies) == len(predictions)
    assert [reply for reply in replies if not re.match("Yes|Not quite", reply)] == []
    summaries = page.locator(".labkit-grade > div:last-child").all_inner_texts()
    assert len(summaries) == exercises
    assert [summary for summary in summaries if not summary.startswith("Solved.")] == []
    lab.close(notebook)
