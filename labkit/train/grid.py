"""Grids of training runs, one for each recipe and seed.

Saved runs are loaded instead of trained again.

Idea: device, task, recipe and seed determine the path of a record, and its fingerprint identifies
task and recipe. Runs without a record are trained in as many processes as there are cores (in one
on a GPU). Each process saves its own record, so a grid that was killed resumes. Under torchrun, on
one host or several, the ranks gather which records they have, share the missing runs, and exchange
records at the end, so that each host's folder is complete.

Invariant: every returned record is saved in the folder and belongs to this task, recipe and device.
Every rank returns the same records.

Source: torch.distributed.run (RANK, WORLD_SIZE; its rendezvous joins the hosts).
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from labkit.amp import Recipe, as_recipes
from labkit.formats.arguments import require_kind
from labkit.machine import resources
from labkit.records import recorded_files
from labkit.train.devices import Place, place
from labkit.train.record import RunRecord, fingerprint, load
from labkit.train.run import train
from labkit.train.tasks import Task, as_task

# a recipe and a seed
Run = tuple[Recipe, int]
# time that a rank waits for the trainings of others
TIMEOUT = timedelta(days=7)


def under_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_main_rank() -> bool:
    """Return whether this process is rank 0 or was not started by torchrun."""
    return os.environ.get("RANK", "0") == "0"


def train_on_ranks(
    runs: Sequence[Run],
    loaded: Sequence[RunRecord],
    train: Callable[[Run], RunRecord],
    path: Callable[[str, int], Path],
) -> Iterator[RunRecord]:
    """Train the missing runs on all ranks; yield the records that this rank has not loaded.

    Each yielded record is saved at its `path` on this rank's host.

    Args:
        runs: the grid, in the same order on each rank.
        loaded: the saved records of this rank.
        train: trains a run and saves its record.
        path: recipe's name and seed -> path of the record.
    """
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=TIMEOUT)
    local = {(record.recipe, record.seed): record for record in loaded}
    saved = set[tuple[str, int]]().union(*_gather(set(local)))
    # every rank computes the same list, so each takes its share without a message
    missing = [(recipe, seed) for recipe, seed in runs if (recipe.name, seed) not in saved]
    trained = [train(run) for run in missing[dist.get_rank() :: dist.get_world_size()]]
    yield from trained
    local |= {(record.recipe, record.seed): record for record in trained}
    for records in _gather(list(local.values())):
        for record in records:
            key = (record.recipe, record.seed)
            if key in local:
                continue
            local[key] = record
            # ranks of one host share a folder
            if not path(*key).exists():
                record.save(path(*key))
            yield record


_Gathered = TypeVar("_Gathered")


def _gather(value: _Gathered) -> list[_Gathered]:
    """Return the values of all ranks, in the order of the ranks."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def record_path(folder: Path, task: str, recipe: str, seed: int) -> Path:
    """Return the path of a run's record: FOLDER/task/recipe-seed0.json.

    Other characters than letters, digits and `.+-_` become hyphens.

    >>> record_path(Path("runs"), "digits", "FP16 static", 2).as_posix()
    'runs/digits/fp16-static-seed2.json'
    """
    return folder / _in_path(task) / f"{_in_path(recipe.lower())}-seed{seed}.json"


def _in_path(name: str) -> str:
    """Return a name without the characters that separate folders or are not allowed in a path."""
    return re.sub(r"[^\w.+-]", "-", name)


def device_folder(folder: Path, device: torch.device | str | Place | None) -> Path:
    """Return the folder of a device's records: FOLDER for a CPU, FOLDER/NAME for a GPU.

    >>> from labkit.train import Place
    >>> device_folder(Path("runs"), "cpu").as_posix()
    'runs'
    >>> device_folder(Path("runs"), Place(torch.device("cuda"), "Tesla T4", "gpu")).as_posix()
    'runs/tesla-t4'
    """
    where = place(device)
    return folder if where.emulated else folder / where.slug


def load_for_device(path: Path, device: torch.device | str | Place | None = "cpu") -> RunRecord:
    """Load a record of a device; for the CPU, that of any CPU.

    Raises:
        ValueError: the record was made on another device, or the file is not a record.
    """
    where = place(device)
    record = load(path)
    if record.device != where.name and not (where.emulated and record.device.startswith("CPU")):
        raise ValueError(
            f"expected a record of {where.name}, got one of {record.device} in {path}: runs of "
            "different devices are not mixed. Use another folder or another device."
        )
    return record


def train_grid(
    task: Task | str,
    recipes: Iterable[Recipe | str],
    seeds: Iterable[int],
    folder: Path | str,
    *,
    device: torch.device | str | Place | None = "cpu",
    workers: int | None = None,
    begins: Callable[[str, str, int], None] | None = None,
    progress: Callable[[RunRecord], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[RunRecord]:
    """Return one record for every seed and recipe, in that order.

    Runs without a record in `folder` are trained and saved.

    Args:
        task: what is trained.
        recipes: the recipes of the runs; duplicates are ignored.
        seeds: the seeds of the runs; duplicates are ignored.
        folder: folder of the records; those of a GPU are in a folder with its name
            (`device_folder`).
        device: an argument of `labkit.train.place`; None is a GPU if there is one.
        workers: number of processes; None for one on each core, or a single one on a GPU. With 1,
            this process trains. It also trains a task that cannot be pickled, such as one with
            functions defined in a notebook. Under torchrun the ranks are the workers, and this must
            be None. Steps are timed only with one run at a time.
        begins: called with task, recipe and seed when a training begins; not under torchrun.
        progress: called with every record, as soon as it is available.
        stop: called before each run; True ends the grid, and the available records are returned.

    Raises:
        TypeError: a seed or `workers` is not an int.
        ValueError: a record in `folder` has another fingerprint or device; two different recipes
            have one name, or names whose records would have one path; workers is less than 1; this
            machine has no such device; task or recipe has no `fingerprint`.
    """
    require_kind(seeds, Iterable, "seeds", "Pass a list of seeds")
    seeds = list(seeds)
    for seed in seeds:
        require_kind(seed, int, "seed")
    if workers is not None:
        require_kind(workers, int, "workers")
    if workers is not None and (workers < 1 or under_torchrun()):
        expected = "workers >= 1"
        if under_torchrun():
            expected = "workers=None under torchrun, whose ranks are the workers"
        raise ValueError(f"expected {expected}, got workers={workers}")
    task = as_task(task)
    where = place(device)
    folder = device_folder(Path(folder), where)
    unique: list[Recipe] = []
    for recipe in as_recipes(recipes):
        if recipe not in unique:
            unique.append(recipe)
    _require_different_paths(unique)
    runs = [(recipe, seed) for seed in dict.fromkeys(seeds) for recipe in unique]
    saved = {run: _load_saved(task, *run, folder, where) for run in runs}
    missing = [run for run, record in saved.items() if record is None]
    loaded = [record for record in saved.values() if record is not None]
    if under_torchrun():

        def train_run(run: Run) -> RunRecord:
            return _train_one(task, *run, folder, where)

        path = partial(record_path, folder, task.name)
        trained = train_on_ranks(runs, loaded, train_run, path)
    else:
        trained = _train_all(task, missing, folder, where, workers, begins, stop)
    found: dict[tuple[str, int], RunRecord] = {}
    for record in chain(loaded, trained):
        found[record.recipe, record.seed] = record
        if progress is not None:
            progress(record)
    return [found[recipe.name, seed] for recipe, seed in runs if (recipe.name, seed) in found]


def _require_different_paths(recipes: Sequence[Recipe]) -> None:
    """Raise a ValueError if the records of two recipes would have the same path."""
    by_path: dict[str, str] = {}
    for recipe in recipes:
        path = _in_path(recipe.name.lower())
        if path in by_path:
            raise ValueError(
                f"expected different names for different recipes, got {by_path[path]!r} and "
                f"{recipe.name!r}: their records would have the same path"
            )
        by_path[path] = recipe.name


def _load_saved(
    task: Task, recipe: Recipe, seed: int, folder: Path, where: Place
) -> RunRecord | None:
    path = record_path(folder, task.name, recipe.name, seed)
    # raises for a task that could not be identified later, before hours of training
    expected = fingerprint(task, recipe)
    if not path.exists():
        return None
    record = load_for_device(path, where)
    if record.fingerprint != expected:
        raise ValueError(
            f"{path} is a record of another task {task.name!r} or another recipe {recipe.name!r}: "
            "their values have changed since. Give the new one another name, use another folder, "
            "or delete the record."
        )
    return record


def _train_all(
    task: Task,
    runs: list[tuple[Recipe, int]],
    folder: Path,
    where: Place,
    workers: int | None,
    begins: Callable[[str, str, int], None] | None,
    stop: Callable[[], bool] | None,
) -> Iterator[RunRecord]:
    """Yield records as they are completed and saved; an interrupt ends the processes at once."""
    if workers is None:
        # processes on one GPU would share it, and slow each other down
        workers = resources.usable_cores() if where.emulated else 1
    count = min(workers, len(runs))
    if count <= 1 or not _can_be_sent(task):
        for recipe, seed in runs:
            if stop is not None and stop():
                return
            if begins is not None:
                begins(task.name, recipe.name, seed)
            yield _train_one(task, recipe, seed, folder, where, timed=True)
        return
    pending = iter(runs)

    def submit_next() -> list[Future[RunRecord]]:
        """Submit the next run; return [] if there is none or `stop` ends the grid."""
        run = next(pending, None)
        if run is None or (stop is not None and stop()):
            return []
        recipe, seed = run
        if begins is not None:
            begins(task.name, recipe.name, seed)
        return [pool.submit(_train_one, task, recipe, seed, folder, where)]

    # the workers ignore Ctrl-C: this process ends them
    executor = ProcessPoolExecutor(
        count,
        process_context(),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    with _terminated_on_interrupt(executor) as pool:
        # as many runs as processes are submitted at a time, so that `stop` can end the grid
        running: set[Future[RunRecord]] = set()
        for _ in range(count):
            running.update(submit_next())
        while running:
            done = next(as_completed(running))
            running.remove(done)
            running.update(submit_next())
            yield done.result()


@contextmanager
def _terminated_on_interrupt(pool: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
    """Terminate the pool's processes on an interrupt.

    This loses no record: a saved one is complete, and the other runs are trained next time.
    """
    others = {child.pid for child in multiprocessing.active_children()}
    with pool:
        try:
            yield pool
        except (KeyboardInterrupt, GeneratorExit):
            # an interrupt in the consumer closes this generator with a GeneratorExit
            for child in multiprocessing.active_children():
                if child.pid not in others:
                    child.terminate()
            raise


def process_context() -> multiprocessing.context.BaseContext:
    """Return a multiprocessing context without forks, since threads here may hold locks."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # torch is imported once, not by every worker
    context.set_forkserver_preload(["labkit.train"])
    return context


def _train_one(
    task: Task, recipe: Recipe, seed: int, folder: Path, where: Place, *, timed: bool = False
) -> RunRecord:
    """Train a run and save its record, with the time of a step only if `timed`."""
    record = replace(train(task, recipe, seed, device=where), fingerprint=fingerprint(task, recipe))
    if not timed:
        record = replace(record, step_seconds=None)
    record.save(record_path(folder, task.name, recipe.name, seed))
    return record


def _can_be_sent(task: Task) -> bool:
    """Return whether a task can be pickled for a process that imports its functions."""
    try:
        return b"__main__" not in pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False


def recorded(task: str, recipe: str, seed: int) -> RunRecord:
    """Return the CPU record of a run, shipped with the lab or recorded by `labkit compare`.

    Raises:
        FileNotFoundError: there is no such record.
    """
    require_kind(task, str, "task", "Pass its name")
    require_kind(recipe, str, "recipe", "Pass its name")
    require_kind(seed, int, "seed")
    name = record_path(Path("runs"), task, recipe, seed).as_posix()
    path = recorded_files(name).get(name)
    if path is None:
        raise FileNotFoundError(
            f"no run of {task!r} under {recipe!r} with seed {seed} is on record. "
            f'Record it: labkit compare {task} --recipes "{recipe}" --seeds {seed} --device cpu'
        )
    return load_for_device(path)
