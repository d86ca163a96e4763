"""The run of the parts, each in a process of its own, so that a crash or a hang affects no other part.

Idea: the parent has a list of parts and seconds, and starts `labkit gpu --here` for one part at a time.

Invariant: a run ends within LIMIT, a quick one within QUICK_LIMIT; saved results of a part stay.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import torch

from labkit.bench import device_report
from labkit.gpu import checks, passport
from labkit.gpu.parts import PARTS, QUICK_PARTS, Job
from labkit.gpu.worker import environment
from labkit.records import refuse_simulated, results_folder

LIMIT = 520.0  # seconds for everything: less than nine minutes, with something to spare
QUICK_LIMIT = 180.0
NO_GPU = "torch reaches no GPU here, so nothing was recorded. `labkit device` says what there is; "
GRACE = 8.0  # seconds that a part may take beyond its budget, to begin and to end


def run(arguments: Namespace) -> int:
    """Run the parts, or write or read a passport; return 0 if all was done, 1 if not, 2 if nothing could be run."""
    if arguments.read is not None:
        return _read(arguments.read)
    if arguments.passport is not None:
        return _write_passport(arguments)
    try:
        report = device_report(arguments.device)
    except ValueError:
        return _refuse(f"{NO_GPU}for a dry run: labkit gpu --device cpu --quick --folder /tmp/rehearsal")
    folder = (arguments.folder or results_folder()).resolve()
    try:
        refuse_simulated(report.name, folder)
    except ValueError as error:
        return _refuse(str(error))
    budgets = budgets_of(arguments)
    limit = QUICK_LIMIT if arguments.quick and arguments.device == "cuda" else LIMIT
    seconds = limit if arguments.seconds is None else arguments.seconds
    if arguments.here:
        spent = time.time() - (arguments.since or time.time())  # importing torch takes seconds, too
        end = time.monotonic() + seconds - spent
        return max(_run_part(name, Job(report, folder, end, arguments.quick)) for name in budgets)
    _say(f"{report}\n")
    if (why := checks.missing()) and not arguments.only:
        _say(why)
    began, outcomes = time.monotonic(), {}
    for number, (name, budget) in enumerate(budgets.items(), 1):
        left = seconds - (time.monotonic() - began)
        outcomes[name] = _run_in_process(
            name, f"{number} of {len(budgets)}", min(budget, left - GRACE), folder, arguments
        )
    _say("\n".join(f"{name:<10} {outcome}" for name, outcome in outcomes.items()))
    _say(f"{time.monotonic() - began:.0f} s in all; results are in {folder}")
    return int(any(outcome != "done" for outcome in outcomes.values()))


def budgets_of(arguments: Namespace) -> dict[str, float]:
    """Return part -> its seconds, in the order they are run."""
    quick_on_gpu = arguments.quick and arguments.device == "cuda"
    left_out = checks.ONLY_CHECKS if checks.missing() else ()
    names = arguments.only or [name for name in (QUICK_PARTS if quick_on_gpu else PARTS) if name not in left_out]
    quick = QUICK_PARTS if quick_on_gpu else {}
    return {name: quick.get(name, PARTS[name].seconds) for name in names}


def _run_part(name: str, job: Job) -> int:
    if job.report.kind == "cpu":
        torch.set_num_threads(1)  # a dry run is small: a second thread would cost more than it saves
    for line in PARTS[name].run(job):
        _say(line)
    return 0


def _run_in_process(name: str, which: str, seconds: float, folder: Path, arguments: Namespace) -> str:
    """Run a part in a process of its own, and return how it ended."""
    if seconds <= 0:
        return "not begun, the time was up"
    _say(f"--- {which}, {name}: {PARTS[name].about}, {seconds:.0f} s")
    words = ["--device", arguments.device, "--folder", str(folder), "--only", name, *["--quick"] * arguments.quick]
    limits = ["--seconds", f"{seconds:.0f}", "--since", str(time.time())]
    command = [sys.executable, "-m", "labkit", "gpu", *words, *limits, "--here"]
    try:
        done = subprocess.run(command, env=environment(), timeout=seconds + GRACE, check=False)
    except subprocess.TimeoutExpired:
        return f"stopped after {seconds + GRACE:.0f} s; its results so far are saved"
    return "done" if done.returncode == 0 else f"failed with status {done.returncode}; its last lines say why"


def _write_passport(arguments: Namespace) -> int:
    if arguments.device == "cuda" and not torch.cuda.is_available():  # queries the driver, and starts nothing on a GPU
        return _refuse(f"{NO_GPU}for a dry run: labkit gpu --device cpu --quick --passport /tmp/rehearsal.jsonl")
    path: Path = arguments.passport
    seconds = passport.SECONDS if arguments.seconds is None else arguments.seconds
    command = passport.worker_command(arguments.device, quick=arguments.quick)
    if why := checks.missing():
        _say(why)
    try:
        end = passport.make(path, command, seconds=seconds, say=_say)
    except FileExistsError:
        return _refuse(f"{path} exists already and was not changed; choose another name, e.g. {_free_name(path)}")
    except OSError as error:
        return _refuse(f"{path} cannot be written ({error.strerror}); choose another folder")
    _say(f"{end}. The passport is in {path.resolve()}\nSend this file. `labkit gpu --read {path}` says what is in it.")
    return int(end != "complete")


def _free_name(path: Path) -> Path:
    names = (path.with_stem(f"{path.stem}-{n}") for n in itertools.count(2))
    return next(name for name in names if not name.exists())


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
