"""Copies of the notebooks in a learner's folder, and their updates.

Idea: a list beside the copies holds the digest of each notebook as it was copied. A copy that still
has this digest is replaced by a newer notebook. Any other holds work: the newer one is put beside
it, with the version in its name. The list also names the version of the handout that the copies are
from.

Invariant: a copy that was changed is never modified, and no copy is replaced by one of an earlier
handout.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.records.files import write_atomic
from labkit.records.handout import handout_of, is_older

DIGESTS = ".labkit-notebooks.json"
# an entry of it beside those of the notebooks
VERSION = "labkit version"


@dataclass(frozen=True)
class CopiedNotebook:
    """The result of copying one notebook.

    Attributes:
        status: "new", "the same", "replaced" (the copy was unchanged) or "kept" (the copy holds
            work, or is from a later handout).
        newer: the notebook that was put beside a kept copy; None where it is not newer.
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
    if is_older(version, version_of_copies(folder)):
        # what the folder has is newer, changed or not
        kept = [
            CopiedNotebook(each.name, "kept") for each in notebooks if (folder / each.name).exists()
        ]
        notebooks = [each for each in notebooks if not (folder / each.name).exists()]
    else:
        kept = []
        if handout_of(version):
            digests |= {VERSION: version}
    copied = [
        _copy(notebook, folder, digests.get(notebook.name), version) for notebook in notebooks
    ]
    write_atomic(
        folder / DIGESTS, listing({each.name: each.read_bytes() for each in notebooks}, digests)
    )
    return sorted([*kept, *copied], key=lambda each: each.name)


def listing(notebooks: Mapping[str, bytes], others: Mapping[str, str]) -> bytes:
    """Return the list kept beside the copies: digests of these notebooks, and other entries."""
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
    if _digest(content) == last_digest:
        return CopiedNotebook(target.name, "kept")
    suffixes = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    candidates = (
        target.with_name(f"{target.stem}-{version}{suffix}{target.suffix}") for suffix in suffixes
    )
    newer = next(path for path in candidates if not path.exists() or path.read_bytes() == content)
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
