"""Tensor Core block, ledger and step debugger in a real JupyterLab, by keyboard.

What a page shows is read back and compared with the state of the kernel.
"""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELLS = [
    """
import torch
from dataclasses import replace
from labkit.train import TASKS
from labkit.widgets import CastLedger, CastPasses, MmaBlock, StepDebugger

block = MmaBlock("1 and small terms", "V100")
block
""",
    """
def scores(x, w):
    return (x @ w).exp().sum(-1).log()

ledger = CastLedger(scores, torch.full((2, 2), 2.5), torch.full((2, 2), 2.5))
ledger
""",
    "steps = StepDebugger(replace(TASKS['segmentation_small'], batch_size=2))\nsteps",
    "passes = CastPasses()\npasses",
]
# JavaScript that reads the page: the lines of the Tensor Core block, with the bits that are cut.
READ_LINES = """() => [...document.querySelectorAll(".mm-lines .mm-line")].map((line) => ({
  name: line.querySelector(".mm-name").textContent,
  bits: line.querySelector(".mm-bits").textContent,
  cut: [...line.querySelectorAll(".mm-cut")].map((run) => run.textContent).join(""),
}))"""
# Whether the bits that are cut begin at the line that is drawn as the edge of the accumulator.
EDGE_IS_RIGHT = """() => {
  const lines = document.querySelector(".mm-lines");
  const before = getComputedStyle(lines, "::before");
  const edge = lines.getBoundingClientRect().left + parseFloat(before.left)
    + parseFloat(before.width);
  return [...document.querySelectorAll(".mm-row-product .mm-cut")].every((cut) => {
    const box = cut.getBoundingClientRect();
    return box.left > edge - 3 && box.left < edge + 12;
  });
}"""
# The rows of the ledger.
READ_ROWS = """() => {
  const rows = [...document.querySelectorAll(".lg-table:not(.gr-table) tbody tr")];
  return rows.map((row) => ({
    op: row.querySelector(".lg-op").textContent,
    takes: [...row.querySelectorAll(".lg-takes .lk-chip")].map((chip) => chip.textContent),
    list: row.querySelector("input:checked").value,
    gives: row.querySelector(".lg-gives").textContent,
    rail: row.querySelector(".lg-out").dataset.format,
    cast: row.querySelector(".lg-knot").dataset.cast === "true",
    error: row.querySelector(".lg-number").textContent,
  }));
}"""
# Name of a tensor -> where its bar ends, as a share of the track's width.
READ_BARS = """() => {
  const rows = [...document.querySelectorAll(".sd-table tbody tr")];
  const entries = rows.map((row) => {
    const bar = row.querySelector(".sd-bar").getBoundingClientRect();
    const track = row.querySelector(".sd-track").getBoundingClientRect();
    return [row.querySelector(".sd-name").textContent, (bar.right - track.left) / track.width];
  });
  return Object.fromEntries(entries);
}"""
# Whether no part of the step debugger moves.
STILL = "() => document.querySelector('.labkit-stages').getAnimations({subtree: true}).length === 0"
# The rows of the passes: whether the list is visible, visible casts, and casts that are struck out.
READ_PASSES = """() => {
  const isVisible = (element) => getComputedStyle(element).visibility === "visible";
  return [...document.querySelectorAll(".gr-table tbody tr")].map((row) => ({
    list: isVisible(row.querySelector(".gr-list")),
    casts: [...row.querySelectorAll(".gr-cast")].filter(isVisible).length,
    gone: row.querySelectorAll(".gr-gone").length,
  }));
}"""


@pytest.fixture(scope="module")
def notebook(lab):
    """A notebook with the four widgets, without animations."""
    parts = (
        ".labkit-mma .mm-row-D",
        ".lg-table tbody tr",
        ".sd-table tbody tr",
        ".gr-table tbody tr",
    )
    with lab.shown(CELLS, *parts, height=1700) as notebook:
        notebook.page.emulate_media(reduced_motion="reduce")
        yield notebook


@pytest.fixture
def page(notebook):
    """The page with all widgets at their first settings, as in the kernel."""
    notebook.settle()
    notebook.python(
        "[setattr(block, 'preset', preset) for preset in ('ones', '1 and small terms')]"
    )
    notebook.python(
        "[setattr(block, 'gpu', 'V100'), setattr(block, 'block', 0), ledger.reset(), steps.reset()]"
    )
    notebook.python("[setattr(steps, 'recipe_name', 'O2'), setattr(steps, 'stage', 0)]")
    notebook.until_said("mma", "The V100, block 1 of 4, aligns 4 products and C to 2^0")
    notebook.page.wait_for_function("() => !document.querySelector('.lg-moved')")
    stage(notebook.page, "cast weights")
    return notebook.page


def stage(page, name):
    """Wait until the step debugger shows a stage."""
    page.wait_for_selector(f".labkit-stages[data-stage='{name}']")


def test_each_product_of_a_block_is_a_line_with_its_cut_bits(page):
    lines = page.evaluate(READ_LINES)
    assert [line["name"] for line in lines] == ["C", *(f"a{i}·b{i}" for i in range(4)), "sum", "D"]
    assert [line["cut"].strip() for line in lines] == ["", "1", "1", "1", "1", "", ""]
    assert page.evaluate(EDGE_IS_RIGHT)


def test_a_slider_moves_bits_over_the_edge(notebook, page):
    notebook.widget("mma").get_by_role("slider", name="each product").focus()
    # To 2^-23, which a V100 keeps.
    notebook.press("ArrowRight")
    notebook.until_said("mma", "nothing is cut off")
    notebook.press("Home")
    notebook.until_said("mma", "After all 4 blocks D = 1, where the exact sum is 1 + 2^-26")
    assert notebook.python("block.knob") == -30
    falling = page.locator(".mm-falling")
    assert [bits.strip() for bits in falling.all_inner_texts()] == ["0000001"] * 4
    # The page asks for reduced motion.
    assert falling.first.evaluate("bits => getComputedStyle(bits).animationName") == "none"
    assert page.evaluate(EDGE_IS_RIGHT)


def test_another_gpu_has_other_blocks_and_keeps_the_focus(notebook, page):
    page.locator(".mm-gpus input:checked").focus()
    for gpu in ("T4", "A100"):
        notebook.press("ArrowRight")
        notebook.until_said("mma", f"The {gpu}, block 1 of 2,")
    assert page.locator(".mm-blocks input").count() == 2
    assert page.evaluate("document.activeElement.value") == "A100"


def test_each_operation_is_a_row_of_the_ledger(page):
    rows = page.evaluate(READ_ROWS)
    assert [(row["op"], row["takes"], row["list"], row["gives"], row["cast"]) for row in rows] == [
        ("matmul", ["FP32"], "allow", "FP16", True),
        ("exp", ["FP16"], "deny", "FP32", True),
        ("sum", ["FP32"], "deny", "FP32", False),
        ("log", ["FP32"], "deny", "FP32", False),
    ]
    for row in rows:
        assert row["rail"] == row["gives"], row["op"]


def test_arrow_keys_move_an_operation_between_lists(notebook, page):
    page.locator("tr[data-key='exp 1'] input:checked").focus()
    # From the list "deny" to "allow".
    notebook.press("ArrowLeft")
    notebook.until_said("ledger", "exp overflows")
    rows = page.evaluate(READ_ROWS)
    assert [row["gives"] for row in rows] == ["FP16", "FP16", "FP32", "FP32"]
    assert rows[1]["error"] == "4 inf or NaN"
    # The focus is still in its row.
    assert page.evaluate("document.activeElement.value") == "allow"


def test_the_focus_of_a_row_shows_its_details(page):
    page.locator("tr[data-key='sum 1'] input:checked").focus()
    page.wait_for_selector(".lg-detail:has-text('sum returns 2, up to ')")


LATER_STAGES = [
    "forward",
    "loss",
    "scaled backward",
    "unscale",
    "check for inf",
    "step",
    "copy back",
]


def test_arrow_keys_go_through_eight_stages(notebook, page):
    page.locator(".sd-strip input:checked").focus()
    sentences = [notebook.sentence("stages")]
    for name in LATER_STAGES:
        notebook.press("ArrowRight")
        stage(page, name)
        sentences.append(notebook.sentence("stages"))
    assert sentences == notebook.python("steps._view['sentences']")
    notebook.until("steps.stage == 7")


def test_unscaling_moves_every_gradient_back(notebook, page):
    notebook.python("setattr(steps, 'stage', 3)")
    stage(page, "scaled backward")
    scaled = page.evaluate(READ_BARS)
    notebook.python("setattr(steps, 'stage', 4)")
    stage(page, "unscale")
    page.wait_for_function(STILL)
    plain = page.evaluate(READ_BARS)
    assert plain
    # The scale is 2^16, and the track has the width of 68 binades.
    for name, end in plain.items():
        assert scaled[name] - end == pytest.approx(16 / 68, abs=0.02), name
    # The place of the stage before is still marked.
    assert page.locator(".sd-before:visible").count() == len(plain)
    changed = page.locator(".sd-since").inner_text()
    assert changed.startswith(
        "Compared with the stage “scaled backward”: 4 tensors have another dtype."
        f" {len(plain)} tensors have another range."
    )


def test_a_scale_too_high_skips_the_step(notebook, page):
    notebook.widget("stages").get_by_role("slider", name="loss scale").focus()
    notebook.press("End")
    page.wait_for_selector(".sd-strip.sd-skipped")
    notebook.until("steps.log2_scale == 40 and not steps.watched.stepped")


@pytest.fixture
def passes(notebook, page):
    """The slider of the passes, with the focus, behind the last pass."""
    notebook.python("setattr(passes, 'position', 35)")
    slider = page.locator(".labkit-ledger:has(.gr-table) input[type=range]")
    slider.focus()
    page.wait_for_function("() => document.activeElement.value === '35'")
    return slider


def test_the_passes_open_behind_the_last_one(notebook):
    assert notebook.python("type(passes)().position") == 35


@pytest.mark.usefixtures("passes")
def test_keys_go_through_the_passes(notebook, page):
    # To the beginning, and one pass on.
    notebook.press("Home", "PageUp")
    notebook.until("passes.position == 7")
    assert [row["list"] for row in page.evaluate(READ_PASSES)] == [True] * 7
    notebook.press("End")
    notebook.until("passes.position == 35")
    rows = page.evaluate(READ_PASSES)
    assert [row["casts"] for row in rows] == [2, 2, 0, 0, 1, 2, 2]
    assert [row["gone"] for row in rows] == [0, 1, 0, 0, 0, 1, 0]


@pytest.mark.usefixtures("passes")
def test_casts_that_the_table_strikes_out_are_not_in_the_graph(page):
    assert page.locator(".gr-node").count() == 7
    assert page.locator(".gr-knot:not(.gr-out)").count() == 7
    assert page.locator(".gr-knot.gr-out").count() == 2


@pytest.mark.usefixtures("passes")
def test_at_the_end_the_passes_play_from_the_beginning(notebook, page):
    page.get_by_role("button", name="Play").click()
    notebook.until("3 <= passes.position < 35")
    page.get_by_role("button", name="Pause").click()
