"""A learner comes back: the kernel was restarted, and what was answered is still there."""

from pathlib import Path

import nbformat
import pytest

from tests.browser.conftest import IDLE
from tests.slowness import slowness

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


def test_an_answer_outlives_its_kernel(lab):
    (lab.folder / "labkit-answers.jsonl").unlink(missing_ok=True)
    setup, answer = "from labkit.widgets import predict", "print('15,359 of 65,536')"
    nb = lab.notebook([setup, "predict('start.warm_up')", answer, "1 / 0"], name="morning")
    nb.run_all()
    printed = nb.page.locator(".jp-OutputArea-output pre:has-text('15,359')")
    nb.page.wait_for_selector(".labkit-predict")
    assert printed.count() == 1
    assert not printed.is_visible(), "the answer below an open question waits"
    assert nb.page.locator("pre:has-text('ZeroDivisionError')").is_visible(), "an error is said at once"
    nb.page.locator(".labkit-predict input").nth(2).check()
    nb.page.get_by_role("button", name="Commit").click()
    nb.page.wait_for_selector(".lk-reply:has-text('Not quite: about a quarter.')")
    printed.wait_for()
    nb.page.evaluate("jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    nb.page.wait_for_function(IDLE)
    nb.page.evaluate("jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    nb.page.wait_for_selector(".labkit-predict", state="detached")
    nb.run_all()
    nb.page.wait_for_selector(".labkit-predict[data-right=false] .lk-reply:has-text('Not quite: about a quarter.')")
    assert nb.page.locator(".labkit-predict input").nth(2).is_checked()
    assert nb.page.get_by_role("button", name="Commit").count() == 0
    assert nb.errors == []
    lab.close(nb)


CURE = "Choose Run\u00a0> Run All Above Selected Cell, then run this cell again (Shift+Enter)."
PREDICT = "predict('start.warm_up')"
LIVE = "from labkit.widgets import LiveTraining\nLiveTraining('digits', 'FP16 static', steps=100_000, device='cpu')"
END_THE_KERNEL = {
    "restarted": "restartKernel()",
    "dead": "session.kernel.requestExecute({code: 'import os; os._exit(1)'})",
    "shut down": "shutdown()",
}
NOTE_THE_TIMES = """() => {
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const end = () => (window.ended ??= performance.now());
    kernel.statusChanged.connect((_, status) => /restarting/.test(status) && end());
    kernel.disposed.connect(end);
    const look = () => document.querySelector('.labkit-live > .lk-lost') && (window.said ??= performance.now());
    new MutationObserver(look).observe(document.body, {subtree: true, childList: true});
}"""
STILL_ALIVE = """() => [...document.querySelectorAll('.labkit :is(button, input, select, canvas)')]
    .filter((control) => !control.closest('[inert]')).length"""


@pytest.mark.slow
@pytest.mark.parametrize("how", END_THE_KERNEL)
def test_a_widget_that_lost_its_kernel_says_so_within_a_second_and_is_inert(lab, how):
    nb = lab.notebook([f"from labkit.widgets import NumberLine, predict\n{PREDICT}", "NumberLine()", LIVE])
    nb.run_all()
    nb.page.locator(".labkit-live [data-button=start]").click()
    nb.page.wait_for_selector(".labkit-live[data-phase=running]:not([data-step='0'])")
    nb.page.locator(".labkit-number-line input").first.focus()
    nb.page.evaluate(NOTE_THE_TIMES)
    nb.page.evaluate(f"void jupyterapp.shell.currentWidget.sessionContext.{END_THE_KERNEL[how]}")
    nb.page.wait_for_selector(".labkit-live > .lk-lost")
    assert nb.page.evaluate("window.said - window.ended") < 1000 * slowness()
    notices = nb.page.locator(".labkit > .lk-lost").all_inner_texts()
    assert len(notices) == nb.page.locator(".labkit").count() == 3
    assert all("is gone" in notice and CURE in notice for notice in notices)
    assert nb.page.evaluate(STILL_ALIVE) == 0
    if how != "dead":  # then JupyterLab's own dialog has the focus
        assert "labkit-number-line" in nb.page.evaluate("document.activeElement.className"), "the focus was dropped"
    for theme in ("Light", "Dark"):
        nb.theme(f"JupyterLab {theme}")
        nb.page.locator(".labkit-live").scroll_into_view_if_needed()
        nb.screenshot(f"kernel-{how.replace(' ', '-')}-{theme}".lower())
    assert nb.errors == []
    nb.page.context.close()


THREADS = "__import__('threading').enumerate()"
TRAIN = f"[t.name for t in {THREADS}].count('labkit live training')"
CHOOSE_ITS_CELL = """() => {
    const { content } = jupyterapp.shell.currentWidget;
    const sources = content.widgets.map((cell) => cell.model.sharedModel.getSource());
    content.activeCellIndex = sources.findIndex((source) => source.includes("LiveTraining"));
}"""
RUNNING = ".labkit-live[data-phase=running]:not([data-step='0'])"


@pytest.fixture(scope="module")
def live(lab):
    """A notebook whose one cell shows a live training, which runs; all that were made are in `made`."""
    nb = lab.notebook(["made = []", f"{LIVE.replace('LiveTraining(', 'made.append(LiveTraining(')})\nmade[-1]"])
    nb.run_all()
    nb.page.locator(".labkit-live [data-button=start]").click()
    nb.page.wait_for_selector(RUNNING)
    yield nb
    assert nb.errors == []
    lab.close(nb)


@pytest.mark.slow
def test_a_training_whose_cell_is_moved_goes_on(live):
    live.page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex = 1")
    live.page.evaluate("jupyterapp.commands.execute('notebook:move-cell-up')")
    live.page.wait_for_function("jupyterapp.shell.currentWidget.content.activeCellIndex === 0")
    live.page.wait_for_selector(RUNNING)
    at = live.python("made[0].phase.value, len(made[0].history)")
    live.until(f"len(made[0].history) > {at[1]} + 20")
    assert live.python("made[0].phase.value") == "running"


@pytest.mark.slow
def test_interrupt_pauses_a_training_and_stops_a_cell_as_ever(live):
    live.page.evaluate("jupyterapp.commands.execute('notebook:interrupt-kernel')")
    live.page.wait_for_selector(".labkit-live[data-phase=paused] [role=alert]:has-text('the kernel was interrupted')")
    live.screenshot("interrupted")
    live.page.locator(".labkit-live [data-button=start]").click()
    live.page.wait_for_selector(RUNNING)
    kernel = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"
    live.page.evaluate(f"void {kernel}.requestExecute({{code: 'import time; began = True; time.sleep(60)'}})")
    live.page.wait_for_function(f"{kernel}.status === 'busy'")
    live.page.evaluate("jupyterapp.commands.execute('notebook:interrupt-kernel')")
    assert live.python("str(made[0].phase)", timeout_s=30) == "running"


def test_a_cell_that_is_run_again_leaves_no_training_behind(live):
    live.page.evaluate(CHOOSE_ITS_CELL)  # wherever it was moved
    live.page.evaluate("jupyterapp.commands.execute('notebook:run-cell')")
    live.until("len(made) == 2")
    live.page.wait_for_selector(".labkit-live[data-phase=idle]")
    live.page.locator(".labkit-live [data-button=start]").click()
    live.page.wait_for_selector(RUNNING)
    live.until(f"{TRAIN} == 1")
    assert live.python("[str(each.phase) for each in made]") == ["paused", "running"]
    live.page.evaluate("jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    live.until(f"{TRAIN} == 0")
    assert live.python("[str(each.phase) for each in made]") == ["paused", "paused"]


BAR = """
from labkit.amp import RECIPES
from labkit.train import TASKS
from labkit.widgets import TrainingBar
made = []
"""
NEW_BAR = "made.append(TrainingBar(TASKS['digits'], RECIPES['FP32'], steps=100_000, device='cpu'))\nmade[-1]"


@pytest.mark.slow
def test_a_training_behind_a_bar_stops_when_nobody_sees_it_and_when_the_kernel_is_interrupted(lab):
    nb = lab.notebook([BAR, NEW_BAR, "# the last cell"])
    nb.run_all()
    for end in ("notebook:run-cell", "notebook:interrupt-kernel"):
        nb.page.locator(".labkit-training-bar button").click()
        nb.page.wait_for_selector(".labkit-training-bar[data-phase=running]:not([data-done='0'])")
        nb.page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex = 1")
        running = nb.python("len(made) - 1")
        nb.page.evaluate(f"jupyterapp.commands.execute('{end}')")
        nb.until(f"made[{running}].phase == 'stopped'")
        nb.page.wait_for_selector(f".labkit-training-bar[data-phase={'ready' if 'run' in end else 'stopped'}]")
    assert nb.errors == []
    lab.close(nb)


@pytest.mark.slow
def test_a_notebook_that_is_opened_again_names_the_words_of_lesson_00_and_run_all_cures_it(lab):
    nb = lab.notebook([LIVE], name="reopened")
    nb.run_all()
    nb.page.evaluate("jupyterapp.commands.execute('docmanager:save')")
    nb.page.evaluate("jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    nb.page.context.close()
    again = lab.open(nbformat.read(lab.folder / "reopened.ipynb", 4), "reopened")
    words = "Error displaying widget: model not found"
    again.page.wait_for_selector(f".jp-OutputArea:has-text('{words}')")
    assert words in (ROOT / "notebooks/source/00_start.py").read_text()
    again.run_all()
    again.page.wait_for_selector(".labkit-live[data-phase=idle]")
    lab.close(again)
