"""Lesson 06 on three days, and a notebook of version 0.2.0: saved widgets stay until cells run.

Each day begins with another JupyterLab and a new kernel. Day 1 runs the lesson by keyboard and
saves it; day 2 reads and saves; day 3 runs all cells.
"""

import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser.conftest import ALL_RUN, IDLE, ROOT, Lab, Notebook, serving
from tests.browser.test_older_notebooks import errors_of, saved_at_0_2
from tests.slowness import slowness

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900 * slowness())]

LESSON = "06_loss_scaling"
# How many widgets are on the page, and how many of them say at their top that they were saved.
STANDING = """() => {
  const roots = [...document.querySelectorAll(".jp-OutputArea-output section.labkit")];
  const saved = roots.filter((root) => {
    const seen = [...root.children].filter((part) => part.getBoundingClientRect().height > 0);
    return seen[0]?.matches(".lk-saved");
  });
  return [roots.length, saved.length];
}"""
# The classes of saved widgets that still have a part that can be pressed.
LIVELY = """() => [...document.querySelectorAll(".jp-OutputArea-output section.labkit")]
  .filter((root) => root.querySelector(":scope > .lk-lost.lk-saved"))
  .filter((root) => [...root.children].some((part) => !part.inert && !part.matches(".lk-saved")))
  .map((root) => root.className)"""
PATIENCE_S = 120 * slowness()


def run_by_keyboard(notebook: Notebook) -> None:
    """Run every cell with Shift+Enter, from the first one on."""
    page = notebook.page
    page.evaluate("""() => {
      const { content } = jupyterapp.shell.currentWidget;
      content.activeCellIndex = 0;
      content.activate();
    }""")
    for _ in range(notebook.cells()):
        page.keyboard.press("Shift+Enter")
    page.wait_for_function(ALL_RUN, timeout=1000 * PATIENCE_S)
    page.wait_for_function(IDLE, timeout=1000 * PATIENCE_S)


def train_by_keyboard(notebook: Notebook) -> None:
    """Sketch the loss, train without a scale, switch it on, and pause."""
    root = notebook.widget("live")
    root.get_by_role("button", name="Draw what you expect").focus()
    notebook.press("Enter", "Space", *["ArrowRight"] * 20)
    notebook.press(*["ArrowDown", "ArrowRight"] * 12, "Enter")
    root.get_by_role("button", name="Start", exact=True).focus()
    notebook.press("Enter")
    notebook.until_data("live", "Number(d.step) > 150")
    root.locator("input[type=radio][value=off]").focus()
    notebook.press("ArrowRight")
    notebook.until_data("live", "d.scaling === 'static' && Number(d.step) > 250")
    root.locator("[data-button=pause]").focus()
    notebook.press("Enter")
    notebook.until_data("live", "d.phase === 'paused'")


def save_by_keyboard(notebook: Notebook) -> None:
    """Save the notebook, and wait until the server has saved it."""

    def saves(response: Any) -> bool:
        request = response.request
        return request.method == "PUT" and "/api/contents/" in request.url

    with notebook.page.expect_response(saves) as saved:
        notebook.press("Control+s")
    assert saved.value.ok


def standing(notebook: Notebook, count: int, saved: int) -> None:
    """Wait until `count` widgets are on the page, of which `saved` say that they were saved."""
    notebook.page.wait_for_function(
        f"(expected) => String(({STANDING})()) === String(expected)",
        arg=[count, saved],
        timeout=1000 * PATIENCE_S,
    )
    assert "Error displaying widget" not in notebook.page.locator(".jp-Notebook").inner_text()


def of_the_training(notebook: Notebook) -> dict[str, str]:
    """Return what a live training shows: its step, its settings, its phase, and the sketch."""
    root = notebook.widget("live")
    notebook.until_data("live", "Number(d.step) > 0")
    data = root.evaluate("(root) => ({ ...root.dataset })")
    seen = {name: data[name] for name in ("step", "marks", "scaling", "phase")}
    return {**seen, "sketch": root.locator(".lt-sketch-words").inner_text()}


def test_lesson_06_keeps_its_widgets_for_three_days(tmp_path: Path, browser: object) -> None:
    with serving(tmp_path) as server:
        lab = Lab(server, browser)
        shutil.copy(ROOT / "notebooks" / f"{LESSON}.ipynb", server.folder)
        notebook = lab.visit(LESSON)
        run_by_keyboard(notebook)
        count, saved = notebook.page.evaluate(STANDING)
        assert count >= 15
        assert saved == 0
        train_by_keyboard(notebook)
        first_day = of_the_training(notebook)
        assert first_day["scaling"] == "static"
        assert first_day["sketch"].startswith("You drew ")
        save_by_keyboard(notebook)
        lab.close(notebook)

    with serving(tmp_path) as server:
        lab = Lab(server, browser)
        notebook = lab.visit(LESSON)
        standing(notebook, count, saved=count)
        assert notebook.page.evaluate(LIVELY) == []
        assert of_the_training(notebook) == first_day
        save_by_keyboard(notebook)
        lab.close(notebook)

    with serving(tmp_path) as server:
        lab = Lab(server, browser)
        notebook = lab.visit(LESSON)
        standing(notebook, count, saved=count)
        assert of_the_training(notebook) == first_day
        notebook.run_all(PATIENCE_S)
        standing(notebook, count, saved=0)
        notebook.widget("live").locator("[data-button=step]").focus()
        notebook.press("Enter")
        notebook.until_data("live", "d.step === '1'")
        lab.close(notebook)


def test_a_notebook_of_0_2_keeps_its_widgets_for_three_days(
    tmp_path: Path, browser: object
) -> None:
    """Its training had run 40 steps when it was saved on day 1.

    Its widgets do not say at their top that they were saved: their scripts are those of 0.2.0.
    """
    name = "saved_live_0_2"
    document = saved_at_0_2(f"{name}.ipynb")
    nbformat.write(document, tmp_path / f"{name}.ipynb")
    for day in (2, 3):
        with serving(tmp_path) as server:
            if day == 2:
                shutil.copy(tmp_path / f"{name}.ipynb", server.folder)
            lab = Lab(server, browser)
            notebook = lab.visit(name)
            notebook.page.wait_for_selector(".labkit-live .lk-sentence:not(:empty)")
            notebook.page.wait_for_selector(".labkit-predict")
            notebook.until_data("live", "d.step === '40'")
            assert "Saved with the notebook" in notebook.widget("live").inner_text()
            if day == 3:
                notebook.run_all(PATIENCE_S)
                standing(notebook, 2, saved=0)
                assert errors_of(notebook) == []
                notebook.until_data("live", "d.phase === 'idle'")
            save_by_keyboard(notebook)
            lab.close(notebook)
