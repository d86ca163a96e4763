"""The recorder of all items, started by `python -m tests.guard record` with a tree's labkit.

Two environment variables change how it runs: LABKIT_GUARD_AT_ONCE is the number of processes at a
time, and LABKIT_GUARD_SECONDS a file to which the seconds of each item are appended.
"""

import os
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path

import torch

# A process's first optimizer imports it; imported here, it is not a part of that recording.
import torch._dynamo

from tests.guard.processes import Item, run_all
from tests.guard.trees import guarded_tree

# Folder of a recording -> the module of its items. The longest parts start first, so that no
# process works alone at the end.
PARTS = {
    "grades": "grades",
    "scripts": "outside",
    "card": "card",
    "surface": "surface",
    "recipes": "recipes",
    "interfaces": "interfaces",
    "faults": "faults",
}


def items(word: str = "") -> list[Item]:
    """Return all items whose names, FOLDER/NAME, contain a word.

    If the word begins with a folder, only the module of that folder is imported.
    """
    folder = word.partition("/")[0]
    parts = [PARTS[folder]] if folder in PARTS else list(PARTS.values())
    modules = [import_module(f"tests.guard.{part}") for part in parts]
    return [item for module in modules for item in module.items() if word in item.name]


def main() -> int:
    """Record the items of the command line: the folder, and a word of the items' names."""
    folder = Path(sys.argv[1])
    word = sys.argv[2]
    torch.set_num_threads(1)
    warnings.simplefilter("default")
    tree = guarded_tree()
    chosen = items(word)
    start = time.perf_counter()
    print(f"recording {len(chosen)} items of {tree} into {folder}", flush=True)
    failed = run_all(chosen, folder, at_once=int(os.environ.get("LABKIT_GUARD_AT_ONCE", "2")))
    print(f"{len(chosen)} items in {time.perf_counter() - start:.0f} s")
    for name in failed:
        print(f"raised: {name}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
