"""Widgets of a saved notebook, which is opened with a new kernel and saved again.

The new kernel has no widgets, so a save must keep the states that the file has.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.conftest import IDLE, Lab, Notebook, serving
from tests.slowness import slowness

pytestmark = pytest.mark.browser

NAME = "days"
CELLS = [
    "import ipywidgets\nfrom labkit.widgets import BitExplorer, NumberLine, predict",
    "NumberLine(x=0.1)",
    "BitExplorer()",
    "predict('start.warm_up')",
    "ipywidgets.VBox([ipywidgets.IntSlider(value=42), ipywidgets.Label('theirs')])",
]
# The number of the lab's widgets in these cells; the last cell has widgets of ipywidgets.
OURS = 3
SHOWN = """([ours, saved]) => {
  const widgets = ".jp-OutputArea-output .labkit .lk-sentence, .labkit-predict";
  const has = (selector, text) =>
    [...document.querySelectorAll(selector)].some((node) => node.textContent === text);
  return (
    document.querySelectorAll(widgets).length >= ours &&
    document.querySelectorAll(".labkit > .lk-saved").length === saved &&
    has(".widget-readout", "42") &&
    has(".widget-label", "theirs")
  );
}"""


def wait_for_widgets(notebook: Notebook, saved: int = OURS) -> None:
    """Wait until every widget is shown, and this many of the lab's say that they are saved ones."""
    notebook.page.wait_for_function(SHOWN, arg=[OURS, saved])
    assert "Error displaying widget" not in notebook.page.locator(".jp-Notebook").inner_text()


def save(notebook: Notebook) -> None:
    notebook.page.evaluate("jupyterapp.commands.execute('docmanager:save')")
    notebook.page.wait_for_function("() => !jupyterapp.shell.currentWidget.model.dirty")


def restart_and_save(notebook: Notebook) -> None:
    notebook.page.evaluate("jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    notebook.page.wait_for_function(IDLE)
    save(notebook)


def run_a_widget_and_save(notebook: Notebook) -> None:
    for index in (0, 1):
        notebook.page.evaluate(
            "i => (jupyterapp.shell.currentWidget.content.activeCellIndex = i)", index
        )
        notebook.page.evaluate("jupyterapp.commands.execute('notebook:run-cell')")
    wait_for_widgets(notebook, saved=OURS - 1)
    notebook.page.wait_for_function(IDLE)
    save(notebook)


def edit_and_wait_for_autosave(notebook: Notebook) -> None:
    dirty = notebook.page.evaluate("""() => {
      const { content, model } = jupyterapp.shell.currentWidget;
      content.widgets[0].model.sharedModel.setSource("# another first cell");
      return model.dirty;
    }""")
    assert dirty
    notebook.page.wait_for_function("() => !jupyterapp.shell.currentWidget.model.dirty")


def first_day(lab: Lab, then: Callable[[Notebook], None] = save) -> None:
    """Write the notebook, run it, save it, and do something."""
    notebook = lab.notebook(CELLS, name=NAME)
    notebook.run_all()
    wait_for_widgets(notebook, saved=0)
    save(notebook)
    then(notebook)
    lab.close(notebook)


def another_day(lab: Lab, act: Callable[[Notebook], None] | None) -> None:
    """Open the notebook with a new kernel, wait for its widgets, and do something."""
    notebook = lab.visit(NAME)
    wait_for_widgets(notebook)
    if act is not None:
        act(notebook)
    lab.close(notebook)


def test_opening_and_saving_keeps_the_widgets(lab: Lab) -> None:
    first_day(lab)
    another_day(lab, save)
    another_day(lab, None)


@pytest.mark.slow
@pytest.mark.timeout(600 * slowness())
def test_restart_run_and_autosave_keep_the_widgets(tmp_path: Path, browser: object) -> None:
    """Each day has a server of its own; on the first one the kernel is restarted."""
    with serving(tmp_path) as server:
        first_day(Lab(server, browser), restart_and_save)
    for act in (save, restart_and_save, run_a_widget_and_save, edit_and_wait_for_autosave, None):
        with serving(tmp_path, autosave=act is edit_and_wait_for_autosave) as server:
            another_day(Lab(server, browser), act)
    saved = json.loads((tmp_path / "notebooks" / f"{NAME}.ipynb").read_text())
    assert saved["cells"][0]["source"] == ["# another first cell"]
