"""Recorded trainings whose loss scale was switched on at some step, for pages that cannot train.

Idea: on a page of the site the learner cannot switch scaling on while a run trains. So the run was forked at every
hundredth step, and each fork trained on with a static scale. A page plays the fork of the step that is chosen.

Invariant: up to its origin a fork is the run without a scale, bit for bit, so a record holds the steps after it only.

The records are in data/forks/TASK/. Made by `python -m labkit.widgets.live_training.forks`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from labkit.amp import RECIPES
from labkit.records import data_folder
from labkit.train import RunRecord, Task, TrainingRun, as_task, load, one_thread
from labkit.train.run import PICTURES

TASK = "painted_picture"
WITHOUT, SWITCHED_TO = "FP16", "FP16 static"
EVERY = 100  # steps between two forks


def forks_folder(task: str) -> Path:
    """Return the folder of the recorded forks of a task."""
    return data_folder() / "forks" / task


@cache
def recorded_forks(task: str, recipe: str, seed: int) -> tuple[RunRecord, ...]:
    """Return the forks on record of a run, in the order of their origins; () where there are none."""
    if recipe != WITHOUT or not forks_folder(task).is_dir():
        return ()
    found = [load(path) for path in forks_folder(task).glob(f"*-seed{seed}.json")]
    return tuple(sorted(found, key=origin))


def origin(fork: RunRecord) -> int:
    """Return the number of steps that were done before a fork."""
    return fork.steps[0].step - 1


def train_forks(task: Task | str = TASK, seed: int = 0, every: int = EVERY) -> Iterator[RunRecord]:
    """Yield a fork of the run without a scale after each `every` steps, trained to the end."""
    total = as_task(task).steps
    with one_thread():
        run = TrainingRun(task, WITHOUT, seed)
        while run.steps_done + every < total:
            for _ in range(every):
                run.step()
            yield _trained_on(run.fork(), total)


def _trained_on(fork: TrainingRun, total: int) -> RunRecord:
    fork.change(RECIPES[SWITCHED_TO])
    pictures, steps = fork.pictures(), []
    while fork.steps_done < total:
        steps.append(fork.step())
        if fork.steps_done % (total // PICTURES) == 0:
            pictures += fork.pictures()
    return fork.record(
        steps,
        recipe=f"{WITHOUT}, then {SWITCHED_TO}",
        seconds=math.nan,
        pictures=tuple(pictures),
    )


def main() -> None:
    """Record all forks."""
    for fork in train_forks():
        fork.save(forks_folder(fork.task) / f"static-after-{origin(fork)}-seed{fork.seed}.json")


if __name__ == "__main__":
    main()
