"""Reports of `labkit watch` and `labkit diagnose` on the scripts of `scripts/`, as their users see them."""

import os
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from labkit import cli
from tests.guard.plain import without_places
from tests.guard.processes import Item
from tests.guard.reports import values_of
from tests.guard.trees import HERE, guarded_tree

SCRIPTS = HERE / "scripts"
COMMANDS = {"diagnose": ["diagnose", "--folder", "report"], "watch": ["watch", "--every", "5"]}


def scripts() -> list[Path]:
    """Return the outside scripts, healthy and faulty."""
    return sorted(SCRIPTS.glob("*.py"))


def items() -> Iterator[Item]:
    """Yield an item for each command on each script."""
    for script in scripts():
        for name, words in COMMANDS.items():
            yield Item(f"scripts/{script.stem}.{name}", partial(run, script, words))


def run(script: Path, words: list[str]) -> str:
    """Return the exit status of a command on a copy of a script, what it prints, and the values of its report."""
    with TemporaryDirectory() as folder:
        here = Path(folder)
        shutil.copy(script, here)
        os.chdir(here)
        printed = {name: here / name for name in ("stdout", "stderr")}
        for descriptor, path in enumerate(printed.values(), start=1):
            with path.open("wb") as file:
                os.dup2(file.fileno(), descriptor)
        try:
            status: object = cli.main([*words, script.name])
        except SystemExit as end:
            status = f"SystemExit {end.code}"
        sys.stdout.flush()
        sys.stderr.flush()
        parts = [f"status {status}"]
        for name, path in printed.items():
            parts.append(f"--- {name}\n{path.read_text(encoding='utf-8', errors='replace')}")
        for saved in sorted(here.glob("*/report.json")):
            parts.append(f"--- {saved.parent.name}\n{values_of(saved.parent)}")
        places = {"HERE": here, "TREE": guarded_tree(), "SCRIPTS": SCRIPTS}
        return without_places("\n".join(parts), places)
