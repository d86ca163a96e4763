"""On a projector: widgets grow with the room, and type with them; on a small one the essentials are seen together."""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

FREE_PX = 600  # of a notebook, on a screen of 1280 x 800
UNDERFLOW = """
from labkit.amp import RECIPES
from labkit.train import TASKS, TrainingRun, gradient_snapshot
from labkit.widgets import UnderflowHistogram
UnderflowHistogram(gradient_snapshot(TrainingRun(TASKS['segmentation_small'], RECIPES['FP16'], device='cpu')))
"""
CELLS = {
    "underflow": UNDERFLOW,
    "live": "from labkit.widgets import LiveTraining\nLiveTraining(steps=40, device='cpu')",
    "workbench": "from labkit.widgets import Workbench\nWorkbench(steps=40, device='cpu')",
    "scaler-presets": "from labkit.widgets import ScalerPresets\nScalerPresets()",
    "scaler-timeline": "from labkit.widgets import ScalerTimeline\nScalerTimeline(growth_interval=20)",
    "beat-scaler": "from labkit.widgets import BeatTheScaler\nBeatTheScaler(steps=40)",
    "number-line": "from labkit.widgets import NumberLine\nNumberLine()",
    "bits": "from labkit.widgets import BitExplorer\nBitExplorer()",
    "addition": "from labkit.widgets import AdditionPlayer\nAdditionPlayer(1.0, 0.0001)",
    "swallowed": "from labkit.widgets import SwallowedUpdates\nSwallowedUpdates()",
    "mma": "from labkit.widgets import MmaBlock\nMmaBlock()",
    "ledger": "import torch\nfrom labkit.widgets import CastLedger\nCastLedger(torch.relu, torch.ones(4, 4))",
    "stages": "from labkit.train import TASKS\nfrom labkit.widgets import StepDebugger\nStepDebugger(TASKS['digits'])",
}
TOGETHER = ("underflow", "live", "workbench", "scaler-presets", "scaler-timeline", "beat-scaler")
# From the first control to the lowest of: every other control above the picture, the sentence, half of the picture.
TALL = """(kind) => {
  const root = document.querySelector(`.labkit-${kind}`);
  const box = (element) => element.getBoundingClientRect();
  const all = [...root.querySelectorAll(":scope > * :is(button, input, select)")];
  const others = ".lk-tour, .uf-layers, .wb-export, .run-place, details"; // above and below what is worked with
  const knobs = all.filter((one) => one.checkVisibility() && !one.closest(others));
  const picture = box([...root.querySelectorAll(".lk-figure")].at(kind === "underflow" ? 0 : -1));
  const needed = [...knobs.map((one) => box(one).bottom), box(root.querySelector(".lk-sentence")).bottom];
  return Math.max(...needed, picture.top + picture.height / 2) - Math.min(...knobs.map((one) => box(one).top));
}"""
LOOK = """(kind) => {
  const root = document.querySelector(`.labkit-${kind}`);
  const seen = [root, ...root.querySelectorAll("*")].filter((e) => e.checkVisibility());
  const speaks = (e) => [...e.childNodes].some((c) => c.nodeType === 3 && c.data.trim());
  const said = seen.filter((e) => speaks(e) && !e.closest("sup, .lk-hidden"));
  const size = (e) => parseFloat(getComputedStyle(e).fontSize);
  const cut = (e) => e.scrollWidth > e.clientWidth + 1 && !["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  const grown = [...root.querySelectorAll(".lk-figure canvas")].map((c) => c.labkitFigure.grown);
  return {
    width: root.getBoundingClientRect().width,
    base: size(root),
    smallest: Math.min(...said.map(size)),
    grown: Math.min(...grown),
    cut: seen.filter((e) => (e === root || e.matches("td, th")) && cut(e)).map((e) => e.textContent),
  };
}"""


@pytest.fixture(scope="module")
def notebook(lab):
    widgets = [f".labkit-{kind}" for kind in CELLS]
    with lab.shown(list(CELLS.values()), *widgets, name="projector", width=1280, height=800) as notebook:
        notebook.page.wait_for_function(
            "[...document.querySelectorAll('.labkit[data-phase]')].every((e) => e.dataset.phase)"
        )
        yield notebook


def test_knobs_sentence_and_the_upper_half_of_the_picture_are_seen_together(notebook):
    notebook.page.set_viewport_size({"width": 1280, "height": 800})
    for kind in TOGETHER:
        notebook.page.wait_for_function(f"document.querySelector('.labkit-{kind}').clientWidth < 1250")
        notebook.widget(kind).scroll_into_view_if_needed()
        assert notebook.page.evaluate(TALL, kind) <= FREE_PX, kind


def test_a_wide_screen_has_large_widgets_and_large_type(notebook):
    """Look at these: tests/browser/screenshots/projector-*.png."""
    notebook.page.set_viewport_size({"width": 1920, "height": 1080})
    for kind in CELLS:
        notebook.page.wait_for_function(f"document.querySelector('.labkit-{kind}').clientWidth > 1400")
        notebook.widget(kind).scroll_into_view_if_needed()
        notebook.screenshot(f"projector-{kind}-1920", f".labkit-{kind}")
        look = notebook.page.evaluate(LOOK, kind)
        assert 1400 < look["width"] <= 1500, kind
        assert look["base"] >= 16, kind
        assert look["smallest"] >= 14, kind
        assert look["grown"] is None or look["grown"] >= 16 / 13, f"the type in {kind} grows as the page's"
        assert look["cut"] == [], f"what stands in a column of {kind} is narrower than it"


def test_what_a_tooltip_says_is_read_by_keyboard_and_by_touch_too(notebook):
    page = notebook.page
    note = page.locator(".labkit-workbench > .lk-note")
    page.locator(".labkit-workbench [data-knob=autocast] input").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert note.is_visible()
    assert note.inner_text().startswith("on: weights stay FP32")
    page.locator(".labkit-workbench .lk-title").dispatch_event("pointerup", {"pointerType": "touch", "bubbles": True})
    assert note.is_visible()
    assert len(note.inner_text()) > 20, "what the task is about"
    picture = page.locator(".labkit-underflow .uf-main canvas")
    picture.focus()
    page.keyboard.press("ArrowLeft")
    tip = page.locator(".labkit-underflow .uf-main .lk-tip")
    assert re.match(r"2−?\d+ = [\d.e-]+ to 2", tip.inner_text())
    page.keyboard.press("Tab")
    assert not tip.is_visible()


def test_what_cannot_be_read_is_red_and_the_old_number_is_dim(notebook):
    page, line = notebook.page, notebook.widget("number-line")
    for theme in ("Dark", "Light"):
        notebook.theme(f"JupyterLab {theme}")
        line.locator(".nl-box").fill("1,5")
        page.wait_for_selector(".labkit-number-line .nl-problem:not(:empty)")
        r, g, b = page.locator(".nl-problem").evaluate("e => getComputedStyle(e).color.match(/\\d+/g).map(Number)")
        assert r > 1.7 * max(g, b)
        opacity = "all => all.map((e) => getComputedStyle(e).opacity)"
        assert line.locator(".lk-answer").evaluate_all(opacity) == ["0.4"] * 3
        line.locator(".nl-box").fill("0.1")
        page.wait_for_selector(".labkit-number-line .nl-problem:empty", state="attached")
        assert line.locator(".nl-line").evaluate("e => getComputedStyle(e).opacity") == "1"
