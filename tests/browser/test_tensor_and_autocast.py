"""Tensor Core block, ledger and step debugger in a real JupyterLab, by keyboard.

What is drawn is read back from the page and held against the kernel.
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
READ_LINES = """() => [...document.querySelectorAll(".mm-lines .mm-line")].map((line) => ({
  name: line.querySelector(".mm-name").textContent,
  bits: line.querySelector(".mm-bits").textContent,
  cut: [...line.querySelectorAll(".mm-cut")].map((run) => run.textContent).join(""),
}))"""
EDGE_IS_RIGHT = """() => {
  const lines = document.querySelector(".mm-lines");
  const before = getComputedStyle(lines, "::before");
  const edge = lines.getBoundingClientRect().left + parseFloat(before.left)
    + parseFloat(getComputedStyle(lines, "::before").width);
  return [...document.querySelectorAll(".mm-row-product .mm-cut")].every((cut) => {
    const box = cut.getBoundingClientRect();
    return box.left > edge - 3 && box.left < edge + 12;
  });
}"""
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
READ_BARS = """() => {
  const rows = [...document.querySelectorAll(".sd-table tbody tr")];
  const entries = rows.map((row) => {
    const bar = row.querySelector(".sd-bar").getBoundingClientRect();
    const track = row.querySelector(".sd-track").getBoundingClientRect();
    return [row.querySelector(".sd-name").textContent, (bar.right - track.left) / track.width];
  });
  return Object.fromEntries(entries);
}"""
STILL = "() => document.querySelector('.labkit-stages').getAnimations({subtree: true}).length === 0"
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
    """The page as it is first seen, and the kernel of the same opinion."""
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
    page.wait_for_selector(f".labkit-stages[data-stage='{name}']")


def test_slider_pushes_bits_over_the_edge(notebook, page):
    lines = page.evaluate(READ_LINES)
    assert [line["name"] for line in lines] == ["C", *(f"a{i}·b{i}" for i in range(4)), "sum", "D"]
    assert [line["cut"].strip() for line in lines] == ["", "1", "1", "1", "1", "", ""]
    assert page.evaluate(EDGE_IS_RIGHT)
    notebook.widget("mma").get_by_role("slider", name="each product").focus()
    notebook.press("ArrowRight")  # 2^-23: a V100 keeps it
    notebook.until_said("mma", "nothing is cut off")
    notebook.press("Home")
    notebook.until_said("mma", "After all 4 blocks D = 1, where the exact sum is 1 + 2^-26")
    assert notebook.python("block.knob") == -30
    falling = page.locator(".mm-falling")
    assert [bits.strip() for bits in falling.all_inner_texts()] == ["0000001"] * 4, (
        "what comes over the edge falls"
    )
    assert falling.first.evaluate("bits => getComputedStyle(bits).animationName") == "none", (
        "reduced motion"
    )
    assert page.evaluate(EDGE_IS_RIGHT)
    page.locator(".mm-gpus input:checked").focus()
    for gpu in ("T4", "A100"):
        notebook.press("ArrowRight")
        notebook.until_said("mma", f"The {gpu}, block 1 of 2,")
    assert page.locator(".mm-blocks input").count() == 2
    assert page.evaluate("document.activeElement.value") == "A100", "the focus is where it was"


def test_arrow_keys_move_an_operation_between_lists(notebook, page):
    rows = page.evaluate(READ_ROWS)
    assert [(row["op"], row["takes"], row["list"], row["gives"], row["cast"]) for row in rows] == [
        ("matmul", ["FP32"], "allow", "FP16", True),
        ("exp", ["FP16"], "deny", "FP32", True),
        ("sum", ["FP32"], "deny", "FP32", False),
        ("log", ["FP32"], "deny", "FP32", False),
    ]
    assert all(row["rail"] == row["gives"] for row in rows)
    page.locator("tr[data-key='exp 1'] input:checked").focus()
    notebook.press("ArrowLeft")  # from deny to allow
    notebook.until_said("ledger", "exp overflows")
    rows = page.evaluate(READ_ROWS)
    assert [row["gives"] for row in rows] == ["FP16", "FP16", "FP32", "FP32"]
    assert rows[1]["error"] == "4 inf or NaN"
    assert page.evaluate("document.activeElement.value") == "allow", "the focus is where it was"
    page.locator("tr[data-key='sum 1'] input:checked").focus()
    page.wait_for_selector(".lg-detail:has-text('sum returns 2, up to ')")


def test_eight_stages_with_the_arrow_keys(notebook, page):
    page.locator(".sd-strip input:checked").focus()
    seen = [notebook.said("stages")]
    for name in (
        "forward",
        "loss",
        "scaled backward",
        "unscale",
        "check for inf",
        "step",
        "copy back",
    ):
        notebook.press("ArrowRight")
        stage(page, name)
        seen.append(notebook.said("stages"))
    assert seen == notebook.python("steps._view['sentences']")
    notebook.until("steps.stage == 7")
    # Unscaling slides every gradient back.
    notebook.python("setattr(steps, 'stage', 3)")
    stage(page, "scaled backward")
    scaled = page.evaluate(READ_BARS)
    notebook.python("setattr(steps, 'stage', 4)")
    stage(page, "unscale")
    page.wait_for_function(STILL)
    plain = page.evaluate(READ_BARS)
    assert plain
    for name, end in plain.items():
        assert scaled[name] - end == pytest.approx(16 / 68, abs=0.02), name
    assert page.locator(".sd-before:visible").count() == len(plain), "where it was is still seen"
    changed = page.locator(".sd-since").inner_text()
    assert changed.startswith(
        "Compared with the stage “scaled backward”: 4 tensors have another dtype."
        f" {len(plain)} tensors have another range."
    )
    notebook.widget("stages").get_by_role("slider", name="loss scale").focus()
    notebook.press("End")
    page.wait_for_selector(".sd-strip.sd-skipped")
    notebook.until("steps.log2_scale == 40 and not steps.watched.stepped")


def test_the_passes_are_walked_and_played(notebook, page):
    assert notebook.python("passes.position") == 35, "it opens behind the last pass"
    page.locator(".labkit-ledger:has(.gr-table) input[type=range]").focus()
    notebook.press("Home", "PageUp")  # a pass further
    notebook.until("passes.position == 7")
    assert [row["list"] for row in page.evaluate(READ_PASSES)] == [True] * 7
    notebook.press("End")
    notebook.until("passes.position == 35")
    seen = page.evaluate(READ_PASSES)
    assert [row["casts"] for row in seen] == [2, 2, 0, 0, 1, 2, 2]
    assert [row["gone"] for row in seen] == [0, 1, 0, 0, 0, 1, 0]
    knots = [page.locator(f".gr-knot{out}").count() for out in (":not(.gr-out)", ".gr-out")]
    assert page.locator(".gr-node").count() == 7, "what the table strikes out is not in the graph"
    assert knots == [7, 2], "what the table strikes out is not in the graph"
    page.get_by_role("button", name="Play").click()  # from the end: from the beginning
    notebook.until("3 <= passes.position < 35")
    page.get_by_role("button", name="Pause").click()
