"""The pulse: it answers the browser's number with the same number, and is silent about life until it was answered."""

import jupyter_client
import pytest

from labkit.machine import Finding, Status, front_end
from labkit.widgets import Pulse, pulse
from labkit.widgets.pulse import widget as late


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
    assert not widget.alive, "the browser has not measured yet"
    widget.set_state({"round_trip_ms": 4.2})
    assert widget.alive


def test_without_widgets_words_say_what_to_do():
    data, _ = pulse()._repr_mimebundle_()
    assert data["text/plain"] == "\n".join(late.WHAT_TO_DO)
    for line in late.WHAT_TO_DO:
        assert line in data["text/html"]
    assert "make lab" in data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in data


# A page that never answers


class Loop:
    """An event loop whose time a test sets: what is due is called at once, however late that is."""

    def __init__(self):
        self.time, self.due = 0.0, []

    def call_later(self, seconds, call):
        self.due.append((self.time + seconds, call))

    def go_on_to(self, time):
        self.time = time
        now, self.due = self.due, []
        for due, call in now:
            call() if due <= time else self.due.append((due, call))


@pytest.fixture
def loop():
    return Loop()


def expected(loop, answered=lambda: False):
    said = []
    late.expect(answered, lambda: said.append(loop.time), loop.call_later, lambda: loop.time)
    return said


def test_a_silent_page_is_told_of_at_the_deadline_and_once(loop):
    said = expected(loop)
    loop.go_on_to(late.SECONDS - 0.1)
    assert said == []
    loop.go_on_to(late.SECONDS)
    loop.go_on_to(10 * late.SECONDS)
    assert said == [late.SECONDS]
    answered = Loop()
    assert expected(answered, answered=lambda: answered.time > 3) == []
    answered.go_on_to(late.SECONDS)
    assert answered.due == []


def test_a_kernel_that_was_busy_heard_nobody_and_asks_again(loop):
    """A cell that ran for a minute: what the page sent waits behind the deadline."""
    said = expected(loop)
    loop.go_on_to(60.0)
    assert said == []
    loop.go_on_to(60.0 + late.SECONDS)
    assert said == [60.0 + late.SECONDS]


def test_what_to_do_with_a_silent_page_depends_on_who_shows_it(monkeypatch):
    monkeypatch.setattr(front_end, "why_not_shown", lambda: None)
    for hosted, says in ((None, "it with `labkit lab`"), ("VS Code", "widgetScriptSources"), ("Colab", "Colab loads")):
        finding = front_end.silent(15, hosted)
        assert finding.status is Status.BAD
        assert "has not answered for 15 s" in finding.what
        assert says in finding.remedy
    missing = Finding("widgets", Status.BAD, "no front end for anywidget in /hub", "`pip install anywidget`")
    monkeypatch.setattr(front_end, "why_not_shown", lambda: missing)
    assert front_end.silent(15) is missing, "where the reason is known, it is said"


@pytest.mark.slow  # starts a kernel
def test_the_verdict_stands_in_the_cell_s_own_output_after_the_cell_and_goes_when_the_page_is_heard():
    with jupyter_client.run_kernel() as kernel:
        kernel.execute("from labkit.widgets.pulse import widget\nwidget.SECONDS, pulse = 0.2, widget.pulse")
        kernel.execute("w = pulse()\nw", allow_stdin=True)

        def said(kind):
            while True:  # each message is waited for
                message = kernel.get_iopub_msg(timeout=60)
                if message["msg_type"] == kind:
                    return message["content"]
                assert message["msg_type"] != "error", message["content"]

        place = said("display_data")["transient"]["display_id"]
        verdict = said("update_display_data")
        assert verdict["transient"]["display_id"] == place
        assert "has not answered for 0.2 s" in verdict["data"]["text/plain"]
        kernel.execute("w._handle_custom_msg({'ping': 1}, [])")
        empty = said("update_display_data")
        assert (empty["transient"]["display_id"], empty["data"]["text/html"]) == (place, "")
