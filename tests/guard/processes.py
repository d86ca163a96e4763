"""Items that run in processes of their own, several at a time, and write their results into files.

Idea: the parent has imported everything and runs nothing. A fork of it starts at once, and every
item starts from the same state.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT = 400  # seconds of an item


@dataclass(frozen=True)
class Item:
    """What one file records: the file's name without .txt, and the function that
    returns the text.
    """

    name: str
    text: Callable[[], str]


RAISED = "the item raised"


def run_all(items: Sequence[Item], folder: Path, at_once: int = 2) -> list[str]:
    """Write the text of each item into the folder, and return the names of items that raised or
    ended their process.
    """
    running: dict[int, Item] = {}
    failed: list[str] = []
    waiting = list(items)
    while waiting or running:
        if waiting and len(running) < at_once:
            item = waiting.pop(0)
            running[_forked(item, folder)] = item
            continue
        process, status = os.wait()
        item = running.pop(process)
        if status != 0:
            failed.append(item.name)
        path = file_of(item, folder)
        if not path.exists():
            path.write_text(f"{RAISED}: its process ended with {status}\n", encoding="utf-8")
        print(f"{len(items) - len(waiting) - len(running)}/{len(items)} {item.name}", flush=True)
    return failed


def file_of(item: Item, folder: Path) -> Path:
    """Return the path of an item's file, in a folder that exists."""
    path = folder / f"{item.name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _forked(item: Item, folder: Path) -> int:
    """Run an item in a fork of this process, whose number is returned."""
    path = file_of(item, folder)
    sys.stdout.flush()
    if process := os.fork():
        return process
    status = 1
    try:
        signal.alarm(LIMIT)
        os.setpgid(0, 0)
        start = time.perf_counter()
        with open(os.devnull, "r+b") as nothing:
            for descriptor in (0, 1, 2):
                os.dup2(nothing.fileno(), descriptor)
        text = item.text()
        path.write_text(text, encoding="utf-8")
        if seconds := os.environ.get("LABKIT_GUARD_SECONDS"):
            with open(seconds, "a", encoding="utf-8") as file:
                file.write(f"{time.perf_counter() - start:.1f} {item.name}\n")
        status = 0
    except BaseException:
        path.write_text(f"{RAISED}\n{traceback.format_exc()}", encoding="utf-8")
    finally:
        os._exit(status)
