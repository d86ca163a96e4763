"""The sketch of a loss: strokes, values at a step, comparison, and saved state."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from traitlets import TraitError

from labkit.widgets import LiveTraining
from tests.widgets.pages import Page, Scripts

FOLDERS = ("live_training",)
SKETCH = [[10, 1.0], [20, 0.01], [40, 0.01]]


def rows(losses: list[float]) -> list[dict[str, float]]:
    return [{"step": i + 1, "loss": loss} for i, loss in enumerate(losses)]


def test_a_stroke_replaces_points_of_the_sketch(js: Scripts) -> None:
    def stroke(before: tuple[float, float], after: tuple[float, float]) -> Any:
        ends = [{"step": step, "loss": loss} for step, loss in (before, after)]
        return js.run("withStroke", SKETCH, *ends)

    assert stroke((15, 0.5), (30, 0.2)) == [[10, 1.0], [15, 0.5], [30, 0.2], [40, 0.01]]
    assert stroke((30, 0.2), (15, 0.5)) == stroke((15, 0.5), (30, 0.2))
    assert stroke((20, 0.3), (20, 0.4)) == [[10, 1.0], [20, 0.4], [40, 0.01]]
    assert js.run("withStroke", [], {"step": 1, "loss": 2}, {"step": 1, "loss": 2}) == [[1, 2]]


def test_a_sketch_is_interpolated_in_the_logarithm(js: Scripts) -> None:
    assert js.run("drawnAt", SKETCH, 15) == pytest.approx(0.1)
    assert js.run("drawnAt", SKETCH, 10) == 1.0
    assert js.run("drawnAt", SKETCH, 40) == 0.01
    for outside in (9, 41):
        assert math.isnan(js.run("drawnAt", SKETCH, outside))


def test_a_sketch_has_a_sentence(js: Scripts) -> None:
    sentence = "You drew a loss of 1 at step 10, and 0.01 at step 40."
    assert js.run("sketchWords", SKETCH) == sentence
    assert js.run("sketchWords", SKETCH[:1]) == "You drew a loss of 1 at step 10."
    assert js.run("sketchWords", []) == ""


def test_the_comparison_names_the_last_and_the_farthest_step(js: Scripts) -> None:
    losses = [1.0] * 9 + [1.0] * 4 + [0.9] * 7 + [0.02] * 5
    sentence = js.run("comparison", SKETCH, rows(losses))
    assert sentence == (
        "You drew 0.01 at step 25; it is 0.02. Furthest apart at step 20: 0.01 drawn, 0.9 trained."
    )
    assert js.run("comparison", SKETCH, rows(losses[:9])) == ""
    assert js.run("comparison", [], rows(losses)) == ""


def test_the_comparison_names_nan_but_does_not_rank_it(js: Scripts) -> None:
    losses = [1.0] * 10 + [0.5] * 4
    # JSON has no NaN.
    function = "(sketch, rows) => comparison(sketch, [...rows, { step: 15, loss: NaN }])"
    sentence = js.run(function, SKETCH, rows(losses))
    assert sentence == (
        "You drew 0.1 at step 15; it is NaN. Furthest apart at step 14: 0.158 drawn, 0.5 trained."
    )


@pytest.fixture
def live() -> Iterator[LiveTraining]:
    widget = LiveTraining("painted_picture", "FP16", seed=0, device="cpu", sketch=True)
    yield widget
    widget.close()


def test_a_sketch_on_a_page_is_compared_with_the_record(page: Page, live: LiveTraining) -> None:
    root = page.show(live)
    words = root.locator(".lt-sketch-words")
    root.get_by_role("button", name="Draw what you expect").click()
    for key in ("Space", *["ArrowRight"] * 3, *["ArrowDown"] * 4, "Enter"):
        page.page.keyboard.press(key)
    assert words.inner_text().startswith("You drew a loss of ")
    (first, *_, last) = page.trait("sketched")
    assert first[0] == 1
    assert last[0] == 39
    assert last[1] < first[1]
    root.locator(".run-record .lk-segment", has_text="static").click()
    page.page.wait_for_function(
        "document.querySelector('.lt-sketch-words').innerText.includes('it is')"
    )
    root.get_by_role("button", name="Draw what you expect").click()
    page.page.keyboard.press("Delete")
    assert page.trait("sketched") == []


def test_a_widget_without_the_option_has_no_pad(page: Page) -> None:
    widget = LiveTraining("painted_picture", "FP16", seed=0, device="cpu")
    root = page.show(widget)
    widget.close()
    assert root.locator(".lt-pad, .lt-sketch-words").count() == 0


@pytest.mark.parametrize("step", [math.inf, 1.5, "1"])
def test_a_sketch_with_a_step_that_is_no_whole_number_is_refused(
    live: LiveTraining, step: object
) -> None:
    with pytest.raises(TraitError, match="expected pairs of a whole step and a loss above 0"):
        live.sketched = [[step, 1.0]]
    assert live.sketched == []


def test_a_sketch_is_part_of_the_state_that_is_saved(live: LiveTraining) -> None:
    live.sketched = SKETCH
    assert live.get_state("sketched")["sketched"] == SKETCH
    assert live.page_state()["sketched"] == SKETCH
    json.dumps(live.get_state("sketched"), allow_nan=False)
