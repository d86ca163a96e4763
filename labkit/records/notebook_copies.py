"""Copies of the notebooks in a learner's folder, and their updates.

Idea: a list beside the copies holds the digest of each notebook as it was copied. A copy that still
has this digest is replaced by a newer notebook. Any other copy holds work: the newer notebook is
put beside it, with the version in its name. The list also holds the version of the handout that the
copies are from.

Invariant: a copy that the learner has changed is never modified, and no copy is replaced by one of
an earlier handout.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.records.files import write_atomic
from labkit.records.handout import handout_of, is_older

# the list: name of a notebook -> digest
DIGESTS = ".labkit-notebooks.json"
# further entry of the list
VERSION = "labkit version"


@dataclass(frozen=True)
class CopiedNotebook:
    """The result of copying one notebook.

    Attributes:
        name: name of the notebook.
        status: "new", "the same", "replaced" (the copy was unchanged) or "kept" (the copy holds
            work, or is from a later handout).
        newer: the notebook that was put beside a kept copy; None if the copy is the newer one.
    """

    name: str
    status: str
    newer: Path | None = None

    def __str__(self) -> str:
        beside = f"; the newer one is {self.newer.name}" if self.newer else ""
        return f"{self.name}: {self.status}{beside}"


def copy_notebooks(source: Path, folder: Path, version: str) -> list[CopiedNotebook]:
    """Copy the notebooks of `source` into `folder`, which is created if missing.

    Args:
        source: the folder with the notebooks of the installed version.
        folder: the learner's folder; work in it is never replaced.
        version: part of the name of a newer notebook that is put beside changed work.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digests = _load_digests(folder / DIGESTS)
    notebooks = sorted(source.glob("*.ipynb"))
    # the copies in the folder are newer, whether changed or not: only missing ones are added
    only_missing = is_older(version, version_of_copies(folder))
    if not only_missing and handout_of(version):
        digests[VERSION] = version
    results = []
    contents = {}
    for notebook in notebooks:
        if only_missing and (folder / notebook.name).exists():
            results.append(CopiedNotebook(notebook.name, "kept"))
            continue
        contents[notebook.name] = notebook.read_bytes()
        results.append(_copy(notebook, folder, digests.get(notebook.name), version))
    write_atomic(folder / DIGESTS, listing(contents, digests))
    return results


def listing(notebooks: Mapping[str, bytes], others: Mapping[str, str]) -> bytes:
    """Return the content of the list beside the copies.

    Args:
        notebooks: name -> content of the notebooks whose digests it holds.
        others: further entries.
    """
    digests = {name: _digest(content) for name, content in notebooks.items()}
    return json.dumps({**others, **digests}, indent=1, sort_keys=True).encode() + b"\n"


def version_of_copies(folder: Path) -> str:
    """Return the version of the handout that a folder's copies come from, or ""."""
    version = _load_digests(folder / DIGESTS).get(VERSION, "")
    return version if isinstance(version, str) else ""


def _copy(notebook: Path, folder: Path, last_digest: str | None, version: str) -> CopiedNotebook:
    target = folder / notebook.name
    content = notebook.read_bytes()
    if not target.exists():
        write_atomic(target, content)
        return CopiedNotebook(target.name, "new")
    present = target.read_bytes()
    if present == content:
        return CopiedNotebook(target.name, "the same")
    if _digest(present) == last_digest:
        write_atomic(target, content)
        return CopiedNotebook(target.name, "replaced")
    # the learner has changed the copy, and the notebook is the one that it was copied from
    if _digest(content) == last_digest:
        return CopiedNotebook(target.name, "kept")
    # a free name for the newer notebook, or the name under which it was put there before
    newer = target.with_name(f"{target.stem}-{version}{target.suffix}")
    number = 1
    while newer.exists() and newer.read_bytes() != content:
        number += 1
        newer = target.with_name(f"{target.stem}-{version}-{number}{target.suffix}")
    write_atomic(newer, content)
    return CopiedNotebook(target.name, "kept", newer)


def _load_digests(path: Path) -> dict[str, str]:
    try:
        digests = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return digests if isinstance(digests, dict) else {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
