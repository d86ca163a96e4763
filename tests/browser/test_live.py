"""The live training in a real JupyterLab: what a learner presses, what is drawn, and how quickly."""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]

CELL = "from labkit.widgets import LiveTraining\nlive = LiveTraining(steps=120)\nlive"
OTHER = "other = LiveTraining('digits', 'FP8', steps=40)\nother"
REMEMBER_LOSSES = """root => {
  // every drawn step, as the page shows it: the widget's own data, kept from frame to frame
  window.drawn = [];
  new MutationObserver(() => {
    const { step, loss, fp32, scaling, scale } = root.dataset;
    window.drawn.push([Number(step), Number(loss), Number(fp32), Number(scale), scaling]);
  }).observe(root, { attributes: true, attributeFilter: ["data-frame"] });
}"""


class Live:
    """The widget on the page, as a learner and a test see it."""

    def __init__(self, notebook):
        self.notebook, self.page = notebook, notebook.page
        self.root = self.page.locator(".labkit-live").first
        self.other = self.page.locator(".labkit-live").last

    def press(self, name):
        self.root.get_by_role("button", name=name).click()

    def choose(self, scaling):
        self.root.locator(".lk-segment", has_text=scaling).click()

    def data(self):
        return self.root.evaluate("root => ({...root.dataset})")

    def until(self, condition):
        self.notebook.until_data("live", condition)

    def pixels(self, colour, left=0.0, right=1.0):
        return self.notebook.pixels("live", colour, left, right)

    def sentence(self):
        return self.notebook.said("live")


@pytest.fixture(scope="module")
def opened(lab):
    with lab.shown([CELL, OTHER], name="live") as notebook:
        yield Live(notebook)


@pytest.fixture
def live(opened):
    """The widget before its first step, scaling off; the FP32 run may be there from the test before."""
    opened.notebook.python("live.press('reset')")
    opened.notebook.python("live.change(scaling='off', log2_scale=10, master_weights=True)")
    opened.until("d.phase === 'idle' && d.step === '0' && d.scaling === 'off'")
    return opened


def test_a_learner_switches_scaling_on_and_sees_the_curves_part_and_meet(live):
    live.root.evaluate(REMEMBER_LOSSES)
    assert live.pixels("fp16", left=0.1) == 0
    live.press("Start")
    live.until("d.step >= 40")
    apart = live.data()
    live.choose("static")
    live.until("d.step >= 90")
    live.notebook.screenshot("live-running-light", ".labkit-live")
    live.until("d.phase === 'finished'")
    end = live.data()
    drawn = {step: (loss, fp32, scale) for step, loss, fp32, scale, _ in live.page.evaluate("window.drawn") if step}

    loss, fp32, scale = drawn[max(step for step in drawn if step <= 40)]
    assert scale == 1
    assert loss > 1.2 * fp32
    assert float(apart["underflow"]) > 0.5
    assert float(end["scale"]) == 1024
    assert float(end["underflow"]) < 0.1
    ratios = [loss / fp32 for loss, fp32, _ in drawn.values()]
    assert ratios[-1] < 0.85 * max(ratios)
    assert re.fullmatch(r"\d+: scaling on, 2\^10", end["marks"])
    assert live.sentence().startswith(
        "Finished at step 120, after one change: FP16 with a static scale of 2^10 has Dice"
    )
    assert live.pixels("fp16", 0.7, 0.9) > 100
    assert live.pixels("fp32", 0.7, 0.9) > 50


def test_run_again_keeps_the_run_before_in_sight_and_fp32_whole(live):
    live.press("Start")
    live.until("d.step >= 20")
    live.press("Pause")
    live.until("d.phase === 'paused'")
    steps = live.data()["step"]
    live.press("Reset")
    live.until(f"d.phase === 'idle' && d.step === '0' && d.previous === '{steps}'")
    live.choose("dynamic")
    live.press("Start")
    live.until("d.step >= 10")
    live.press("Stop")
    live.until("d.phase === 'finished'")
    assert "with dynamic scaling (now 2^10)" in live.sentence()
    assert live.pixels("fp32", 0.12, 0.16) > 20  # beyond our ten steps: known from the run before


def test_two_on_one_page_take_turns_and_leave_each_other_alone(live):
    live.choose("static")
    live.press("Start")
    live.until("d.step >= 5")
    live.other.get_by_role("button", name="Start").click()
    live.until("d.phase === 'paused'")
    assert "another live training has started" in live.root.get_by_role("alert").text_content()
    assert live.root.get_by_role("radio", name="static").is_checked()
    assert live.other.get_by_role("radio", name="dynamic").is_checked()
    live.notebook.until("str(other.phase) == 'finished'", timeout_s=60)
    live.page.wait_for_function("() => [...document.querySelectorAll('.labkit-live')].at(-1).dataset.step === '40'")


def test_everything_works_from_the_keyboard_and_no_key_reaches_the_notebook(live):
    page, cells = live.page, live.notebook.cells()
    focus = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent || "
    focus += "document.activeElement.closest('label')?.textContent || document.activeElement.value"

    live.root.get_by_role("button", name="Start").focus()
    reached = []
    for _ in range(7):
        reached.append(page.evaluate(f"document.activeElement.type === 'radio' ? 'radio' : {focus}"))
        page.keyboard.press("Tab")
    assert reached[:5] == ["Start", "Step", "Stop", "Reset", "radio"]
    assert reached[6] == "FP32 master weights"

    live.root.get_by_role("button", name="Step").focus()
    page.keyboard.press("Enter")
    live.until("d.step === '1' && d.phase === 'paused'")
    page.keyboard.press("Space")
    live.until("d.step === '2' && d.phase === 'paused'")
    page.keyboard.press("d")
    page.keyboard.press("d")
    page.keyboard.press("x")
    assert live.notebook.cells() == cells

    live.root.get_by_role("radio", name="off").focus()
    page.keyboard.press("ArrowRight")
    live.until("d.scaling === 'static'")
    live.root.get_by_role("slider").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    live.notebook.until("live.bench.run.wanted.log2_scale == 12")
    live.root.get_by_role("switch").focus()
    page.keyboard.press("Space")
    live.notebook.until("live.bench.run.wanted.masters == 'forgotten'")
    live.root.get_by_role("button", name="Step").focus()
    page.keyboard.press("Enter")
    live.until("d.step === '3' && d.scale === '4096'")
    assert live.data()["marks"] == "3: scaling on, 2^12, master weights forgotten"
    assert live.notebook.cells() == cells


def test_a_scale_turned_up_while_it_trains_skips_its_steps(live):
    live.choose("static")
    live.press("Start")
    live.until("d.step >= 30")
    live.root.get_by_role("slider").focus()
    live.page.keyboard.press("End")
    live.until("Number(d.scale) === 2 ** 30 && Number(d.skipped) >= 5")
    assert "steps were skipped: at scale 2^30 the gradients overflow" in live.notebook.python("live.sentence")
    assert live.pixels("overflowed") > 100


def test_the_picture_follows_the_hand_before_the_first_step_and_while_the_kernel_is_away(live):
    live.choose("static")
    live.until("d.scaling === 'static' && d.next === '10'")
    before = live.pixels("fp16", 0, 0.1)
    assert before > 10  # the ring of the next step
    live.notebook.kernel.execute("import time; [time.monotonic() for _ in range(20_000_000)]")  # holds the interpreter
    live.root.get_by_role("slider").focus()
    live.page.keyboard.press("End")
    live.until("d.next === '30'")
    live.notebook.until("live.bench.run.wanted.log2_scale == 30")


def test_a_page_that_is_loaded_again_shows_the_whole_run_and_the_theme(live):
    live.press("Start")
    live.until("d.step >= 20")
    live.page.evaluate("jupyterapp.commands.execute('docmanager:save')")
    live.page.wait_for_function("() => !jupyterapp.shell.currentWidget.model.dirty")
    live.page.goto(live.page.url.replace("&reset", ""))
    live.until("d.phase === 'running' && d.step >= 40")
    live.choose("dynamic")
    live.notebook.theme("JupyterLab Dark")
    live.until("d.phase === 'finished'")
    assert live.pixels("fp16", 0.06, 0.2) > 50  # the first steps, which this page has never seen happen
    live.notebook.screenshot("live-finished-dark", ".labkit-live")
