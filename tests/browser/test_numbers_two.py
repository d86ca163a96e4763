"""The addition player and the swallowed updates under a learner's hands, in a real JupyterLab.

What is drawn is read back from the page: bits from their cells, curves from the pixels. It is held against the kernel.
"""

import pytest

pytestmark = pytest.mark.browser

ADDITION = """
from labkit.formats import FP16, Format
from labkit.widgets import AdditionPlayer

player = AdditionPlayer(1.0, 0.0001)
player
"""
SWALLOWED = """
from labkit.widgets import SwallowedUpdates

swallowed = SwallowedUpdates(weight=1.0, update=2.0**-12)
swallowed
"""
FP16_BLUE, BF16_GREEN = (0, 114, 178), (0, 158, 115)
NEXT_FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# Blue pixels in the upper tenth of the picture, where a weight that never moves stays, left of the names.
COUNT_PIXELS = """(canvas, [colour, share]) => {
  const {data, width} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height * share);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) {
    if ((i / 4) % width > 0.75 * width) continue;
    found += data[i + 3] > 250 && [0, 1, 2].every((c) => Math.abs(data[i + c] - colour[c]) < 8);
  }
  return found;
}"""
# The paper as it is seen: for each line the bits from left to right, by their place on the screen.
READ_PAPER = """() => {
  const parts = [...document.querySelectorAll(".ad-paper .ad-bit:not(.ad-point)")].map((part) => {
    const [x, y] = part.style.transform.match(/-?[\\d.]+/g).map(Number);
    return {x, y, bit: part.textContent, kept: part.matches(".ad-kept, .ad-zero")};
  });
  const lines = new Map();
  for (const part of parts.sort((a, b) => a.y - b.y || a.x - b.x)) {
    lines.set(part.y, (lines.get(part.y) ?? "") + part.bit);
  }
  return [...lines.values()];
}"""


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.shown(
        [ADDITION, SWALLOWED, "# the last cell"],
        ".labkit-addition .ad-bit",
        ".labkit-swallowed .sw-table td:not(:empty)",
        height=1500,
    ) as notebook:
        yield notebook


@pytest.fixture
def page(notebook):
    """The page as it is first seen, and the kernel of the same opinion."""
    notebook.settle()
    notebook.python(
        "[setattr(player, 'a', '1'), setattr(player, 'b', '0.0001'), setattr(player, 'format_name', 'FP16')]"
    )
    notebook.python("[setattr(player, 'operation', 'add'), setattr(player, 'step', 0)]")
    notebook.python("[setattr(swallowed, 'weight', 1.0), setattr(swallowed, 'update', 2.0**-12)]")
    station(notebook.page, "Write")
    notebook.page.wait_for_selector(".labkit-swallowed .lk-sentence[data-text*='2^-12 should take the weight from 1 ']")
    return notebook.page


def station(page, title):
    page.wait_for_selector(f".ad-paper[data-station='{title}']")


def press(page, name):
    page.locator(".labkit-addition").get_by_role("button", name=name, exact=True).click()


def sentence(page, widget="addition"):
    return page.locator(f".labkit-{widget} .lk-sentence").get_attribute("data-text")


def type_number(page, name, text):
    field = page.locator(".labkit-addition").get_by_label(name, exact=True)
    field.fill(text)
    field.press("Enter")


def slider(page, label):
    return page.locator(".labkit-swallowed").get_by_role("slider", name=label)


def curves(page, colour, share=1.0):
    page.evaluate(NEXT_FRAME)
    return page.locator(".sw-picture canvas").evaluate(COUNT_PIXELS, [colour, share])


def cell(page, curve, key):
    return page.locator(f"tr[data-curve='{curve}'] td[data-key={key}]").inner_text()


class TestAddition:
    def test_step_by_step_a_tenthousandth_is_lost(self, notebook, page):
        a, b = page.evaluate(READ_PAPER)
        assert (a, b) == ("10000000000", "11010001110")
        press(page, "Next")
        station(page, "Align")
        assert page.evaluate(READ_PAPER) == ["10000000000", "0" * 11 + "001" + "11010001110"]
        seen = {sentence(page)}
        for title in ("Add", "Normalise", "Guard, round, sticky", "Round"):
            press(page, "Next")
            station(page, title)
            seen.add(sentence(page))
        assert len(seen) == 5
        assert page.evaluate(READ_PAPER)[2:] == ["10000000000001", "10000000000"]
        assert sentence(page).endswith("b left no trace.")
        assert page.locator("[data-fact=code]").inner_text() == "0x3C00"
        notebook.until("player.step == 5 and player.sentence.endswith('b left no trace.')")

    def test_it_plays_by_itself_and_stops_at_the_end(self, notebook, page):
        press(page, "Last")
        press(page, "Play")  # from the end: from the beginning
        station(page, "Write")
        station(page, "Align")
        press(page, "Pause")
        press(page, "Last")
        press(page, "Back")
        press(page, "Play")
        station(page, "Round")
        page.locator(".ad-buttons button:has-text('Play')").wait_for()  # and no longer Pause
        notebook.until("player.step == 5")

    def test_keys_alone_are_enough(self, notebook, page):
        page.locator(".ad-stations input:checked").focus()
        for step in (1, 2):
            page.keyboard.press("ArrowRight")
            notebook.until(f"player.step == {step}")
        station(page, "Add")
        assert sentence(page) == notebook.python("player.sentence")

    def test_another_number_is_typed(self, notebook, page):
        press(page, "Last")
        type_number(page, "b", "2^-10")
        page.wait_for_selector("[data-fact=code]:has-text('0x3C01')")
        assert page.evaluate(READ_PAPER)[-1] == "10000000001"
        assert notebook.python("player.value") == 1 + 2**-10

    def test_what_is_no_number_is_answered_and_kept(self, notebook, page):
        type_number(page, "b", "1,5")
        alert = page.locator(".labkit-addition [role=alert]")
        page.wait_for_selector(".labkit-addition [role=alert]:not(:empty)")
        assert "Write a decimal point, not a comma: 1.5." in alert.inner_text()
        field = page.locator(".labkit-addition").get_by_label("b", exact=True)
        assert (field.input_value(), field.get_attribute("aria-invalid")) == ("1,5", "true")
        type_number(page, "b", "1.5")
        page.wait_for_selector(".labkit-addition [role=alert]:empty", state="attached")
        assert notebook.python("player.value") == 2.5

    def test_another_format_and_another_operation(self, notebook, page):
        page.locator(".labkit-addition").get_by_role("radio", name="FP32").check(force=True)
        notebook.until("player.format_name == 'FP32'")
        page.wait_for_selector(".ad-keeps:has-text('24 places')")
        assert [len(line) for line in page.evaluate(READ_PAPER)] == [24, 24]
        page.locator(".labkit-addition").get_by_role("radio", name="×").check(force=True)
        page.wait_for_selector(".ad-stations:has-text('Multiply')")
        notebook.until("player.value == float(__import__('numpy').float32(0.0001))")


class TestSwallowed:
    def test_fp16_stands_still_until_the_update_is_large_enough(self, notebook, page):
        still = curves(page, FP16_BLUE, share=0.1)
        assert (cell(page, "FP16", "moved"), cell(page, "FP16", "end")) == ("0", "1")
        slider(page, "update").focus()
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        notebook.until("swallowed.update == 2.0**-11")
        page.wait_for_selector("tr[data-curve='FP16'] td[data-key=moved]:has-text('1,000')")
        assert still > 300
        assert curves(page, FP16_BLUE, share=0.1) < still / 3
        assert sentence(page, "swallowed") == notebook.python("swallowed.sentence")

    @pytest.mark.parametrize(("key", "update"), [("End", 2**-6), ("Home", 2**-20), ("PageDown", 2**-13)])
    def test_each_key_of_a_slider(self, notebook, page, key, update):
        slider(page, "update").focus()
        page.keyboard.press(key)
        notebook.until(f"swallowed.update == {update}")

    def test_the_mouse_moves_the_weight_and_the_picture_follows(self, notebook, page):
        before = curves(page, BF16_GREEN), cell(page, "FP32", "end")
        box = slider(page, "weight").bounding_box()
        step, y = (box["width"] - 20) / 32, box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + 10 + 16 * step, y)
        page.mouse.down()
        page.mouse.move(box["x"] + 10 + 6 * step, y, steps=10)
        page.mouse.up()
        notebook.until("swallowed.weight == 1.5 * 2**-3")
        page.wait_for_selector(".labkit-swallowed .lk-sentence[data-text*='weight from 0.1875 ']")
        after = curves(page, BF16_GREEN), cell(page, "FP32", "end")
        assert before[0] != after[0]
        assert before[1] != after[1]
        assert float(page.locator(".labkit-swallowed").get_attribute("data-latency")) > 0

    def test_the_picture_follows_the_hand_while_the_kernel_is_busy(self, lab, notebook, page):
        """All places that a slider can go to were asked for while the hand rested."""
        page.wait_for_selector(".labkit-swallowed[data-ahead]")
        page.wait_for_function("() => Number(document.querySelector('.labkit-swallowed').dataset.ahead) >= 33 + 57 - 1")
        notebook.kernel.execute("import pathlib, time\nwhile not pathlib.Path('go-on').exists():\n    time.sleep(0.01)")
        still = curves(page, FP16_BLUE, share=0.1)
        slider(page, "update").focus()
        page.keyboard.press("End")
        assert "1,000 updates of 2^-6 should" in sentence(page, "swallowed")
        assert curves(page, FP16_BLUE, share=0.1) < still / 3
        lab.folder.joinpath("go-on").touch()
        notebook.until("swallowed.update == 2.0**-6")
        assert sentence(page, "swallowed") == notebook.python("swallowed.sentence")

    def test_a_curve_is_singled_out(self, notebook, page):
        all_of_them = curves(page, BF16_GREEN)
        name = page.get_by_role("button", name="FP16 + Kahan")
        name.click()
        notebook.until("swallowed.highlight == 'FP16 + Kahan'")
        assert curves(page, BF16_GREEN) < all_of_them / 10
        name.press("Enter")
        notebook.until("swallowed.highlight == ''")
        assert curves(page, BF16_GREEN) == all_of_them


@pytest.mark.parametrize(
    "where",
    [".ad-stations input >> nth=0", ".ad-paper", ".ad-buttons button >> nth=3", ".sw-picture canvas", ".sw-name"],
)
def test_no_key_reaches_jupyterlab(notebook, page, where):
    cells = notebook.cells()
    page.locator(where).first.click(force=True)
    for key in ["d", "d", "a", "b", "x", "d", "d"]:
        page.keyboard.press(key)
    page.evaluate(NEXT_FRAME)
    assert notebook.cells() == cells
    notebook.python("setattr(swallowed, 'highlight', '')")


def test_letters_typed_into_a_field_stay_there(notebook, page):
    cells = notebook.cells()
    page.locator(".labkit-addition").get_by_label("a", exact=True).fill("")
    page.keyboard.type("dd")
    field = page.locator(".labkit-addition").get_by_label("a", exact=True)
    assert notebook.cells() == cells
    notebook.python("setattr(player, 'step', 1)")
    station(page, "Align")
    assert field.input_value() == "dd"  # typed, not yet sent, and not lost because something else moved
    field.fill("1")


@pytest.mark.slow
def test_both_themes_and_a_narrow_window(notebook, page):
    """Look at these: tests/browser/screenshots/addition-*.png and swallowed-*.png."""
    page.emulate_media(reduced_motion="reduce")  # a still picture is taken of still bits
    press(page, "Last")
    station(page, "Round")
    fits = (
        "root => [...root.querySelectorAll(':scope > *')].every((e) => e.getBoundingClientRect().right <= innerWidth)"
    )
    for theme, width in (("Light", 1280), ("Dark", 820), ("Light", 524)):
        notebook.theme(f"JupyterLab {theme}")
        page.set_viewport_size({"width": width, "height": 1500})
        page.evaluate(NEXT_FRAME)
        for widget in ("addition", "swallowed"):
            assert page.locator(f".labkit-{widget}").evaluate(fits)
            notebook.screenshot(f"{widget}-{theme.lower()}-{width}", f".labkit-{widget}")
