"""The passes over a graph, in a real JupyterLab, by keyboard; what is drawn is held against the kernel."""

import pytest

pytestmark = pytest.mark.browser

CELL = """
from labkit.widgets import CastPasses

passes = CastPasses()
passes
"""
SEEN = """() => [...document.querySelectorAll(".gr-table tbody tr")].map((row) => ({
  list: getComputedStyle(row.querySelector(".gr-list")).visibility === "visible",
  casts: [...row.querySelectorAll(".gr-cast")].filter((c) => getComputedStyle(c).visibility === "visible").length,
  gone: row.querySelectorAll(".gr-gone").length,
}))"""


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.shown([CELL], ".gr-table tbody tr", height=1100) as notebook:
        yield notebook


def at(notebook, position):
    notebook.page.wait_for_function(
        "p => document.querySelector('.labkit-ledger input[type=range]').value === p", arg=str(position)
    )


@pytest.mark.slow
def test_the_passes_are_walked_with_the_keyboard(notebook):
    notebook.settle()
    page = notebook.page
    page.locator(".labkit-ledger input[type=range]").focus()
    page.keyboard.press("PageUp")  # a pass further
    at(notebook, 7)
    assert [row["list"] for row in page.evaluate(SEEN)] == [True] * 7
    page.keyboard.press("ArrowRight")
    at(notebook, 8)
    page.keyboard.press("End")
    at(notebook, 35)
    notebook.until("passes.position == 35")
    seen = page.evaluate(SEEN)
    assert [row["casts"] for row in seen] == [2, 2, 0, 0, 1, 2, 2]
    assert [row["gone"] for row in seen] == [0, 1, 0, 0, 0, 1, 0]
    assert page.locator(".labkit-ledger .lk-sentence").get_attribute("data-text") == notebook.python("passes.sentence")


@pytest.mark.slow
def test_it_plays_and_both_themes_are_read(notebook):
    notebook.settle()
    page = notebook.page
    page.get_by_role("button", name="Play").click()
    notebook.until("passes.position >= 3")
    page.get_by_role("button", name="Pause").click()
    for theme, position in (("Light", 17), ("Dark", 35)):
        notebook.theme(f"JupyterLab {theme}")
        notebook.python(f"setattr(passes, 'position', {position})")
        at(notebook, position)
        notebook.screenshot(f"graph-{theme.lower()}", ".labkit-ledger")
    notebook.theme("JupyterLab Light")
