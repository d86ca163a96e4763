"""Faults planted one at a time into a copy of labkit, which the tests must notice.

Run by hand: make mutants, or .venv/bin/python tests/mutants/run.py [WORDS ...] [--processes 2]

The faults are data, in faults.toml; WORDS choose those whose name or file has one of them.
First the tests must pass on a copy without a fault. A fault that no test notices, one whose text no
longer occurs exactly once, one that ends in anything but a failed test (a module that cannot be
imported proves nothing), or one that takes too long: each makes the exit status 1. The working tree
is only read.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
FAULTS = Path(__file__).with_name("faults.toml")
COPIED = ("labkit", "labkit_lessons", "tests", "pyproject.toml")
# Seconds for the tests of one fault.
TOO_LONG = 300


@dataclass(frozen=True)
class Fault:
    """A deliberate fault; see faults.toml."""

    name: str
    file: str
    was: str
    becomes: str
    tests: tuple[str, ...]

    def planted(self, source: str) -> str:
        """Return a source text with the fault in it; its place must occur exactly once."""
        if source.count(self.was) != 1:
            raise ValueError(
                f"its text occurs {source.count(self.was)} times in {self.file}: {self.was!r}"
            )
        return source.replace(self.was, self.becomes)


def faults() -> list[Fault]:
    rows = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    return [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def copied(folder: Path) -> Path:
    """Copy what the tests need into a folder; what is only read is linked."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / name, ignore=ignore)
        else:
            shutil.copy(source, folder)
    # by which labkit knows a checkout
    for name in ("data", "docs", "notebooks", "CONTRIBUTING.md"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run_tests(
    folder: Path, tests: tuple[str, ...], timeout: float | None = TOO_LONG
) -> tuple[int, str]:
    """Run some tests on the copy in a folder; return pytest's exit status and what it said.

    Args:
        folder: The folder of the copy.
        tests: The tests, as pytest names them.
        timeout: The seconds after which the run is ended; None for no limit.

    Raises:
        subprocess.TimeoutExpired: The run took longer than `timeout`.
    """
    # No bytecode: a file that was replaced within a second and has the same length would be taken
    # for the old one.
    here = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    call = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    done = subprocess.run(
        call, cwd=folder, env=here, capture_output=True, text=True, timeout=timeout
    )
    return done.returncode, done.stdout + done.stderr


def tried(fault: Fault, folders: SimpleQueue[Path]) -> tuple[str, str]:
    """Plant a fault into one of the copies, run its tests, and restore the copy.

    Returns:
        A line of the table, and why the fault does not count as noticed: "" if a test noticed it.
    """
    folder = folders.get()
    began = time.perf_counter()
    noticed_by = ""
    wrong = ""
    source = (folder / fault.file).read_text(encoding="utf-8")
    try:
        (folder / fault.file).write_text(fault.planted(source), encoding="utf-8")
        status, output = run_tests(folder, fault.tests)
        failed = [
            line.split(" - ")[0].split("::", 1)[-1]
            for line in output.splitlines()
            if line.startswith("FAILED ")
        ]
        if status == 0:
            wrong = "SURVIVED: no test noticed it"
        elif not failed:
            wrong = "no test failed, but pytest did not pass either:\n" + output[-1500:]
        else:
            noticed_by = failed[0]
    except ValueError as error:
        wrong = str(error)
    except subprocess.TimeoutExpired:
        wrong = f"its tests take more than {TOO_LONG} s: choose fewer"
    finally:
        (folder / fault.file).write_text(source, encoding="utf-8")
        folders.put(folder)
    seconds = time.perf_counter() - began
    stem = Path(fault.file).stem
    return f"{fault.name:75.75} {stem:14} {seconds:5.1f} s  {noticed_by or f'!!! {wrong}'}", wrong


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "words", nargs="*", help="only faults whose name or file has one of these words"
    )
    arguments.add_argument("--processes", type=int, default=2)
    chosen = arguments.parse_args()
    some = [
        f
        for f in faults()
        if not chosen.words or any(word in f.name + f.file for word in chosen.words)
    ]
    if not some:
        # pytest without a test would run all of them
        arguments.error(f"no fault has one of the words {chosen.words} in its name or file")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        folders: SimpleQueue[Path] = SimpleQueue()
        for number in range(chosen.processes):
            folders.put(copied(Path(scratch) / str(number)))
        whole = copied(Path(scratch) / "whole")
        tests = sorted({test for fault in some for test in fault.tests})
        status, output = run_tests(whole, tuple(tests), timeout=None)
        if status:
            print(
                f"The tests must pass before a fault is planted, and they do not:\n{output[-3000:]}"
            )
            return 1
        print(f"without a fault: {output.splitlines()[-1]}", flush=True)
        survived = 0
        with ThreadPoolExecutor(chosen.processes) as pool:
            for line, wrong in pool.map(partial(tried, folders=folders), some):
                if wrong:
                    survived += 1
                print(line, flush=True)
    print(
        f"{len(some) - survived} of {len(some)} faults noticed, {time.perf_counter() - began:.0f} s"
    )
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
