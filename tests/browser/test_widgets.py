"""Widgets in a real JupyterLab: a key in the page changes a value in the kernel.

The playground and the quiz are tested on pages without a kernel, in tests/widgets.
No key reaches the notebook, Escape gives the focus to the cell, both themes can be read, an
exported page needs no network, and a notebook whose kernel is gone says so and works again.
"""

from dataclasses import dataclass

import pytest

from tests.browser.conftest import IDLE
from tests.notebook_page import to_html

pytestmark = pytest.mark.browser

SETUP = """
import sys
import torch
from labkit.amp import RECIPES
from labkit.instrument import snapshot
from labkit.train import TASKS, Place
from labkit.widgets import *

DIGITS, CPU = TASKS["digits"], {"device": "cpu"}
gradients = {
    "conv": torch.exp2(6 * torch.randn(40, 50, generator=torch.manual_seed(0)) - 20),
    "head": torch.ones(3) * 2.0**-9,
}
scores = lambda x, w: (x @ w).exp().sum(-1)
measure = (sys.executable, "-c", "print('size begins')")
TRAINING = '''
import json, sys
print(json.dumps({"ready": 2}), flush=True)
for plan in map(json.loads, sys.stdin):
    step = {
        "step": 1,
        "loss": 0.5,
        "ranks": [[8.0, True, False, 0.5]] * 2,
        "sent": 2048,
        "held": {"model weights": 2},
    }
    print(json.dumps(step), json.dumps({"done": plan}), sep=chr(10), flush=True)
'''
"""


@dataclass(frozen=True)
class Widget:
    """A widget in a cell, and what keys do to it. In expressions `w` is the widget.

    Attributes:
        made: The expression that makes it.
        control: The selector of the control that first gets the focus.
        keys: The keys that are pressed, with spaces between them.
        known: An expression that is then true in the kernel.
        says: The selector of its sentence on the page.
        sentence: An expression for the sentence in the kernel.
    """

    made: str
    control: str
    keys: str
    known: str
    says: str = ".lk-sentence"
    sentence: str = "w.sentence"


WIDGETS = {
    "addition": Widget(
        "AdditionPlayer(1.0, 0.0001)", ".ad-stations input:checked", "ArrowRight", "w.step == 2"
    ),
    "beat_scaler": Widget(
        "BeatTheScaler(steps=3, pace=1000, **CPU)",
        "[data-button=start]",
        "Enter",
        "w.phase == 'finished'",
    ),
    "bits": Widget("BitExplorer()", ".be-bit[data-bit='0']", "Space", "w.code & 1"),
    "block_scales": Widget(
        "BlockScales()", "[role=slider][tabindex='0']", "End ArrowLeft", "w.selected == 10"
    ),
    "gpu_run": Widget(
        "GpuRun(Place(torch.device('cpu'), 'Tesla T4', 'gpu'), command=measure)",
        "button",
        "Enter",
        "w.phase == 'done'",
    ),
    "graph": Widget("CastPasses()", "input[type=range]", "ArrowLeft", "w.position == 34"),
    "ledger": Widget(
        "CastLedger(scores, torch.full((2, 2), 2.5), torch.full((2, 2), 2.5))",
        "tr[data-key='exp 1'] input:checked",
        "ArrowLeft",
        "w.overrides == {'exp 1': 'allow'}",
    ),
    "live": Widget(
        "LiveTraining('digits', steps=9, **CPU)",
        "[data-button=step]",
        "Enter",
        "len(w.history) == 1",
    ),
    "mma_block": Widget("MmaBlock()", ".mm-gpus input:checked", "ArrowRight", "w.gpu == 'T4'"),
    "number_line": Widget("NumberLine(x=0.1)", ".nl-handle", "ArrowRight", "w.x > 0.1"),
    "fault_wall": Widget(
        "FaultWall()",
        "input[type=text]",
        "Tab Enter Shift+Tab m a s k",
        "len(w.outcomes) == 1 and len(w.shown) == 2",
    ),
    "predict": Widget(
        "predict('start.warm_up')",
        "input[type=radio]",
        "Space Tab Enter",
        "w.answered",
        ".lk-reply:focus",
        "w.answered",
    ),
    "router": Widget("RouterScores()", "input[value=BF16]", "ArrowLeft", "w.format == 'FP16'"),
    "scaler_presets": Widget(
        "ScalerPresets()", "tr input:checked", "ArrowDown", "w.selected == 'apex'"
    ),
    "scaler_timeline": Widget(
        "ScalerTimeline()", "[data-knob=growth_interval] input", "End", "w.growth_interval == 2000"
    ),
    "step_debugger": Widget(
        "StepDebugger(DIGITS)", ".sd-strip input:checked", "ArrowRight", "w.stage == 1"
    ),
    "swallowed": Widget(
        "SwallowedUpdates(1.0, 2.0**-12)",
        "input[type=range] >> nth=1",
        "End",
        "w.update == 2.0**-6",
    ),
    "training_bar": Widget(
        "TrainingBar(DIGITS, RECIPES['FP32'], steps=3, **CPU)",
        "button",
        "Enter",
        "w.phase == 'finished'",
    ),
    "underflow": Widget(
        "UnderflowHistogram(snapshot(gradients, step=0, kind='weight gradients'))",
        "input[type=range]",
        "PageUp",
        "w.log2_scale == 5",
    ),
    "workbench": Widget(
        "Workbench('digits', steps=9, **CPU)", "[data-button=step]", "Enter", "len(w.history) == 1"
    ),
    "workers": Widget(
        "Workers((sys.executable, '-c', TRAINING))",
        ".lk-segments input:checked",
        "ArrowRight Tab ArrowRight Tab Space" + 4 * " Shift+Tab" + " Enter",
        "(w.sharded, w.way, w.agree, len(w.steps), w.phase) == (False, 'FP16, divided before', "
        "False, 1, 'ready')",
    ),
    "zoom": Widget(
        "GradientZoom({0: gradients})",
        "input[type=range] >> nth=2",
        "ArrowRight",
        "w.log2_scale == 1",
    ),
}
ORDER = list(WIDGETS)

HAS_FOCUS = "i => document.activeElement === jupyterapp.shell.currentWidget.content.widgets[i].node"
# The least contrast (WCAG 2.2) of the texts of each widget with the colour behind them. Instead of
# a background that is more transparent than opaque, the one behind it is taken.
CONTRASTS = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (part) => (part <= 10.3 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  function behind(element) {
    const [r, g, b, alpha = 1] = parts(getComputedStyle(element).backgroundColor);
    return alpha > 0.5 || !element.parentElement ? [r, g, b] : behind(element.parentElement);
  }
  const contrast = (element) => {
    const ink = light(parts(getComputedStyle(element).color));
    const [low, high] = [ink, light(behind(element))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  return [...document.querySelectorAll(".labkit")].map((root) => {
    const texts = [root, ...root.querySelectorAll(".lk-sentence, .lk-title, .lk-quiet, th, td")];
    const visible = texts.filter((text) => text.checkVisibility());
    return [root.className, Math.min(...visible.map(contrast))];
  });
}"""
# The sentences of the widgets that train, one for each of their canvases.
RUNS = """() => {
  const trainings = ":is(.labkit-live, .labkit-beat-scaler, .labkit-workbench)";
  const canvases = [...document.querySelectorAll(`${trainings} canvas`)];
  const sentenceOf = (canvas) => canvas.closest(".labkit").querySelector(".lk-sentence");
  return canvases.map((canvas) => sentenceOf(canvas).dataset.text);
}"""
# For each output, whether it has a picture or a text of more than 40 characters.
SHOWN = (
    "all => all.map((output) => output.querySelector('img') !== null || "
    "output.innerText.trim().length > 40)"
)
CURE = "Choose Run\u00a0> Run All Above Selected Cell, then run this cell again (Shift+Enter)."
# How many controls of widgets can still be used.
STILL_ALIVE = """() => [...document.querySelectorAll('.labkit :is(button, input, select, canvas)')]
    .filter((control) => !control.closest('[inert]')).length"""


@pytest.fixture(scope="module")
def notebook(lab):
    """A notebook with a cell for each widget."""
    (lab.folder / "labkit-answers.jsonl").unlink(missing_ok=True)
    cells = [SETUP, *(f"{name} = w = {widget.made}\nw" for name, widget in WIDGETS.items())]
    with lab.shown(cells, name="widgets", height=1400) as notebook:
        yield notebook


def save(notebook):
    """Save the notebook, and wait until it is saved."""
    notebook.page.evaluate("jupyterapp.commands.execute('docmanager:save')")
    notebook.page.wait_for_function("() => !jupyterapp.shell.currentWidget.model.dirty")


@pytest.mark.parametrize("name", WIDGETS)
def test_a_key_in_the_page_reaches_the_kernel(notebook, name):
    widget = WIDGETS[name]
    page = notebook.page
    index = 1 + ORDER.index(name)
    cells = notebook.cells()
    cell = page.locator(".jp-Cell").nth(index)
    cell.locator(widget.control).first.focus()
    for key in widget.keys.split():
        page.keyboard.press(key)
    notebook.until(widget.known.replace("w.", f"{name}."))
    # Some sentences are formed by the page, and reach the kernel later.
    notebook.settle()
    sentence = notebook.python(widget.sentence.replace("w.", f"{name}."))
    page.wait_for_function(
        "([node, words]) => (node.dataset.text ?? node.textContent) === words",
        arg=[cell.locator(widget.says).first.element_handle(), sentence],
    )
    # In command mode, "dd" and "x" would delete the cell.
    for key in "ddx":
        page.keyboard.press(key)
    page.keyboard.press("Escape")
    page.wait_for_function(HAS_FOCUS, arg=index)
    assert notebook.cells() == cells


def test_widgets_can_be_read_in_both_themes(notebook):
    colours = {}
    try:
        for theme in ("Light", "Dark"):
            notebook.theme(f"JupyterLab {theme}")
            notebook.page.wait_for_function(
                f"({CONTRASTS})().every(([, contrast]) => contrast >= 4)"
            )
            root = notebook.page.locator(".labkit").first
            colours[theme] = root.evaluate("root => getComputedStyle(root).color")
    finally:
        notebook.theme("JupyterLab Light")
    # The widgets follow the theme.
    assert colours["Light"] != colours["Dark"]


@pytest.fixture
def exported(notebook, lab):
    """The exported page of the notebook, and the addresses of its requests."""
    save(notebook)
    page = lab.browser.new_page()
    addresses = []
    page.on("request", lambda request: addresses.append(request.url))
    page.goto(to_html(lab.folder / "widgets.ipynb").as_uri())
    yield page, addresses
    page.close()


def test_an_exported_page_needs_no_network(exported):
    _, addresses = exported
    assert [address for address in addresses if address.startswith("http")] == []


def test_an_exported_page_has_pictures_of_widgets(exported):
    page, _ = exported
    images = page.locator(".jp-OutputArea img")
    widths = images.evaluate_all("all => all.map((img) => img.naturalWidth)")
    assert len(widths) >= 4
    assert min(widths) > 300


def test_each_widget_has_a_picture_or_text_in_an_exported_page(exported):
    page, _ = exported
    is_shown = page.locator(".jp-OutputArea").evaluate_all(SHOWN)
    assert is_shown == [True] * len(WIDGETS)


def test_a_saved_notebook_is_small(notebook, lab):
    save(notebook)
    assert (lab.folder / "widgets.ipynb").stat().st_size < 2_000_000


def test_dead_kernel_is_reported_and_the_notebook_recovers(notebook):
    """One test, since the kernel and the page of the other tests end with it."""
    page = notebook.page
    name = "predict"
    notebook.python(f"{name}.choice or setattr({name}, 'choice', {name}.choices[2])")
    page.wait_for_selector(".labkit-predict .lk-reply:not(:empty)")
    answer = notebook.python(f"{name}.answered")
    save(notebook)
    runs = page.evaluate(RUNS)
    assert len(runs) >= 3
    page.locator(".labkit-number-line input").first.focus()
    page.evaluate("void jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    page.wait_for_selector(".labkit-number-line > .lk-lost")
    notices = page.locator(".labkit > .lk-lost").all_inner_texts()
    assert len(notices) == page.locator(".labkit").count()
    for notice in notices:
        assert "has stopped" in notice
        assert CURE in notice
    assert page.evaluate(STILL_ALIVE) == 0
    # The focus stays in its widget.
    assert "labkit-number-line" in page.evaluate("document.activeElement.className")

    # After the page is loaded again, the widgets are those that were saved.
    page.goto(page.url.replace("&reset", ""))
    page.wait_for_function(
        "n => document.querySelectorAll('.labkit > .lk-saved').length === n", arg=len(notices)
    )
    assert page.evaluate(RUNS) == runs

    # What needs no kernel works.
    page.locator(".labkit-bits .be-bit[data-bit='0']").focus()
    before = page.locator(".labkit-bits .lk-sentence").first.get_attribute("data-text")
    page.keyboard.press("Space")
    page.wait_for_function(
        "was => document.querySelector('.labkit-bits .lk-sentence').dataset.text !== was",
        arg=before,
    )

    # Running the first cell and that of a question brings the question back, with its answer.
    page.wait_for_function(IDLE)
    for index in (0, 1 + ORDER.index(name)):
        page.evaluate("i => (jupyterapp.shell.currentWidget.content.activeCellIndex = i)", index)
        page.evaluate("jupyterapp.commands.execute('notebook:run-cell')")
    page.wait_for_function(
        "words => document.querySelector('.lk-reply')?.textContent === words", arg=answer
    )
    # A committed answer stays committed.
    assert page.locator(".labkit-predict button:visible").count() == 0
