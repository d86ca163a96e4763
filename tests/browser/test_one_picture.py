"""The picture of a live training in JupyterLab: its size, its handle, and going back in time."""

import pytest

from tests.browser.conftest import NEXT_FRAME

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

CELL = """
from labkit.amp import RECIPES
from labkit.train import TASKS
from labkit.widgets import LiveTraining

live = LiveTraining(TASKS["painted_picture"], RECIPES["FP16"], seed=0, sketch=True)
live
"""
# CSS pixels from the title to the end of what the networks paint, at 1280 x 720.
TALLEST = 520
# The same with the bits of one gradient; JupyterLab leaves 608 of 720 pixels for a cell.
TALLEST_WITH_BITS = 600
# The picture of the histogram as a text, which changes when anything is drawn differently.
DRAWN = """() => {
  const canvas = document.querySelector(".lt-histogram canvas");
  return canvas.toDataURL();
}"""


def sketch_by_drag(notebook, root):
    """Sketch a loss that stays and then falls, from one end of the axis to the other."""
    mouse = notebook.page.mouse
    root.get_by_role("button", name="Draw what you expect").click()
    box = root.locator(".lt-pad").bounding_box()
    mouse.move(box["x"] + 2, box["y"] + 20)
    mouse.down()
    mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    mouse.move(box["x"] + box["width"] - 1, box["y"] + box["height"] - 10)
    mouse.up()
    root.get_by_role("button", name="Done").click()


@pytest.fixture(scope="module")
def trained(lab):
    with lab.shown([CELL], ".labkit-live", name="picture", width=1280, height=720) as notebook:
        root = notebook.page.locator(".labkit-live")
        sketch_by_drag(notebook, root)
        root.get_by_role("button", name="Start", exact=True).click()
        notebook.until_data("live", "Number(d.step) > 120")
        root.locator(".lk-segment", has_text="static").click()
        notebook.until_data("live", "Number(d.step) > 220")
        root.get_by_role("button", name="Pause", exact=True).click()
        notebook.until_data("live", "d.phase === 'paused'")
        yield notebook


def test_the_picture_fits_a_small_screen(trained):
    root = trained.page.locator(".labkit-live")
    top = root.locator(".lk-head").bounding_box()["y"]
    panels = root.locator(".lt-panels").bounding_box()
    assert panels["y"] + panels["height"] - top <= TALLEST
    assert root.evaluate("root => root.scrollWidth <= root.clientWidth")


def test_nothing_moves_when_the_sentence_grows(trained):
    panels = trained.page.locator(".lt-panels")
    before = panels.bounding_box()["y"]
    sentence = trained.page.locator(".labkit-live > .lk-sentence span").first
    sentence.evaluate("span => { span.textContent = 'A sentence of two lines. '.repeat(6); }")
    assert panels.bounding_box()["y"] == before


def test_the_handle_shifts_the_bars_while_the_kernel_is_busy(lab, trained):
    # The kernel is busy until this file exists.
    end = lab.folder / "go-picture"
    scale = trained.python("live.forked_run.selected.wanted.log2_scale")
    trained.kernel.execute(
        f"import pathlib, time\nwhile not pathlib.Path({str(end)!r}).exists(): time.sleep(0.01)"
    )
    page = trained.page
    before = page.evaluate(DRAWN)
    page.get_by_role("slider", name="Loss scale").focus()
    page.keyboard.press("ArrowRight")
    page.evaluate(NEXT_FRAME)
    assert page.evaluate(DRAWN) != before
    end.touch()
    trained.until(f"live.forked_run.selected.wanted.log2_scale == {scale + 1}")


def test_the_sketch_stays_and_is_compared(trained):
    sketch = trained.python("live.sketched")
    assert [step for step, _ in sketch] == [1, 494, 1000]
    assert sketch[0][1] == sketch[1][1]
    assert sketch[1][1] > 2 * sketch[2][1]
    words = trained.page.locator(".lt-sketch-words").inner_text()
    assert words.startswith("You drew ")
    assert f"at step {trained.python('len(live.history)')}; it is " in words
    assert not trained.page.get_by_role("button", name="Draw what you expect").is_enabled()


def test_the_map_has_a_row_for_each_measured_step(trained):
    rows = trained.python("len(live.forked_run.run.map_rows)")
    assert rows >= 20
    trained.until_data("live", f"Number(d.measured) === {rows}")


def test_the_networks_paint_side_by_side(trained):
    figures = trained.page.locator(".lt-results figure")
    assert figures.locator("figcaption").all_inner_texts() == ["FP32", "FP16", "wanted"]
    for canvas in figures.locator("canvas").all():
        shades = canvas.evaluate(
            "(canvas) => new Set(canvas.getContext('2d').getImageData(0, 0, 32, 32).data).size"
        )
        assert shades >= 3


def test_a_followed_gradient_moves_nothing_of_the_picture(trained):
    page = trained.page
    root = page.locator(".labkit-live")
    before = root.locator(".lt-panels").bounding_box()
    histogram = root.locator(".lt-histogram canvas")
    box = histogram.bounding_box()
    # Only a bar can be followed; the first one is somewhere in this range.
    for x in range(80, 220, 4):
        page.mouse.click(box["x"] + x, box["y"] + 150)
        if root.locator(".lt-followed").is_visible():
            break
    followed = root.locator(".lt-followed").bounding_box()
    assert root.locator(".lt-panels").bounding_box() == before
    top = root.locator(".lk-head").bounding_box()["y"]
    assert followed["y"] + followed["height"] - top <= TALLEST_WITH_BITS
    page.get_by_role("button", name="×").click()


def test_a_click_goes_back_and_leaves_a_ghost(trained):
    page = trained.page
    box = page.locator(".lt-curves canvas").bounding_box()
    before = trained.python("len(live.history)")
    ghosts = trained.python("len(live.forked_run.ghosts)")
    page.mouse.click(box["x"] + 52 + 40, box["y"] + 90)
    trained.until(f"len(live.history) < {before} and live.phase.value == 'paused'")
    trained.until_data("live", f"d.ghosts === '{ghosts + 1}'")
    assert "stays as a faint curve" in page.locator(".labkit-live .run-notice").inner_text()


def test_enter_goes_back_to_where_the_arrow_keys_point(trained):
    page = trained.page
    before = trained.python("len(live.history)")
    page.locator(".lt-curves canvas").focus()
    for key in ("Home", *["ArrowRight"] * 8, "Enter"):
        page.keyboard.press(key)
    trained.until(f"0 < len(live.history) < {before}")


def test_another_layer_is_chosen_by_keyboard(trained):
    page = trained.page
    choice = page.get_by_label("Gradients of")
    before = page.evaluate(DRAWN)
    choice.focus()
    page.keyboard.press("ArrowDown")
    page.evaluate(NEXT_FRAME)
    assert page.evaluate(DRAWN) != before
