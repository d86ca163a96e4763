"""`labkit restore`: list the answers that were kept, print one, or bring them back."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("exercise", nargs="?", help="print the best answer to this one, scaling.advance for instance")
    parser.add_argument("--folder", type=Path, default=Path(), help="the folder of the notebooks (default: this one)")
    parser.add_argument("--write", action="store_true", help="bring answers back into cells that hold the starter")


def run(arguments: Namespace) -> int:
    from labkit.grading.kept import best, bring_back, kept_answers

    kept = kept_answers(arguments.folder)
    if arguments.exercise is not None:
        if arguments.exercise not in kept:
            print(f"no answer to {arguments.exercise} is kept; there are: {', '.join(kept) or 'none'}", file=sys.stderr)
            return 2
        print(best(kept[arguments.exercise]).source)
    elif arguments.write:
        print("\n".join(bring_back(arguments.folder)) or "No answers are kept for this folder.")
    else:
        for id, answers in kept.items():
            top = best(answers)
            print(f"{id:<26}{top.points} of {top.out_of} points  {top.when}  ({len(answers)} kept)")
        print(f"`labkit restore EXERCISE` prints an answer, `labkit restore --write` brings {len(kept)} back.")
    return 0
