"""`labkit compare`: a line for each run when it is on record, then the verdicts."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

import torch

from labkit.amp import RECIPES
from labkit.records import recorded_files, refuse_simulated, results_folder, write_atomic
from labkit.train.compare import compare
from labkit.train.devices import Place, place
from labkit.train.grid import is_main_rank, under_torchrun
from labkit.train.record import RunRecord
from labkit.train.tasks import GPU_TASKS, SUFFIX, TASKS
from labkit.train.throughput import recorded_throughput, throughput_sentence

ALL_TASKS = TASKS | GPU_TASKS
INTERRUPTED = 130


def run(args: argparse.Namespace) -> int:
    """Run the comparison, and print a line for each record, then how each recipe differs from the first."""
    try:
        gpu = f"cuda:{os.environ['LOCAL_RANK']}" if under_torchrun() and torch.cuda.is_available() else None
        where = place(args.device or gpu)
    except ValueError as error:
        sys.stderr.write(f"labkit compare: {error}\n")
        return 2
    if args.list:
        sys.stdout.write(task_list(where) + "\n")
        return 0
    if not args.tasks:
        sys.stderr.write("labkit compare: name a TASK; `labkit compare --list` says which there are\n")
        return 2
    tasks = list(TASKS) if "all" in args.tasks else list(dict.fromkeys(args.tasks))
    recipes = [RECIPES[name] for name in args.recipes]
    folder = args.folder or results_folder() / "runs"
    try:
        refuse_simulated(where.name, folder)
    except ValueError as error:
        sys.stderr.write(f"labkit compare: {error}\n")
        return 2
    for task in tasks:
        if args.folder is None:
            for name, path in recorded_files(f"runs/{task}/*.json").items():  # those that travel with the lab
                if not (own := results_folder() / name).exists():
                    own.parent.mkdir(parents=True, exist_ok=True)
                    write_atomic(own, path.read_bytes())
        _say(f"{task} on {where}. {size_hint(task, where)}\n")
        told: list[RunRecord] = []
        try:
            found = compare(
                ALL_TASKS[task], recipes, args.seeds, folder, device=where, workers=args.workers, begins=_begins,
                progress=partial(_note, told),
            )  # fmt: skip
        except KeyboardInterrupt:
            kept = f"{len(told)} of {len(recipes) * len(args.seeds)} runs of {task} are on record in {folder}"
            _say(f"interrupted: {kept}; the same command goes on from there\n")
            return INTERRUPTED
        except ValueError as error:  # a record of something else lies there, or no workers were asked for
            sys.stderr.write(f"labkit compare: {error}\n")
            return 1
        paces = recorded_throughput(found.records)
        _say(f"{found}\n{throughput_sentence(paces, where.name) if paces else ''}\n")
    return 0


def task_list(where: Place) -> str:
    """Return a line for each task, and the name of its GPU size where `where` is a GPU or that would need one."""
    lines = [f"{name:<20} {task.about}" for name, task in TASKS.items()]
    large = "\n".join(f"{name:<20} as {name.removesuffix(SUFFIX)}, larger" for name in GPU_TASKS)
    worth = "worth this GPU" if not where.emulated else "worth a GPU (here a step of these would take seconds)"
    recipes = f"recipes: {', '.join(RECIPES)}"
    return "\n".join([f"on {where}:", *lines, "", f"of a size that is {worth}:", large, "", recipes])


def size_hint(task: str, where: Place) -> str:
    """Say whether a task has the size for a device, and which task has.

    >>> size_hint("unet_gpu", place("cpu"))
    'unet_gpu is large: a step takes seconds on a CPU; unet is the same for one.'
    """
    if where.emulated and task in GPU_TASKS:
        small = task.removesuffix(SUFFIX)
        return f"{task} is large: a step takes seconds on a CPU; {small} is the same for one."
    if not where.emulated and task + SUFFIX in GPU_TASKS:
        return f"{task} is too small to keep a GPU busy, so FP16 gains no speed in it; {task}{SUFFIX} is large enough."
    return where.sentence


def _say(text: str) -> None:
    """Print, on one rank where there are several."""
    if is_main_rank():
        sys.stdout.write(text)
        sys.stdout.flush()


def _begins(task: str, recipe: str, seed: int) -> None:
    _say(f"{task}  {recipe:<22} seed {seed}  begins\n")


def _note(told: list[RunRecord], r: RunRecord) -> None:
    told.append(r)
    _say(
        f"{r.task}  {r.recipe:<22} seed {r.seed}  {r.metric_name} {r.metric:.3f}  loss {r.final_loss:.4g}  "
        f"{r.skipped} skipped  {r.seconds:.1f} s  [{r.device}, torch {r.versions['torch']}, {r.date}]\n"
    )
