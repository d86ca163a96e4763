"""The pulse: it answers the browser's number with the same number, and is silent about life until it was heard."""

import pytest

from labkit.widgets import Pulse, pulse
from labkit.widgets.pulse.widget import WHAT_TO_DO


@pytest.fixture
def sent(monkeypatch):
    """What the kernel sends to the browser."""
    messages = []
    monkeypatch.setattr(Pulse, "send", lambda _self, content: messages.append(content))
    return messages


def test_a_number_comes_back(sent):
    widget = pulse()
    widget._handle_custom_msg({"ping": 7}, [])
    widget._handle_custom_msg({"ping": 8}, [])
    assert sent == [{"pong": 7}, {"pong": 8}]


def test_it_is_alive_only_after_the_browser_has_measured():
    widget = pulse()
    assert not widget.alive
    widget.set_state({"round_trip_ms": 4.2})
    assert widget.alive


def test_without_widgets_words_say_what_to_do():
    data, _ = pulse()._repr_mimebundle_()
    assert data["text/plain"] == "\n".join(WHAT_TO_DO)
    for line in WHAT_TO_DO:
        assert line in data["text/html"]
    assert "make lab" in data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in data
