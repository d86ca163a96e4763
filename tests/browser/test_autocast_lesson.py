"""The ledger and the step debugger under a learner's hands, in a real JupyterLab, by keyboard.

What is drawn is read back from the page and held against the kernel.
"""

import pytest

pytestmark = pytest.mark.browser

LEDGER = """
import torch
from labkit.widgets import CastLedger

def scores(x, w):
    return (x @ w).exp().sum(-1).log()

board = CastLedger(scores, torch.full((2, 2), 2.5), torch.full((2, 2), 2.5))
board
"""
STEPS = """
from dataclasses import replace
from labkit.train import TASKS
from labkit.widgets import StepDebugger

steps = StepDebugger(replace(TASKS["segmentation_small"], batch_size=2))
steps
"""
NEXT_FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
READ_ROWS = """() => [...document.querySelectorAll(".lg-table tbody tr")].map((row) => ({
  op: row.querySelector(".lg-op").textContent,
  takes: [...row.querySelectorAll(".lg-takes .lk-chip")].map((chip) => chip.textContent),
  list: row.querySelector("input:checked").value,
  gives: row.querySelector(".lg-gives").textContent,
  rail: row.querySelector(".lg-out").dataset.format,
  cast: row.querySelector(".lg-knot").dataset.cast === "true",
  error: row.querySelector(".lg-number").textContent,
}))"""
READ_BARS = """() => Object.fromEntries([...document.querySelectorAll(".sd-table tbody tr")].map((row) => {
  const [bar, track] = [".sd-bar", ".sd-track"].map((part) => row.querySelector(part).getBoundingClientRect());
  return [row.querySelector(".sd-name").textContent, (bar.right - track.left) / track.width];
}))"""
STILL = "() => document.querySelector('.labkit-stages').getAnimations({subtree: true}).length === 0"


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.shown(
        [LEDGER, STEPS, "# the last cell"],
        ".labkit-ledger .lg-table tbody tr",
        ".labkit-stages .sd-table tbody tr",
        height=1700,
    ) as notebook:
        yield notebook


@pytest.fixture
def page(notebook):
    """The page as it is first seen, and the kernel of the same opinion."""
    notebook.settle()
    notebook.python("[board.reset(), setattr(board, 'format_name', 'FP16')]")
    notebook.python("[setattr(steps, 'recipe_name', 'O2'), steps.reset(), setattr(steps, 'stage', 0)]")
    notebook.page.wait_for_function("() => !document.querySelector('.lg-moved')")
    stage(notebook.page, "cast weights")
    return notebook.page


def stage(page, name):
    page.wait_for_selector(f".labkit-stages[data-stage='{name}']")


def sentence(page, widget):
    return page.locator(f".labkit-{widget} .lk-sentence").get_attribute("data-text")


def until_said(page, widget, words):
    page.wait_for_selector(f".labkit-{widget} .lk-sentence[data-text*='{words}']")


def list_of(page, key):
    return page.locator(f"tr[data-key='{key}'] input:checked")


class TestLedger:
    def test_dtypes_flow(self, page):
        rows = page.evaluate(READ_ROWS)
        assert [(row["op"], row["takes"], row["list"], row["gives"], row["cast"]) for row in rows] == [
            ("matmul", ["FP32"], "allow", "FP16", True),
            ("exp", ["FP16"], "deny", "FP32", True),
            ("sum", ["FP32"], "deny", "FP32", False),
            ("log", ["FP32"], "deny", "FP32", False),
        ]
        assert all(row["rail"] == row["gives"] for row in rows)

    def test_an_operation_is_moved_with_the_arrow_keys(self, notebook, page):
        list_of(page, "exp 1").focus()
        page.keyboard.press("ArrowLeft")  # from deny to allow
        until_said(page, "ledger", "exp overflows")
        rows = page.evaluate(READ_ROWS)
        assert [row["gives"] for row in rows] == ["FP16", "FP16", "FP32", "FP32"]
        assert rows[1]["error"] == "4 inf or NaN"
        assert notebook.python("board.overrides") == {"exp 1": "allow"}
        assert sentence(page, "ledger") == notebook.python("board.sentence")
        assert page.evaluate("document.activeElement.value") == "allow"  # the hand is where it was
        page.keyboard.press("ArrowRight")
        until_said(page, "ledger", "1 of these 4 operations run in FP16")
        assert notebook.python("board.overrides") == {}

    def test_a_click_does_the_same_and_the_answer_comes_at_once(self, notebook, page):
        page.locator("tr[data-key='matmul 1'] .lk-segment", has_text="deny").click()
        until_said(page, "ledger", "all 4 operations run in FP32")
        assert page.locator("tr[data-key='matmul 1'].lg-moved").count() == 1
        assert float(page.locator(".labkit-ledger").get_attribute("data-latency")) > 0

    def test_the_row_that_has_the_focus_says_more(self, notebook, page):
        list_of(page, "sum 1").focus()
        page.wait_for_selector(".lg-detail:has-text('sum returns 2, up to ')")
        page.locator("tr[data-key='log 1'] .lg-op").hover()
        page.wait_for_selector(".lg-detail:has-text('log returns 2, up to 13.2')")

    def test_all_at_once_and_back(self, notebook, page):
        ledger = page.locator(".labkit-ledger")
        ledger.get_by_role("button", name="All allowed").press("Enter")
        until_said(page, "ledger", "With 3 operations moved")
        assert [row["list"] for row in page.evaluate(READ_ROWS)] == ["allow"] * 4
        ledger.get_by_role("radio", name="BF16").check(force=True)
        page.wait_for_selector(".lg-gives .lk-chip[data-format='BF16']")
        ledger.get_by_role("button", name="As the lists say").press("Enter")
        notebook.until("board.overrides == {}")
        until_said(page, "ledger", "1 of these 4 operations run in BF16")


class TestSteps:
    def test_eight_stages_with_the_arrow_keys(self, notebook, page):
        page.locator(".sd-strip input:checked").focus()
        seen = [sentence(page, "stages")]
        for name in ("forward", "loss", "scaled backward", "unscale", "check for inf", "step", "copy back"):
            page.keyboard.press("ArrowRight")
            stage(page, name)
            seen.append(sentence(page, "stages"))
        assert seen == notebook.python("steps._view['sentences']")
        notebook.until("steps.stage == 7")

    def test_next_and_previous(self, notebook, page):
        steps = page.locator(".labkit-stages")
        back, on = (steps.get_by_role("button", name=name, exact=True) for name in ("Previous", "Next"))
        assert back.is_disabled()
        on.press("Enter")
        stage(page, "forward")
        back.press("Space")
        stage(page, "cast weights")
        assert page.evaluate("document.activeElement.textContent") == "Next"  # the disabled one would drop the focus

    def test_unscaling_slides_every_gradient_back(self, notebook, page):
        page.emulate_media(reduced_motion="reduce")
        notebook.python("setattr(steps, 'stage', 3)")
        stage(page, "scaled backward")
        scaled = page.evaluate(READ_BARS)
        notebook.python("setattr(steps, 'stage', 4)")
        stage(page, "unscale")
        page.wait_for_function(STILL)
        plain = page.evaluate(READ_BARS)
        assert plain
        for name, end in plain.items():
            assert scaled[name] - end == pytest.approx(16 / 68, abs=0.02)

    def test_a_scale_too_high_skips_the_step(self, notebook, page):
        page.locator(".labkit-stages").get_by_role("slider", name="loss scale").focus()
        page.keyboard.press("End")
        page.wait_for_selector(".sd-strip.sd-skipped")
        notebook.until("steps.log2_scale == 40 and not steps.watched.stepped")
        notebook.python("setattr(steps, 'stage', 5)")
        stage(page, "check for inf")
        assert sentence(page, "stages").startswith("found_inf: ")
        assert page.locator(".sd-broken:not(:empty)").count() > 1
        page.locator(".labkit-stages").get_by_role("button", name="Another step").press("Enter")
        notebook.until("steps.watched.step == 2 and steps.log2_scale == 39")
        page.locator(".labkit-stages").get_by_role("button", name="Reset").press("Enter")
        notebook.until("steps.watched.step == 1 and steps.log2_scale == 16")

    def test_another_recipe(self, notebook, page):
        page.locator(".labkit-stages").get_by_role("radio", name="O1").check(force=True)
        notebook.until("steps.recipe_name == 'O1'")
        until_said(page, "stages", "every weight stays in FP32")
        assert set(page.locator(".labkit-stages .lk-chip").all_inner_texts()) == {"FP32"}


@pytest.mark.parametrize("where", [".lg-op", ".lg-table input:checked", ".sd-track", ".sd-strip input:checked"])
def test_no_key_reaches_jupyterlab(notebook, page, where):
    cells = notebook.cells()
    page.locator(where).first.click(force=True)
    for key in ["d", "d", "a", "b", "x", "d", "d"]:
        page.keyboard.press(key)
    page.evaluate(NEXT_FRAME)
    assert notebook.cells() == cells


@pytest.mark.slow
def test_both_themes_and_a_narrow_window(notebook, page):
    """Look at these: tests/browser/screenshots/ledger-*.png and stages-*.png."""
    page.emulate_media(reduced_motion="reduce")  # a still picture is taken of still bars
    notebook.python("[board.move('exp', 'allow'), setattr(steps, 'stage', 3)]")
    stage(page, "scaled backward")
    until_said(page, "ledger", "exp overflows")
    fits = "root => [...root.querySelectorAll('*')].every((e) => e.getBoundingClientRect().right <= innerWidth)"
    for theme, width in (("Light", 1280), ("Dark", 900), ("Light", 524)):
        notebook.theme(f"JupyterLab {theme}")
        page.set_viewport_size({"width": width, "height": 1700})
        page.evaluate(NEXT_FRAME)
        for widget in ("ledger", "stages"):
            assert page.locator(f".labkit-{widget}").evaluate(fits)
            notebook.screenshot(f"{widget}-{theme.lower()}-{width}", f".labkit-{widget}")
