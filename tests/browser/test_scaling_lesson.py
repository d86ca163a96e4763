"""Lesson 06's widgets in a real JupyterLab, by keyboard: the scaler timeline and the game."""

from __future__ import annotations

from functools import partial

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

SETUP = """
from labkit.widgets import BeatTheScaler, ScalerTimeline
timeline = ScalerTimeline(growth_interval=20)
timeline
"""
GAME = "game = BeatTheScaler(steps=30, pace=1000)\ngame"
LEAVE = "document.activeElement.blur()"


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.shown([SETUP, GAME], ".labkit-beat-scaler[data-phase=idle]", name="scaling", height=1400) as notebook:
        yield notebook


def test_a_knob_moves_the_saw_tooth_and_code_moves_the_knob(notebook):
    timeline, page = notebook.widget("scaler-timeline"), notebook.page
    assert notebook.said("scaler-timeline") == notebook.python("timeline.sentence")
    assert notebook.pixels("scaler-timeline", "fp16", tolerance=60) > 1000
    notebook.until_data("scaler-timeline", "d.ahead > 0")
    for knob, keys in (("growth_interval", "ArrowLeft Home End"), ("init_log2_scale", "Home PageUp End")):
        timeline.locator(f"[data-knob={knob}] input").focus()
        for key in keys.split():
            drawn = int(timeline.get_attribute("data-drawn") or 0)
            notebook.press(key)
            notebook.until_data("scaler-timeline", f"d.drawn > {drawn}")
    notebook.settle()
    assert notebook.python("timeline.growth_interval, timeline.init_log2_scale") == (2000, 32)
    assert timeline.get_by_role("slider", name="init_scale").get_attribute("aria-valuetext") == "2^32"
    for interval, shown in ((25, "25 clean steps"), (33, "33")):  # a place of the slider, and one between two
        notebook.python(f"setattr(timeline, 'growth_interval', {interval})")
        output = "document.querySelector('[data-knob=growth_interval] output').textContent"
        page.wait_for_function(f"shown => {output} === shown", arg=shown)
    assert notebook.said("scaler-timeline") == notebook.python("timeline.sentence")


def test_a_game_by_keyboard_hides_the_window_until_it_is_over(notebook):
    game, page = notebook.widget("beat-scaler"), notebook.page
    marks = partial(notebook.pixels, "beat-scaler", tolerance=60)
    game.get_by_role("button", name="Start").focus()
    page.keyboard.press("Enter")
    notebook.until_data("beat-scaler", "d.step >= 2")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    notebook.until_data("beat-scaler", "d.scale === '17'")
    page.evaluate(LEAVE)
    game.focus()
    page.keyboard.press(" ")
    notebook.until_data("beat-scaler", "d.phase === 'paused'")
    assert game.get_attribute("data-told") == "false"
    assert all(marks(colour) == 0 for colour in ("overflowed", "underflowed"))
    assert notebook.said("beat-scaler").startswith("Paused at step")
    page.keyboard.press("PageDown")
    page.keyboard.press(" ")
    notebook.until_data("beat-scaler", "d.phase === 'finished'")
    assert game.get_attribute("data-scale") == "13"
    assert notebook.python("{step.scale for step in game.duel.yours.steps}") <= {2.0**k for k in (13, 16, 17, 18)}
    assert all(marks(colour) > 20 for colour in ("overflowed", "underflowed"))
    assert notebook.said("beat-scaler") == notebook.python("game.sentence")
