"""Which recipe gets where on a task? Many runs, each on record, none of them twice.

Idea: a run's place in the folder follows from task, recipe and seed. Whatever is on record there is read, the rest is
trained; so a race that was stopped goes on where it was.

Invariant: every record that is returned stands in the folder, whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from labkit.amp import Recipe
from labkit.train.digits import data_folder
from labkit.train.record import RunRecord, load
from labkit.train.run import train
from labkit.train.tasks import Task


def record_path(folder: Path, task: str, recipe: str, seed: int) -> Path:
    """Return where a run is kept: FOLDER/task/recipe-seed0.json.

    >>> record_path(Path("runs"), "digits", "FP16 static", 2).as_posix()
    'runs/digits/fp16-static-seed2.json'
    """
    return folder / task / f"{recipe.lower().replace(' ', '-')}-seed{seed}.json"


def race(
    task: Task,
    recipes: Iterable[Recipe],
    seeds: Iterable[int],
    folder: Path,
    *,
    progress: Callable[[RunRecord], None] | None = None,
) -> list[RunRecord]:
    """Return one record for every recipe and seed, training those that are not in `folder` yet.

    What is in `folder` is known by the names of task and recipe and the seed alone: who changes a task or a recipe
    gives it another name, or another folder.
    """
    chosen, records = list(recipes), []
    for seed in seeds:
        for recipe in chosen:
            path = record_path(folder, task.name, recipe.name, seed)
            record = load(path) if path.exists() else train(task, recipe, seed)
            if not path.exists():
                record.save(path)
            records.append(record)
            if progress is not None:
                progress(record)
    return records


def recorded(task: str, recipe: str, seed: int) -> RunRecord:
    """Return a run that travels with the lab, from data/runs.

    Raises:
        FileNotFoundError: it is not on record; the message says how to record it.
    """
    path = record_path(data_folder() / "runs", task, recipe, seed)
    if not path.exists():
        raise FileNotFoundError(
            f"no run of {task!r} under {recipe!r} with seed {seed} is on record. "
            f'Record it: labkit race {task} --recipes "{recipe}" --seeds {seed}'
        )
    return load(path)
