"""`labkit progress`: say what is solved in all lessons, and what comes next."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from labkit.grading import progress


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="of the notebooks (default: this one)")


def run(arguments: Namespace) -> int:
    print(progress(arguments.folder))
    return 0
