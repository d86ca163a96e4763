"""The four processes' controls in a real JupyterLab, by keyboard alone. A short program stands in for the processes."""

import pytest

pytestmark = pytest.mark.slow
CODE = '''
import sys
from labkit.widgets import Workers
PROGRAM = """
import json, sys
print(json.dumps({"ready": 2}), flush=True)
for line in sys.stdin:
    plan = json.loads(line)
    for step in (1, 2):
        print(json.dumps({"step": step, "loss": 0.5, "ranks": [[8.0, True, False, 0.5]] * 2, "sent": 2048,
                          "held": {"model weights": 2}}), flush=True)
    print(json.dumps({"done": plan}), flush=True)
"""
workers = Workers((sys.executable, "-c", PROGRAM))
workers
'''




@pytest.fixture(scope="module")
def notebook(lab):
    with lab.shown([CODE, "1 + 1"], ".labkit-workers select", width=1280, height=720) as notebook:
        yield notebook


def focused(page):
    return page.evaluate("document.activeElement.innerText || document.activeElement.tagName")


def test_every_control_is_reached_and_used_and_the_notebook_hears_no_key(notebook):
    page = notebook.page
    page.locator(".labkit-workers select").first.focus()
    page.keyboard.press("ArrowDown")
    notebook.until("workers.held.value is False")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    notebook.until("workers.reduce.value == ('FP16', True)")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    notebook.until("workers.agree.value is False")
    page.keyboard.press("Tab")
    assert focused(page) == "Train"
    page.keyboard.press("Enter")
    notebook.until("workers.bar.value == 2 and not workers.train_button.disabled")
    page.wait_for_selector("text=All ranks stepped or skipped as one")
    page.locator(".labkit-workers button:has-text('Stop')").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Stopped: no process is left")
    assert notebook.cells() == 2
    assert page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex") == 0, "the arrows moved no cell"
