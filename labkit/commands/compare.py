"""The command `labkit compare`: it prints a line for each saved run, then the verdicts."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

from labkit.amp import RECIPES
from labkit.commands import CommandError
from labkit.machine.device import usable_gpus
from labkit.records import recorded_files, refuse_simulated, results_folder, write_atomic
from labkit.train.compare import compare
from labkit.train.devices import Place, place
from labkit.train.grid import is_main_rank, under_torchrun
from labkit.train.record import RunRecord
from labkit.train.tasks import GPU_TASKS, SUFFIX, TASKS
from labkit.train.throughput import recorded_throughput, throughput_sentence

ALL_TASKS = TASKS | GPU_TASKS
# The exit status after Ctrl+C.
INTERRUPTED = 130


def run(args: Namespace) -> int:
    """Run `labkit compare`: train each task under all recipes and seeds, and compare the recipes.

    Returns:
        The exit status: 1 if a task cannot be trained or compared as asked.
    """
    gpu = f"cuda:{os.environ['LOCAL_RANK']}" if under_torchrun() and usable_gpus() else None
    try:
        where = place(args.device or gpu)
        if args.list:
            sys.stdout.write(task_list(where) + "\n")
            return 0
        folder = args.folder or results_folder() / "runs"
        refuse_simulated(where.name, folder)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if not args.tasks:
        raise CommandError("name a TASK; `labkit compare --list` says which there are")
    tasks = [name for task in args.tasks for name in (TASKS if task == "all" else [task])]
    for task in dict.fromkeys(tasks):
        if args.folder is None:
            _copy_shipped_runs(task)
        status = _compare_task(task, where, folder, args)
        if status:
            return status
    return 0


def _copy_shipped_runs(task: str) -> None:
    """Copy the runs of a task that come with the lab into the folder of results, where missing."""
    for name, path in recorded_files(f"runs/{task}/*.json").items():
        copy = results_folder() / name
        if not copy.exists():
            write_atomic(copy, path.read_bytes())


def _compare_task(task: str, where: Place, folder: Path, args: Namespace) -> int:
    """Train and compare one task, print its lines, and return the exit status."""
    _print(f"{task} on {where}. {size_hint(task, where)}\n")
    recipes = [RECIPES[name] for name in dict.fromkeys(args.recipes)]
    seeds = list(dict.fromkeys(args.seeds))
    records: list[RunRecord] = []

    def print_record(record: RunRecord) -> None:
        records.append(record)
        _print(record_line(record))

    try:
        comparison = compare(
            ALL_TASKS[task],
            recipes,
            seeds,
            folder,
            device=where,
            workers=args.workers,
            begins=_print_begin,
            progress=print_record,
        )
    except KeyboardInterrupt:
        runs = len(recipes) * len(seeds)
        _print(
            f"interrupted: {len(records)} of {runs} runs of {task} are saved in {folder}; the same "
            "command resumes\n"
        )
        return INTERRUPTED
    except ValueError as error:
        # a record of another task or device, or a wrong number of workers
        sys.stderr.write(f"labkit compare: {error}\n")
        return 1
    _print(f"{comparison}\n")
    rates = recorded_throughput(comparison.records)
    if rates:
        _print(throughput_sentence(rates, where.name))
    _print("\n")
    return 0


def task_list(where: Place) -> str:
    """Return a line for each task, then the larger tasks for GPUs and the recipes."""
    lines = [f"{name:<20} {task.about}" for name, task in TASKS.items()]
    large = "\n".join(f"{name:<20} as {name.removesuffix(SUFFIX)}, larger" for name in GPU_TASKS)
    devices = "this GPU" if not where.emulated else "a GPU (on this CPU, a step takes seconds)"
    recipes = f"recipes: {', '.join(RECIPES)}"
    return "\n".join([f"on {where}:", *lines, "", f"of a size for {devices}:", large, "", recipes])


def size_hint(task: str, where: Place) -> str:
    """Return a sentence on a task of the right size for the device, or on FP16 there.

    >>> size_hint("unet_gpu", place("cpu"))
    'unet_gpu is large: a step takes seconds on a CPU; unet is its version for a CPU.'
    """
    if where.emulated and task in GPU_TASKS:
        small = task.removesuffix(SUFFIX)
        return f"{task} is large: a step takes seconds on a CPU; {small} is its version for a CPU."
    if not where.emulated and task + SUFFIX in GPU_TASKS:
        return (
            f"{task} is too small to keep a GPU busy, so FP16 gains no speed in it; {task}{SUFFIX} "
            "is large enough."
        )
    return where.sentence


def record_line(record: RunRecord) -> str:
    """Return a line with the result of a run, its time, and where and when it was trained."""
    name = f"{record.task}  {record.recipe:<22} seed {record.seed}"
    result = (
        f"{record.metric_name} {record.metric:.3f}  loss {record.final_loss:.4g}  "
        f"{record.skipped} skipped"
    )
    origin = f"[{record.device}, torch {record.versions['torch']}, {record.date}]"
    return f"{name}  {result}  {record.seconds:.1f} s  {origin}\n"


def _print_begin(task: str, recipe: str, seed: int) -> None:
    _print(f"{task}  {recipe:<22} seed {seed}  begins\n")


def _print(text: str) -> None:
    """Print a text at once; under torchrun only the first rank does."""
    if is_main_rank():
        sys.stdout.write(text)
        sys.stdout.flush()
