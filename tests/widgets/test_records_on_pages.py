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


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_shows_the_curves_of_the_record(page: Page, name: str) -> None:
    widget = SHOWN[name]()
    root = page.show(widget)
    widget.close()
    picture = root.locator(".lk-figure canvas").first
    assert picture.is_visible()
    box = picture.bounding_box()
    assert box is not None
    assert box["width"] > 300
    assert box["height"] > 200
    drawn = picture.evaluate(
        "(canvas) => new Set(new Uint32Array(canvas.getContext('2d')"
        ".getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"
    )
    # A picture has more than 20 colours, and an empty canvas one.
    assert drawn > 20


@pytest.mark.parametrize("name", TRAINING)
def test_a_page_offers_nothing_that_trains(page: Page, name: str) -> None:
    widget = TRAINING[name]()
    root = page.show(widget)
    widget.close()
    shown = [button.inner_text() for button in root.get_by_role("button").all()]
    assert shown[0] in ("Play", "Pause")
    assert set(shown) <= {"Play", "Pause"}
