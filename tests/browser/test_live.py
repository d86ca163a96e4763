"""The live training and the workbench in a real JupyterLab: what is pressed, what is drawn, and how quickly."""

import re

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]

CELL = "from labkit.widgets import LiveTraining\nlive = LiveTraining(steps=120)\nlive"
REMEMBER_LOSSES = """root => {
  // every drawn step, as the page shows it: the widget's own data, kept from frame to frame
  window.drawn = [];
  new MutationObserver(() => {
    const { step, loss, fp32, scaling, scale } = root.dataset;
    window.drawn.push([Number(step), Number(loss), Number(fp32), Number(scale), scaling]);
  }).observe(root, { attributes: true, attributeFilter: ["data-frame"] });
}"""


class Driven:
    """A widget that trains, on the page, as a learner and a test see it."""

    def __init__(self, notebook, kind):
        self.notebook, self.page, self.kind = notebook, notebook.page, kind
        self.root = self.page.locator(f".labkit-{kind}").first

    def press(self, name):
        self.root.get_by_role("button", name=name, exact=True).click()

    def choose(self, scaling):
        self.root.locator(".lk-segment", has_text=scaling).click()

    def data(self):
        return self.root.evaluate("root => ({...root.dataset})")

    def until(self, condition):
        self.notebook.until_data(self.kind, condition)

    def pixels(self, colour, left=0.0, right=1.0, below=1.0):
        return self.notebook.pixels(self.kind, colour, left, right, below)

    def sentence(self):
        return self.notebook.said(self.kind)


@pytest.fixture(scope="module")
def opened(lab):
    with lab.shown([CELL], name="live") as notebook:
        yield Driven(notebook, "live")


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


def test_everything_works_from_the_keyboard_and_no_key_reaches_the_notebook(live):
    page, cells = live.page, live.notebook.cells()
    live.root.get_by_role("button", name="Step").focus()
    live.notebook.press("Enter")
    live.until("d.step === '1' && d.phase === 'paused'")
    live.notebook.press("Space")
    live.until("d.step === '2' && d.phase === 'paused'")
    live.root.get_by_role("radio", name="off").focus()
    live.notebook.press("ArrowRight")
    live.until("d.scaling === 'static'")
    live.root.get_by_role("slider").focus()
    live.notebook.press("ArrowRight", "ArrowRight")
    live.notebook.until("live.bench.run.wanted.log2_scale == 12")
    live.root.get_by_role("switch").focus()
    live.notebook.press("Space")
    live.notebook.until("live.bench.run.wanted.masters == 'forgotten'")
    live.root.get_by_role("button", name="Step").focus()
    page.keyboard.press("Enter")
    live.until("d.step === '3' && d.scale === '4096'")
    assert live.data()["marks"] == "3: scaling on, 2^12, master weights forgotten"
    assert live.notebook.cells() == cells


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


BENCH = "from labkit.widgets import Workbench\nbench = Workbench('segmentation_small', 'FP16 static', steps=60)\nbench"


@pytest.fixture(scope="module")
def bench(lab):
    with lab.shown([BENCH], name="workbench", height=1300) as notebook:
        yield Driven(notebook, "workbench")


def test_a_learner_forks_a_live_run_and_sees_two_curves_part(bench):
    bench.until("d.phase === 'idle'")
    bench.press("Start")
    bench.until("d.step >= 30")
    bench.press("Pause")
    bench.until("d.phase === 'paused'")
    one_curve = bench.pixels("fp16", 0.2, 0.9, 0.45)

    slider = bench.root.get_by_label("Fork after step")
    slider.focus()
    bench.page.keyboard.press("Home")
    for _ in range(10):
        bench.page.keyboard.press("ArrowRight")
    bench.press("Fork")
    bench.until("d.active === '1' && d.origin === '10'")
    bench.root.locator("[data-knob=scaling] .lk-segment", has_text="off").click()
    bench.until("d.answered === 'true'")
    bench.press("Continue")
    bench.until("d.phase === 'finished'")

    end = bench.data()
    assert (int(end["step"]), int(end["fork"]), int(end["origin"])) == (60, 50, 10)
    assert float(end["forkLoss"]) > 1.1 * float(end["loss"])  # without a scale it loses its gradients
    assert bench.pixels("fp16", 0.2, 0.9, 0.45) > 1.4 * one_curve
    assert "The fork (scaling off) left it after step 10" in bench.sentence()
    run, fork = bench.notebook.python("[[s.loss for s in bench.history], [s.loss for s in bench.forked]]")
    assert run[-1] == pytest.approx(float(end["loss"]), rel=1e-6)
    assert fork[-1] == pytest.approx(float(end["forkLoss"]), rel=1e-6)


def test_a_line_that_opens_the_same_bench_is_copied(bench):
    bench.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    bench.press("Copy a line that opens this")
    bench.root.locator(".wb-export [role=status]:has-text('Copied.')").wait_for()
    copied = bench.page.evaluate("navigator.clipboard.readText()")
    assert copied == bench.root.locator(".wb-open").input_value()
    again = f"__import__('labkit.widgets', fromlist=['Workbench']).{copied}.code"
    assert bench.notebook.python(again) == bench.notebook.python("bench.code")
