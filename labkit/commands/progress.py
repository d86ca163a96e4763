"""`labkit progress`: say what is solved in all lessons, and what comes next."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="of the notebooks (default: this one)")


def run(arguments: Namespace) -> int:
    from labkit.grading import progress

    if not arguments.folder.is_dir():
        print(f"labkit progress: there is no folder {arguments.folder}", file=sys.stderr)
        return 2
    print(progress(arguments.folder))
    return 0
