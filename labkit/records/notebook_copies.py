"""Copies of the notebooks for a learner, and of newer ones later; a copy that was changed is never replaced.

Idea: beside the copies stands a list of what was handed out, by its digest. A copy that still has that digest is as it
was handed out and may be replaced; any other holds work, and a newer notebook is put beside it, with the version in its
name.

Invariant: a file that differs from what was handed out keeps every byte.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

from labkit.records.files import write_atomic

HANDED_OUT = ".labkit-notebooks.json"


@dataclass(frozen=True)
class Copied:
    """What became of one notebook.

    what  "new", "the same", "replaced" (it was as handed out) or "kept" (it holds work)
    newer the notebook that was put beside it; None where nothing newer came
    """

    name: str
    what: str
    newer: Path | None = None

    def __str__(self) -> str:
        beside = f"; the newer one is {self.newer.name}" if self.newer else ""
        return f"{self.name}: {self.what}{beside}"


def copy_notebooks(source: Path, folder: Path, version: str) -> list[Copied]:
    """Copy the notebooks of `source` into `folder`, made where it is missing; return what became of each.

    version: goes into the name of a newer notebook that is put beside changed work.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handed_out = _read(folder / HANDED_OUT)
    notebooks = sorted(source.glob("*.ipynb"))
    copied = [_copy(notebook, folder, handed_out.get(notebook.name), version) for notebook in notebooks]
    known = {notebook.name: _digest(notebook.read_bytes()) for notebook in notebooks}
    write_atomic(folder / HANDED_OUT, json.dumps({**handed_out, **known}, indent=1, sort_keys=True).encode() + b"\n")
    return copied


def _copy(notebook: Path, folder: Path, handed_out: str | None, version: str) -> Copied:
    target, content = folder / notebook.name, notebook.read_bytes()
    if not target.exists():
        write_atomic(target, content)
        return Copied(target.name, "new")
    present = target.read_bytes()
    if present == content:
        return Copied(target.name, "the same")
    if _digest(present) == handed_out:
        write_atomic(target, content)
        return Copied(target.name, "replaced")
    if _digest(content) == handed_out:
        return Copied(target.name, "kept")
    ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    beside = (target.with_name(f"{target.stem}-{version}{end}{target.suffix}") for end in ends)
    newer = next(path for path in beside if not path.exists() or path.read_bytes() == content)
    write_atomic(newer, content)
    return Copied(target.name, "kept", newer)


def _read(path: Path) -> dict[str, str]:
    """Return notebook -> digest of what was handed out; nothing where the list is missing or cannot be read."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return listed if isinstance(listed, dict) else {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
