"""`labkit gpu`: the parts, each in a process of its own, and the writing and reading of a passport.

Invariant: a run ends within LIMIT, a quick one within QUICK_LIMIT. A part that fails leaves the
results that it has saved.
"""

from __future__ import annotations

import base64
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import torch

from labkit.bench import device_report
from labkit.gpu import passport
from labkit.gpu.catalogue import PARTS, PASSPORT, QUICK_PARTS, no_items, worker_command
from labkit.gpu.job import Job
from labkit.gpu.progress import DONE, PartProgress, add_progress, start_progress
from labkit.gpu.worker import Line, why_no_checks
from labkit.records import refuse_simulated, results_folder, write_atomic

# Seconds for all parts together: under nine minutes, with a margin.
LIMIT = 520.0
QUICK_LIMIT = 180.0
# Seconds that a part may take beyond its budget.
GRACE = 8.0
NO_GPU = "torch reaches no GPU here, so nothing was recorded. `labkit device` says what there is; "


def run(arguments: Namespace) -> int:
    """Run the parts, or write or read a passport.

    Returns:
        0 if all was done, 1 if not, 2 if nothing could be run.
    """
    if arguments.progress is not None and (arguments.read or arguments.passport):
        return _refuse(
            "--progress reports on parts: expected it without --passport and --read, whose file "
            "has lines of its own"
        )
    if arguments.read is not None:
        return _read(arguments.read)
    if arguments.passport is not None:
        return _write_passport(arguments)
    try:
        report = device_report(arguments.device)
    except ValueError:
        return _refuse(
            f"{NO_GPU}for a dry run: labkit gpu --device cpu --quick --folder /tmp/rehearsal"
        )
    folder = (arguments.folder or results_folder()).resolve()
    try:
        refuse_simulated(report.name, folder)
    except ValueError as error:
        return _refuse(str(error))
    budgets = budgets_of(arguments)
    if not budgets:
        return _refuse(f"the chosen parts consist of checks. {why_no_checks()}")
    limit = QUICK_LIMIT if arguments.quick and arguments.device == "cuda" else LIMIT
    seconds = limit if arguments.seconds is None else arguments.seconds
    if arguments.progress is not None:
        try:
            start_progress(arguments.progress)
        except OSError as error:
            return _refuse(f"{arguments.progress} cannot be written ({error.strerror})")
    _say(f"{report}\n")
    why = why_no_checks()
    if why and any(PARTS[name].checks for name in arguments.only or PARTS):
        _say(why)
    began = time.monotonic()
    ended = list[PartProgress]()

    def note(part: PartProgress) -> None:
        if arguments.progress is not None:
            add_progress(arguments.progress, part)

    for number, (name, budget) in enumerate(budgets.items(), 1):
        allowed = max(0.0, min(budget, seconds - (time.monotonic() - began) - GRACE))
        part = PartProgress(name, number, len(budgets), PARTS[name].about, round(allowed))
        if allowed:
            note(part)
            _say(f"--- {number} of {part.of}, {name}: {part.about}, {allowed:.0f} s")
            job = Job(arguments.device, name, arguments.quick, time.time() + allowed, folder)
            outcome = run_part(job, allowed)
        else:
            outcome = "not begun, the time was up"
        ended.append(replace(part, outcome=outcome))
        note(ended[-1])
    _say("\n".join(f"{part.name:<10} {part.outcome}" for part in ended))
    _say(f"{time.monotonic() - began:.0f} s in all; results are in {folder}")
    return int(any(part.outcome != DONE for part in ended))


def budgets_of(arguments: Namespace) -> dict[str, float]:
    """Return part -> time limit in seconds, in the order of the run.

    Parts that consist of checks are left out if the checks cannot be run here.
    """
    quick: dict[str, float] = {}
    if arguments.quick and arguments.device == "cuda":
        quick = QUICK_PARTS
    names = list(arguments.only or quick or PARTS)
    if why_no_checks():
        names = [name for name in names if PARTS[name].items is not no_items]
    return {name: quick.get(name, PARTS[name].seconds) for name in names}


def run_part(job: Job, seconds: float) -> str:
    """Run the items of a part in a process; print and save their lines.

    Returns:
        DONE, or a text that says how the part ended.
    """
    path = job.path("checks", f"{job.part}.jsonl")
    lost = ""
    done = 0
    path.parent.mkdir(parents=True, exist_ok=True)

    def move_results_to_file(line: Line) -> Line:
        # the results of a Tensor Core get a file of their own, in place of a long line
        if "npz" in line:
            content = base64.b64decode(line.pop("npz"))
            saved = write_atomic(job.path("mma", line["file"]), content)
            _say(f"{saved}:")
        return line

    with path.open("w", encoding="utf-8") as file:
        for line in passport.lines(
            file,
            worker_command(job),
            seconds,
            timing_seconds=seconds,
            grace=GRACE,
            keep=move_results_to_file,
        ):
            if line["item"] in ("start", "end"):
                continue
            # facts that could be read are saved, but neither printed nor counted
            if line["kind"] != "facts" or line["outcome"] != "done":
                _say(_readable(line))
                done += 1
            process_lost = line["outcome"] == "process lost" or line["item"] == "process"
            if process_lost and not lost:
                lost = line["error"]
    # the last line is the end
    if line["outcome"] == "interrupted":
        raise KeyboardInterrupt
    for item in line["missing"]:
        _say(f"{item}: LEFT OUT, {line['outcome']}")
    if done or line["missing"]:
        _say(f"{path}: {done} of {done + len(line['missing'])} items")
    else:
        path.unlink()
        _say(f"{job.report.name} has {PARTS[job.part].lacking}")
    if lost.startswith("no answer within"):
        return f"stopped after {seconds + GRACE:.0f} s; its results so far are saved"
    if lost:
        return f"failed, {lost}; its last lines say why"
    return DONE


def _readable(line: Line) -> str:
    """Return a line of an item in readable form."""
    parts = []
    if line["outcome"] != "done":
        parts.append(f"{line['outcome'].upper()}, {line['error'].splitlines()[0]}")
    if line.get("summary"):
        parts.append(line["summary"])
    if not parts:
        parts.append("done")
    return f"{line['item']}: {'; '.join(parts)}"


def _write_passport(arguments: Namespace) -> int:
    # `is_available` queries the driver and starts nothing on a GPU
    if arguments.device == "cuda" and not torch.cuda.is_available():
        return _refuse(
            f"{NO_GPU}for a dry run: labkit gpu --device cpu --quick --passport "
            "/tmp/rehearsal.jsonl"
        )
    path: Path = arguments.passport
    seconds = PASSPORT.seconds if arguments.seconds is None else arguments.seconds
    command = worker_command(Job(arguments.device, quick=arguments.quick))
    why = why_no_checks()
    if why:
        _say(why)
    try:
        end = passport.make(path, command, seconds=seconds, say=_say)
    except FileExistsError:
        return _refuse(
            f"{path} exists already and was not changed; choose another name, e.g. "
            f"{_free_name(path)}"
        )
    except OSError as error:
        return _refuse(f"{path} cannot be written ({error.strerror}); choose another folder")
    _say(
        f"{end}. The passport is in {path.resolve()}\nSend this file. `labkit gpu --read {path}` "
        "says what is in it."
    )
    return int(end != "complete")


def _free_name(path: Path) -> Path:
    number = 2
    while path.with_stem(f"{path.stem}-{number}").exists():
        number += 1
    return path.with_stem(f"{path.stem}-{number}")


def _read(path: Path) -> int:
    try:
        found = passport.read_file(path)
    except OSError as error:
        return _refuse(f"{path} cannot be read ({error.strerror})")
    except ValueError as error:
        return _refuse(f"{path} is not a passport: {error}")
    _say(passport.report(found))
    return int(not found.whole)


def _refuse(sentence: str) -> int:
    sys.stderr.write(f"labkit gpu: {sentence}\n")
    return 2


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
