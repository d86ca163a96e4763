"""Which recipe gets where on a task? Many runs, each on record, none of them twice.

Idea: a run's place in the folder follows from task, recipe and seed. Whatever is on record there is read, the rest is
trained; so a race that was stopped goes on where it was.

Invariant: every record that is returned stands in the folder, whole.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from labkit.amp import RECIPES, Recipe
from labkit.train.digits import data_folder
from labkit.train.record import RunRecord, load
from labkit.train.run import train
from labkit.train.tasks import TASKS, Task


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
    """Return one record for every recipe and seed, training those that are not in `folder` yet."""
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what `labkit race` takes."""
    parser.add_argument("task", choices=sorted(TASKS), help="what to learn")
    parser.add_argument("--recipes", nargs="+", default=["FP32", "FP16", "FP16 dynamic"], metavar="NAME",
                        choices=sorted(RECIPES), help="one or more of: " + ", ".join(RECIPES))  # fmt: skip
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    parser.add_argument("--folder", type=Path, default=None, help="where records are kept (default: data/runs)")


def run(args: argparse.Namespace) -> int:
    """Run the race and print a line for each record."""

    def tell(r: RunRecord) -> None:
        sys.stdout.write(
            f"{r.task}  {r.recipe:<22} seed {r.seed}  {r.metric_name} {r.metric:.3f}  loss {r.final_loss:.4f}  "
            f"{r.skipped} skipped  {r.seconds:.1f} s  [{r.device}, torch {r.versions['torch']}, {r.date}]\n"
        )
        sys.stdout.flush()

    folder = args.folder or data_folder() / "runs"
    race(TASKS[args.task], [RECIPES[name] for name in args.recipes], args.seeds, folder, progress=tell)
    return 0
