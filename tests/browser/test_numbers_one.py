"""Bits and the number line under a learner's hand: real JupyterLab, real Chromium.

Whatever the page shows is held against what the kernel knows, and that against numpy.
"""

import numpy as np
import pytest

pytestmark = pytest.mark.browser

BITS = """
from labkit.formats import BF16, E4M3, FP16, FP32, Rounding
from labkit.widgets import BitExplorer, NumberLine

bits = BitExplorer(FP16, 1.0)
bits
"""
LINE = """
line = NumberLine(FP16, 0.1)
line
"""
NEXT_FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# Columns of the picture, in CSS pixels, where a mark stands: darker there than a little higher up.
MARKS = """(canvas) => {
  const y = 95 * devicePixelRatio;
  const {data} = canvas.getContext("2d").getImageData(0, y, canvas.width, 1);
  const dark = (x) => x >= 0 && data[4 * x] + data[4 * x + 1] + data[4 * x + 2] < 400 && data[4 * x + 3] > 150;
  return [...Array(canvas.width).keys()].filter((x) => dark(x) && !dark(x - 1));
}"""


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.shown([BITS, LINE, "# the last cell"], ".be-bit", ".nl-handle", height=1500) as notebook:
        yield notebook


@pytest.fixture
def page(notebook):
    """The page with 1.0 in FP16 among the bits, 0.1 on the whole line, and the kernel of the same opinion."""
    notebook.settle()
    notebook.python("[setattr(bits, 'format', FP16), setattr(bits, 'text', '1')]")
    notebook.python("[setattr(line, k, v) for k, v in dict(format=FP16, x=0.1, scale='log', text='0.1').items()]")
    notebook.python("[setattr(line, 'rounding', Rounding.NEAREST_EVEN), line.whole()]")
    notebook.page.wait_for_selector('.labkit-bits[data-code="0x3c00"]')
    notebook.page.wait_for_selector('.labkit-number-line[data-x="0.1"]:has(option[value=FP16]:checked)')
    return notebook.page


def bit(page, number):
    return page.locator(f".be-bit[data-bit='{number}']")


def box(page):
    return page.locator(".be-box")


def shown(page):
    """The code, the value and the bits as the page has them."""
    return {
        "code": page.locator(".labkit-bits").get_attribute("data-code"),
        "value": page.locator(".be-value").inner_text(),
        "bits": "".join(page.locator(".be-bit b").all_inner_texts()),
    }


def code(page, expected):
    page.wait_for_selector(f'.labkit-bits[data-code="{expected}"]')


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


# Bits


def test_a_bit_is_clicked_and_the_value_follows(notebook, page):
    bit(page, 0).click()
    code(page, "0x3c01")
    assert shown(page) == {"code": "0x3c01", "value": "1.0009765625", "bits": "0011110000000001"}
    assert notebook.python("(bits.code, bits.value, bits.text)") == (0x3C01, 1.0009765625, "1.0009765625")
    assert box(page).input_value() == "1.0009765625"
    bit(page, 15).click()
    code(page, "0xbc01")
    assert notebook.python("bits.value") == -1.0009765625


@pytest.mark.parametrize(
    ("text", "hexed", "value"),
    [("0.1", "0x2e66", float(np.float16(0.1))), ("0x3c01", "0x3c01", 1.0009765625), ("0x1.8p-3", "0x3200", 0.1875)],
)
def test_a_text_is_typed_and_the_bits_follow(notebook, page, text, hexed, value):
    box(page).fill("")
    box(page).press_sequentially(text)
    code(page, hexed)
    assert shown(page)["bits"] == f"{int(hexed, 16):016b}"
    assert box(page).input_value() == text  # what was typed stays
    assert notebook.python("bits.value") == value


def test_next_and_previous(notebook, page):
    page.get_by_role("button", name="next").click()
    code(page, "0x3c01")
    page.get_by_role("button", name="previous").click()
    page.get_by_role("button", name="previous").click()
    code(page, "0x3bff")
    assert notebook.python("bits.value") == 0.99951171875
    box(page).focus()
    press(page, "ArrowUp")
    code(page, "0x3c00")


def test_bad_text_is_answered_and_stays(notebook, page):
    before = shown(page)
    box(page).fill("0,1")
    page.wait_for_selector(".be-hint.lk-error:has-text('Write a decimal point, not a comma: 0.1.')")
    assert box(page).input_value() == "0,1"
    assert box(page).get_attribute("aria-invalid") == "true"
    assert shown(page) == before
    assert notebook.python("bits.value") == 1.0
    box(page).fill("0.5")
    code(page, "0x3800")
    assert page.locator(".be-hint.lk-error").count() == 0


def test_from_bit_to_bit_by_keyboard(notebook, page):
    """One stop for Tab; arrow keys go on, Space and Enter turn a bit over, and the focus stays."""
    bit(page, 9).click()
    code(page, "0x3e00")
    assert page.locator(".be-bit[tabindex='0']").count() == 1
    press(page, "ArrowRight", "Space")
    code(page, "0x3f00")
    press(page, "End", "Enter")
    code(page, "0x3f01")
    press(page, "Home", "Space")
    code(page, "0xbf01")
    assert page.evaluate("document.activeElement.dataset.bit") == "15"
    assert bit(page, 15).get_attribute("aria-pressed") == "true"
    assert bit(page, 9).get_attribute("aria-label") == "significand, bit 9, weight 2^-1"


def test_another_format_holds_the_same_number(notebook, page):
    box(page).fill("0.1")
    code(page, "0x2e66")
    page.locator(".labkit-bits select").select_option("BF16")
    code(page, "0x3dcd")
    assert page.locator(".be-field").evaluate_all("all => all.map((f) => f.querySelectorAll('.be-bit').length)") == [
        1,
        8,
        7,
    ]
    rows = page.locator(".be-table tbody tr").evaluate_all("rows => rows.map((row) => row.dataset.row)")
    assert rows == ["BF16", "FP32", "E4M3"]
    assert page.locator(".labkit-bits .lk-sentence").get_attribute("data-text") == notebook.python("bits.sentence")


def test_a_bit_turns_at_once_and_the_rest_when_the_kernel_is_free(lab, notebook, page):
    go = lab.folder / "go-bits"
    notebook.kernel.execute(f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)")
    bit(page, 0).click()
    bit(page, 1).click()
    bit(page, 0).click()
    assert [bit(page, i).get_attribute("aria-pressed") for i in (0, 1)] == ["false", "true"]
    page.wait_for_selector(".labkit-bits[aria-busy=true]")
    assert shown(page)["value"] == "1"
    go.touch()
    code(page, "0x3c02")
    page.wait_for_selector(".labkit-bits:not([aria-busy])")
    assert notebook.python("bits.code") == 0x3C02


# The number line


def canvas(page):
    page.evaluate(NEXT_FRAME)
    return page.locator(".nl-line canvas")


def handle(page):
    return page.locator(".nl-handle")


def seen(notebook):
    low, high = notebook.python("line.window")
    return low, high


def sentence_is_python_s(notebook, page):
    page.wait_for_function(
        "words => document.querySelector('.labkit-number-line .lk-sentence').dataset.text === words",
        arg=notebook.python("line.sentence"),
    )


def test_zooming_in_shows_single_numbers(notebook, page):
    """By keys, by buttons, by the wheel: what was a band becomes marks."""
    root = page.locator(".labkit-number-line")
    assert root.get_attribute("data-dense") == "true"
    canvas(page).focus()
    press(page, *"++++")
    notebook.until("line.window[1] / line.window[0] < 32")  # 45 octaves, halved four times
    wide = seen(notebook)
    box_of_line = canvas(page).bounding_box()
    page.mouse.move(box_of_line["x"] + 400, box_of_line["y"] + 100)
    page.mouse.wheel(0, -400)
    notebook.until(f"line.window[1] / line.window[0] < {wide[1] / wide[0]}")
    page.get_by_role("button", name="around x").click()
    page.wait_for_selector(".labkit-number-line[data-dense=false]")
    low, high = seen(notebook)
    assert low < 0.1 < high < 0.101
    press(page, "Tab")
    canvas(page).focus()
    press(page, "ArrowRight")
    notebook.until(f"line.window[0] > {low}")
    press(page, "Home")
    notebook.until("line.window[1] > 65504")


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.05), (-4e-6, 4e-6), (65300.0, 65600.0)])
def test_a_mark_stands_where_numpy_has_a_number(notebook, page, low, high):
    notebook.python(
        f"[setattr(line, 'x', 30000.0), setattr(line, 'scale', 'linear'), setattr(line, 'window', ({low}, {high}))]"
    )
    page.wait_for_selector(".labkit-number-line[data-dense=false]:has([value=linear]:checked)")
    width = canvas(page).bounding_box()["width"]
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
    here = np.unique(every[(every >= low) & (every <= high)])
    expected = 10 + (here - low) / (high - low) * (width - 20)
    marks = np.array(canvas(page).evaluate(MARKS))
    assert len(marks) == len(here)
    assert np.abs(marks - expected).max() <= 1


def test_x_is_dragged_and_every_rounding_answers(notebook, page):
    page.get_by_role("button", name="around x").click()
    before = notebook.python("line.x")
    grip = handle(page).bounding_box()
    x, y = grip["x"] + grip["width"] / 2, grip["y"] + 8
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 150, y, steps=10)
    page.mouse.up()
    now = float(handle(page).inner_text())
    assert now > before
    notebook.until(f"line.x == {now}")
    page.wait_for_selector(f'.labkit-number-line[data-x="{now}"]')
    assert page.locator(".nl-box").input_value() == str(now) == handle(page).inner_text()
    values = page.locator("label.nl-mode .nl-value").all_inner_texts()
    assert len(values) == 6
    assert float(values[0]) == float(np.float16(now))
    assert float(values[3]) >= now >= float(values[4])
    sentence_is_python_s(notebook, page)


def test_a_click_puts_x_there_and_arrow_keys_move_it(notebook, page):
    area = canvas(page).bounding_box()
    page.mouse.click(area["x"] + area["width"] - 200, area["y"] + 90)
    notebook.until("line.x > 10")
    there = notebook.python("line.x")
    handle(page).focus()
    press(page, "ArrowLeft")
    notebook.until(f"line.x < {there}")
    press(page, "Shift+ArrowRight")
    notebook.until(f"line.x > {there}")
    assert notebook.python("line.x") == float(handle(page).get_attribute("aria-valuenow"))


def test_the_background_is_dragged_under_x(notebook, page):
    whole, _ = seen(notebook)
    page.get_by_role("button", name="around x").click()
    notebook.until(f"line.window[0] > {whole}")
    low, _ = seen(notebook)
    area = canvas(page).bounding_box()
    x, y = area["x"] + 100, area["y"] + 90
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 120, y, steps=5)
    page.mouse.up()
    notebook.until(f"line.window[0] < {low}")
    assert notebook.python("line.x") == 0.1


def test_stochastic_rounding_shows_two_outcomes(notebook, page):
    page.locator("input[value=STOCHASTIC]").check()
    notebook.until("line.rounding is Rounding.STOCHASTIC")
    page.wait_for_selector(".nl-mode:has(input[value=STOCHASTIC]:checked):has-text('60% or 40%')")
    sentence_is_python_s(notebook, page)


def test_x_is_typed(notebook, page):
    page.locator(".nl-box").fill("2^-24")
    page.wait_for_selector('.labkit-number-line[data-x="5.960464477539063e-8"]')
    page.locator(".nl-box").fill("2^-")
    page.wait_for_selector(".nl-problem:has-text('is no number')")
    assert notebook.python("(line.x, line.text)") == (2.0**-24, "2^-")


def test_a_number_that_a_log_scale_has_no_place_for(notebook, page):
    page.locator(".nl-box").fill("-3")
    page.wait_for_selector(".nl-handle:has-text('◂ −3')")
    page.get_by_role("button", name="around x").click()
    page.get_by_role("button", name="subnormals").click()
    notebook.until("0 < line.window[0] < line.window[1] < 1e-3")
    page.locator("input[value=linear]").check(force=True)
    page.get_by_role("button", name="around x").click()
    notebook.until("line.window[0] < -3 < line.window[1] < -2.9")
    page.locator("input[value=log]").check(force=True)
    notebook.until("0 < line.window[0] < line.window[1]")


# Both


@pytest.mark.parametrize(
    "target", [".be-bit[data-bit='3']", ".be-value", ".be-box", ".nl-handle", ".nl-line canvas", ".nl-modes b >> nth=0"]
)
def test_no_key_reaches_jupyterlab(notebook, page, target):
    cells = notebook.cells()
    page.locator(target).click()
    press(page, "d", "d", "a", "b", "x", "Enter", "d", "d")
    page.evaluate(NEXT_FRAME)
    assert notebook.cells() == cells
    assert page.evaluate("document.activeElement.closest('.labkit') !== null")


@pytest.mark.slow
def test_both_themes_and_a_narrow_window(notebook, page):
    """Look at these: tests/browser/screenshots/bits-*.png and number-line-*.png."""
    box(page).fill("0.1")
    code(page, "0x2e66")
    page.get_by_role("button", name="around x").click()
    seen = set()
    for name, theme, width in (
        ("light", "JupyterLab Light", 1280),
        ("dark", "JupyterLab Dark", 1280),
        ("narrow", "JupyterLab Light", 524),
    ):
        notebook.theme(theme)
        page.set_viewport_size({"width": width, "height": 1500})
        canvas(page)
        for kind in ("bits", "number-line"):
            root = page.locator(f".labkit-{kind}")
            assert root.evaluate("root => root.scrollWidth <= root.clientWidth + 1")
            seen.add(notebook.screenshot(f"{kind}-{name}", f".labkit-{kind}").read_bytes())
    assert len(seen) == 6
    page.set_viewport_size({"width": 1280, "height": 1500})


def test_when_its_cell_is_cleared_nothing_is_left_behind(notebook, page):
    page.evaluate("jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    page.wait_for_selector(".labkit", state="detached")
    notebook.theme("JupyterLab Dark")
    notebook.python("[setattr(bits, 'text', '3'), setattr(line, 'x', 3.0)]")
    page.evaluate(NEXT_FRAME)
    assert notebook.errors == []
