"""Lesson 06's widgets in a real JupyterLab, by keyboard: the scaler timeline, the six presets, and the game."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

SETUP = """
from labkit.widgets import BeatTheScaler, ScalerPresets, ScalerTimeline
timeline = ScalerTimeline(growth_interval=20)
timeline
"""
PRESETS = "presets = ScalerPresets()\npresets"
GAME = "game = BeatTheScaler(steps=30, pace=1000)\ngame"
PIXELS = """([canvas, name]) => {
  // pixels near a colour of the theme: lines over a light or a dark surface let a little of it through
  const colour = getComputedStyle(canvas.closest(".labkit")).getPropertyValue(name).trim();
  const [r, g, b] = colour.match(/\\w\\w/g).map((x) => parseInt(x, 16));
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4)
    count += data[i + 3] > 200 && Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 60;
  return count;
}"""
LEAVE = "document.activeElement.blur()"


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.shown(
        [SETUP, PRESETS, GAME], ".labkit-beat-scaler[data-phase=idle]", name="scaling", height=1400
    ) as notebook:
        yield notebook


def part(notebook, kind):
    return notebook.page.locator(f".labkit-{kind}")


def said(widget):
    return widget.locator(".lk-sentence").get_attribute("data-text")


def pixels(widget, name, canvas=0):
    element = widget.locator("canvas").nth(canvas).element_handle()
    return widget.page.evaluate(PIXELS, [element, f"--lk-{name}"])


def wait_for(notebook, kind, condition, timeout_s=120):
    expression = f"() => {{ const d = document.querySelector('.labkit-{kind}').dataset; return {condition}; }}"
    notebook.page.wait_for_function(expression, timeout=1000 * timeout_s)


def test_a_knob_moves_the_saw_tooth_while_the_kernel_agrees(notebook):
    timeline, page = part(notebook, "scaler-timeline"), notebook.page
    assert said(timeline) == notebook.python("timeline.sentence")
    assert pixels(timeline, "fp16") > 1000
    wait_for(notebook, "scaler-timeline", "d.ahead > 0")
    latencies = []
    for knob, keys in (
        ("growth_interval", ["ArrowLeft"] * 4 + ["Home", "End"]),
        ("init_log2_scale", ["Home", "PageUp", "End"]),
    ):
        timeline.locator(f"[data-knob={knob}] input").focus()
        for key in keys:
            drawn = int(timeline.get_attribute("data-drawn") or 0)
            page.keyboard.press(key)
            wait_for(notebook, "scaler-timeline", f"d.drawn > {drawn}")
            latencies.append(float(timeline.get_attribute("data-latency")))
    notebook.settle()
    assert (notebook.python("timeline.growth_interval"), notebook.python("timeline.init_log2_scale")) == (2000, 32)
    page.wait_for_function(
        "s => document.querySelector('.lk-sentence').dataset.text === s", arg=notebook.python("timeline.sentence")
    )
    assert timeline.get_by_role("slider", name="init_scale").get_attribute("aria-valuetext") == "2^32"
    print("\nfrom the hand to the picture, ms:", sorted(latencies))


def test_code_moves_the_knobs_too(notebook):
    notebook.settle()
    notebook.python("[setattr(timeline, 'growth_interval', 25), setattr(timeline, 'init_log2_scale', 16)]")
    timeline = part(notebook, "scaler-timeline")
    notebook.page.wait_for_function(
        "() => document.querySelector('[data-knob=growth_interval] output').textContent === '25 clean steps'"
    )
    assert said(timeline) == notebook.python("timeline.sentence")
    notebook.python("setattr(timeline, 'growth_interval', 33)")  # between two places of the slider
    notebook.page.wait_for_function(
        "() => document.querySelector('[data-knob=growth_interval] output').textContent === '33'"
    )


def test_presets_are_chosen_by_arrow_keys(notebook):
    presets, page = part(notebook, "scaler-presets"), notebook.page
    presets.get_by_role("radio", name="torch").focus()
    for name in ("apex", "DeepSpeed"):
        page.keyboard.press("ArrowDown")
        notebook.until(f"presets.selected == {name!r}")
    assert "with hysteresis 2" in said(presets)
    assert said(presets) == notebook.python("presets.sentence")
    page.keyboard.press("Shift+Tab")  # back to the choice of what is alike
    page.keyboard.press("ArrowRight")
    notebook.until("not presets.alike")
    assert presets.locator("tr.st-chosen td").all_text_contents()[1:] == ["0", "83%"]
    presets.get_by_role("radio", name="same start and interval").check()
    notebook.until("presets.alike")
    print("\nfrom the hand to the picture, ms:", presets.get_attribute("data-latency"))


def test_a_game_by_keyboard_hides_the_window_until_it_is_over(notebook):
    game, page = part(notebook, "beat-scaler"), notebook.page
    game.get_by_role("button", name="Start").focus()
    page.keyboard.press("Enter")
    wait_for(notebook, "beat-scaler", "d.step >= 2")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    wait_for(notebook, "beat-scaler", "d.scale === '17'")
    page.evaluate(LEAVE)
    game.focus()
    page.keyboard.press(" ")
    wait_for(notebook, "beat-scaler", "d.phase === 'paused'")
    assert game.get_attribute("data-told") == "false"
    assert pixels(game, "overflowed") == pixels(game, "underflowed") == 0
    assert said(game).startswith("Paused at step")
    page.keyboard.press("PageDown")
    page.keyboard.press(" ")
    wait_for(notebook, "beat-scaler", "d.phase === 'finished'")
    assert game.get_attribute("data-scale") == "13"
    assert notebook.python("{step.scale for step in game.duel.yours.steps}") <= {2.0**k for k in (13, 16, 17, 18)}
    assert pixels(game, "overflowed") > 20
    assert pixels(game, "underflowed") > 20
    assert said(game) == notebook.python("game.sentence")
    print("\nfrom the hand to the picture, ms:", game.get_attribute("data-touch"))


@pytest.mark.slow
def test_both_themes(notebook):
    for theme in ("Dark", "Light"):
        notebook.theme(f"JupyterLab {theme}")
        for kind in ("scaler-timeline", "scaler-presets", "beat-scaler"):
            widget = part(notebook, kind)
            notebook.page.wait_for_timeout(400)  # the style sheet comes after the theme's name, and no event says so
            assert pixels(widget, "fp16") > 50
            notebook.screenshot(f"scaling-{kind}-{theme.lower()}", f".labkit-{kind}")
    assert notebook.cells() == 3  # no key of a game reached the notebook
