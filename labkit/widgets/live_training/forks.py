"""Recorded trainings whose loss scale was switched on at some step, for pages that cannot train.

Idea: on a page of the site the learner cannot switch scaling on while a run trains. So the run was
forked at every hundredth step, and each fork was trained with a static scale up to the last step. A
page plays the fork of the step that is chosen. The exponents of the gradients are recorded too, so
a page has the map of scales of the run and of each fork.

Invariant: up to its origin a fork is the run without a scale, bit for bit, so a record holds the
steps after it only.

The records are in data/forks/TASK/. `main()` makes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from labkit.amp import RECIPES
from labkit.instrument import ExponentHistogram, GradSnapshot, merge
from labkit.records import data_folder
from labkit.train import RunRecord, StepRecord, Task, TrainingRun, as_task, load, one_thread
from labkit.train.run import PICTURES

TASK = "painted_picture"
WITHOUT = "FP16"
SWITCHED_TO = "FP16 static"
# The number of steps between two forks.
EVERY = 100


def forks_folder(task: str) -> Path:
    """Return the folder of the recorded forks of a task."""
    return data_folder() / "forks" / task


@cache
def recorded_forks(task: str, recipe: str, seed: int) -> tuple[RunRecord, ...]:
    """Return the recorded forks of a run, in the order of their origins; () if there are none."""
    if recipe != WITHOUT or not forks_folder(task).is_dir():
        return ()
    forks = [load(path) for path in forks_folder(task).glob(f"static-after-*-seed{seed}.json")]
    return tuple(sorted(forks, key=origin))


@cache
def recorded_exponents(task: str, recipe: str, seed: int) -> tuple[GradSnapshot, ...]:
    """Return the exponents of the gradients of the run without a scale.

    Returns () if they were not recorded.
    """
    path = forks_folder(task) / f"exponents-seed{seed}.json"
    return load(path).snapshots if recipe == WITHOUT and path.is_file() else ()


def origin(fork: RunRecord) -> int:
    """Return the number of steps that were done before a fork."""
    return fork.steps[0].step - 1


def train_forks(task: Task | str = TASK, seed: int = 0, every: int = EVERY) -> Iterator[RunRecord]:
    """Train the run without a scale, and a fork with a static scale after each `every` steps.

    Yields:
        The record of each fork, with the steps after its origin; at the end a record of the run
        itself, which has no steps but the exponents of its gradients.
    """
    total = as_task(task).steps
    exponents: list[GradSnapshot] = []
    with one_thread():
        run = TrainingRun(task, WITHOUT, seed)
        run.keep_exponents = True
        while run.steps_done < total:
            run.step()
            exponents += _measured(run)
            if run.steps_done % every == 0 and run.steps_done < total:
                yield _trained_on(run.fork(), total)
    yield run.record((), seconds=math.nan, snapshots=tuple(exponents))


def _trained_on(fork: TrainingRun, total: int) -> RunRecord:
    """Train a fork with the static scale up to step `total`, and return its record."""
    fork.change(RECIPES[SWITCHED_TO])
    pictures = fork.pictures()
    steps: list[StepRecord] = []
    exponents: list[GradSnapshot] = []
    while fork.steps_done < total:
        steps.append(fork.step())
        exponents += _measured(fork)
        if fork.steps_done % max(1, total // PICTURES) == 0:
            pictures += fork.pictures()
    return fork.record(
        steps,
        recipe=f"{WITHOUT}, then {SWITCHED_TO}",
        seconds=math.nan,
        pictures=tuple(pictures),
        snapshots=tuple(exponents),
    )


def _measured(run: TrainingRun) -> list[GradSnapshot]:
    """Return the exponents of all gradients of the latest step together.

    Returns [] if it was not measured.
    """
    exponents = run.exponents
    if exponents is None or exponents.step != run.steps_done:
        return []
    whole = merge(exponents.layers.values())
    # Empty binades at both ends would make the record longer.
    first = 0
    end = 0
    used = np.flatnonzero(whole.counts)
    if len(used):
        first = int(used[0])
        end = int(used[-1]) + 1
    counts = whole.counts[first:end]
    trimmed = ExponentHistogram(counts, whole.lo + first, whole.zeros, whole.non_finite)
    return [GradSnapshot(exponents.step, exponents.kind, {"all layers": trimmed})]


def main() -> None:
    """Record all forks, and the exponents of the run that they were forked from."""
    for fork in train_forks():
        name = f"static-after-{origin(fork)}" if fork.steps else "exponents"
        fork.save(forks_folder(fork.task) / f"{name}-seed{fork.seed}.json")
