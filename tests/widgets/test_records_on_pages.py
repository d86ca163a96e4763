"""Widgets that train, on a page that cannot: recorded runs in their place."""

from collections.abc import Callable

import pytest

from labkit.widgets import BeatTheScaler, LiveTraining, Workbench
from labkit.widgets.driven.widget import DrivenWidget
from tests.widgets.pages import Page

TRAINING: dict[str, Callable[[], DrivenWidget]] = {
    "live": lambda: LiveTraining("painted_picture", "FP16", seed=0),
    "live without a picture to paint": lambda: LiveTraining("digits", "FP16", seed=0),
    "workbench": lambda: Workbench("painted_picture", "FP16 static"),
}
SHOWN = {**TRAINING, "beat the scaler": BeatTheScaler}
# The curves of each widget, by their inks. On the digits, that of FP16 covers that of FP32.
CURVES = [
    ("live", "--lk-fp16"),
    ("live", "--lk-fp32"),
    ("live without a picture to paint", "--lk-fp16"),
    ("workbench", "--lk-fp16"),
    ("workbench", "--lk-fp32"),
    ("beat the scaler", "--lk-ink-2"),
]


# The share of a canvas's columns that hold a pixel of an ink, such as "--lk-fp16". A curve crosses
# most of them, and a name in its colour only a few.
SHARE_OF_COLUMNS = """(canvas, ink) => {
  const hex = getComputedStyle(canvas).getPropertyValue(ink).trim();
  const wanted = [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  let columns = 0;
  for (let x = 0; x < width; x++) {
    let found = false;
    for (let y = 0; y < height && !found; y++) {
      const at = 4 * (y * width + x);
      found = wanted.every((value, channel) => data[at + channel] === value);
    }
    if (found) columns += 1;
  }
  return columns / width;
}"""


@pytest.mark.parametrize(("name", "ink"), CURVES)
def test_a_page_shows_the_curves_of_the_record(page: Page, name: str, ink: str) -> None:
    widget = SHOWN[name]()
    root = page.show(widget)
    widget.close()
    picture = root.locator(".lk-figure canvas").first
    picture.wait_for(state="visible")
    box = picture.bounding_box()
    assert box is not None
    assert box["width"] > 300
    assert box["height"] > 200
    assert picture.evaluate(SHARE_OF_COLUMNS, ink) > 0.5


@pytest.mark.parametrize("name", TRAINING)
def test_a_page_offers_nothing_that_trains(page: Page, name: str) -> None:
    widget = TRAINING[name]()
    root = page.show(widget)
    widget.close()
    shown = [button.inner_text() for button in root.get_by_role("button").all()]
    assert shown
    assert shown[0] in ("Play", "Pause")
    assert set(shown) <= {"Play", "Pause"}


def test_a_step_that_the_run_has_not_done_has_no_label(page: Page) -> None:
    widget = TRAINING["workbench"]()
    root = page.show(widget)
    widget.close()
    picture = root.locator(".run-panels canvas").first
    label = root.locator(".run-panels .lk-tip").first
    steps = root.get_by_role("slider", name="Step")
    box = picture.bounding_box()
    assert box is not None
    picture.hover(position={"x": box["width"] / 2, "y": 100})
    label.wait_for(state="visible")
    # The pointer stays where it is.
    steps.press("Home")
    label.wait_for(state="hidden")
    steps.press("End")
    label.wait_for(state="visible")


def test_before_its_first_step_a_record_shows_the_first_pictures(page: Page) -> None:
    widget = TRAINING["live"]()
    root = page.show(widget)
    widget.close()
    root.get_by_role("slider", name="Step").press("Home")
    root.get_by_role("img", name="what FP16 paints after step 0").wait_for()


def test_a_saved_run_that_cannot_be_read_is_left_out(page: Page) -> None:
    live = LiveTraining("painted_picture", "FP16", seed=0, device="cpu")
    state = live.page_state
    live.page_state = lambda: {**state(), "run": "{"}
    root = page.show(live)
    live.close()
    assert root.locator(".lk-sentence").inner_text()
