"""The guard's commands: record, compare, speed, journeys, scripts."""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.guard.compare import compare
from tests.guard.speed import compare_speed
from tests.guard.trees import OWN_TREE, environment


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    whole = argparse.ArgumentParser(prog="python -m tests.guard")
    commands = whole.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="write one text file for each item")
    record.add_argument("folder", type=Path)
    record.add_argument("--only", default="", help="only items whose names contain this word")
    comparing = commands.add_parser("compare", help="print the differences of two recordings")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    speed = commands.add_parser("speed", help="time steps of an old tree and of this one, in pairs")
    speed.add_argument("old", type=Path)
    speed.add_argument("--seconds", type=float, default=4.0, help="for each case")
    speed.add_argument("--pairs", type=int, default=3, help="how often both processes are started")
    speed.add_argument("--only", default="", help="only cases whose names contain this word")
    journeys = commands.add_parser("journeys", help="count files opened, functions and turns back")
    journeys.add_argument("--walk", action="store_true", help="print each function of the walks")
    scripts = commands.add_parser("scripts", help="run the outside scripts by torch alone")
    scripts.add_argument("word", nargs="?", default="", help="only scripts with this in their name")
    for command in (record, speed, journeys):
        command.add_argument("--tree", type=Path, default=OWN_TREE, help="the checkout to measure")
    return whole


def main() -> int:
    """Run the command of the command line, and return its exit status."""
    chosen = parser().parse_args()
    match chosen.command:
        case "compare":
            return compare(chosen.old, chosen.new)
        case "speed":
            old = chosen.old.resolve()
            new = chosen.tree.resolve()
            return compare_speed(old, new, chosen.seconds, chosen.pairs, chosen.only)
        case "journeys":
            options = ["--walk"] if chosen.walk else []
            return run_with(chosen.tree, "journeys", *options)
        case "scripts":
            return run_with(OWN_TREE, "plain_runs", chosen.word)
        case _:
            chosen.folder.mkdir(parents=True, exist_ok=True)
            return run_with(chosen.tree, "recorder", str(chosen.folder.resolve()), chosen.only)


def run_with(tree: Path, module: str, *arguments: str) -> int:
    """Run a module of the guard with the labkit of a tree, and return its exit status."""
    with environment(tree.resolve()) as variables:
        words = [sys.executable, "-m", f"tests.guard.{module}", *arguments]
        return subprocess.run(words, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main())
