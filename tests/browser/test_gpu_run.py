"""The button that measures the learner's GPU, by keyboard, in a real JupyterLab. A short program stands in."""

import pytest

pytestmark = pytest.mark.browser

BUTTONS = """
import sys
import torch
from labkit.train import Place, places
from labkit.widgets import GpuRun

program = "print('--- 1 of 2, size: time products, 35 s', flush=True); import time; time.sleep(600)"
card = GpuRun(Place(torch.device("cuda", 0), "Tesla T4", "gpu"), command=(sys.executable, "-u", "-c", program))
card
"""
WITHOUT = """
GpuRun(places()[-1])
"""
PART_BEGUN = "document.querySelector('.labkit-gpu-run').textContent.includes('Part 1 of 2, 35 s at most')"


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.shown([BUTTONS, WITHOUT], '.labkit-gpu-run[data-phase="no gpu"]', height=1200) as notebook:
        yield notebook


@pytest.mark.slow
def test_enter_starts_and_stops_it_and_the_focus_stays(notebook):
    page = notebook.page
    button = page.locator(".labkit-gpu-run").first.locator("button")
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector('.labkit-gpu-run[data-phase="running"]')
    page.wait_for_function(
        "document.querySelector('.labkit-gpu-run').textContent.includes('Part 1 of 2, 35 s at most')"
    )
    assert button.text_content() == "Stop"
    assert button.evaluate("element => element === document.activeElement")
    page.keyboard.press("Enter")
    page.wait_for_selector('.labkit-gpu-run[data-phase="stopped"]')
    assert "Stopped. What was measured of Tesla T4" in page.locator(".labkit-gpu-run").first.inner_text()
    assert button.evaluate("element => element === document.activeElement")


@pytest.mark.slow
def test_without_a_gpu_it_cannot_be_pressed_and_says_what_would_do(notebook):
    second = notebook.page.locator(".labkit-gpu-run").nth(1)
    assert second.locator("button").is_disabled()
    assert "labkit gpu --quick" in second.inner_text()
