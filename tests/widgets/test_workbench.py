"""The workbench as a widget: its state, its page, and what it saves."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from labkit.train import RunRecord, load
from labkit.widgets.workbench.widget import Workbench
from tests.widgets.forked_runs import run_through


@pytest.fixture
def state_after_two_steps() -> Any:
    """The state of a workbench of SGD under O2."""
    widget = Workbench("digits", "O2", steps=24, device="cpu")
    run_through(widget.forked_run, 2)
    yield widget.state()
    widget.close()


def test_state_counts_the_bytes_of_both_runs(state_after_two_steps: Any) -> None:
    state = state_after_two_steps
    assert [row["name"] for row in state["memory"]] == ["FP32", "O2"]
    fp32, o2 = (row["bytes"] for row in state["memory"])
    assert o2[0] * 2 == fp32[0]
    assert o2[1] == fp32[0]


def test_state_says_why_a_knob_is_fixed(state_after_two_steps: Any) -> None:
    assert state_after_two_steps["fixed"] == {
        "epsilon": "this task is trained with SGD, which has no epsilon"
    }


def test_each_part_of_the_memory_is_read_aloud(page) -> None:
    widget = Workbench("digits", "O2", steps=24, device="cpu")
    root = page.show(widget)
    memory = widget.state()["memory"]
    widget.close()
    for row in memory:
        parts = root.get_by_role("group", name=row["name"], exact=True).get_by_role("img")
        labels = [part.get_attribute("aria-label") for part in parts.all()]
        assert labels == [t for t, held in zip(row["texts"], row["bytes"], strict=True) if held]


@pytest.fixture
def opened() -> Iterator[Callable[..., Workbench]]:
    """Open a workbench of digits, which is closed at the end of the test."""
    with ExitStack() as stack:

        def open_one(recipe: str, **settings: Any) -> Workbench:
            widget = Workbench("digits", recipe, steps=12, device="cpu", **settings)
            stack.callback(widget.close)
            return widget

        yield open_one


def test_state_names_the_format_of_products(opened: Callable[..., Workbench]) -> None:
    (branch,) = opened("FP8 delayed").state()["branches"]
    assert branch["name"] == "E4M3"
    assert branch["format"] == "E4M3"


def test_a_run_of_8_bit_products_counts_underflow(opened: Callable[..., Workbench]) -> None:
    run = run_through(opened("FP8 delayed").forked_run).run
    assert run.steps[0].underflow is not None


def test_a_refused_workbench_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    close = Workbench.close

    def noted_close(widget: Workbench) -> None:
        closed.append(widget)
        close(widget)

    monkeypatch.setattr(Workbench, "close", noted_close)
    with pytest.raises(ValueError, match="log2_scale: expected a whole number from 0 to 30"):
        Workbench("digits", "O2", device="cpu", knobs={"log2_scale": 31})
    assert [widget.comm for widget in closed] == [None]


@pytest.fixture
def saved_fork(opened: Callable[..., Workbench], tmp_path: Path) -> RunRecord:
    """The saved record of a fork after step 6, at twice the learning rate."""
    widget = opened("O2", folder=tmp_path)
    run = run_through(widget.forked_run)
    run.handle(partial(run.fork_after, 6))
    run.handle(partial(run.turn, {"log2_lr": 1}))
    run_through(run)
    run.handle(widget.command({"do": "save", "what": "record"}))
    assert run.notice.startswith("The record is in ")
    return load(tmp_path / "digits-fork-seed0.json")


def test_the_record_of_a_fork_has_the_steps_before_it(saved_fork: RunRecord) -> None:
    assert [step.step for step in saved_fork.steps] == list(range(1, 13))


def test_the_record_of_a_fork_names_its_origin(saved_fork: RunRecord) -> None:
    assert saved_fork.recipe == (
        "FP16 with dynamic scaling and 2 times the learning rate; forked after step 6 from O2"
    )


def test_the_record_of_a_fork_has_its_memory(saved_fork: RunRecord) -> None:
    assert saved_fork.memory["master weights"] > 0


def test_the_picture_of_a_fork_is_saved_beside_its_record(
    opened: Callable[..., Workbench], tmp_path: Path
) -> None:
    widget = opened("O2", folder=tmp_path)
    run_through(widget.forked_run)
    widget.forked_run.handle(partial(widget.forked_run.fork_after, 6))
    run_through(widget.forked_run)
    widget.save("picture")
    assert (tmp_path / "digits-fork-seed0.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("what", ["record", "picture"])
def test_what_cannot_be_saved_leaves_the_run_as_it_is(
    opened: Callable[..., Workbench], tmp_path: Path, what: str
) -> None:
    folder = tmp_path / "a file"
    folder.touch()
    widget = opened("O2", folder=folder)
    run_through(widget.forked_run, steps=2)
    phase = widget.phase
    widget.forked_run.handle(widget.command({"do": "save", "what": what}))
    assert widget.forked_run.notice.startswith("Not done: ")
    assert "a file" in widget.forked_run.notice
    assert widget.phase is phase
