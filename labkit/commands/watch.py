"""`labkit watch`: run a training script as it is, and report what its numbers do."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from pathlib import Path

from labkit.instrument import watched


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--every", type=int, default=50, help="sample one step in so many (default: 50)")
    parser.add_argument("--folder", type=Path, default=Path("watch-report"), help="of the reports (%(default)s)")
    parser.add_argument("script", type=Path, help="a training script, run as `python script` would")
    parser.add_argument("arguments", nargs=REMAINDER, help="the script's own arguments")


def run(asked: Namespace) -> int:
    if asked.every < 1 or not asked.script.is_file():
        no_script = f"there is no script at {asked.script}"
        print(no_script if asked.every > 0 else f"--every is at least 1; it was given {asked.every}", file=sys.stderr)
        return 2
    status, reports = watched(asked.script, asked.arguments, asked.every)
    first = os.environ.get("RANK", "0") == "0"  # of torchrun's ranks, whose report is that of all of them
    for number, report in enumerate(reports if first else (), 1):
        name = asked.folder.name + f"-{number}" * (number > 1)
        folder = report.save(asked.folder.with_name(name))
        print(f"{report}\nwritten to {folder / 'report.html'}", file=sys.stderr)
    if not reports:
        print(f"no optimizer of torch stepped in {asked.script}: there was no model to watch", file=sys.stderr)
    return status
