"""A Tensor Core's block under a learner's hands, in a real JupyterLab, by keyboard.

What is drawn is read back from the page and held against the kernel.
"""

import time

import pytest

pytestmark = pytest.mark.browser

BLOCK = """
from labkit.widgets import MmaBlock

board = MmaBlock("1 and small terms", "V100")
board
"""
FIGURE = """
from labkit.widgets import sum_errors, sum_errors_figure

sum_errors_figure(sum_errors([16, 64]))
"""
NEXT_FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
READ_LINES = """() => [...document.querySelectorAll(".mm-lines .mm-line")].map((line) => ({
  name: line.querySelector(".mm-name").textContent,
  bits: line.querySelector(".mm-bits").textContent,
  cut: [...line.querySelectorAll(".mm-cut")].map((run) => run.textContent).join(""),
}))"""
SLIDER_IS_NEW = "seen => !seen.includes(document.querySelector('.labkit-mma input[type=range]').id)"
EDGE_IS_RIGHT = """() => {
  const lines = document.querySelector(".mm-lines");
  const edge = lines.getBoundingClientRect().left + parseFloat(getComputedStyle(lines, "::before").left)
    + parseFloat(getComputedStyle(lines, "::before").width);
  return [...document.querySelectorAll(".mm-row-product .mm-cut")].every((cut) => {
    const box = cut.getBoundingClientRect();
    return box.left > edge - 3 && box.left < edge + 12;
  });
}"""


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.shown([BLOCK, FIGURE, "# the last cell"], ".labkit-mma .mm-row-D", height=1500) as notebook:
        yield notebook


@pytest.fixture
def page(notebook):
    """The page as it is first seen, and the kernel of the same opinion."""
    notebook.settle()
    notebook.python("[setattr(board, 'preset', 'ones'), setattr(board, 'preset', '1 and small terms'), "
                    "setattr(board, 'gpu', 'V100'), setattr(board, 'block', 0)]")  # fmt: skip
    until_said(notebook.page, "The V100, block 1 of 4, aligns 4 products and C to 2^0")
    return notebook.page


def sentence(page):
    return page.locator(".labkit-mma .lk-sentence").get_attribute("data-text")


def until_said(page, words):
    page.wait_for_selector(f".labkit-mma .lk-sentence[data-text*='{words}']")


def until_bits_are_the_kernels(page, notebook, timeout_s=20):
    """Wait until page and kernel show the same bits: either may be behind the other."""
    end = time.monotonic() + timeout_s
    rows = "[row['bits'] for row in board._view['rows']]"
    while (shown := [line["bits"] for line in page.evaluate(READ_LINES)]) != notebook.python(rows):
        assert time.monotonic() < end, f"after {timeout_s} s the page shows {shown}, the kernel {notebook.python(rows)}"


def test_the_bits_are_the_kernels(notebook, page):
    lines = page.evaluate(READ_LINES)
    rows = notebook.python("[(row['name'], row['bits']) for row in board._view['rows']]")
    assert [(line["name"], line["bits"]) for line in lines] == rows
    assert [line["cut"].strip() for line in lines] == ["", "1", "1", "1", "1", "", ""]
    assert page.evaluate(EDGE_IS_RIGHT)
    assert sentence(page) == notebook.python("board.sentence")


def test_another_gpu_with_the_arrow_keys(notebook, page):
    page.locator(".mm-gpus input:checked").focus()
    for gpu in ("T4", "A100"):
        page.keyboard.press("ArrowRight")
        until_said(page, f"The {gpu}, block 1 of 2,")
    assert notebook.python("board.gpu") == "A100"
    assert all(line["cut"].strip() == "" for line in page.evaluate(READ_LINES))
    assert page.locator(".mm-blocks input").count() == 2
    assert page.evaluate("document.activeElement.value") == "A100"  # the hand is where it was


def test_the_slider_pushes_bits_over_the_edge(notebook, page):
    page.locator(".labkit-mma").get_by_role("slider", name="each product").focus()
    page.keyboard.press("ArrowRight")  # 2^-23: a V100 keeps it
    until_said(page, "nothing is cut off")
    page.keyboard.press("Home")
    until_said(page, "After all 4 blocks D = 1, where the exact sum is 1 + 2^-26")
    assert notebook.python("board.knob") == -30
    assert page.locator(".mm-knob output").inner_text().replace("\n", "") == "2−30"
    assert page.evaluate(EDGE_IS_RIGHT)


def test_every_block_and_every_preset_by_keyboard(notebook, page):
    page.locator(".mm-blocks input:checked").focus()
    page.keyboard.press("ArrowRight")
    until_said(page, "block 2 of 4")
    assert page.evaluate(READ_LINES)[1]["name"] == "a4·b4"
    page.locator(".labkit-mma input[value='1 and small terms']").focus()
    seen = []
    for name in ("large, small, minus large", "ones", "random"):
        page.keyboard.press("ArrowRight")
        notebook.until(f"board.preset == {name!r}")
        until_bits_are_the_kernels(page, notebook)
        page.wait_for_function(SLIDER_IS_NEW, arg=seen)  # each preset has a slider of its own
        seen.append(page.get_by_role("slider").first.get_attribute("id"))


def test_ones_are_counted_in_fp16_or_fp32(notebook, page):
    notebook.python("[setattr(board, 'preset', 'ones'), setattr(board, 'gpu', 'V100')]")
    page.wait_for_selector(".labkit-mma[data-result='FP16']")
    ends = page.locator(".mm-gpus .mm-end").all_inner_texts()
    assert [end.replace("\n", "") for end in ends][:3] == ["8192", "8208", "8208"]
    page.locator(".labkit-mma input[value='FP16']").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".labkit-mma[data-result='FP32']")
    until_said(page, "D = 8208, exactly. All generations agree.")


@pytest.mark.parametrize("where", [".mm-knob input", ".mm-gpus input:checked", ".mm-sheet"])
def test_no_key_reaches_jupyterlab(notebook, page, where):
    cells = notebook.cells()
    page.locator(where).first.click(force=True)
    for key in ["d", "d", "a", "b", "x", "d", "d"]:
        page.keyboard.press(key)
    page.evaluate(NEXT_FRAME)
    assert notebook.cells() == cells


def test_the_figure_is_a_picture(page):
    assert page.locator(".jp-OutputArea-output img").count() == 1


@pytest.mark.slow
def test_both_themes_and_a_narrow_window(notebook, page):
    """Look at these: tests/browser/screenshots/mma-*.png."""
    notebook.python("[setattr(board, 'preset', 'random'), setattr(board, 'gpu', 'H100')]")
    until_said(page, "The H100 aligns 16 products")
    fits = "root => [...root.querySelectorAll('.lk-segment, .lk-sentence, .lk-slider')].every((e) => \
        e.getBoundingClientRect().right <= innerWidth)"
    for theme, width in (("Light", 1280), ("Dark", 900), ("Light", 524)):
        notebook.theme(f"JupyterLab {theme}")
        page.set_viewport_size({"width": width, "height": 1500})
        page.evaluate(NEXT_FRAME)
        assert page.locator(".labkit-mma").evaluate(fits)
        notebook.screenshot(f"mma-{theme.lower()}-{width}", ".labkit-mma")
