"""Bits, number line and swallowed updates in a real JupyterLab, by mouse and keyboard.

Whatever the page shows is held against what the kernel knows, and that against numpy.
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
# Columns of the picture, in CSS pixels, where a mark stands: darker there than a little higher up.
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
    """The page as it is first seen, and the kernel of the same opinion."""
    notebook.settle()
    for name, traits in {
        "bits": "format=FP16, text='1'",
        "line": "format=FP16, scale='log', x=0.1, rounding=Rounding.NEAREST_EVEN",
        "swallowed": "weight=1.0, update=2.0**-12",
    }.items():
        notebook.python(
            f"[setattr({name}, trait, value) for trait, value in dict({traits}).items()]"
        )
    notebook.python("line.whole()")
    notebook.page.wait_for_selector('.labkit-bits[data-code="0x3c00"]')
    notebook.page.wait_for_selector(
        '.labkit-number-line[data-x="0.1"]:has(option[value=FP16]:checked)'
    )
    notebook.until_said("swallowed", "2^-12 should take the weight from 1 ")
    return notebook.page


def test_all_follows_at_once_while_the_kernel_is_busy(lab, notebook, page):
    go = lab.folder / "go-bits"
    notebook.kernel.execute(
        f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    )
    bits = [page.locator(f".be-bit[data-bit='{number}']") for number in (0, 1)]
    for number in (0, 1, 0):
        bits[number].click()
    assert [bit.get_attribute("aria-pressed") for bit in bits] == ["false", "true"]
    assert page.locator(".be-value").inner_text() == "1.001953125"
    go.touch()
    notebook.until("bits.code == 0x3C02 and bits.sentence.startswith('1.001953125 is exact')")


def canvas(page):
    page.evaluate(NEXT_FRAME)
    return page.locator(".nl-line canvas")


def test_zooming_in_shows_single_numbers(notebook, page):
    """By keys, by the wheel, by a button: what was a band becomes marks. The kernel hears of each
    in its time.
    """
    octaves = "__import__('math').log2(line.window[1] / line.window[0])"
    assert page.locator(".labkit-number-line").get_attribute("data-dense") == "true"
    canvas(page).focus()
    notebook.press(*"++++")
    notebook.until(f"{octaves} < 5")  # 45 octaves, halved four times
    wide = notebook.python(octaves)
    box = canvas(page).bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 100)
    page.mouse.wheel(0, -400)
    notebook.until(f"{octaves} < {wide}")
    page.get_by_role("button", name="around x").click()
    page.wait_for_selector(".labkit-number-line[data-dense=false]")
    notebook.until("0.099 < line.window[0] < 0.1 < line.window[1] < 0.101")
    low = notebook.python("line.window[0]")
    canvas(page).focus()
    for key, moved in (
        ("ArrowRight", f"line.window[0] > {low}"),
        ("Home", "line.window[1] > 65504"),
    ):
        notebook.press(key)
        notebook.until(moved)


def test_marks_are_numpys_numbers(notebook, page):
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
    notebook.python("[setattr(line, 'x', 30000.0), setattr(line, 'scale', 'linear')]")
    for low, high in ((1.0, 1.05), (-4e-6, 4e-6), (65300.0, 65600.0)):
        notebook.python(f"setattr(line, 'window', ({low}, {high}))")
        notebook.until_data("number-line", f"Number(d.window.split(' ')[0]) === {low}")
        page.wait_for_selector(".labkit-number-line[data-dense=false]:has([value=linear]:checked)")
        width = canvas(page).bounding_box()["width"]
        here = np.unique(every[(every >= low) & (every <= high)])
        expected = 10 + (here - low) / (high - low) * (width - 20)
        marks = np.array(canvas(page).evaluate(MARKS))
        assert len(marks) == len(here), low
        assert np.abs(marks - expected).max() <= 1, low


def test_x_is_dragged_typed_and_moved_by_keys(notebook, page):
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
    now = float(handle.inner_text())
    assert now > 0.1
    notebook.until(f"line.x == {now}")
    page.wait_for_selector(f'.labkit-number-line[data-x="{now}"]')
    values = page.locator("label.nl-mode .nl-value").all_inner_texts()
    assert float(values[0]) == float(np.float16(now))
    assert float(values[3]) >= now >= float(values[4]), "upwards and downwards"
    handle.focus()
    notebook.press("Shift+ArrowLeft")
    notebook.until(f"line.x < {now}")
    page.locator(".nl-box").fill("-3")
    # A logarithmic scale has no place for -3, so its handle is at the edge.
    page.wait_for_selector(".nl-handle:has-text('◂ −3')")


def test_fp16_does_not_move_until_the_update_is_large_enough(notebook, page):
    """Blue in the upper tenth of the picture is a weight that never moves."""
    board = notebook.widget("swallowed")
    still = notebook.pixels("swallowed", "fp16", 0, 0.75, 0.1)
    assert still > 300
    board.get_by_role("slider", name="update").focus()
    notebook.press(*["ArrowRight"] * 4)
    notebook.until("swallowed.update == 2.0**-11")
    page.wait_for_selector("tr[data-curve='FP16'] td[data-key=moved]:has-text('1,000')")
    assert notebook.pixels("swallowed", "fp16", 0, 0.75, 0.1) < still / 3
    before = notebook.pixels("swallowed", "bf16", 0, 0.75)
    name = page.get_by_role("button", name="FP16 + Kahan")
    name.click()  # one curve is singled out
    notebook.until("swallowed.highlight == 'FP16 + Kahan'")
    assert notebook.pixels("swallowed", "bf16", 0, 0.75) < before / 10
    name.press("Enter")
    notebook.until("swallowed.highlight == ''")
    assert notebook.pixels("swallowed", "bf16", 0, 0.75) == before
