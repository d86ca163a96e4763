"""Outputs that wait for a prediction: which cells are marked, and until when."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from labkit.widgets import predict

# By `import`, `labkit.widgets.predict` would be the function of this name.
waiting = import_module("labkit.widgets.predict.waiting")
widget = import_module("labkit.widgets.predict.widget")


class Shell:
    """A stand-in for IPython's shell: the running request, and callbacks before a cell."""

    def __init__(self) -> None:
        self.kernel = self.events = self
        self.callbacks: dict[str, list[Any]] = {"pre_run_cell": []}
        self.metadata: dict[str, Any] = {}
        self.shown: list[str] = []

    def get_parent(self, channel: str) -> dict[str, Any]:
        assert channel == "shell"
        return {"metadata": self.metadata}

    def register(self, event: str, call: Any) -> None:
        self.callbacks[event].append(call)

    def run(self, *tags: str) -> list[str]:
        """Run a cell with these tags; return the elements that its output begins with."""
        self.metadata = {"tags": list(tags)} if tags else {}
        self.shown = []
        for call in self.callbacks["pre_run_cell"]:
            call(None)
        return self.shown


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    shell = Shell()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(waiting, "get_ipython", lambda: shell)
    monkeypatch.setattr(waiting, "_open", set())
    monkeypatch.setattr(waiting, "display", lambda data, raw: shell.shown.append(data["text/html"]))
    monkeypatch.setattr(widget, "current_journal", lambda: tmp_path / "answers.jsonl")
    return shell


def test_only_outputs_that_answer_an_open_question_are_marked(shell: Shell) -> None:
    predict("scaling.order")
    mark = '<div class="labkit-waits labkit-waits-scaling-order"></div>'
    assert shell.run("claim-C33", "answer-scaling.order") == [mark]
    assert shell.run("answer-scaling.trap") == []
    assert shell.run() == []


def test_nothing_is_marked_after_the_answer(shell: Shell) -> None:
    question = predict("scaling.order")
    question.choice = "2^-27"
    assert shell.run("answer-scaling.order") == []
    assert predict("scaling.order").choice == "2^-27"
    assert shell.run("answer-scaling.order") == []


def test_a_cell_that_answers_two_questions_waits_for_both(shell: Shell) -> None:
    first = predict("master.ten")
    predict("master.first", lambda: 5.0)
    tags = ("answer-master.ten", "answer-master.first")
    assert shell.run(*tags) == [
        '<div class="labkit-waits labkit-waits-master-ten labkit-waits-master-first"></div>'
    ]
    first.choice = first.choices[0]
    assert shell.run(*tags) == ['<div class="labkit-waits labkit-waits-master-first"></div>']


def test_a_question_that_runs_twice_marks_once(shell: Shell) -> None:
    predict("scaling.order")
    predict("scaling.order")
    assert len(shell.run("answer-scaling.order")) == 1


def test_odd_metadata_marks_nothing(shell: Shell) -> None:
    predict("scaling.order")
    for metadata in ({"tags": None}, {"tags": "answer-scaling.order"}, {"tags": [3]}, {}):
        shell.metadata, shell.shown = metadata, []
        for call in shell.callbacks["pre_run_cell"]:
            call(None)
        assert shell.shown == []


def test_outside_of_a_kernel_nothing_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "get_ipython", lambda: None)
    monkeypatch.setattr(waiting, "_open", set())
    waiting.wait_for("scaling.order")
    assert waiting._open == set()
