"""The wall of patients in a real JupyterLab, by keyboard alone: found by an error message, run, turned, cured."""

import pytest

pytestmark = pytest.mark.browser

CELL = """
from labkit.widgets import PatientWall

wall = PatientWall()
wall
"""


def test_a_card_is_found_by_its_error_run_turned_and_cured_by_keyboard(lab):
    with lab.shown([CELL], ".pw-card", name="wall", height=720) as notebook:
        notebook.settle()
        page = notebook.page
        notebook.screenshot("wall-front")
        page.get_by_label("An error message, or words to look for").focus()
        page.keyboard.insert_text("RuntimeError: value cannot be converted to type at::Half without overflow")
        page.wait_for_selector(".pw-card[hidden]", state="attached")
        notebook.until("wall.shown == ['mask_constant']")
        page.keyboard.press("Tab")  # to the card's first control
        page.keyboard.press("Enter")
        page.wait_for_selector('.pw-said[data-how="fails"]')
        assert "Ended after 0 steps by RuntimeError" in page.locator(".pw-said").inner_text()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector(".pw-back .pw-title")
        repaired = page.get_by_role("button", name="Run it repaired")
        page.keyboard.press("Shift+Tab")
        assert repaired.evaluate("button => button === document.activeElement")
        page.keyboard.press("Enter")
        page.wait_for_selector('.pw-said[data-how="well"]')
        assert page.evaluate("document.activeElement.textContent") == "Run it repaired"
        for theme in ("Light", "Dark"):
            notebook.theme(f"JupyterLab {theme}")
            notebook.screenshot(f"wall-turned-{theme.lower()}")
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")  # the card is turned back
        page.wait_for_selector(".pw-card[data-turned]", state="detached")
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
