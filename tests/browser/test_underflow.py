"""The underflow histogram, the gradient zoom and tours in a real JupyterLab.

Pixels are counted by the colours of "underflowed", "subnormal" and "normal". They and the texts of
the page are compared with the state of the kernel.
"""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELLS = [
    """
from labkit.amp import RECIPES
from labkit.instrument import snapshot
from labkit.train import TASKS, TrainingRun
from labkit.widgets import ALL_LAYERS, GradientZoom, MmaBlock, UnderflowHistogram

run = TrainingRun(TASKS["segmentation"], RECIPES["FP16"], seed=0)
exact, inside = run.fp32_twin().next_gradients(), run.next_gradients()
zeros = {layer: float((gradient == 0).float().mean()) for layer, gradient in inside.items()}
w = UnderflowHistogram(snapshot(exact, step=0, kind="activation gradients"), observed_zeros=zeros)
w
""",
    "zoom = GradientZoom({0: exact, 1: inside})\nzoom",
    "board = MmaBlock()\nboard",
]
# JavaScript: the bits of the number, as texts of sign, exponent and significand.
BITS = """[...document.querySelectorAll('.labkit-zoom [data-field] .be-cells')].map(
  (row) => [...row.querySelectorAll('b')].map((bit) => bit.textContent).join(''))"""
# How many parts of a widget a tour has marked by a ring.
RINGED = (
    "(root) => [...root.querySelectorAll('.lk-ringed')].filter((one) => "
    "one.getClientRects().length).length"
)
FOCUS = "document.activeElement.textContent"


@pytest.fixture(scope="module")
def notebook(lab):
    """A notebook with a histogram, a zoom, and a Tensor Core block."""
    with lab.shown(
        CELLS, ".labkit-underflow .uf-share[data-share]", ".labkit-zoom", height=1250
    ) as notebook:
        yield notebook


@pytest.fixture
def page(notebook):
    """The page with the slider at 2^0 on all layers together, as in the kernel."""
    notebook.settle()
    notebook.python("[setattr(w, 'log2_scale', 0), setattr(w, 'layer', ALL_LAYERS)]")
    notebook.page.wait_for_function(
        "document.querySelector('.uf-value').textContent.trim().endsWith('= 1')"
    )
    notebook.page.wait_for_selector(".lk-head:has-text('all layers together')")
    return notebook.page


# JavaScript: count the animations that begin from now on, in window.moves.
COUNT_MOVES = """() => {
  window.moves = 0;
  const { animate } = Element.prototype;
  Element.prototype.animate = function (...how) {
    window.moves += 1;
    return animate.apply(this, how);
  };
}"""


def slider_of(page):
    """Return the slider of the histogram."""
    return page.locator(".labkit-underflow input[type=range]")


def test_keys_move_the_slider_and_the_histogram(notebook, page):
    """Without scaling most gradients are lost, with 2^10 hardly any."""
    lost = notebook.pixels("underflow", "underflowed")
    assert notebook.python("w.fractions['underflowed']") > 0.5
    assert lost > 1000
    slider = slider_of(page)
    slider.focus()
    for key, log2_scale in (
        ("End", 30),
        ("Home", 0),
        ("PageUp", 5),
        ("PageUp", 10),
        ("ArrowUp", 11),
        ("ArrowLeft", 10),
    ):
        notebook.press(key)
        notebook.until(f"w.log2_scale == {log2_scale}")
    assert slider.get_attribute("aria-valuetext").startswith("2^10 = ")
    assert notebook.python("w.fractions['underflowed']") < 0.01
    assert notebook.pixels("underflow", "underflowed") < lost / 10
    assert notebook.pixels("underflow", "subnormal") > 1000


def drag(page, x, y, distance):
    """Drag from a point to the right, in steps."""
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + distance, y, steps=15)
    page.mouse.up()


def test_drags_move_the_slider_by_the_width_of_a_binade(notebook, page):
    """The handle is dragged by 12 binades, and then the histogram by 3."""
    slider = slider_of(page)
    box = page.locator(".labkit-underflow .uf-main canvas").bounding_box()
    track = slider.bounding_box()
    # The handle is 20 pixels wide, and the slider goes from 2^0 to 2^30.
    binade = (track["width"] - 20) / 30
    y = track["y"] + track["height"] / 2
    # The handle is on the axis of the histogram.
    assert 0.85 < (y - box["y"]) / box["height"] < 1
    drag(page, track["x"] + 10, y, 12 * binade)
    assert page.locator(".uf-value").inner_text().endswith("= 4,096")
    notebook.until("w.log2_scale == 12")
    drag(page, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, 3 * binade)
    assert slider.input_value() == "15"
    assert notebook.pixels("underflow", "normal") > 1000
    notebook.press("ArrowLeft")
    notebook.until("w.log2_scale == 14")


def test_one_slider_leads_from_the_network_to_the_bits(notebook, page):
    notebook.settle()
    zoom = notebook.widget("zoom")
    distance = zoom.get_by_role("slider", name="Zoom")
    scale = zoom.get_by_role("slider", name="Scale")
    double = page.get_by_role("button", name="× 2")
    page.evaluate(COUNT_MOVES)
    distance.focus()
    for place in ("network", "layer", "tensor", "gradient"):
        page.wait_for_selector(f".labkit-zoom[data-zoom={place}]")
        notebook.press("ArrowRight")
    page.wait_for_selector(".labkit-zoom .be-bit")
    # Three times, the old picture and the new one.
    assert page.evaluate("moves") == 6
    scale.press("Home")
    for _ in range(20):
        double.press("Enter")
    notebook.until("zoom.log2_scale == 20 and 'only the exponent' in zoom.sentence")
    notebook.settle()
    sign, exponent, significand = page.evaluate(BITS)
    double.press("Enter")
    notebook.until("zoom.log2_scale == 21")
    notebook.settle()
    assert page.evaluate(BITS) == [sign, f"{int(exponent, 2) + 1:0{len(exponent)}b}", significand]
    page.emulate_media(reduced_motion="reduce")
    # One place back.
    notebook.press("Escape")
    page.wait_for_selector(".labkit-zoom[data-zoom=tensor]")
    assert page.evaluate("moves") == 6
    assert page.locator(".labkit-zoom .be-bit:visible").count() == 0
    page.emulate_media(reduced_motion="no-preference")
    grid = page.locator(".labkit-zoom .gz-stage canvas:visible")
    notebook.python("[zoom.set_trait('row', 0), zoom.set_trait('column', 0)]")
    notebook.settle()
    grid.focus()
    notebook.press("ArrowDown", "ArrowRight")
    notebook.until("(zoom.row, zoom.column, zoom.zoom) == (1, 1, 2)")
    grid.click(position={"x": 3, "y": 3})
    notebook.until("(zoom.row, zoom.column, zoom.zoom) == (0, 0, 3)")


def test_a_tour_is_walked_by_keyboard_and_esc_closes_it_first(notebook, page):
    for name, kind, steps in (("board", "mma", 6), ("w", "underflow", 8)):
        root = notebook.widget(kind)
        root.get_by_role("button", name=f"Tour in {steps} steps").press("Enter")
        for step in range(steps):
            shown = f"document.querySelector('.labkit-{kind} .lk-tour .lk-quiet').textContent"
            page.wait_for_function(f"{shown}.startsWith('{step + 1} of')")
            assert page.evaluate(FOCUS) == ("Next" if step + 1 < steps else "Done")
            assert root.evaluate(RINGED) == 1, f"{name}, step {step}"
            notebook.until(f"{name}.tour_step == {step}")
            if step + 1 < steps:
                notebook.press("Enter")
        notebook.press("Shift+Tab")
        assert page.evaluate(FOCUS) == "Back"
        notebook.press("Enter")
        notebook.until(f"{name}.tour_step == {steps - 2}")
        notebook.press("Escape")
        notebook.until(f"{name}.tour_step == -1")
        assert page.evaluate(FOCUS) == f"Tour in {steps} steps"
        assert root.evaluate(RINGED) == 0
        # Another Escape leaves the widget.
        notebook.press("Escape")
        assert page.evaluate("document.activeElement.closest('.labkit') === null")
