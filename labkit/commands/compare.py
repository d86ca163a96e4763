"""The command compare: a line for each saved run, then the verdicts."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from functools import partial

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
INTERRUPTED = 130


def run(args: Namespace) -> int:
    """Train the grid and print a line for each record, then the comparison."""
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
    tasks = list(TASKS) if "all" in args.tasks else list(dict.fromkeys(args.tasks))
    recipes = [RECIPES[name] for name in args.recipes]
    for task in tasks:
        if args.folder is None:
            # shipped with the lab
            for name, path in recorded_files(f"runs/{task}/*.json").items():
                if not (copy := results_folder() / name).exists():
                    write_atomic(copy, path.read_bytes())
        _print(f"{task} on {where}. {size_hint(task, where)}\n")
        printed: list[RunRecord] = []
        try:
            found = compare(
                ALL_TASKS[task],
                recipes,
                args.seeds,
                folder,
                device=where,
                workers=args.workers,
                begins=lambda task, recipe, seed: _print(
                    f"{task}  {recipe:<22} seed {seed}  begins\n"
                ),
                progress=partial(_print_record, printed),
            )
        except KeyboardInterrupt:
            saved = (
                f"{len(printed)} of {len(recipes) * len(args.seeds)} runs of {task} are saved in "
                f"{folder}"
            )
            _print(f"interrupted: {saved}; the same command resumes\n")
            return INTERRUPTED
        except ValueError as error:
            # a record of another task or device, or a wrong number of workers
            sys.stderr.write(f"labkit compare: {error}\n")
            return 1
        rates = recorded_throughput(found.records)
        _print(f"{found}\n{throughput_sentence(rates, where.name) if rates else ''}\n")
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


def _print(text: str) -> None:
    if is_main_rank():
        sys.stdout.write(text)
        sys.stdout.flush()


def _print_record(printed: list[RunRecord], r: RunRecord) -> None:
    printed.append(r)
    _print(
        f"{r.task}  {r.recipe:<22} seed {r.seed}  {r.metric_name} {r.metric:.3f}  loss "
        f"{r.final_loss:.4g}  {r.skipped} skipped  {r.seconds:.1f} s  [{r.device}, torch "
        f"{r.versions['torch']}, {r.date}]\n"
    )
