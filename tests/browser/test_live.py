"""Live trainings in a real JupyterLab: buttons, curves, moved cells and interrupted kernels."""

import json
import re

import pytest

from tests.browser.conftest import NEXT_FRAME, Lab, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

CELL = "from labkit.widgets import LiveTraining\nlive = LiveTraining(steps=120)\nlive"
# Notes the data of each drawn step in window.drawn.
REMEMBER_LOSSES = """root => {
  window.drawn = [];
  new MutationObserver(() => {
    const { step, loss, fp32, scale } = root.dataset;
    window.drawn.push([step, loss, fp32, scale].map(Number));
  }).observe(root, { attributes: true, attributeFilter: ["data-frame"] });
}"""


class Driven:
    """A widget that trains, on its page.

    Args:
        notebook: The notebook that shows it.
        kind: The kind of the widget, such as "live".
    """

    def __init__(self, notebook, kind):
        self.notebook = notebook
        self.page = notebook.page
        self.kind = kind
        self.root = self.page.locator(f".labkit-{kind}").first

    def press(self, name):
        """Click a button by its name."""
        self.root.get_by_role("button", name=name, exact=True).click()

    def choose(self, scaling):
        """Choose a kind of loss scaling."""
        self.root.locator(".lk-segment", has_text=scaling).click()

    def data(self):
        """Return the data attributes of its element."""
        return self.root.evaluate("root => ({...root.dataset})")

    def until(self, condition):
        """Wait until a JavaScript condition on its data `d` is true."""
        self.notebook.until_data(self.kind, condition)

    def pixels(self, colour, *part):
        """Count the pixels of a colour in a part of its first canvas."""
        return self.notebook.pixels(self.kind, colour, *part)


@pytest.fixture(scope="module")
def opened(lab):
    with lab.shown([CELL], name="live") as notebook:
        yield Driven(notebook, "live")


@pytest.fixture
def live(opened):
    """The widget before its first step, with scaling off.

    It may have the FP32 run from an earlier test.
    """
    opened.notebook.python("live.press('reset')")
    opened.notebook.python("live.change(scaling='off', log2_scale=10, master_weights=True)")
    opened.until("d.phase === 'idle' && d.step === '0' && d.scaling === 'off'")
    return opened


def test_scaling_that_is_switched_on_brings_the_loss_down(live):
    live.root.evaluate(REMEMBER_LOSSES)
    assert live.pixels("fp16", 0.1) == 0
    live.press("Start")
    live.until("d.step >= 40")
    unscaled = live.data()
    live.choose("static")
    live.until("d.phase === 'finished'")
    scaled = live.data()
    drawn = {}
    for step, loss, fp32, scale in live.page.evaluate("window.drawn"):
        if step:
            drawn[step] = (loss, fp32, scale)

    loss, fp32, scale = drawn[max(step for step in drawn if step <= 40)]
    assert scale == 1
    assert loss > 1.2 * fp32
    assert float(unscaled["underflow"]) > 0.5
    assert float(scaled["scale"]) == 1024
    assert float(scaled["underflow"]) < 0.1
    # The curve comes nearer to that of FP32.
    ratios = [loss / fp32 for loss, fp32, _ in drawn.values()]
    assert ratios[-1] < 0.85 * max(ratios)
    assert re.fullmatch(r"\d+: scaling on, 2\^10", scaled["marks"])
    sentence = "Finished at step 120, after one change: FP16 with a static scale of 2^10 has Dice"
    assert live.notebook.sentence("live").startswith(sentence)
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
    # The first steps, which were before the page was loaded.
    assert live.pixels("fp16", 0.06, 0.2) > 50


BENCH = (
    "from labkit.widgets import Workbench\n"
    "bench = Workbench('segmentation_small', 'FP16 static', steps=60)\nbench"
)


@pytest.fixture(scope="module")
def bench(lab):
    with lab.shown([BENCH], name="workbench", height=1300) as notebook:
        yield Driven(notebook, "workbench")


def test_a_fork_without_scaling_leaves_the_curve_of_its_run(bench):
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
    # Without a scale it loses its gradients.
    assert float(end["forkLoss"]) > 1.1 * float(end["loss"])
    assert bench.pixels("fp16", 0.2, 0.9, 0.45) > 1.4 * one_curve
    assert "The fork (scaling off) left it after step 10" in bench.notebook.sentence("workbench")
    loss = bench.notebook.python("bench.history[-1].loss")
    fork_loss = bench.notebook.python("bench.forked[-1].loss")
    assert loss == pytest.approx(float(end["loss"]), rel=1e-6)
    assert fork_loss == pytest.approx(float(end["forkLoss"]), rel=1e-6)


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
    notebook = lab.notebook([LIVE])
    notebook.run_all()
    page = notebook.page
    page.locator(".labkit-live [data-button=start]").click()
    page.wait_for_selector(RUNNING)
    page.evaluate(f"void jupyterapp.shell.currentWidget.sessionContext.{how}")
    page.wait_for_selector(".labkit-live > .lk-lost:has-text('has stopped')")
    assert notebook.errors == []
    page.context.close()


# The number of threads that train.
TRAINING_THREADS = (
    "[t.name for t in __import__('threading').enumerate()].count('labkit live training')"
)
CHOOSE_ITS_CELL = """() => {
    const { content } = jupyterapp.shell.currentWidget;
    const sources = content.widgets.map((cell) => cell.model.sharedModel.getSource());
    content.activeCellIndex = sources.findIndex((source) => source.includes("LiveTraining"));
}"""
RUNNING = ".labkit-live[data-phase=running]:not([data-step='0'])"


@pytest.fixture(scope="module")
def endless(lab):
    """A notebook whose second cell shows a live training, which runs.

    The list `made` of its kernel has all trainings that the cell has made.
    """
    cell = f"{LIVE.replace('LiveTraining(', 'made.append(LiveTraining(')})\nmade[-1]"
    with lab.shown(["made = []", cell]) as notebook:
        notebook.page.locator(".labkit-live [data-button=start]").click()
        notebook.page.wait_for_selector(RUNNING)
        yield notebook


def test_a_training_whose_cell_is_moved_continues(endless):
    endless.page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex = 1")
    endless.page.evaluate("jupyterapp.commands.execute('notebook:move-cell-up')")
    endless.page.wait_for_function("jupyterapp.shell.currentWidget.content.activeCellIndex === 0")
    endless.page.wait_for_selector(RUNNING)
    steps = endless.python("len(made[0].history)")
    endless.until(f"len(made[0].history) > {steps} + 20")
    assert endless.python("made[0].phase.value") == "running"


def test_interrupt_of_an_idle_kernel_pauses_a_training(endless):
    endless.page.evaluate("jupyterapp.commands.execute('notebook:interrupt-kernel')")
    endless.page.wait_for_selector(
        ".labkit-live[data-phase=paused] [role=alert]:has-text('kernel was interrupted')"
    )
    endless.page.locator(".labkit-live [data-button=start]").click()
    endless.page.wait_for_selector(RUNNING)


# Runs a long cell; window.begun is true once it prints. The kernel is also busy while it answers a
# widget, so that its status does not say whether the cell has begun.
RUN_A_LONG_CELL = """() => {
  const { kernel } = jupyterapp.shell.currentWidget.sessionContext.session;
  const future = kernel.requestExecute({ code: "import time; print('begun'); time.sleep(60)" });
  window.begun = false;
  future.onIOPub = ({ header }) => {
    if (header.msg_type === "stream") window.begun = true;
  };
}"""


def test_interrupt_of_a_busy_kernel_stops_its_cell_only(endless):
    endless.page.evaluate(RUN_A_LONG_CELL)
    endless.page.wait_for_function("() => window.begun")
    endless.page.evaluate("jupyterapp.commands.execute('notebook:interrupt-kernel')")
    # The kernel answers within 30 s only if the cell was stopped.
    assert endless.python("str(made[-1].phase)", timeout_s=30) == "running"


def test_a_cell_that_is_run_again_leaves_no_training_behind(endless):
    # An earlier test may have moved the cell.
    endless.page.evaluate(CHOOSE_ITS_CELL)
    endless.page.evaluate("jupyterapp.commands.execute('notebook:run-cell')")
    endless.until("len(made) == 2")
    endless.page.wait_for_selector(".labkit-live[data-phase=idle]")
    endless.page.locator(".labkit-live [data-button=start]").click()
    endless.page.wait_for_selector(RUNNING)
    endless.until(f"{TRAINING_THREADS} == 1")
    assert endless.python("[str(each.phase) for each in made]") == ["paused", "running"]


def test_clearing_outputs_pauses_trainings(endless):
    endless.page.evaluate("jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    endless.until(f"{TRAINING_THREADS} == 0")
    assert endless.python("sorted({str(each.phase) for each in made})") == ["paused"]


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


@pytest.mark.parametrize(
    ("command", "shown_phase"), [("run-cell", "ready"), ("interrupt-kernel", "stopped")]
)
def test_a_training_with_a_bar_stops_if_replaced_or_interrupted(lab, command, shown_phase):
    with lab.shown([BAR, NEW_BAR, "# the last cell"]) as notebook:
        page = notebook.page
        page.locator(".labkit-training-bar button").click()
        page.wait_for_selector(".labkit-training-bar[data-phase=running]:not([data-done='0'])")
        page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex = 1")
        page.evaluate(f"jupyterapp.commands.execute('notebook:{command}')")
        notebook.until("made[0].phase == 'stopped'")
        page.wait_for_selector(f".labkit-training-bar[data-phase={shown_phase}]")


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


def test_a_widget_that_cannot_be_shown_says_why(browser, tmp_path):
    config = tmp_path / "labconfig" / "page_config.json"
    config.parent.mkdir()
    # As `jupyter labextension disable` does.
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
        # check_machine() says it, too.
        assert "switched off in the server" in page.locator(".jp-OutputArea").first.inner_text()
        assert page.locator("text=Error displaying widget").count() == 0


def test_a_knob_of_the_workbench_is_beside_the_curves(bench):
    curves = bench.root.locator("canvas").first.bounding_box()
    head = bench.root.locator(".lk-head").first.bounding_box()
    boxes = [knob.bounding_box() for knob in bench.root.locator(".wb-groups [data-knob]").all()]
    assert len(boxes) == 9
    assert min(box["x"] for box in boxes) > curves["x"] + curves["width"]
    # At 1280 x 720 JupyterLab leaves 620 pixels for a cell.
    assert max(box["y"] + box["height"] for box in boxes) - head["y"] < 560


def test_the_first_tab_stop_of_a_training_is_a_control(live):
    live.root.focus()
    live.page.keyboard.press("Tab")
    assert live.page.evaluate("document.activeElement.dataset.button") == "start"


SKIPS = (
    "from labkit.widgets import LiveTraining\n"
    "live = LiveTraining('digits', 'FP16 static', steps=30)\nlive"
)


@pytest.mark.parametrize(("motion", "animations"), [("no-preference", 1), ("reduce", 0)])
def test_a_skip_is_animated_unless_motion_is_reduced(lab, motion, animations):
    with lab.shown([SKIPS], ".labkit-live") as notebook:
        notebook.page.emulate_media(reduced_motion=motion)
        training = Driven(notebook, "live")
        # Count the calls of `animate`.
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
        assert notebook.page.evaluate("window.moves") == animations


EIGHT = (
    "from labkit.widgets import Workbench\n"
    "bench = Workbench('digits', 'FP8 delayed', steps=4)\nbench"
)


def test_a_recipe_of_8_bits_does_not_show_fp32_as_its_format(lab):
    with lab.shown([EIGHT], ".labkit-workbench") as notebook:
        training = Driven(notebook, "workbench")
        training.until("d.phase === 'idle'")
        format = training.root.locator("[data-knob=format] .lk-segment")
        checked = format.filter(has=training.page.locator(":checked"))
        assert checked.inner_text() == "E4M3"
        format.filter(has_text="FP32").click()
        notebook.until("bench.state()['recipe'] == 'O0'")
        format.filter(has_text="E4M3").wait_for(state="hidden")
        assert format.filter(visible=True).all_inner_texts() == ["FP32", "FP16", "BF16"]
        assert checked.inner_text() == "FP32"


def test_enter_on_a_bar_follows_one_gradient_through_the_scales(live):
    live.press("Step")
    live.until("d.step === '1'")
    live.choose("static")
    followed = live.root.locator(".lt-followed")
    live.root.locator(".lt-histogram canvas").focus()
    # Only a bar can be followed; the first one is somewhere to the left.
    for _ in range(60):
        live.notebook.press("ArrowLeft", "Enter")
        if followed.is_visible():
            break
    assert "One gradient of" in followed.inner_text()
    handle = live.root.locator(".lt-handle input")
    handle.focus()
    bits = followed.locator(".be-bit")
    assert bits.count() == 16
    set_bits = {}
    for key in ("End", "Home"):
        live.notebook.press(key)
        live.page.evaluate(NEXT_FRAME)
        set_bits[key] = bits.locator("xpath=self::*[@aria-pressed='true']").count()
    # At the smallest scale the gradient has fewer bits.
    assert set_bits["Home"] < set_bits["End"]
    followed.get_by_role("button", name="\u00d7").click()
    followed.wait_for(state="hidden")
