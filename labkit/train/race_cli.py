"""What does `labkit race` take, and what does it print? A line for each run when it is on record, then the verdicts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from labkit.amp import RECIPES
from labkit.train.compare import compare
from labkit.train.digits import data_folder
from labkit.train.record import RunRecord
from labkit.train.tasks import TASKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what `labkit race` takes."""
    parser.add_argument("tasks", nargs="+", choices=[*sorted(TASKS), "all"], metavar="TASK",
                        help='what to learn, one or more of: ' + ", ".join(TASKS) + ', or "all"')  # fmt: skip
    parser.add_argument("--recipes", nargs="+", default=["FP32", "FP16", "FP16 dynamic"], metavar="NAME",
                        choices=sorted(RECIPES), help="the first is what the others are compared with; one or more "
                        "of: " + ", ".join(RECIPES))  # fmt: skip
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    parser.add_argument("--workers", type=int, default=None, metavar="N", help="processes at once (default: the cores)")
    parser.add_argument("--folder", type=Path, default=None, help="where records are kept (default: data/runs)")


def run(args: argparse.Namespace) -> int:
    """Run the race and print a line for each record, then how each recipe differs from the first."""
    recipes = [RECIPES[name] for name in args.recipes]
    folder = args.folder or data_folder() / "runs"
    for task in TASKS if "all" in args.tasks else dict.fromkeys(args.tasks):
        try:
            found = compare(TASKS[task], recipes, args.seeds, folder, workers=args.workers, progress=_tell)
        except ValueError as error:  # a record of something else lies there, or no workers were asked for
            sys.stderr.write(f"labkit race: {error}\n")
            return 1
        sys.stdout.write(f"{found}\n\n")
    return 0


def _tell(r: RunRecord) -> None:
    sys.stdout.write(
        f"{r.task}  {r.recipe:<22} seed {r.seed}  {r.metric_name} {r.metric:.3f}  loss {r.final_loss:.4g}  "
        f"{r.skipped} skipped  {r.seconds:.1f} s  [{r.device}, torch {r.versions['torch']}, {r.date}]\n"
    )
    sys.stdout.flush()
