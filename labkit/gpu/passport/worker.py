"""The process in which the items of a passport run, one after the other, and which may hang or die of one.

Protocol: it sends {"items": [[name, kind], ...]}; then, for each line {"item": name, "seconds": limit} of standard
input, the item's line. What anything prints goes to standard error, so that standard output holds answers alone.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from labkit.gpu.passport.items import Item, catalogue
from labkit.records import linux

FRAMES = 12  # of a traceback, the innermost
WORDS = 2000  # letters of an error message


def main(device: str, quick: str = "") -> None:
    """Serve the catalogue of a device."""
    serve(catalogue(device, quick=bool(quick)), device)


def serve(items: Sequence[Item], device: str) -> None:
    """Run the items that standard input names, until it ends or the device's context is broken."""
    if sys.platform == "linux":
        linux.end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()

    def send(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value, default=str) + "\n")
        answers.flush()

    by_name = {item.name: item for item in items}
    send({"items": [[item.name, item.kind] for item in items]})
    for line in sys.stdin:
        request = json.loads(line)
        faulthandler.dump_traceback_later(0.9 * request["seconds"])  # what hangs says where, before it is ended
        found = answer(by_name[request["item"]], device)
        faulthandler.cancel_dump_traceback_later()
        send(found)
        if found.get("broken"):
            return


def answer(item: Item, device: str) -> dict[str, Any]:
    """Run an item and return its line.

    outcome    "done", "failed" or "out of memory"
    broken     True where the device takes no further call: the process has to be started anew
    """
    found: dict[str, Any] = {"item": item.name, "kind": item.kind}
    began = time.monotonic()
    try:
        item.run(device, found)
        _synchronize(device)
        found["outcome"] = "done"
    except Exception as error:
        found["outcome"] = "out of memory" if isinstance(error, torch.OutOfMemoryError | MemoryError) else "failed"
        found |= {"error": f"{type(error).__name__}: {error}"[:WORDS], "traceback": short_traceback(error)}
    found["seconds"] = round(time.monotonic() - began, 3)
    if found["outcome"] != "done":
        found |= _recover(device)
    return found


def _recover(device: str) -> dict[str, bool]:
    """Give memory back, and try the device: an error of CUDA may leave a context that refuses everything."""
    gc.collect()
    try:
        if device == "cuda":
            torch.cuda.empty_cache()
        _synchronize(device)
    except RuntimeError:
        return {"broken": True}
    return {}


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def short_traceback(error: BaseException) -> list[str]:
    """Return the innermost frames as "file:line, function: source", without the folders of this machine."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return [f"{without_folders(frame.filename)}:{frame.lineno}, {frame.name}: {frame.line}" for frame in frames]


def without_folders(text: str) -> str:
    """Return a text of paths without the folders that lead to a package, and without the home folder.

    >>> without_folders("somewhere/site-packages/torch/nn/functional.py")
    'torch/nn/functional.py'
    """
    inside = text.rpartition("site-packages/")[2]
    root = str(Path(__file__).parents[3]) + os.sep
    return inside.replace(root, "").replace(str(Path.home()), "~")


if __name__ == "__main__":
    main(*sys.argv[1:])
