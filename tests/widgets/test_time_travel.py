"""Return to an earlier step in a live training: repetition, other settings, ghosts."""

import json
import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from labkit.amp import RECIPES
from labkit.instrument import scale_map
from labkit.train import TASKS, TrainingRun, gradient_snapshot
from labkit.widgets import LiveTraining, Workbench
from labkit.widgets.driven.controller import Button, Phase
from labkit.widgets.live_training.checkpoints import Checkpoints, copy_bytes
from labkit.widgets.live_training.forked_run import GHOSTS, ForkedRun
from labkit.widgets.live_training.knobs import Knobs, Scaling

TASK = TASKS["painted_picture"]


def live(steps: int = 40, recipe: str = "FP16", **arguments: Any) -> ForkedRun:
    return LiveTraining(TASK, recipe, steps=steps, device="cpu", **arguments).forked_run


def ticked(run: ForkedRun, times: int) -> ForkedRun:
    run.handle(Button.START)
    for _ in range(times):
        run.tick()
    return run


def losses(steps: Any) -> list[float]:
    return [step.loss for step in steps]


def test_a_run_repeats_its_steps_bit_for_bit_after_going_back() -> None:
    run = ticked(live(recipe="FP16 static"), 33)
    before = losses(run.run.steps)
    for step in (27, 20, 0):
        run.handle(partial(run.go_back, step))
        assert run.phase == Phase.PAUSED
        assert run.run.done == step
        ticked(run, 33 - step)
        assert losses(run.run.steps) == before


def test_another_setting_after_going_back_is_a_new_branch() -> None:
    run = ticked(live(), 30)
    run.handle(partial(run.go_back, 15))
    run.handle(partial(run.turn, {"scaling": Scaling.STATIC}))
    ticked(run, 15)
    (ghost,) = run.ghosts
    assert ghost.origin == 15
    assert [step.step for step in ghost.steps] == list(range(16, 31))
    assert ghost.label == "FP16 without scaling"
    assert [(mark.step, mark.label) for mark in run.run.marks] == [(16, "scaling on, 2^10")]
    assert run.run.steps[-1].loss < 0.9 * ghost.steps[-1].loss


def test_a_branch_trains_as_a_run_that_changes_there() -> None:
    run = ticked(live(), 30)
    run.handle(partial(run.go_back, 15))
    run.handle(partial(run.turn, {"scaling": Scaling.STATIC}))
    ticked(run, 15)
    plain = TrainingRun(TASK, "FP16", 0, measure_every=0)
    expected = [plain.step().loss for _ in range(15)]
    plain.change(RECIPES["FP16 static"])
    expected += [plain.step().loss for _ in range(15)]
    assert losses(run.run.steps) == expected


def test_going_back_restores_the_knobs_of_a_step() -> None:
    run = ticked(live(), 12)
    run.handle(partial(run.turn, {"scaling": Scaling.STATIC, "log2_scale": 7}))
    ticked(run, 12)
    for step, scaling, marks in ((12, Scaling.STATIC, [13]), (11, Scaling.OFF, [])):
        run.handle(partial(run.go_back, step))
        # The knobs are those with which the next step was done.
        assert run.selected.wanted.scaling is scaling
        assert [mark.step for mark in run.run.marks] == marks


def test_invalid_steps_to_go_back_to_are_refused() -> None:
    run = live()
    run.handle(partial(run.go_back, 0))
    assert run.notice == "Not done: there is no step to go back to. Press Start first."
    ticked(run, 5)
    for step in (5, 6, -1, 1.5, "3", None):
        run.handle(partial(run.go_back, step))
        message = f"Not done: expected a whole step from 0 to 4 to go back to, got {step!r}"
        assert run.notice == message
    assert run.run.done == 5
    assert run.ghosts == []


@pytest.mark.parametrize("steps", [0, 1.5, "3", True])
def test_invalid_numbers_of_steps_of_a_widget_are_refused(steps: Any) -> None:
    with pytest.raises(ValueError, match="steps: expected a whole number from 1 on"):
        live(steps)


def test_a_custom_run_without_copies_cannot_go_back() -> None:
    class Plain:
        """A run that cannot be copied."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            self._run = TrainingRun(*arguments, **named)
            self.measure_every = 0

        def __getattr__(self, name: str) -> Any:
            if name in ("fork", "pictures"):
                raise AttributeError(name)
            return getattr(self._run, name)

    run = ticked(live(make_run=Plain), 3)
    assert run.run.done == 3
    assert run.error == ""
    run.handle(partial(run.go_back, 1))
    assert run.notice == "Not done: a run of your own needs a method fork() to go back."


class Fragile:
    """A run that fails once at the end of a step, after its weights have changed."""

    failed = False

    def __init__(self, task: Any, recipe: Any, *arguments: Any, **named: Any) -> None:
        self.__dict__["run"] = TrainingRun(task, recipe, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["run"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["run"], name, value)

    def fork(self) -> Any:
        return self.__dict__["run"].fork()

    def step(self) -> Any:
        done = self.__dict__["run"].step()
        if self.recipe.name == "FP32" and done.step == 8 and not Fragile.failed:
            Fragile.failed = True
            raise RuntimeError("out of memory")
        return done


def test_a_twin_that_failed_in_a_step_can_be_trained_again() -> None:
    Fragile.failed = False
    run = ticked(live(make_run=Fragile), 10)
    assert run.phase == Phase.FAILED
    assert run.run.done == 7
    assert run.error == "RuntimeError: out of memory."
    run.handle(partial(run.go_back, 5))
    ticked(run, 5)
    assert run.run.done == 10
    assert len(run.fp32.steps) == 10
    plain = TrainingRun(TASK, "FP32", 0, measure_every=0)
    assert losses(run.fp32.steps) == [plain.step().loss for _ in range(10)]


def test_the_sentence_at_step_0_after_going_back() -> None:
    widget = LiveTraining(TASK, "FP16", steps=40, device="cpu")
    run = ticked(widget.forked_run, 12)
    run.handle(partial(run.go_back, 0))
    assert widget.sentence.startswith("At step 0, before the first step: FP16 without scaling")
    assert "The faint curves are the runs that came after." in widget.sentence
    run.handle(Button.RESET)
    assert widget.sentence.startswith("Nothing has run yet.")
    widget.close()


def test_a_run_of_one_step_has_the_singular() -> None:
    widget = LiveTraining(TASK, "FP16", steps=1, device="cpu")
    assert "for 1 step." in widget.sentence
    widget.close()


@pytest.mark.parametrize("task", [None, 3])
def test_what_is_no_task_is_refused(task: Any) -> None:
    with pytest.raises(ValueError, match=rf"task: expected one of .*, or a Task, got {task}"):
        LiveTraining(task)


def test_an_unknown_press_or_position_is_refused() -> None:
    widget = LiveTraining(TASK, "FP16", steps=5, device="cpu")
    with pytest.raises(ValueError, match=r"press: expected one of 'start', .*, got 'go'"):
        widget.press("go")
    with pytest.raises(
        ValueError, match=r"scaling: expected one of 'off', 'static', 'dynamic', got 'nope'"
    ):
        widget.change(scaling="nope")
    widget.close()


def test_a_reset_keeps_ghosts_and_another_task_removes_them() -> None:
    run = ticked(live(), 3)
    for _ in range(GHOSTS + 2):
        run.handle(partial(run.go_back, 1))
        ticked(run, 2)
    assert len(run.ghosts) == GHOSTS
    run.handle(Button.RESET)
    assert len(run.ghosts) == GHOSTS
    run.handle(partial(run.choose, task=TASKS["digits"]))
    assert run.ghosts == []
    run.handle(partial(run.choose, task=TASK))
    assert run.ghosts == []


def test_ghosts_of_a_task_are_restored_with_its_run() -> None:
    run = ticked(live(), 3)
    run.handle(partial(run.go_back, 1))
    run.handle(partial(run.choose, task=TASKS["digits"]))
    assert run.ghosts == []
    run.handle(partial(run.choose, task=TASK))
    assert [ghost.origin for ghost in run.ghosts] == [1]


def test_frames_have_ghosts_with_their_settings() -> None:
    widget = LiveTraining(TASK, "FP16", steps=40, device="cpu")
    run = widget.forked_run
    sent = []
    run.send = lambda content, buffers: sent.append((content, buffers))
    ticked(run, 25)
    run.handle(widget.command({"do": "back", "step": 10}))
    run.post(urgent=True)
    content, buffers = sent[-1]
    (ghost,) = content["ghosts"]
    assert content["whole"]
    assert ghost["origin"] == 10
    assert ghost["label"] == "FP16 without scaling"
    points = np.frombuffer(buffers[ghost["buffer"]], "<f4").reshape(-1, 5)
    assert len(points) == 15
    assert points[0, 0] == np.float32(run.ghosts[0].steps[0].loss)
    json.dumps(content, allow_nan=False)
    run.post(urgent=True)
    assert len(sent[-1][1][ghost["buffer"]]) == 0, "points are sent once"
    widget.close()


def test_a_fork_of_a_later_step_becomes_a_ghost() -> None:
    bench = Workbench("digits", "O2", steps=30, device="cpu").forked_run
    ticked(bench, 12)
    bench.handle(partial(bench.fork_after, 8))
    ticked(bench, 3)
    bench.handle(partial(bench.go_back, 10))
    assert bench.fork is not None
    assert len(bench.ghosts) == 1
    bench.handle(partial(bench.go_back, 5))
    assert bench.fork is None
    assert [ghost.origin for ghost in bench.ghosts] == [10, 5, 8]


def test_going_back_before_a_nan_repairs_the_run() -> None:
    task = TASKS["autoencoder"]
    run = LiveTraining(task, "O3", steps=20, device="cpu").forked_run
    ticked(run, 6)
    assert math.isnan(run.run.steps[-1].loss)
    run.handle(partial(run.go_back, 0))
    run.handle(partial(run.turn, {"scaling": Scaling.STATIC}))
    ticked(run, 1)
    assert math.isfinite(run.run.steps[-1].loss)


# --- the map of scales ---


def map_of(content: Any, buffers: Any) -> Any:
    """Return the rows of a frame's map: the step, and two shares at each scale."""
    scales = len(content["map"]["log2_scales"])
    return np.frombuffer(buffers[content["map"]["buffer"]], "<f4").reshape(-1, 1 + 2 * scales)


def after_25_steps() -> tuple[LiveTraining, list[Any]]:
    """Return a training after 25 steps, and the list of its frames, which later ones join."""
    widget = LiveTraining(TASK, "FP16", steps=40, device="cpu")
    run = widget.forked_run
    sent: list[Any] = []
    run.send = lambda content, buffers: sent.append((content, buffers))
    ticked(run, 25)
    run.post(urgent=True)
    return widget, sent


def test_frames_have_the_map_of_loss_scales() -> None:
    widget, sent = after_25_steps()
    run = widget.forked_run
    rows = map_of(*sent[-1])
    assert rows[:, 0].tolist() == [1, 11, 21]
    exact = scale_map([gradient_snapshot(TrainingRun(TASK, "FP16", 0))], range(31))
    assert rows[0, 1:32] == pytest.approx(exact.lost[0], abs=1e-6)
    assert rows[0, 32:] == pytest.approx(exact.overflowing[0], abs=1e-6)
    for row, step in zip(rows, run.run.steps[::10], strict=True):
        assert row[1] == pytest.approx(step.underflow, abs=0.01), (
            "the share at a scale of 1 is not the measured one"
        )
    widget.close()


def test_the_map_of_scales_goes_back_with_the_run() -> None:
    widget, sent = after_25_steps()
    run = widget.forked_run
    run.handle(partial(run.go_back, 15))
    run.post(urgent=True)
    assert map_of(*sent[-1])[:, 0].tolist() == [1, 11]
    ticked(run, 10)
    run.post(urgent=True)
    # Rows that were sent before are not sent again.
    assert map_of(*sent[-1])[:, 0].tolist() == [21]
    widget.close()


def test_the_map_does_not_change_a_run() -> None:
    run = ticked(live(recipe="FP16 dynamic"), 22)
    plain = TrainingRun(TASK, "FP16 dynamic", 0)
    assert losses(run.run.steps) == [plain.step().loss for _ in range(22)]
    assert plain.exponents is None


# --- copies ---


class RunWithoutEngine:
    """A run without an engine, whose copies have no bytes that could be counted."""

    engine = None


def test_copies_are_thinned_out_to_the_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.widgets.live_training.checkpoints.copy_bytes", lambda run: 100)
    checkpoints = Checkpoints(every=10, most_bytes=1000)
    for step in range(1001):
        if checkpoints.is_due(step) or step == 123:
            checkpoints.keep(step, RunWithoutEngine(), Knobs(), change=step == 123)
    assert checkpoints.every == 160
    assert sorted(checkpoints.copies) == [0, 123, *range(160, 1001, 160)]
    assert len(checkpoints.regular()) * 100 <= 1000


def test_a_copy_at_a_change_is_never_removed() -> None:
    checkpoints = Checkpoints(most_bytes=0)
    for step in range(100):
        checkpoints.keep(step, RunWithoutEngine(), Knobs(log2_lr=step % 7), change=True)
    assert len(checkpoints.copies) == 100
    assert checkpoints.before(57)[1].log2_lr == 1
    assert sorted(checkpoints.until(3).copies) == [0, 1, 2, 3]


def test_without_a_copy_before_a_step_the_error_says_so() -> None:
    with pytest.raises(ValueError, match="expected a copy of step 4 or an earlier one"):
        Checkpoints().before(4)


def test_bytes_of_a_copy_are_those_of_its_engine() -> None:
    run = TrainingRun(TASKS["digits"], "O2")
    run.step()
    weights = sum(weight.numel() for weight in run.model.parameters())
    assert copy_bytes(run) >= weights * (2 + 4)
    assert copy_bytes(RunWithoutEngine()) == 0
