"""Going back in a training: repeated steps, branches, knobs, and ghosts."""

import json
import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from labkit.amp import RECIPES
from labkit.train import TASKS, TrainingRun
from labkit.widgets import LiveTraining, Workbench
from labkit.widgets.driven.controller import Button, Phase
from labkit.widgets.live_training.forked_run import GHOSTS, ForkedRun
from labkit.widgets.live_training.knobs import Scaling
from tests.widgets.trainings import TASK, live, losses, ticked


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


@pytest.fixture
def haunted() -> ForkedRun:
    """A run that went back more often than it keeps ghosts."""
    run = ticked(live(), 3)
    for _ in range(GHOSTS + 2):
        run.handle(partial(run.go_back, 1))
        ticked(run, 2)
    return run


def test_a_run_keeps_the_last_ghosts(haunted: ForkedRun) -> None:
    assert len(haunted.ghosts) == GHOSTS


def test_a_reset_keeps_ghosts(haunted: ForkedRun) -> None:
    haunted.handle(Button.RESET)
    assert len(haunted.ghosts) == GHOSTS


def test_ghosts_of_a_run_that_was_reset_are_not_restored(haunted: ForkedRun) -> None:
    haunted.handle(Button.RESET)
    haunted.handle(partial(haunted.choose, task=TASKS["digits"]))
    haunted.handle(partial(haunted.choose, task=TASK))
    assert haunted.ghosts == []


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
