"""Two messages of one hand, in two threads: they take turns, and the last word stays the last."""

from __future__ import annotations

import io
import threading
from typing import cast

import pytest
from matplotlib.image import imread

from labkit.formats import FP16
from labkit.machine import Finding, Status
from labkit.widgets import BitExplorer, pulse
from labkit.widgets.base import widget as base
from labkit.widgets.base.widget import LabWidget


def message(content: object) -> dict[str, object]:
    """A custom message as ipywidgets gets it."""
    return {"content": {"data": {"method": "custom", "content": content}}, "buffers": []}


class Slow(LabWidget):
    """Says when it has begun, and goes on when it may."""

    _esm = "export default { render() {} }"

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.released = threading.Event(), threading.Event()
        self.inside: list[int] = []
        self.together = 0
        self.on_msg(self._work)

    def _work(self, _widget: object, number: int, _buffers: object) -> None:
        self.inside.append(number)
        self.together = max(self.together, len(self.inside))
        self.begun.set()
        assert self.released.wait(20)
        self.inside.remove(number)


def test_a_second_message_waits_for_the_first() -> None:
    widget = Slow()
    threads = [threading.Thread(target=widget._handle_msg, args=(message(n),)) for n in (1, 2)]
    threads[0].start()
    assert widget.begun.wait(20)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive()
    widget.released.set()
    for thread in threads:
        thread.join(20)
    assert (widget.together, widget.inside) == (1, [])


def test_what_was_overtaken_does_not_undo_what_came_after() -> None:
    bits = BitExplorer(FP16, 1.0)
    for number, text in ((1, "0x3"), (3, "0x3c01"), (2, "0x3c")):  # the third is late
        bits._handle_msg(message({"do": "type", "with": text, "from": ["page", number]}))
    assert (bits.text, bits.code) == ("0x3c01", 0x3C01)
    bits._handle_msg(message({"do": "flip", "with": 0, "from": ["page", 5]}))
    bits._handle_msg(message({"do": "step", "with": 1, "from": ["page", 4]}))  # late, and still to be done
    assert bits.code == 0x3C01
    assert bits._view["answered"] == ("page", 5)
    bits._handle_msg(message({"do": "type", "with": "2", "from": ["another page", 1]}))
    assert bits.text == "2"


VIEW = "application/vnd.jupyter.widget-view+json"


def shown(widget: LabWidget) -> dict[str, object]:
    bundle = widget._repr_mimebundle_()
    assert bundle is not None
    return bundle[0]


def test_a_page_that_shows_widgets_gets_one_and_its_picture_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "why_not_shown", lambda: None)
    bundle = shown(BitExplorer(FP16, 1.0))
    assert {VIEW, "text/plain", "image/png"} <= set(bundle)
    assert "text/html" not in bundle, "GitHub and nbconvert would take it before the picture"


def test_the_picture_has_no_background_and_suits_a_page_of_either_theme() -> None:
    picture = imread(io.BytesIO(cast(bytes, shown(BitExplorer(FP16, 1.0))["image/png"])))
    assert picture.shape[2] == 4
    assert picture[[0, 0, -1, -1], [0, -1, 0, -1], 3].max() == 0, "the corners let the page through"


def test_where_the_server_cannot_draw_them_the_cure_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Finding("widgets", Status.BAD, "no front end for <anywidget> in /hub", "`pip install anywidget`")
    monkeypatch.setattr(base, "why_not_shown", lambda: missing)
    for widget in (BitExplorer(FP16, 1.0), pulse(), Slow()):
        bundle = shown(widget)
        assert set(bundle) == {"text/plain", "text/html"}, "nothing that fails to be drawn"
        for kind, what in (("text/plain", "<anywidget>"), ("text/html", "&lt;anywidget&gt;")):
            assert f"Widgets cannot be shown here: no front end for {what} in /hub." in str(bundle[kind])
            assert "To mend it: `pip install anywidget`." in str(bundle[kind])
    assert "data:image/png;base64,iVBOR" in str(shown(BitExplorer(FP16, 1.0))["text/html"])
    assert "interactive widgets do not run here" in str(shown(Slow())["text/plain"])
