"""Live trainings in a real JupyterLab: buttons, drawing, moved cells, interrupts, dead kernels."""

import json
import re

import pytest

from tests.browser.conftest import Lab, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

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

    def pixels(self, colour, *part):
        return self.notebook.pixels(self.kind, colour, *part)


@pytest.fixture(scope="module")
def opened(lab):
    with lab.shown([CELL], name="live") as notebook:
        yield Driven(notebook, "live")


@pytest.fixture
def live(opened):
    """The widget before its first step, scaling off; the FP32 run may be there from the test
    before.
    """
    opened.notebook.python("live.press('reset')")
    opened.notebook.python("live.change(scaling='off', log2_scale=10, master_weights=True)")
    opened.until("d.phase === 'idle' && d.step === '0' && d.scaling === 'off'")
    return opened


def test_learner_switches_scaling_on_and_sees_curves_part(live):
    live.root.evaluate(REMEMBER_LOSSES)
    assert live.pixels("fp16", 0.1) == 0
    live.press("Start")
    live.until("d.step >= 40")
    apart = live.data()
    live.choose("static")
    live.until("d.step >= 90")
    live.until("d.phase === 'finished'")
    end = live.data()
    drawn = {
        step: (loss, fp32, scale)
        for step, loss, fp32, scale, _ in live.page.evaluate("window.drawn")
        if step
    }

    loss, fp32, scale = drawn[max(step for step in drawn if step <= 40)]
    assert scale == 1
    assert loss > 1.2 * fp32
    assert float(apart["underflow"]) > 0.5
    assert float(end["scale"]) == 1024
    assert float(end["underflow"]) < 0.1
    ratios = [loss / fp32 for loss, fp32, _ in drawn.values()]
    assert ratios[-1] < 0.85 * max(ratios)
    assert re.fullmatch(r"\d+: scaling on, 2\^10", end["marks"])
    said = live.notebook.said("live")
    assert said.startswith(
        "Finished at step 120, after one change: FP16 with a static scale of 2^10 has Dice"
    )
    assert live.pixels("fp16", 0.7, 0.9) > 100
    assert live.pixels("fp32", 0.7, 0.9) > 50


def test_reloaded_page_shows_the_whole_run(live):
    live.press("Start")
    live.until("d.step >= 20")
    live.page.evaluate("jupyterapp.commands.execute('docmanager:save')")
    live.page.wait_for_function("() => !jupyterapp.shell.currentWidget.model.dirty")
    live.page.goto(live.page.url.replace("&reset", ""))
    live.until("d.phase === 'running' && d.step >= 40")
    live.choose("dynamic")
    live.notebook.theme("JupyterLab Dark")
    live.until("d.phase === 'finished'")
    # the first steps, which this page has never seen happen
    assert live.pixels("fp16", 0.06, 0.2) > 50


BENCH = (
    "from labkit.widgets import Workbench\n"
    "bench = Workbench('segmentation_small', 'FP16 static', steps=60)\nbench"
)


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
    assert int(end["step"]) == 60
    assert int(end["fork"]) == 50
    assert int(end["origin"]) == 10
    # without a scale it loses its gradients
    assert float(end["forkLoss"]) > 1.1 * float(end["loss"])
    assert bench.pixels("fp16", 0.2, 0.9, 0.45) > 1.4 * one_curve
    assert "The fork (scaling off) left it after step 10" in bench.notebook.said("workbench")
    run, fork = bench.notebook.python(
        "[[s.loss for s in bench.history], [s.loss for s in bench.forked]]"
    )
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


LIVE = (
    "from labkit.widgets import LiveTraining\n"
    "LiveTraining('digits', 'FP16 static', steps=100_000, device='cpu')"
)
END_THE_KERNEL = ["session.kernel.requestExecute({code: 'import os; os._exit(1)'})", "shutdown()"]


@pytest.mark.parametrize("how", END_THE_KERNEL, ids=["dead", "shut down"])
def test_a_widget_says_that_its_kernel_is_lost(lab, how):
    nb = lab.notebook([LIVE])
    nb.run_all()
    nb.page.locator(".labkit-live [data-button=start]").click()
    nb.page.wait_for_selector(RUNNING)
    nb.page.evaluate(f"void jupyterapp.shell.currentWidget.sessionContext.{how}")
    nb.page.wait_for_selector(".labkit-live > .lk-lost:has-text('is gone')")
    assert nb.errors == []
    nb.page.context.close()


TRAIN = "[t.name for t in __import__('threading').enumerate()].count('labkit live training')"
CHOOSE_ITS_CELL = """() => {
    const { content } = jupyterapp.shell.currentWidget;
    const sources = content.widgets.map((cell) => cell.model.sharedModel.getSource());
    content.activeCellIndex = sources.findIndex((source) => source.includes("LiveTraining"));
}"""
RUNNING = ".labkit-live[data-phase=running]:not([data-step='0'])"


@pytest.fixture(scope="module")
def endless(lab):
    """A notebook whose one cell shows a live training, which runs; all that were made are in
    `made`.
    """
    with lab.shown(
        ["made = []", f"{LIVE.replace('LiveTraining(', 'made.append(LiveTraining(')})\nmade[-1]"]
    ) as nb:
        nb.page.locator(".labkit-live [data-button=start]").click()
        nb.page.wait_for_selector(RUNNING)
        yield nb


def test_a_training_whose_cell_is_moved_goes_on(endless):
    endless.page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex = 1")
    endless.page.evaluate("jupyterapp.commands.execute('notebook:move-cell-up')")
    endless.page.wait_for_function("jupyterapp.shell.currentWidget.content.activeCellIndex === 0")
    endless.page.wait_for_selector(RUNNING)
    at = endless.python("made[0].phase.value, len(made[0].history)")
    endless.until(f"len(made[0].history) > {at[1]} + 20")
    assert endless.python("made[0].phase.value") == "running"


def test_interrupt_pauses_a_training_and_stops_a_cell_as_ever(endless):
    endless.page.evaluate("jupyterapp.commands.execute('notebook:interrupt-kernel')")
    endless.page.wait_for_selector(
        ".labkit-live[data-phase=paused] [role=alert]:has-text('kernel was interrupted')"
    )
    endless.page.locator(".labkit-live [data-button=start]").click()
    endless.page.wait_for_selector(RUNNING)
    kernel = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"
    endless.page.evaluate(
        f"void {kernel}.requestExecute({{code: 'import time; began = True; time.sleep(60)'}})"
    )
    endless.page.wait_for_function(f"{kernel}.status === 'busy'")
    endless.page.evaluate("jupyterapp.commands.execute('notebook:interrupt-kernel')")
    assert endless.python("str(made[0].phase)", timeout_s=30) == "running"


def test_a_cell_that_is_run_again_leaves_no_training_behind(endless):
    endless.page.evaluate(CHOOSE_ITS_CELL)  # wherever it was moved
    endless.page.evaluate("jupyterapp.commands.execute('notebook:run-cell')")
    endless.until("len(made) == 2")
    endless.page.wait_for_selector(".labkit-live[data-phase=idle]")
    endless.page.locator(".labkit-live [data-button=start]").click()
    endless.page.wait_for_selector(RUNNING)
    endless.until(f"{TRAIN} == 1")
    assert endless.python("[str(each.phase) for each in made]") == ["paused", "running"]
    endless.page.evaluate("jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    endless.until(f"{TRAIN} == 0")
    assert endless.python("[str(each.phase) for each in made]") == ["paused", "paused"]


BAR = """
from labkit.amp import RECIPES
from labkit.train import TASKS
from labkit.widgets import TrainingBar
made = []
"""
NEW_BAR = (
    "made.append(TrainingBar(TASKS['digits'], RECIPES['FP32'], steps=100_000, "
    "device='cpu'))\nmade[-1]"
)


def test_a_training_with_a_bar_stops_when_hidden_or_interrupted(lab):
    with lab.shown([BAR, NEW_BAR, "# the last cell"]) as nb:
        for end in ("notebook:run-cell", "notebook:interrupt-kernel"):
            nb.page.locator(".labkit-training-bar button").click()
            nb.page.wait_for_selector(
                ".labkit-training-bar[data-phase=running]:not([data-done='0'])"
            )
            nb.page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex = 1")
            running = nb.python("len(made) - 1")
            nb.page.evaluate(f"jupyterapp.commands.execute('{end}')")
            nb.until(f"made[{running}].phase == 'stopped'")
            nb.page.wait_for_selector(
                f".labkit-training-bar[data-phase={'ready' if 'run' in end else 'stopped'}]"
            )


EACH_KIND = [
    "from labkit.machine import check_machine\ncheck_machine()",
    "from labkit.widgets import ScalerTimeline, predict, pulse",
    "ScalerTimeline()",
    "predict('start.warm_up')",
    "pulse()",
]
WHY = (
    "Widgets cannot be shown here: the front end of anywidget is switched off in the server "
    "that shows this page."
)
CURE = "To mend it: `jupyter labextension enable anywidget`, then restart JupyterLab."


def test_each_widget_says_why_and_the_cure(browser, tmp_path):
    config = tmp_path / "labconfig" / "page_config.json"
    config.parent.mkdir()
    # as `jupyter labextension disable` does
    config.write_text(json.dumps({"disabledExtensions": {"anywidget": True}}))
    with (
        serving(tmp_path) as server,
        Lab(server, browser).shown(EACH_KIND, "div[role=note]") as notebook,
    ):
        page = notebook.page
        notes = page.locator("div[role=note]").all_inner_texts()
        assert [note.split("\n\n") for note in notes] == [[WHY, CURE]] * 3
        picture = page.locator("div[role=note] + img")
        assert picture.evaluate("img => img.complete && img.naturalWidth > 400")
        # the doctor's line
        assert "switched off in the server" in page.locator(".jp-OutputArea").first.inner_text()
        assert page.locator("text=Error displaying widget").count() == 0


def test_a_knob_of_the_workbench_is_beside_the_curves(bench):
    """At 1280 x 720 JupyterLab leaves 620 pixels for a cell."""
    loss, top = (bench.root.locator(part).first.bounding_box() for part in ("canvas", ".lk-head"))
    knobs = bench.root.locator(".wb-groups [data-knob]")
    boxes = [knobs.nth(i).bounding_box() for i in range(knobs.count())]
    assert len(boxes) == 9
    assert all(box["x"] > loss["x"] + loss["width"] for box in boxes)
    assert max(box["y"] + box["height"] for box in boxes) - top["y"] < 560


def test_the_first_tab_stop_of_a_training_is_a_control(live):
    live.root.focus()
    live.page.keyboard.press("Tab")
    assert live.page.evaluate("document.activeElement.dataset.button") == "start"


SKIPS = (
    "from labkit.widgets import LiveTraining\n"
    "live = LiveTraining('digits', 'FP16 static', steps=30)\nlive"
)


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_a_skip_is_seen_where_motion_is_wanted(lab, motion):
    with lab.shown([SKIPS], ".labkit-live") as notebook:
        notebook.page.emulate_media(reduced_motion=motion)
        training = Driven(notebook, "live")
        drop = training.root.locator(".lt-drop")
        drop.evaluate(
            "note => { const move = note.animate.bind(note); window.moves = 0;"
            " note.animate = (...all) => { window.moves += 1; return move(...all); }; }"
        )
        training.press("Step")
        training.until("d.step === '1'")
        notebook.python("live.change(log2_scale=30)")
        training.press("Step")
        training.until("d.step === '2' && d.skipped === '1'")
        assert notebook.page.evaluate("window.moves") == (1 if motion == "no-preference" else 0)


EIGHT = (
    "from labkit.widgets import Workbench\n"
    "bench = Workbench('digits', 'FP8 delayed', steps=4)\nbench"
)


def test_a_recipe_of_8_bits_does_not_show_fp32_as_its_format(lab):
    with lab.shown([EIGHT], ".labkit-workbench") as notebook:
        training = Driven(notebook, "workbench")
        training.until("d.phase === 'idle'")
        format = training.root.locator("[data-knob=format] .lk-segment")
        lit = format.filter(has=training.page.locator(":checked"))
        assert lit.inner_text() == "E4M3"
        format.filter(has_text="FP32").click()
        notebook.until("bench.state()['recipe'] == 'O0'")
        format.filter(has_text="E4M3").wait_for(state="hidden")
        assert format.filter(visible=True).all_inner_texts() == ["FP32", "FP16", "BF16"]
        assert lit.inner_text() == "FP32"


def test_enter_on_a_bar_follows_one_gradient_through_the_scales(live):
    live.press("Step")
    live.until("d.step === '1'")
    live.choose("static")
    followed = live.root.locator(".lt-followed")
    live.root.locator(".lt-histogram canvas").focus()
    for _ in range(60):
        live.notebook.press("ArrowLeft", "Enter")
        if followed.is_visible():
            break
    assert "One gradient of" in followed.inner_text()
    handle = live.root.locator(".lt-handle input")
    handle.focus()
    bits = followed.locator(".be-bit")
    assert bits.count() == 16
    lit = []
    for key in ("End", "Home"):
        live.notebook.press(key)
        live.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        lit.append(bits.locator("xpath=self::*[@aria-pressed='true']").count())
    assert lit[0] > lit[1], "bits go dark as the scale falls"
    followed.get_by_role("button", name="\u00d7").click()
    followed.wait_for(state="hidden")
