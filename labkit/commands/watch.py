"""`labkit watch`: run a training script as it is, and report what its numbers do."""

from __future__ import annotations

import itertools
import os
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--every", type=int, default=50, help="sample one step in so many (default: 50)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("watch-report"),
        help="of the report; the next gets -2 behind its name, and so on (%(default)s)",
    )
    parser.add_argument("script", type=Path, help="a training script, run as `python script` would")
    parser.add_argument("arguments", nargs=REMAINDER, help="the script's own arguments")


def run(asked: Namespace) -> int:
    from labkit.instrument import watched

    if asked.every < 1 or not asked.script.is_file():
        no_script = f"there is no script at {asked.script}"
        print(no_script if asked.every > 0 else f"--every is at least 1; it was given {asked.every}", file=sys.stderr)
        return 2
    ours_after(asked.arguments, ("--every", "--folder"), asked.script, "watch")
    status, reports = watched(asked.script, asked.arguments, asked.every)
    first = os.environ.get("RANK", "0") == "0"  # of torchrun's ranks, whose report is that of all of them
    for report in reports if first else ():
        print(report, file=sys.stderr)
        try:
            written = f"written to {report.save(free_folder(asked.folder)) / 'report.html'}"
        except Exception as error:  # the script has ended; its exit status stays its own
            written = f"the report could not be written: {type(error).__name__}: {error}"
        print(written, file=sys.stderr)
    if not reports:
        print(f"no optimizer of torch stepped in {asked.script}: there was no model to watch", file=sys.stderr)
    return status


def free_folder(folder: Path) -> Path:
    """Return the folder, or the first of NAME-2, NAME-3 and so on in which nothing lies: no report is written over."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([folder], numbered) if not each.exists() or _is_empty(each))


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def ours_after(arguments: Sequence[str], ours: Sequence[str], script: Path, command: str) -> None:
    """Say which options of this command stand after the script's name: they are the script's there."""
    for word in arguments:
        if word.split("=")[0] in ours:
            print(
                f"labkit {command}: {word} stands after {script}, so it goes to the script. "
                f"If it is meant for labkit: labkit {command} {word.split('=')[0]} ... {script}",
                file=sys.stderr,
            )
