"""The base of every widget: assets, tours, messages, and the pulse."""

import math
import re
import threading
from collections.abc import Callable
from pathlib import Path

import jupyter_client
import pytest
import torch
from traitlets import TraitError

from labkit.instrument import snapshot
from labkit.machine import Finding, Status, front_end
from labkit.widgets import MmaBlock, Pulse, ScalerTimeline, UnderflowHistogram, Workbench, pulse
from labkit.widgets.base import widget as base
from labkit.widgets.base.widget import FOLDERS, LabWidget, page_style, script
from labkit.widgets.pulse import widget as late

SCRIPTS = {
    (folder.name, file.name): file.read_text(encoding="utf-8")
    for folder in FOLDERS.iterdir()
    if folder.is_dir()
    for file in folder.iterdir()
    if file.name.endswith(".js")
}
WIDGETS = sorted(folder for folder, file in SCRIPTS if file == "view.js")
GUIDED: dict[str, Callable[[], LabWidget]] = {
    "underflow": lambda: UnderflowHistogram(
        snapshot({"conv": torch.tensor([2.0**-30, 1.0])}, step=0, kind="weight gradients")
    ),
    "mma_block": MmaBlock,
    "workbench": lambda: Workbench("digits", "O2", steps=5, device="cpu"),
}


KEYFRAMES = """() => [...[...document.styleSheets].at(-1).cssRules]
  .filter((rule) => rule instanceof CSSKeyframesRule).map(({ name }) => name)"""


def test_every_animation_has_its_keyframes(page) -> None:
    """A browser drops keyframes that are nested in another rule."""
    animated = set()
    for folder in WIDGETS:
        sheet = page_style(folder)
        used = set(re.findall(r"animation: ([\w-]+) [^!]", sheet))
        page.page.add_style_tag(content=sheet)
        assert set(page.page.evaluate(KEYFRAMES)) == used, folder
        animated |= used
    assert animated == {"lk-ring", "mm-falls", "wk-carried"}


def test_worked_example_of_a_tour() -> None:
    board = MmaBlock("ones", "H100")
    board.tour_step = 0
    assert board.preset == "1 and small terms"
    assert board.gpu == "V100"
    assert board.knob == -22
    board.tour_step = 2
    assert board.knob == -24
    lost = board.value
    board.tour_step = 4
    # The H100 keeps the terms that the V100 loses.
    assert lost == 1.0
    assert board.value > 1.0
    # The end of a tour changes nothing.
    board.tour_step = -1
    assert board.gpu == "H100"


def test_a_step_of_a_tour_may_press_a_button() -> None:
    bench = GUIDED["workbench"]()
    pressed: list[object] = []
    bench.controller.ask = pressed.append
    for step in range(len(bench.tour)):
        bench.tour_step = step
    bench.close()
    assert [str(button) for button in pressed] == ["step"]


def test_every_tour_is_tested_here() -> None:
    assert {path.parent.name for path in Path(str(FOLDERS)).glob("*/tour.toml")} == set(GUIDED)


def test_tours_are_short_and_point_at_existing_elements() -> None:
    for name in GUIDED:
        page = script(name)
        steps = base.tour_of(name)
        assert len(steps) in base.TOUR_LENGTHS
        for step in steps:
            assert len(step["text"]) < 160
            for word in re.findall(r"\.([\w-]+)", step["ring"]):
                assert re.search(rf'["\s]{word}["\s]', page), (
                    f"no element of {name} has the class {word}"
                )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (['text = "a"\nring = "b"'] * 4, "expected 5 to 8 steps, got 4"),
        (['text = "a"\nring = "b"'] * 4 + ['text = "a"'], "step 5: expected text, ring"),
        (['text = "a"\nring = "b"\nmark = "c"'] * 5, "step 1: .*, got text, ring, mark"),
    ],
)
def test_a_tour_of_another_form_is_refused(tmp_path, monkeypatch, texts, message) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "tour.toml").write_text("\n".join(f"[[step]]\n{text}" for text in texts))
    monkeypatch.setattr(base, "FOLDERS", tmp_path)
    with pytest.raises(ValueError, match=message):
        base.tour_of.__wrapped__("toy")


def test_a_step_beyond_the_end_of_a_tour_is_refused() -> None:
    for name, make in GUIDED.items():
        widget = make()
        end = len(base.tour_of(name))
        with pytest.raises(TraitError, match=f"got {end}"):
            widget.tour_step = end
        assert widget.tour_step == -1
        widget.close()


def message(content: object) -> dict[str, object]:
    """Return a custom message as ipywidgets receives it."""
    return {"content": {"data": {"method": "custom", "content": content}}, "buffers": []}


class Slow(LabWidget):
    """A widget whose work on a message starts an event and waits for another."""

    _esm = "export default { render() {} }"

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.released = threading.Event()
        self.inside: list[int] = []
        self.together = 0
        self.on_msg(self._work)

    def _work(self, _widget: object, number: int, _buffers: object) -> None:
        self.inside.append(number)
        self.together = max(self.together, len(self.inside))
        self.begun.set()
        assert self.released.wait(120)
        self.inside.remove(number)


def test_a_second_message_waits_for_the_first() -> None:
    widget = Slow()
    threads = [threading.Thread(target=widget._handle_msg, args=(message(n),)) for n in (1, 2)]
    threads[0].start()
    assert widget.begun.wait(120)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive()
    widget.released.set()
    for thread in threads:
        thread.join(120)
    assert widget.together == 1
    assert widget.inside == []


def shown(widget: LabWidget) -> dict[str, object]:
    bundle = widget._repr_mimebundle_()
    assert bundle is not None
    return bundle[0]


@pytest.fixture
def no_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JupyterLab that cannot show widgets."""
    missing = Finding(
        "widgets", Status.BAD, "no front end for <anywidget> in /hub", "`pip install anywidget`"
    )
    monkeypatch.setattr(base, "why_not_shown", lambda: missing)


@pytest.mark.usefixtures("no_front_end")
def test_a_missing_front_end_is_named_with_its_remedy() -> None:
    for widget in (ScalerTimeline(), pulse(), Slow()):
        bundle = shown(widget)
        # No view of a widget is sent, which the page could not draw.
        assert set(bundle) == {"text/plain", "text/html"}
        for mime, package in (("text/plain", "<anywidget>"), ("text/html", "&lt;anywidget&gt;")):
            text = str(bundle[mime])
            assert f"Widgets cannot be shown here: no front end for {package} in /hub." in text
            assert "To mend it: `pip install anywidget`." in text


@pytest.mark.usefixtures("no_front_end")
def test_without_a_front_end_a_widget_shows_its_picture() -> None:
    assert "data:image/png;base64,iVBOR" in str(shown(ScalerTimeline())["text/html"])


@pytest.mark.usefixtures("no_front_end")
def test_without_a_front_end_a_widget_of_no_picture_says_so() -> None:
    assert "interactive widgets do not run here" in str(shown(Slow())["text/plain"])


def test_a_pulse_returns_each_number(monkeypatch):
    sent = []
    widget = pulse()
    monkeypatch.setattr(Pulse, "send", lambda _self, content: sent.append(content))
    widget._handle_custom_msg({"ping": 7}, [])
    widget._handle_custom_msg({"ping": 8}, [])
    assert sent == [{"pong": 7}, {"pong": 8}]


def test_a_pulse_is_alive_once_the_browser_has_measured_it():
    widget = pulse()
    assert not widget.alive
    widget.set_state({"round_trip_ms": 4.2})
    assert widget.alive


def test_a_page_without_widgets_has_the_remedies_of_a_pulse():
    data, _ = pulse()._repr_mimebundle_()
    assert data["text/plain"] == "\n".join(late.WHAT_TO_DO)
    for line in late.WHAT_TO_DO:
        assert line in data["text/html"]
    assert "make lab" in data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in data


class Loop:
    """An event loop whose time a test sets; calls that are due run at once, however late."""

    def __init__(self, answered=math.inf):
        self.time = 0.0
        self.due = []
        self.warnings = []
        late.warn_at_deadline(
            lambda: self.time > answered,
            lambda: self.warnings.append(self.time),
            self.call_later,
            lambda: self.time,
        )

    def call_later(self, seconds, call):
        self.due.append((self.time + seconds, call))

    def warnings_at(self, time):
        """Set the time, run what is due, and return the times of all warnings so far."""
        self.time = time
        now, self.due = self.due, []
        for due, call in now:
            call() if due <= time else self.due.append((due, call))
        return self.warnings


def test_a_silent_page_is_reported_once_at_the_deadline():
    silent = Loop()
    assert silent.warnings_at(late.SECONDS - 0.1) == []
    assert silent.warnings_at(late.SECONDS) == [late.SECONDS]
    assert silent.warnings_at(10 * late.SECONDS) == [late.SECONDS]


def test_a_page_that_answers_is_not_reported():
    answered = Loop(answered=3)
    assert answered.warnings_at(late.SECONDS) == []
    assert answered.due == []


def test_the_deadline_begins_when_the_kernel_is_idle_again():
    """A cell ran for a minute, so the answer of the page may still be in the queue."""
    busy = Loop()
    assert busy.warnings_at(60.0) == []
    assert busy.warnings_at(60.0 + late.SECONDS) == [60.0 + late.SECONDS]


def test_the_remedy_for_a_silent_page_depends_on_the_host(monkeypatch):
    monkeypatch.setattr(front_end, "why_not_shown", lambda: None)
    for hosted, remedy in (
        (None, "it with `labkit lab`"),
        ("VS Code", "widgetScriptSources"),
        ("Colab", "Colab loads"),
    ):
        finding = front_end.silent(15, hosted)
        assert finding.status is Status.BAD
        assert "has not answered for 15 s" in finding.what
        assert remedy in finding.remedy


def test_a_known_reason_explains_a_silent_page(monkeypatch):
    missing = Finding(
        "widgets", Status.BAD, "no front end for anywidget in /hub", "`pip install anywidget`"
    )
    monkeypatch.setattr(front_end, "why_not_shown", lambda: missing)
    assert front_end.silent(15) is missing


# Slow, because it starts a kernel.
@pytest.mark.slow
def test_verdict_disappears_when_the_page_answers():
    with jupyter_client.run_kernel() as kernel:
        kernel.execute(
            "from labkit.widgets.pulse import widget\nwidget.SECONDS, pulse = 0.2, widget.pulse"
        )
        kernel.execute("w = pulse()\nw", allow_stdin=True)

        def next_message(message_type):
            while True:
                message = kernel.get_iopub_msg(timeout=60)
                if message["msg_type"] == message_type:
                    return message["content"]
                assert message["msg_type"] != "error", message["content"]

        display_id = next_message("display_data")["transient"]["display_id"]
        verdict = next_message("update_display_data")
        assert verdict["transient"]["display_id"] == display_id
        assert "has not answered for 0.2 s" in verdict["data"]["text/plain"]
        kernel.execute("w._handle_custom_msg({'ping': 1}, [])")
        empty = next_message("update_display_data")
        assert empty["transient"]["display_id"] == display_id
        assert empty["data"]["text/html"] == ""
