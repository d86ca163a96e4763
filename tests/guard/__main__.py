"""The guard's commands: record, compare, scripts."""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.guard.compare import compare
from tests.guard.trees import OWN_TREE, environment


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.guard")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write one text file for each item")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--only", default="", help="only items whose names contain this word")
    recording.add_argument("--tree", type=Path, default=OWN_TREE, help="the checkout to measure")
    comparing = commands.add_parser("compare", help="print the differences of two recordings")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    scripts = commands.add_parser("scripts", help="run the outside scripts by torch alone")
    scripts.add_argument("word", nargs="?", default="", help="only scripts with this in their name")
    chosen = parser.parse_args()
    if chosen.command == "compare":
        return compare(chosen.old, chosen.new)
    if chosen.command == "scripts":
        from tests.guard import plain_runs

        return plain_runs.show(chosen.word)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    words = ["tests.guard.recorder", str(chosen.folder.resolve()), chosen.only]
    with environment(chosen.tree.resolve()) as variables:
        return subprocess.run([sys.executable, "-m", *words], env=variables).returncode


if __name__ == "__main__":
    sys.exit(main())
