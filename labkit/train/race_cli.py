"""What does `labkit race` take, and what does it print? A line for every run, as soon as it is on record."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from labkit.amp import RECIPES
from labkit.train.digits import data_folder
from labkit.train.race import race
from labkit.train.record import RunRecord
from labkit.train.tasks import TASKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what `labkit race` takes."""
    parser.add_argument("task", choices=sorted(TASKS), help="what to learn")
    parser.add_argument("--recipes", nargs="+", default=["FP32", "FP16", "FP16 dynamic"], metavar="NAME",
                        choices=sorted(RECIPES), help="one or more of: " + ", ".join(RECIPES))  # fmt: skip
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    parser.add_argument("--folder", type=Path, default=None, help="where records are kept (default: data/runs)")


def run(args: argparse.Namespace) -> int:
    """Run the race and print a line for each record."""

    def tell(r: RunRecord) -> None:
        sys.stdout.write(
            f"{r.task}  {r.recipe:<22} seed {r.seed}  {r.metric_name} {r.metric:.3f}  loss {r.final_loss:.4f}  "
            f"{r.skipped} skipped  {r.seconds:.1f} s  [{r.device}, torch {r.versions['torch']}, {r.date}]\n"
        )
        sys.stdout.flush()

    folder = args.folder or data_folder() / "runs"
    race(TASKS[args.task], [RECIPES[name] for name in args.recipes], args.seeds, folder, progress=tell)
    return 0
