"""Items that run in processes of their own, several at a time, and write their results into files.

The parent has imported everything and runs no item itself. A fork of it starts quickly, and every
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

# Seconds after which the process of an item is ended.
LIMIT = 400
# The text of an item that failed begins so.
RAISED = "the item raised"


@dataclass(frozen=True)
class Item:
    """What one file records.

    Attributes:
        name: The file's path in the recording, without .txt.
        text: Returns the text of the file.
    """

    name: str
    text: Callable[[], str]


def run_all(items: Sequence[Item], folder: Path, at_once: int = 2) -> list[str]:
    """Write the text of each item into the folder.

    Args:
        items: The items.
        folder: The folder of the recording.
        at_once: How many processes run at a time.

    Returns:
        The names of the items that raised or whose process was ended.
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
    """Return the path of an item's file, whose folder is made if necessary."""
    path = folder / f"{item.name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _forked(item: Item, folder: Path) -> int:
    """Run an item in a fork of this process, and return the fork's process number."""
    path = file_of(item, folder)
    # An older recording of the item would stand for it if its process were killed.
    path.unlink(missing_ok=True)
    # What is buffered would be printed by both processes.
    sys.stdout.flush()
    process = os.fork()
    if process != 0:
        return process
    status = 1
    try:
        signal.alarm(LIMIT)
        # A group of its own: an item that signals its group does not end the recorder.
        os.setpgid(0, 0)
        start = time.perf_counter()
        with open(os.devnull, "r+b") as nothing:
            for descriptor in (0, 1, 2):
                os.dup2(nothing.fileno(), descriptor)
        text = item.text()
        path.write_text(text, encoding="utf-8")
        log = os.environ.get("LABKIT_GUARD_SECONDS", "")
        if log:
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{time.perf_counter() - start:.1f} {item.name}\n")
        status = 0
    except BaseException:
        path.write_text(f"{RAISED}\n{traceback.format_exc()}", encoding="utf-8")
    finally:
        os._exit(status)
