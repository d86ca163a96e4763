"""Copies of a run to go back to, and their limit of bytes."""

import pytest

from labkit.train import TASKS, TrainingRun
from labkit.widgets.live_training.checkpoints import Checkpoints, copy_bytes
from labkit.widgets.live_training.knobs import Knobs


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
