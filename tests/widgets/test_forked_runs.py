"""Runs and their forks: changes, tasks, and frames."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from labkit.amp import RECIPES, static
from labkit.train import TASKS, TrainingRun, train
from labkit.widgets.driven.controller import Button, Phase
from labkit.widgets.live_training.forked_run import ForkedRun
from labkit.widgets.live_training.words import names, sentence
from tests.widgets.forked_runs import DIGITS, bench_of, losses, run_through


def test_a_refused_change_has_a_notice() -> None:
    bench = bench_of("O1")
    bench.handle(partial(bench.turn, {"masters": "forgotten"}))
    assert (
        bench.notice
        == "Not done: under autocast the weights are FP32 themselves, and their own master"
    )


def test_a_fork_before_the_first_step_is_refused() -> None:
    bench = bench_of("O1")
    bench.handle(partial(bench.fork_after, 3))
    assert bench.notice.startswith("Not done: a fork needs a run to leave")


def test_the_run_of_a_recipe_trains_as_train_does() -> None:
    bench = run_through(bench_of("O2", "small_targets"))
    expected = train(TASKS["small_targets"], RECIPES["O2"], steps=24)
    assert losses(bench.run.steps) == losses(expected.steps)


def test_the_reference_run_trains_as_train_does() -> None:
    bench = run_through(bench_of("O2", "small_targets"))
    expected = train(TASKS["small_targets"], RECIPES["FP32"], steps=24)
    assert losses(bench.fp32.steps) == losses(expected.steps)


@pytest.fixture(scope="module")
def unchanged_fork() -> ForkedRun:
    """A finished run with a finished fork after step 13, whose knobs are those of the run."""
    bench = run_through(bench_of("O2", "small_targets"))
    bench.handle(partial(bench.fork_after, 13))
    return run_through(bench)


def test_a_run_pauses_at_its_fork() -> None:
    bench = run_through(bench_of("O2", "small_targets"))
    bench.handle(partial(bench.fork_after, 13))
    assert bench.phase is Phase.PAUSED


def test_a_fork_has_the_steps_after_its_origin(unchanged_fork: ForkedRun) -> None:
    assert [step.step for step in unchanged_fork.fork.steps] == list(range(14, 25))


def test_a_fork_without_a_change_trains_as_its_run(unchanged_fork: ForkedRun) -> None:
    assert losses(unchanged_fork.fork.steps) == losses(unchanged_fork.run.steps[13:])


def test_the_sentence_states_that_the_losses_of_a_fork_are_the_same(
    unchanged_fork: ForkedRun,
) -> None:
    assert "Up to step 24 every loss is the same, bit for bit." in sentence(unchanged_fork)


@pytest.fixture
def faster_run() -> ForkedRun:
    """A finished run whose learning rate was raised to four times after step 8."""
    bench = run_through(bench_of("FP16 static"), steps=8)
    bench.handle(partial(bench.turn, {"log2_lr": 2}))
    return run_through(bench)


def test_a_turned_knob_is_marked_on_the_run(faster_run: ForkedRun) -> None:
    assert [(mark.step, mark.label) for mark in faster_run.run.marks] == [(9, "learning rate × 4")]


@pytest.mark.parametrize(("step", "exponent"), [(7, 0), (15, 2)])
def test_a_fork_has_the_knobs_of_its_step(faster_run: ForkedRun, step: int, exponent: int) -> None:
    faster_run.handle(partial(faster_run.fork_after, step))
    assert faster_run.selected.wanted.log2_lr == exponent


def test_a_fork_after_a_turned_knob_trains_as_its_run(faster_run: ForkedRun) -> None:
    faster_run.handle(partial(faster_run.fork_after, 15))
    run_through(faster_run)
    assert losses(faster_run.fork.steps) == losses(faster_run.run.steps[15:])


def test_a_fork_after_a_part_of_a_step_is_refused() -> None:
    bench = run_through(bench_of("FP16 static"), steps=4)
    bench.handle(partial(bench.fork_after, 2.5))
    assert bench.notice == "Not done: a fork: expected a whole step from 0 to 4, got 2.5"
    assert bench.fork is None


def test_a_fork_may_have_another_learning_rate() -> None:
    bench = run_through(bench_of("FP32"))
    bench.handle(partial(bench.fork_after, 5))
    bench.handle(partial(bench.turn, {"log2_lr": -1}))
    run_through(bench)
    run = TrainingRun(DIGITS, RECIPES["FP32"], measure_every=0)
    for step in range(24):
        if step == 5:
            run.engine.optimizer.param_groups[0]["lr"] /= 2
        loss = run.step().loss
    assert bench.fork.steps[-1].loss == loss


def test_another_format_begins_a_fork_again() -> None:
    bench = run_through(bench_of("O2"), steps=9)
    bench.handle(partial(bench.fork_after, 4))
    assert names(bench) == ["O2", "fork"]
    bench.handle(partial(bench.turn, {"format": "BF16"}))
    assert bench.fork.origin == 4
    run_through(bench)
    assert bench.fork.run.recipe.model.name == "BF16"


def test_another_format_begins_a_run_again_without_its_fork() -> None:
    bench = run_through(bench_of("O2"), steps=9)
    bench.handle(partial(bench.fork_after, 4))
    run_through(bench)
    bench.handle(partial(bench.choose, branch=0))
    bench.handle(partial(bench.turn, {"autocast": True}))
    assert bench.fork is None
    assert bench.run.done == 0
    assert len(bench.previous) == 24
    assert bench.notice.startswith("Another format is another run")


class Left(NamedTuple):
    """A workbench that came back to a paused run, and what it had before."""

    bench: ForkedRun
    fork: Any
    steps: list[Any]
    fp32: Any


@pytest.fixture
def left() -> Left:
    """A run of digits, paused after step 5 in a fork, which was left for another task."""
    bench = run_through(bench_of("O2"), 5)
    bench.handle(partial(bench.fork_after, 3))
    bench.handle(partial(bench.turn, {"log2_lr": -1}))
    bench.handle(Button.START)
    before = Left(bench, bench.fork, list(bench.run.steps), bench.fp32)
    bench.handle(partial(bench.choose, task=TASKS["small_targets"]))
    run_through(bench, 2)
    bench.handle(partial(bench.choose, task=DIGITS))
    return before


def test_a_run_is_kept_while_another_task_is_chosen(left: Left) -> None:
    assert left.bench.run.steps == left.steps


def test_a_fork_is_kept_while_another_task_is_chosen(left: Left) -> None:
    assert left.bench.fork == left.fork


def test_the_reference_run_is_kept_while_another_task_is_chosen(left: Left) -> None:
    assert left.bench.fp32 == left.fp32


def test_a_run_that_is_chosen_again_is_paused(left: Left) -> None:
    assert left.bench.phase is Phase.PAUSED


def test_the_notice_states_that_a_run_is_as_it_was_left(left: Left) -> None:
    assert left.bench.notice == "Your run of digits is as you left it, after step 5."


def test_a_run_that_is_chosen_again_runs_to_its_end(left: Left) -> None:
    assert run_through(left.bench).phase is Phase.FINISHED


def test_each_task_keeps_a_run_of_its_own() -> None:
    bench = run_through(bench_of("O2"), 5)
    bench.handle(partial(bench.choose, task=TASKS["small_targets"]))
    run_through(bench, 2)
    bench.handle(partial(bench.choose, task=DIGITS))
    assert bench.run.done == 5
    bench.handle(partial(bench.choose, task=TASKS["small_targets"]))
    assert bench.run.done == 2


def test_a_task_chosen_with_a_recipe_begins_with_it() -> None:
    bench = run_through(bench_of("O2"), 5)
    bench.handle(partial(bench.choose, task=TASKS["small_targets"]))
    bench.handle(partial(bench.choose, task=DIGITS, recipe=RECIPES["FP32"]))
    assert bench.selected.wanted.format == "FP32"


def test_nothing_is_chosen_with_a_recipe_without_knobs() -> None:
    bench = run_through(bench_of("O2"), 5)
    bench.handle(partial(bench.fork_after, 3))
    odd = replace(RECIPES["FP16"], scaler=static(1000.0))
    bench.handle(partial(bench.choose, task=TASKS["small_targets"], recipe=odd, branch=0))
    assert "starts at 1000" in bench.notice
    assert bench.task is DIGITS
    assert bench.active == 1


# The buffers of the two branches in a frame: rows of numbers in FP32.
OF_RUN, OF_FORK = 4, 5
NUMBERS_OF_A_ROW = 5


def row_count(buffer: bytes) -> int:
    return np.frombuffer(buffer, "<f4").reshape(-1, NUMBERS_OF_A_ROW).shape[0]


def test_frames_have_each_step_once() -> None:
    bench = bench_of("O2")
    sent = []
    bench.send = lambda content, buffers: sent.append((content, buffers))
    run_through(bench, 5)
    bench.post(urgent=True)
    run_through(bench, 9)
    bench.post(urgent=True)
    assert [row_count(buffers[OF_RUN]) for _, buffers in sent] == [5, 4]


def test_the_frame_after_a_fork_has_all_steps() -> None:
    bench = bench_of("O2")
    sent = []
    bench.send = lambda content, buffers: sent.append((content, buffers))
    run_through(bench, 9)
    bench.post(urgent=True)
    bench.handle(partial(bench.fork_after, 3))
    bench.post(urgent=True)
    content, buffers = sent[-1]
    assert content["whole"]
    assert row_count(buffers[OF_RUN]) == 9
    assert row_count(buffers[OF_FORK]) == 0
