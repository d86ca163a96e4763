"""`labkit diagnose`: run a few steps of a training script as it is, and say what is wrong with them."""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from pathlib import Path

from labkit.commands.watch import ours_after


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("script", type=Path, help="a training script, run as `python script` would")
    parser.add_argument("--steps", type=int, default=20, help="stop it after so many (default: 20)")
    parser.add_argument("arguments", nargs=REMAINDER, help="the script's own arguments, after --steps")


def run(asked: Namespace) -> int:
    from labkit.clinic.script import diagnose_script

    own = ArgumentParser(prog="labkit diagnose", add_help=False)
    first, arguments = asked.arguments[:2], asked.arguments[2:]
    if first[:1] == ["--steps"]:  # argparse gives all that follows the script to the script
        own.add_argument("--steps", type=int)
        asked.steps, asked.arguments = own.parse_args(first).steps, arguments
    ours_after(asked.arguments, ("--steps",), asked.script, "diagnose")
    try:
        report = diagnose_script(asked.script, asked.arguments, asked.steps)
    except ValueError as cannot:
        print(cannot, file=sys.stderr)
        return 2
    print(report)
    return 0 if report.healthy else 1
