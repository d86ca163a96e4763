"""The underflow histogram under a learner's hand: real gradients, real JupyterLab, real Chromium.

What is drawn is read back from the pixels (how many are vermilion), what is written from the page, and both are held
against what the kernel knows.
"""

import pytest

pytestmark = pytest.mark.browser

SETUP = """
from labkit.amp import RECIPES
from labkit.formats import FP16
from labkit.instrument import fate, merge, shift, snapshot
from labkit.train import TASKS, TrainingRun
from labkit.widgets import ALL_LAYERS, UnderflowHistogram, pulse

alive = pulse()
alive
"""
WIDGET = """
run = TrainingRun(TASKS["segmentation"], RECIPES["FP16"], seed=0)
exact, inside = run.fp32_twin().next_gradients(), run.next_gradients()
snap = snapshot(exact, step=0, kind="activation gradients")
zeros = {layer: float((gradient == 0).float().mean()) for layer, gradient in inside.items()}
w = UnderflowHistogram(snap, observed_zeros=zeros)
w
"""
VERMILION, SUBNORMAL, NORMAL = (213, 94, 0), (240, 228, 66), (86, 180, 233)
COUNT_PIXELS = """(canvas, colour) => {
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) {
    found += data[i + 3] > 250 && [0, 1, 2].every((c) => Math.abs(data[i + c] - colour[c]) < 6);
  }
  return found;
}"""
NEXT_FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# Move the slider through all its positions for the chosen layer, and read what the page says at each.
SWEEP = """() => {
  const root = document.querySelector(".labkit-underflow");
  const input = root.querySelector("input[type=range]");
  return [...Array(31).keys()].map((k) => {
    input.value = k;
    input.dispatchEvent(new Event("input", {bubbles: true}));
    const shares = [...root.querySelectorAll(".uf-share")];
    return {
      ...Object.fromEntries(shares.map((share) => [share.dataset.fate, Number(share.dataset.share)])),
      texts: shares.map((share) => share.textContent),
      sentence: root.querySelector(".lk-sentence").dataset.text,
    };
  });
}"""
EXPECTED = """[
  {**vars(f), "sentence": words.sentence(f, FP16, k, w.snapshot.kind, %r),
   "texts": [words.percent(x) for x in vars(f).values()]}
  for words in [__import__("labkit.widgets.underflow.words", fromlist=["_"])]
  for k in range(31) for f in [fate(shift(w._histograms[%r], k), FP16)]
]"""


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.shown(
        [SETUP, WIDGET, "# the last cell"], ".labkit-underflow .uf-share[data-share]", height=1250
    ) as notebook:
        yield notebook


@pytest.fixture
def page(notebook):
    """The page with the slider at 2^0 on all layers together, and the kernel of the same opinion."""
    notebook.settle()
    notebook.python("[setattr(w, 'log2_scale', 0), setattr(w, 'layer', ALL_LAYERS)]")
    notebook.page.wait_for_function("document.querySelector('.uf-value').textContent.trim().endsWith('= 1')")
    notebook.page.wait_for_selector(".lk-head:has-text('all layers together')")
    return notebook.page


def slider(page):
    return page.locator(".labkit-underflow input[type=range]")


def picture(page):
    page.evaluate(NEXT_FRAME)
    return page.locator(".uf-main canvas")


def shares(page):
    return page.locator(".uf-share").all_text_contents()


def test_the_pulse_is_measured_there_and_back(notebook):
    line = notebook.page.locator('.pl-line[data-state="alive"]')
    line.wait_for(timeout=10_000)
    assert line.inner_text().replace("\n", " ").startswith("✓ Widgets are alive: ")
    notebook.until("alive.alive")


def test_real_gradients_underflow_and_come_back(notebook, page):
    """The lesson in two lines: without scaling most are lost, with 2^10 hardly any."""
    assert notebook.python("w.fractions['underflowed']") > 0.5
    notebook.python("setattr(w, 'log2_scale', 10)")
    assert notebook.python("w.fractions['underflowed']") < 0.01
    page.wait_for_selector(".uf-value:has-text('1,024')")  # the page follows what code sets


def test_arrow_keys_move_numbers_and_pixels(notebook, page):
    before, lost = shares(page), picture(page).evaluate(COUNT_PIXELS, VERMILION)
    assert lost > 1000
    slider(page).focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    assert shares(page) != before
    assert picture(page).evaluate(COUNT_PIXELS, VERMILION) < lost / 10
    assert picture(page).evaluate(COUNT_PIXELS, SUBNORMAL) > 1000
    notebook.until("w.log2_scale == 10")


@pytest.mark.parametrize(
    ("key", "log2_scale"), [("End", 30), ("Home", 0), ("PageUp", 5), ("ArrowLeft", 0), ("ArrowUp", 1)]
)
def test_each_key_of_a_slider(notebook, page, key, log2_scale):
    slider(page).focus()
    page.keyboard.press(key)
    assert slider(page).input_value() == str(log2_scale)
    notebook.until(f"w.log2_scale == {log2_scale}")


def test_the_thumb_follows_the_mouse_and_the_picture_follows_the_thumb(notebook, page):
    before = shares(page)
    box = slider(page).bounding_box()
    step, y = (box["width"] - 20) / 30, box["y"] + box["height"] / 2
    start = box["x"] + 10
    page.mouse.move(start, y)
    page.mouse.down()
    page.mouse.move(start + 4 * step, y, steps=4)
    on_the_way = shares(page)
    page.mouse.move(start + 12 * step, y, steps=8)
    page.mouse.up()
    assert len({tuple(before), tuple(on_the_way), tuple(shares(page))}) == 3
    assert page.locator(".uf-value").inner_text().endswith("= 4,096")
    notebook.until("w.log2_scale == 12")


def test_the_histogram_itself_can_be_dragged(notebook, page):
    """As many pixels as a binade is wide for one step; then the arrow keys go on from there."""
    box = picture(page).bounding_box()
    binade = (slider(page).bounding_box()["width"] - 20) / 30
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    lost = picture(page).evaluate(COUNT_PIXELS, VERMILION)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 15 * binade, y, steps=15)
    page.mouse.up()
    assert slider(page).input_value() == "15"
    assert picture(page).evaluate(COUNT_PIXELS, VERMILION) < lost / 10
    assert picture(page).evaluate(COUNT_PIXELS, NORMAL) > 1000
    page.keyboard.press("ArrowLeft")
    notebook.until("w.log2_scale == 14")


def test_a_layer_is_chosen_by_keyboard(notebook, page):
    together = page.locator(".uf-note").inner_text()
    slider(page).focus()
    page.keyboard.press("Tab")  # the picture, where arrow keys walk along its bars
    page.keyboard.press("Tab")
    for layer in ("conv1", "norm1"):
        page.keyboard.press("ArrowDown")
        notebook.until(f"w.layer == {layer!r}")
        assert page.locator(".lk-sentence").get_attribute("data-text") == notebook.python("w.sentence")
        assert f"of layer {layer} " in notebook.python("w.sentence")
        assert page.locator(".uf-note").inner_text() != together


@pytest.mark.parametrize("layer", ["all layers together", "norm1", "relu3"])
def test_javascript_and_python_agree_at_every_scale(notebook, page, layer):
    page.locator(f".uf-layer input[value='{layer}']").check(force=True)
    in_page = page.evaluate(SWEEP)
    notebook.until("w.log2_scale == 30")  # all of it has arrived
    in_kernel = notebook.python(EXPECTED % (layer, layer))
    for k, (seen, known) in enumerate(zip(in_page, in_kernel, strict=True)):
        for fate in ("underflowed", "subnormal", "normal", "overflowed"):
            assert seen[fate] == known[fate], (layer, k, fate)  # the same integers, divided once: equal to the bit
        assert seen["texts"] == known["texts"]
        assert seen["sentence"] == known["sentence"]


def test_the_picture_follows_the_hand_while_the_kernel_is_busy(lab, notebook, page):
    busy = "import pathlib, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.01)"
    notebook.kernel.execute(busy)
    slider(page).focus()
    page.keyboard.press("End")
    assert page.locator(".lk-sentence").get_attribute("data-text").startswith("At scale 2^30, ")
    assert picture(page).evaluate(COUNT_PIXELS, NORMAL) > 1000
    lab.folder.joinpath("go").touch()
    notebook.until("w.log2_scale == 30")


def test_a_screen_reader_hears_the_sentence_where_the_hand_stopped(notebook, page):
    slider(page).focus()
    page.keyboard.press("PageUp")
    spoken = page.locator(".labkit-underflow [aria-live=polite]")
    assert slider(page).get_attribute("aria-valuetext") == "2^5 = 32"
    notebook.until("w.log2_scale == 5")
    page.wait_for_function("words => document.querySelector('.labkit-underflow [aria-live]').textContent === words",
                           arg=notebook.python("w.sentence"))  # fmt: skip
    assert spoken.count() == 1


@pytest.mark.slow
def test_a_control_group_without_a_widget_d_d_deletes_the_cell(lab):
    """What the next test would see if a key leaked."""
    nb = lab.notebook(["1", "2", "3"])
    nb.page.locator(".jp-InputPrompt").nth(1).click()
    nb.page.keyboard.press("Escape")
    nb.page.keyboard.press("d")
    nb.page.keyboard.press("d")
    nb.page.wait_for_function("() => jupyterapp.shell.currentWidget.content.widgets.length === 2")
    lab.close(nb)


@pytest.mark.parametrize("where", ["slider", "histogram", "layer", "sentence", "title"])
def test_no_key_reaches_jupyterlab(notebook, page, where):
    cells = notebook.cells()
    target = {
        "slider": slider(page),
        "histogram": page.locator(".uf-main canvas"),
        "layer": page.locator(".uf-layer").nth(3),
        "sentence": page.locator(".labkit-underflow .lk-sentence"),
        "title": page.locator(".lk-head"),
    }[where]
    target.click()
    for key in ["d", "d", "a", "b", "x", "Enter", "d", "d"]:
        page.keyboard.press(key)
    page.evaluate(NEXT_FRAME)
    assert notebook.cells() == cells
    assert page.evaluate("document.activeElement.closest('.labkit-underflow') !== null")


def test_both_themes(notebook, page):
    """Look at these: tests/browser/screenshots/underflow-*.png."""
    seen = {}
    for name, theme in (("light", "JupyterLab Light"), ("dark", "JupyterLab Dark")):
        notebook.theme(theme)
        for k in (0, 10):
            notebook.python(f"setattr(w, 'log2_scale', {k})")
            page.wait_for_selector(f".uf-value:has-text('= {2**k:,}')")
            picture(page)
            seen[name, k] = notebook.screenshot(f"underflow-{name}-{k}", ".labkit-underflow").read_bytes()
    assert len(set(seen.values())) == 4
    notebook.theme("JupyterLab Light")


@pytest.mark.slow
def test_a_narrow_window(notebook, page):
    page.set_viewport_size({"width": 700, "height": 1250})
    page.evaluate(NEXT_FRAME)
    fits = "root => [...root.querySelectorAll('*')].every((e) => e.getBoundingClientRect().right <= innerWidth)"
    assert page.locator(".labkit-underflow").evaluate(fits)
    notebook.screenshot("underflow-narrow", ".labkit-underflow")
    page.set_viewport_size({"width": 1280, "height": 1250})


def test_when_its_cell_is_cleared_nothing_is_left_behind(notebook, page):
    page.evaluate("jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    page.wait_for_selector(".labkit-underflow", state="detached")
    notebook.theme("JupyterLab Dark")
    notebook.python("setattr(w, 'log2_scale', 3)")
    page.evaluate(NEXT_FRAME)
    assert notebook.errors == []
