"""Rehearsals of `labkit gpu` on a CPU, and the lines that its parts save."""

import io
import json
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from labkit import cli, gpu


def rehearse(folder: Path, *only: str) -> int:
    """Run parts on the CPU, with enough time for a busy machine, and return the exit status."""
    with pytest.MonkeyPatch.context() as patch:
        for name in only:
            patch.setitem(gpu.PARTS, name, replace(gpu.PARTS[name], seconds=300.0))
        return cli.main(
            ["gpu", "--device", "cpu", "--quick", "--folder", str(folder), "--only", *only]
        )


@dataclass(frozen=True)
class Rehearsal:
    """A finished rehearsal: its folder, its exit status, and what it printed."""

    folder: Path
    status: int
    printed: str


def rehearsal(folder: Path, *only: str) -> Rehearsal:
    """Run parts on the CPU as `rehearse` does, and return all that there is to check."""
    with redirect_stdout(io.StringIO()) as printed:
        status = rehearse(folder, *only)
    return Rehearsal(folder, status, printed.getvalue())


def job_of(
    folder: Path, part: str = "", device: str = "cpu", seconds: float = 60.0, quick: bool = True
) -> gpu.Job:
    """Return the job of a part that ends after these seconds."""
    return gpu.Job(device, part, quick, time.time() + seconds, folder)


def lines_by_item(file: Path) -> dict[str, Any]:
    """Return item -> its line, in a file of a passport or of a part."""
    return {line["item"]: line for line in map(json.loads, file.read_text().splitlines())}


def lines_of(folder: Path, part: str) -> dict[str, Any]:
    """Return the lines that a part saved by their items, without the start and the end."""
    (path,) = (folder / "checks").rglob(f"{part}.jsonl")
    lines = lines_by_item(path)
    del lines["start"], lines["end"]
    return lines
