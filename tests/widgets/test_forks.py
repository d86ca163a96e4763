"""Recorded forks for pages that cannot train: runs in which a loss scale was switched on."""

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from labkit.amp import RECIPES
from labkit.instrument import merge
from labkit.train import TASKS, RunRecord, TrainingRun, gradient_snapshot, recorded
from labkit.widgets import LiveTraining
from labkit.widgets.live_training.forks import TASK, origin, recorded_forks, train_forks
from tests.widgets.pages import Page

# The run without a scale, and the forks of it.
BEFORE = recorded(TASK, "FP16", 0)
FORKS = recorded_forks(TASK, "FP16", 0)
EACH_FORK = pytest.mark.parametrize("fork", FORKS, ids=origin)


def test_a_fork_is_recorded_every_hundred_steps() -> None:
    assert [origin(fork) for fork in FORKS] == list(range(100, 1000, 100))


@EACH_FORK
def test_a_recorded_fork_has_the_steps_to_the_end(fork: RunRecord) -> None:
    assert [step.step for step in fork.steps] == list(range(origin(fork) + 1, 1001))


@EACH_FORK
def test_a_recorded_fork_has_one_scale(fork: RunRecord) -> None:
    assert {step.scale for step in fork.steps} == {1024.0}


@EACH_FORK
def test_a_recorded_fork_continues_the_run_without_a_scale(fork: RunRecord) -> None:
    """The scale affects the weights after this step, and so the loss of the next one."""
    assert fork.steps[0].loss == BEFORE.steps[origin(fork)].loss


@EACH_FORK
def test_a_recorded_fork_learns_what_the_run_does_not(fork: RunRecord) -> None:
    assert fork.steps[-1].loss < BEFORE.steps[-1].loss / 4
    assert fork.metric > BEFORE.metric + 0.3


def test_a_fork_equals_a_run_whose_scale_is_switched_on() -> None:
    run = TrainingRun(TASK, "FP16", 0)
    for _ in range(100):
        run.step()
    run.change(RECIPES["FP16 static"])
    fork = recorded_forks(TASK, "FP16", 0)[0]
    # The run was recorded on another processor, whose sums are in another order.
    for step in fork.steps[:5]:
        assert abs(run.step().loss / step.loss - 1) < 1e-3


def test_forks_of_a_short_task_reach_its_end() -> None:
    short = replace(TASKS[TASK], steps=30)
    *forks, _ = train_forks(short, every=10)
    assert [(origin(fork), fork.steps[-1].step) for fork in forks] == [(10, 30), (20, 30)]
    assert [picture.step for picture in forks[1].pictures] == [20, 21, 24, 27, 30]


def test_a_page_has_the_forks_of_its_run() -> None:
    live = LiveTraining(TASK, "FP16", seed=0, device="cpu")
    frame = live.page_state()["_frame"]
    content = frame["content"]
    buffers = frame["buffers"]
    assert [fork["origin"] for fork in content["forks"]] == list(range(100, 1000, 100))
    for fork, record in zip(content["forks"], recorded_forks(TASK, "FP16", 0), strict=True):
        points = np.frombuffer(decoded(buffers[fork["buffer"]]), "<f4").reshape(-1, 5)
        assert points[:, 0].tolist() == [np.float32(step.loss) for step in record.steps]
        assert fork["pictures"][-1]["step"] == 1000
    live.close()


def test_forks_have_histograms_of_their_gradients() -> None:
    short = replace(TASKS[TASK], steps=30)
    fork, _, whole = train_forks(short, every=10)
    assert [taken.step for taken in whole.snapshots] == [1, 11, 21]
    assert [taken.step for taken in fork.snapshots] == [11, 21]
    run = TrainingRun(short, "FP16", 0)
    exact = merge(gradient_snapshot(run).layers.values())
    (recorded_first,) = whole.snapshots[0].layers.values()
    for exponent in range(-60, 20):
        assert recorded_first.count(exponent, exponent) == exact.count(exponent, exponent)


class TestMaps:
    """The maps of lost gradients that a page has: of the run, and of each fork."""

    @pytest.fixture
    def frame(self) -> dict[str, Any]:
        live = LiveTraining(TASK, "FP16", seed=0, device="cpu")
        frame: dict[str, Any] = live.page_state()["_frame"]
        live.close()
        return frame

    def rows(self, frame: dict[str, Any], run: dict[str, Any]) -> NDArray[np.float32]:
        """Return a row for each mapped step: the step, and for each scale the shares lost."""
        columns = 1 + 2 * len(frame["content"]["map"]["log2_scales"])
        buffer = frame["buffers"][run["map"]["buffer"]]
        return np.frombuffer(decoded(buffer), "<f4").reshape(-1, columns)

    def test_every_tenth_step_of_the_run_is_mapped(self, frame: dict[str, Any]) -> None:
        assert self.rows(frame, frame["content"])[:, 0].tolist() == list(range(1, 1001, 10))

    def test_nearly_all_gradients_of_the_run_are_lost_at_a_scale_of_1(
        self, frame: dict[str, Any]
    ) -> None:
        assert self.rows(frame, frame["content"])[:, 1].min() > 0.99

    def test_the_map_of_a_fork_begins_with_its_first_step(self, frame: dict[str, Any]) -> None:
        for fork in frame["content"]["forks"]:
            assert self.rows(frame, fork)[0, 0] == fork["origin"] + 1

    def test_a_fork_loses_fewer_gradients_at_a_scale_of_2_16(self, frame: dict[str, Any]) -> None:
        for fork in frame["content"]["forks"]:
            rows = self.rows(frame, fork)
            # Column 1 + k is for a scale of 2^k.
            assert rows[:, 1 + 16].max() < 0.1, fork["origin"]
            assert rows[:, 1].min() > 0.1, fork["origin"]


@pytest.mark.parametrize(
    "arguments", [("digits", "FP16", 0), (TASK, "FP16", 1), (TASK, "FP16 static", 0)]
)
def test_a_run_without_recorded_forks_has_none(arguments: tuple[str, str, int]) -> None:
    live = LiveTraining(*arguments, device="cpu")
    frame = live.page_state()["_frame"]
    assert frame["content"]["forks"] == []
    assert decoded(frame["buffers"][frame["content"]["map"]["buffer"]]) == b""
    live.close()


def decoded(buffer: object) -> bytes:
    """Return the bytes of a buffer as a page gets it."""
    assert isinstance(buffer, dict)
    (text,) = buffer.values()
    return base64.b64decode(text)


def test_a_page_switches_the_scale_on_and_plays_the_fork(page: Page) -> None:
    live = LiveTraining(TASK, "FP16", seed=0)
    root = page.show(live)
    live.close()
    root.get_by_role("slider", name="Step").focus()
    for key in ("Home", "PageUp", "PageUp", "PageUp"):
        page.page.keyboard.press(key)
    scaling = root.locator(".run-record .lk-segment")
    scaling.filter(has_text="static").click()
    page.page.wait_for_selector(".labkit-live[data-marks='301: scaling on, 2^10']")
    root.get_by_role("button", name="Pause").click()
    sentence = root.locator(".lk-sentence").get_attribute("data-text")
    assert sentence is not None
    assert "with scaling on, 2^10 after step 300: R2 0.9" in sentence
    scaling.filter(has_text="off").click()
    page.page.wait_for_selector(".labkit-live[data-marks='']")
