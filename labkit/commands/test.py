"""`labkit test`: run a checkout's checks."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace

from labkit.checkout import check_all, set_up
from labkit.commands.setup import require_checkout


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="the slow proofs, too")
    parser.add_argument("--pytest", default="", help='more arguments for pytest: --pytest="-k autocast"')


def run(arguments: Namespace) -> int:
    folder = require_checkout()
    return set_up(folder, test=True) or check_all(folder, arguments.all, shlex.split(arguments.pytest))
