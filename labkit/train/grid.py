"""Many runs of a task, each on record, none of them trained twice.

Idea: a run's place in the folder follows from device, task, recipe and seed, and its record carries a fingerprint of
what task and recipe were. Whatever is on record there is read, the rest is trained, in as many processes as there are
cores (in one on a GPU); each process writes its own record, so a race that was killed goes on where it was. The ranks
that torchrun started, on one host or on several, say what each has on record; what nobody has is dealt out, one run
after the other, and at the end they hand one another their records, so each host's folder is whole, shared or not.

Invariant: every record that is returned stands in the folder, whole, and is of this very task, recipe and device. Every
rank returns the same records.

Source: torch.distributed.run (RANK, WORLD_SIZE; its rendezvous joins the hosts).
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit.amp import Recipe
from labkit.records import recorded_files, system
from labkit.train.devices import Place, place
from labkit.train.record import RunRecord, fingerprint, load
from labkit.train.run import train
from labkit.train.tasks import Task

Run = tuple[Recipe, int]  # and its seed
LONGEST = timedelta(days=7)  # that a rank trains while others wait


def under_torchrun() -> bool:
    """Say whether torchrun started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_main_rank() -> bool:
    """Say whether this process is the one that speaks: rank 0, or no rank at all."""
    return os.environ.get("RANK", "0") == "0"


def by_ranks(
    runs: Sequence[Run], known: Sequence[RunRecord], train: Callable[[Run], RunRecord], path: Callable[[str, int], Path]
) -> Iterator[RunRecord]:
    """Yield the records of the runs that this rank has not, trained here or by another rank, each kept at its `path`.

    Args:
        runs: all of the race, in the same order on each rank.
        known: what this rank has on record.
        train: trains a run, and keeps it.
        path: recipe's name and seed -> where the record is kept.
    """
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=LONGEST)
    own = {(record.recipe, record.seed): record for record in known}
    anywhere = {key for keys in _gathered(set(own)) for key in keys}
    missing = [run for run in runs if (run[0].name, run[1]) not in anywhere]
    mine = [train(run) for run in missing[dist.get_rank() :: dist.get_world_size()]]
    yield from mine
    own |= {(record.recipe, record.seed): record for record in mine}
    for records in _gathered(list(own.values())):
        for record in records:
            if (record.recipe, record.seed) not in own:
                own[record.recipe, record.seed] = record
                if not path(record.recipe, record.seed).exists():
                    record.save(path(record.recipe, record.seed))
                yield record


def _gathered(own: Any) -> list[Any]:
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return every


def record_path(folder: Path, task: str, recipe: str, seed: int) -> Path:
    """Return where a run is kept: FOLDER/task/recipe-seed0.json.

    >>> record_path(Path("runs"), "digits", "FP16 static", 2).as_posix()
    'runs/digits/fp16-static-seed2.json'
    """
    return folder / task / f"{recipe.lower().replace(' ', '-')}-seed{seed}.json"


def device_folder(folder: Path, device: torch.device | str | Place | None) -> Path:
    """Return where the runs of a device are kept: FOLDER itself those of a CPU, FOLDER/NAME those of a GPU.

    >>> from labkit.train import Place
    >>> device_folder(Path("runs"), "cpu").as_posix()
    'runs'
    >>> device_folder(Path("runs"), Place(torch.device("cuda"), "Tesla T4", "gpu")).as_posix()
    'runs/tesla-t4'
    """
    where = place(device)
    return folder if where.emulated else folder / where.slug


def load_for_device(path: Path, device: torch.device | str | Place | None = "cpu") -> RunRecord:
    """Return the record at a path, which is one of this device.

    Raises:
        ValueError: it was made on another device (on a CPU's place, any CPU), or it is no record.
    """
    record, where = load(path), place(device)
    if record.device != where.name and not (where.emulated and record.device.startswith("CPU")):
        raise ValueError(
            f"{path} is a record of {record.device}, and {where.name} was asked for: runs of different devices are not "
            "mixed. Take another folder, or another device."
        )
    return record


def train_grid(
    task: Task,
    recipes: Iterable[Recipe],
    seeds: Iterable[int],
    folder: Path,
    *,
    device: torch.device | str | Place | None = "cpu",
    workers: int | None = None,
    begins: Callable[[str, str, int], None] | None = None,
    progress: Callable[[RunRecord], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[RunRecord]:
    """Return one record for every seed and recipe, in that order, training those that are not in `folder` yet.

    Args:
        recipes, seeds: one that is named twice runs once, and counts once.
        folder: where records are kept; those of a GPU in a folder of its name (`device_folder`).
        device: where to train, as `labkit.train.place` takes it: None is the GPU where there is one.
        workers: processes at once; None takes one for each core, or a single one on a GPU, which trainings would share;
            1 trains here. A task that cannot be sent to another process (its functions were typed into a notebook) is
            trained here in any case. Under torchrun its ranks are the workers, and this stays None. Steps are timed
            only where one run is trained at a time.
        begins: called with task, recipe and seed when a run begins that is not on record; not under torchrun.
        progress: called with every record, as soon as it is there.
        stop: asked before each run; True ends the race, and what is there is returned.

    Raises:
        ValueError: a record in `folder` is of another task or recipe of the same name, or of another device; two
            recipes that differ have one name; workers is less than 1; there is no such device here; task or recipe
            holds what no record can name (see `fingerprint`).
    """
    if workers is not None and (workers < 1 or under_torchrun()):
        needed = "torchrun's ranks, which are its workers," if under_torchrun() else "1 worker or more"
        raise ValueError(f"a race needs {needed} and was given workers={workers}")
    where = place(device)
    folder = device_folder(folder, where)
    given = list(recipes)
    chosen = [recipe for i, recipe in enumerate(given) if recipe not in given[:i]]
    names = [recipe.name for recipe in chosen]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"recipes that differ need names that differ; {', '.join(sorted(twice))} is more than one")
    wanted = [(recipe, seed) for seed in dict.fromkeys(seeds) for recipe in chosen]
    known = {run: _on_record(task, *run, folder, where) for run in wanted}
    missing = [run for run, record in known.items() if record is None]
    found: dict[tuple[str, int], RunRecord] = {}
    there = [record for record in known.values() if record is not None]
    trained = _train_all(task, missing, folder, where, workers, begins, stop)
    if under_torchrun():
        one = partial(_train_one, task, folder=folder, where=where)
        trained = by_ranks(wanted, there, lambda run: one(*run), partial(record_path, folder, task.name))
    for record in chain(there, trained):
        found[record.recipe, record.seed] = record
        if progress is not None:
            progress(record)
    return [found[recipe.name, seed] for recipe, seed in wanted if (recipe.name, seed) in found]


def _on_record(task: Task, recipe: Recipe, seed: int, folder: Path, where: Place) -> RunRecord | None:
    path, asked = record_path(folder, task.name, recipe.name, seed), fingerprint(task, recipe)
    if not path.exists():
        return None
    record = load_for_device(path, where)
    if record.fingerprint != asked:
        raise ValueError(
            f"{path} is a record of another task {task.name!r} or another recipe {recipe.name!r}: their values have "
            "changed since. Give the new one a name of its own, take another folder, or delete the record."
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
    """Yield records as they come, each already in the folder; an interrupt ends the processes at once."""
    count = min(workers or (system.usable_cores() if where.emulated else 1), len(runs))
    if count <= 1 or not _travels(task):
        for recipe, seed in runs:
            if stop is not None and stop():
                return
            if begins is not None:
                begins(task.name, recipe.name, seed)
            yield _train_one(task, recipe, seed, folder, where, timed=True)
        return
    waiting = iter(runs)

    def submitted(run: tuple[Recipe, int]) -> Future[RunRecord]:
        if begins is not None:
            begins(task.name, run[0].name, run[1])
        return pool.submit(_train_one, task, *run, folder, where)

    with _ending(ProcessPoolExecutor(count, processes(), signal.signal, (signal.SIGINT, signal.SIG_IGN))) as pool:
        running = {submitted(run) for run in islice(waiting, count)}
        while running:
            done = next(as_completed(running))
            running.remove(done)
            following = None if stop is not None and stop() else next(waiting, None)
            if following is not None:
                running.add(submitted(following))
            yield done.result()


@contextmanager
def _ending(pool: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
    """Have a pool whose processes end when it is interrupted: what they kept is whole, the rest is trained again."""
    others = {child.pid for child in multiprocessing.active_children()}
    with pool:
        try:
            yield pool
        except (KeyboardInterrupt, GeneratorExit):  # the latter where it came while a record was told
            for child in multiprocessing.active_children():
                if child.pid not in others:
                    child.terminate()
            raise


def processes() -> multiprocessing.context.BaseContext:
    """Start processes from a fresh one: a fork of a notebook's, which has threads, may wait for a lock for ever."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["labkit.train"])  # torch is imported once, not by every worker
    return context


def _train_one(task: Task, recipe: Recipe, seed: int, folder: Path, where: Place, *, timed: bool = False) -> RunRecord:
    """Train and keep a run; what its steps took counts only where nothing else was trained beside it."""
    record = replace(train(task, recipe, seed, device=where), fingerprint=fingerprint(task, recipe))
    record = record if timed else replace(record, step_seconds=None)
    record.save(record_path(folder, task.name, recipe.name, seed))
    return record


def _travels(task: Task) -> bool:
    """Say whether another process can be given the task: its functions live in modules that it can import."""
    try:
        return b"__main__" not in pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False


def recorded(task: str, recipe: str, seed: int) -> RunRecord:
    """Return a run that travels with the lab, or that `labkit compare` recorded here: it was made on a CPU.

    Raises:
        FileNotFoundError: it is not on record; the message says how to record it.
    """
    place = record_path(Path("runs"), task, recipe, seed).as_posix()
    path = recorded_files(place).get(place)
    if path is None:
        raise FileNotFoundError(
            f"no run of {task!r} under {recipe!r} with seed {seed} is on record. "
            f'Record it: labkit compare {task} --recipes "{recipe}" --seeds {seed} --device cpu'
        )
    return load_for_device(path)
