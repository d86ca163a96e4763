"""Bits, number line and swallowed updates in a real JupyterLab, by mouse and keyboard.

What the page shows is compared with the kernel's values, and these with numpy's.
"""

import numpy as np
import pytest

from tests.browser.conftest import NEXT_FRAME

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELLS = [
    """
from labkit.formats import FP16, Rounding
from labkit.widgets import BitExplorer, NumberLine, SwallowedUpdates

bits = BitExplorer(FP16, 1.0)
bits
""",
    "line = NumberLine(FP16, 0.1)\nline",
    "swallowed = SwallowedUpdates(weight=1.0, update=2.0**-12)\nswallowed",
]
# The columns of the canvas at which a dark mark begins, in the row at 95 CSS pixels.
MARKS = """(canvas) => {
  const y = 95 * devicePixelRatio;
  const {data} = canvas.getContext("2d").getImageData(0, y, canvas.width, 1);
  const dark = (x) => {
    const light = data[4 * x] + data[4 * x + 1] + data[4 * x + 2];
    return x >= 0 && light < 400 && data[4 * x + 3] > 150;
  };
  return [...Array(canvas.width).keys()].filter((x) => dark(x) && !dark(x - 1));
}"""


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.shown(
        CELLS, ".be-bit", ".nl-handle", ".sw-table td:not(:empty)", height=1500
    ) as notebook:
        yield notebook


@pytest.fixture
def page(notebook):
    """The page with the initial values, which the kernel has, too."""
    notebook.settle()
    traits = {
        "bits": "format=FP16, text='1'",
        "line": "format=FP16, scale='log', x=0.1, rounding=Rounding.NEAREST_EVEN",
        "swallowed": "weight=1.0, update=2.0**-12",
    }
    for name, values in traits.items():
        notebook.python(
            f"[setattr({name}, trait, value) for trait, value in dict({values}).items()]"
        )
    notebook.python("line.whole()")
    notebook.page.wait_for_selector('.labkit-bits[data-code="0x3c00"]')
    notebook.page.wait_for_selector(
        '.labkit-number-line[data-x="0.1"]:has(option[value=FP16]:checked)'
    )
    notebook.until_said("swallowed", "2^-12 should take the weight from 1 ")
    return notebook.page


def test_bits_follow_clicks_while_the_kernel_is_busy(lab, notebook, page):
    # The kernel is busy until this file exists.
    end = lab.folder / "go-bits"
    notebook.kernel.execute(
        f"import pathlib, time\nwhile not pathlib.Path({str(end)!r}).exists(): time.sleep(0.01)"
    )
    bits = [page.locator(f".be-bit[data-bit='{number}']") for number in (0, 1)]
    for number in (0, 1, 0):
        bits[number].click()
    assert [bit.get_attribute("aria-pressed") for bit in bits] == ["false", "true"]
    assert page.locator(".be-value").inner_text() == "1.001953125"
    end.touch()
    notebook.until("bits.code == 0x3C02 and bits.sentence.startswith('1.001953125 is exact')")


def canvas(page):
    """Return the canvas of the number line, once it is drawn."""
    page.evaluate(NEXT_FRAME)
    return page.locator(".nl-line canvas")


OCTAVES = "__import__('math').log2(line.window[1] / line.window[0])"


def test_keys_zoom_in(notebook, page):
    canvas(page).focus()
    # The window has 45 octaves, and a key halves it.
    notebook.press(*"++++")
    notebook.until(f"{OCTAVES} < 5")


def test_the_wheel_zooms_in(notebook, page):
    before = notebook.python(OCTAVES)
    box = canvas(page).bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 100)
    page.mouse.wheel(0, -400)
    notebook.until(f"{OCTAVES} < {before}")


def test_a_button_zooms_in_until_numbers_are_single_marks(notebook, page):
    assert page.locator(".labkit-number-line").get_attribute("data-dense") == "true"
    page.get_by_role("button", name="around x").click()
    page.wait_for_selector(".labkit-number-line[data-dense=false]")
    notebook.until("0.099 < line.window[0] < 0.1 < line.window[1] < 0.101")


def test_keys_move_the_window(notebook, page):
    page.get_by_role("button", name="around x").click()
    notebook.until("0.099 < line.window[0] < 0.1 < line.window[1] < 0.101")
    low = notebook.python("line.window[0]")
    canvas(page).focus()
    notebook.press("ArrowRight")
    notebook.until(f"line.window[0] > {low}")
    notebook.press("Home")
    notebook.until("line.window[1] > 65504")


def test_marks_are_numpys_numbers(notebook, page):
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
    notebook.python("[setattr(line, 'x', 30000.0), setattr(line, 'scale', 'linear')]")
    for low, high in ((1.0, 1.05), (-4e-6, 4e-6), (65300.0, 65600.0)):
        notebook.python(f"setattr(line, 'window', ({low}, {high}))")
        notebook.until_data("number-line", f"Number(d.window.split(' ')[0]) === {low}")
        page.wait_for_selector(".labkit-number-line[data-dense=false]:has([value=linear]:checked)")
        width = canvas(page).bounding_box()["width"]
        inside = np.unique(every[(every >= low) & (every <= high)])
        # The line has a margin of 10 pixels at both ends.
        expected = 10 + (inside - low) / (high - low) * (width - 20)
        marks = np.array(canvas(page).evaluate(MARKS))
        assert len(marks) == len(inside), low
        assert np.abs(marks - expected).max() <= 1, low


def test_dragging_the_handle_sets_x(notebook, page):
    page.get_by_role("button", name="around x").click()
    notebook.until("line.window[1] < 0.101")
    handle = page.locator(".nl-handle")
    grip = handle.bounding_box()
    x = grip["x"] + grip["width"] / 2
    y = grip["y"] + 8
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 150, y, steps=10)
    page.mouse.up()
    dragged_to = float(handle.inner_text())
    assert dragged_to > 0.1
    notebook.until(f"line.x == {dragged_to}")
    page.wait_for_selector(f'.labkit-number-line[data-x="{dragged_to}"]')
    values = page.locator("label.nl-mode .nl-value").all_inner_texts()
    nearest, _, _, upwards, downwards, *_ = map(float, values[:5])
    assert nearest == float(np.float16(dragged_to))
    assert downwards <= dragged_to <= upwards


def test_keys_move_x(notebook, page):
    page.locator(".nl-handle").focus()
    notebook.press("Shift+ArrowLeft")
    notebook.until("line.x < 0.1")


def test_a_typed_number_beyond_the_scale_is_at_its_edge(page):
    page.locator(".nl-box").fill("-3")
    # A logarithmic scale has no place for -3, so its handle is at the edge.
    page.wait_for_selector(".nl-handle:has-text('◂ −3')")


def test_fp16_does_not_move_until_the_update_is_large_enough(notebook, page):
    # The curve of a weight that never moves is in the upper tenth of the picture.
    board = notebook.widget("swallowed")
    still = notebook.pixels("swallowed", "fp16", 0, 0.75, 0.1)
    assert still > 300
    board.get_by_role("slider", name="update").focus()
    notebook.press(*["ArrowRight"] * 4)
    notebook.until("swallowed.update == 2.0**-11")
    page.wait_for_selector("tr[data-curve='FP16'] td[data-key=moved]:has-text('1,000')")
    assert notebook.pixels("swallowed", "fp16", 0, 0.75, 0.1) < still / 3


def test_a_name_in_the_table_hides_the_other_curves(notebook, page):
    before = notebook.pixels("swallowed", "bf16", 0, 0.75)
    name = page.get_by_role("button", name="FP16 + Kahan")
    name.click()
    notebook.until("swallowed.highlight == 'FP16 + Kahan'")
    assert notebook.pixels("swallowed", "bf16", 0, 0.75) < before / 10
    name.press("Enter")
    notebook.until("swallowed.highlight == ''")
    assert notebook.pixels("swallowed", "bf16", 0, 0.75) == before
