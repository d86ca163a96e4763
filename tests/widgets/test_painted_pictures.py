"""The pictures that networks paint, beside a live training."""

from typing import Any

from tests.widgets.pages import Scripts

FOLDERS = ("live_training",)
# Shows states one after the other, and returns the pixels that are drawn after each. The elements
# are those of a page only as far as the pictures need them.
DRAWN = """(states) => {
  globalThis.document = {
    createElement: () => ({
      children: [],
      style: {},
      append(...added) { this.children.push(...added); },
      replaceChildren(...all) { this.children = all; },
      setAttribute() {},
      getContext() {
        return {
          createImageData: (wide, high) => ({ data: new Uint8ClampedArray(4 * wide * high) }),
          putImageData: (image) => { this.shade = image.data[0]; },
        };
      },
    }),
  };
  const pictures = resultPictures();
  return states.map((state) => {
    pictures.show(state);
    return pictures.element.children.map((shown) => shown.children[0].shade);
  });
}"""


def state(pixels: str) -> dict[str, Any]:
    """Return the state of a recorded run that painted a picture of one pixel, in base64."""
    picture = {"step": 10, "height": 1, "width": 1, "pixels": pixels}
    runs = [{"name": "FP16", "pictures": [picture]}]
    result = {"wanted": {**picture, "pixels": "/w=="}, "runs": runs}
    return {"result": result, "step": 0, "recorded": "on a machine", "total": 10}


def test_another_record_of_the_same_name_and_step_is_drawn(js: Scripts) -> None:
    """A knob that is turned before the first step changes the record, but not the run's name."""
    assert js.run(DRAWN, [state("AA=="), state("gA==")]) == [[0, 255], [128, 255]]
