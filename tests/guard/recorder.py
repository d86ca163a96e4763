"""Recorder of all items: started by `python -m tests.guard record`, with the labkit of the tree that it measures."""

import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch._dynamo  # which torch imports with the first optimizer, in each process anew

from tests.guard import card, faults, grades, outside, recipes, surface
from tests.guard.processes import Item, run_all
from tests.guard.trees import guarded_tree

# what takes longest begins first
PARTS = (grades, outside, card, surface, recipes, faults)


def items(word: str = "") -> list[Item]:
    """Return all items whose names contain a word."""
    return [item for part in PARTS for item in part.items() if word in item.name]


def main() -> int:
    folder, word = Path(sys.argv[1]), sys.argv[2]
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
