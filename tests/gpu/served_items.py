"""Items that fail, hang or crash, and the process that serves them as it does the real ones."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from labkit.gpu import worker
from labkit.gpu.worker import Item, Kind

Found = dict[str, Any]


def lines_before(device: str, found: Found) -> None:
    """Count the lines that the file of this passport holds while this item runs."""
    found["lines"] = len(Path(os.environ["TEST_PASSPORT"]).read_text().splitlines())


def fails(device: str, found: Found) -> None:
    found["by then"] = 3
    raise ValueError("expected an even number, got 3")


def hangs(device: str, found: Found) -> None:
    print("about to wait", file=sys.stderr)
    threading.Event().wait()


def aborts(device: str, found: Found) -> None:
    os.abort()


def prints(device: str, found: Found) -> None:
    # What a library prints must not be taken for an answer.
    print('{"item": "not an answer"}')
    found["ok"] = True


def has_no_memory(device: str, found: Found) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def breaks_the_context(device: str, found: Found) -> None:
    """Fail as an illegal memory access does: every later synchronisation fails, too."""

    def refuse(device: str) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    worker.synchronize = refuse
    refuse(device)


SERVED = {
    function.__name__: function
    for function in (lines_before, fails, hangs, aborts, prints, has_no_memory, breaks_the_context)
}


def serving(*names: str) -> list[str]:
    """Return the command of a process that serves these functions; "time NAME" is a timing."""
    return [sys.executable, "-c", f"from tests.gpu.served_items import serve\nserve({names!r})"]


def serve(names: tuple[str, ...]) -> None:
    items = []
    for name in names:
        kind = Kind.TIMING if name.startswith("time ") else Kind.FACTS
        items.append(Item(name, kind, SERVED[name.removeprefix("time ")]))
    worker.serve(items, "cpu")
