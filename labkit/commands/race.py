"""`labkit race`: train a task under several recipes and seeds, each run on record."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("tasks", nargs="*", type=_known_task, metavar="TASK",
                        help='what to learn; "all": those of a CPU\'s size; --list names them')  # fmt: skip
    parser.add_argument("--list", action="store_true", help="say what the tasks and the recipes are, and which tasks "
                        "have a GPU's size")  # fmt: skip
    parser.add_argument("--recipes", nargs="+", type=_known_recipe, default=["FP32", "FP16", "FP16 dynamic"],
                        metavar="NAME", help="the first is what the others are compared with "
                        "(default: FP32 FP16 'FP16 dynamic')")  # fmt: skip
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    parser.add_argument("--device", default=None, help='"gpu", "cpu" or torch\'s "cuda:1" (default: the GPU where '
                        "there is one)")  # fmt: skip
    parser.add_argument("--workers", type=int, default=None, metavar="N",
                        help="processes at once (default: the cores; 1 on a GPU; torchrun's, started "
                        "as torchrun --nproc-per-node 4 -m labkit race ..., on several hosts too)")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=None, help="where records are kept, those of a GPU in a "
                        "folder of its name (default: data/runs; where there is no checkout, fp16-lab/data/runs in the "
                        "home folder)")  # fmt: skip


def run(arguments: Namespace) -> int:
    from labkit.train import compare_cli

    return compare_cli.run(arguments)


def _known_task(name: str) -> str:
    from labkit.train.compare_cli import ALL_TASKS

    if name not in (*ALL_TASKS, "all"):
        raise ArgumentTypeError(f"there is no task {name!r}; there are all, {', '.join(sorted(ALL_TASKS))}")
    return name


def _known_recipe(name: str) -> str:
    from labkit.amp import RECIPES

    if name not in RECIPES:
        raise ArgumentTypeError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}")
    return name
