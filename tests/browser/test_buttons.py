"""The wall of patients and the four processes by keyboard, in a real JupyterLab; a program stands in for these."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELLS = [
    '''
import sys
from labkit.widgets import PatientWall, Workers

PROCESSES = """
import json, sys
print(json.dumps({"ready": 2}), flush=True)
for line in sys.stdin:
    plan = json.loads(line)
    for step in (1, 2):
        print(json.dumps({"step": step, "loss": 0.5, "ranks": [[8.0, True, False, 0.5]] * 2, "sent": 2048,
                          "held": {"model weights": 2}}), flush=True)
    print(json.dumps({"done": plan}), flush=True)
"""
wall = PatientWall()
wall
''',
    "workers = Workers((sys.executable, '-c', PROCESSES))\nworkers",
]


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.shown(CELLS, ".pw-card", ".labkit-workers .wk-step", height=1200) as notebook:
        yield notebook


def test_a_card_is_found_by_its_error_run_turned_and_cured(notebook):
    page = notebook.page
    page.get_by_label("An error message, or words to look for").focus()
    page.keyboard.insert_text("RuntimeError: value cannot be converted to type at::Half without overflow")
    page.wait_for_selector(".pw-card[hidden]", state="attached")
    notebook.until("wall.shown == ['mask_constant']")
    notebook.press("Tab", "Enter")  # the card's first control
    page.wait_for_selector('.pw-said[data-how="fails"]')
    assert "Ended after 0 steps by RuntimeError" in page.locator(".pw-said").inner_text()
    notebook.press("Tab", "Enter")
    page.wait_for_selector(".pw-back .pw-title")
    notebook.press("Shift+Tab")
    assert page.evaluate("document.activeElement.textContent") == "Run it repaired"
    notebook.press("Enter")
    page.wait_for_selector('.pw-said[data-how="well"]')
    notebook.press("Tab", "Escape")  # the card is turned back
    page.wait_for_selector(".pw-card[data-turned]", state="detached")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_four_processes_are_set_trained_and_stopped(notebook):
    page = notebook.page
    lanes = page.locator(".labkit-workers .wk-lanes")
    assert (lanes.get_attribute("data-recorded"), lanes.locator("td .wk-step[data-did=skipped]").count()) == ("", 12)
    page.locator(".labkit-workers [aria-label='each rank holds'] input:checked").focus()
    notebook.press("ArrowRight")
    notebook.until("workers.sharded is False")
    notebook.press("Tab", "ArrowRight")
    notebook.until("workers.way == 'FP16, divided before'")
    notebook.press("Tab", "Space")
    notebook.until("workers.agree is False")
    page.locator(".labkit-workers button:has-text('Train')").focus()
    notebook.press("Enter")
    notebook.until("len(workers.steps) == 2 and workers.phase == 'ready'")
    notebook.until_data("workers", "d.steps === '2' && d.phase === 'ready'")
    assert notebook.said("workers").startswith("All ranks stepped or skipped as one")
    assert lanes.get_attribute("data-recorded") is None, "the recorded training makes way"
    assert lanes.locator("td .wk-step:not([data-did=''])").count() == 4
    page.locator(".labkit-workers button:has-text('Stop')").focus()
    notebook.press("Enter")
    notebook.until_said("workers", "Stopped: no process is left")
    assert notebook.cells() == len(CELLS)
