"""A training in a notebook that goes on, is interrupted, is cleared away, or loses its kernel."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]


LIVE = "from labkit.widgets import LiveTraining\nLiveTraining('digits', 'FP16 static', steps=100_000, device='cpu')"
END_THE_KERNEL = {
    "dead": "session.kernel.requestExecute({code: 'import os; os._exit(1)'})",
    "shut down": "shutdown()",
}


@pytest.mark.parametrize("how", END_THE_KERNEL)
def test_a_widget_that_lost_its_kernel_in_another_way_says_so_too(lab, how):
    nb = lab.notebook([LIVE])
    nb.run_all()
    nb.page.locator(".labkit-live [data-button=start]").click()
    nb.page.wait_for_selector(RUNNING)
    nb.page.evaluate(f"void jupyterapp.shell.currentWidget.sessionContext.{END_THE_KERNEL[how]}")
    nb.page.wait_for_selector(".labkit-live > .lk-lost:has-text('is gone')")
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
    with lab.shown(["made = []", f"{LIVE.replace('LiveTraining(', 'made.append(LiveTraining(')})\nmade[-1]"]) as nb:
        nb.page.locator(".labkit-live [data-button=start]").click()
        nb.page.wait_for_selector(RUNNING)
        yield nb


def test_a_training_whose_cell_is_moved_goes_on(live):
    live.page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex = 1")
    live.page.evaluate("jupyterapp.commands.execute('notebook:move-cell-up')")
    live.page.wait_for_function("jupyterapp.shell.currentWidget.content.activeCellIndex === 0")
    live.page.wait_for_selector(RUNNING)
    at = live.python("made[0].phase.value, len(made[0].history)")
    live.until(f"len(made[0].history) > {at[1]} + 20")
    assert live.python("made[0].phase.value") == "running"


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


def test_a_training_with_a_bar_stops_when_hidden_or_interrupted(lab):
    with lab.shown([BAR, NEW_BAR, "# the last cell"]) as nb:
        for end in ("notebook:run-cell", "notebook:interrupt-kernel"):
            nb.page.locator(".labkit-training-bar button").click()
            nb.page.wait_for_selector(".labkit-training-bar[data-phase=running]:not([data-done='0'])")
            nb.page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex = 1")
            running = nb.python("len(made) - 1")
            nb.page.evaluate(f"jupyterapp.commands.execute('{end}')")
            nb.until(f"made[{running}].phase == 'stopped'")
            nb.page.wait_for_selector(f".labkit-training-bar[data-phase={'ready' if 'run' in end else 'stopped'}]")
