"""Reports of `labkit watch` and `labkit diagnose` on the scripts of `scripts/`, as their users see
them.
"""

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from labkit import cli
from tests.guard.plain import without_places
from tests.guard.processes import Item
from tests.guard.reports import values_of
from tests.guard.strangers import repaired, scripts
from tests.guard.trees import guarded_tree

COMMANDS = {"diagnose": ["diagnose", "--folder", "report"], "watch": ["watch", "--every", "5"]}


def items() -> Iterator[Item]:
    """Yield an item for each command on each script, and for a diagnosis of each script that is
    repaired.
    """
    for script in scripts():
        text = script.read_text(encoding="utf-8")
        for name, words in COMMANDS.items():
            yield Item(f"scripts/{script.stem}.{name}", partial(run, script.name, text, words))
        if (changed := repaired(script)) is not None:
            words = COMMANDS["diagnose"]
            name = f"scripts/{script.stem}.repaired.diagnose"
            yield Item(name, partial(run, script.name, changed, words))


def run(name: str, text: str, words: list[str]) -> str:
    """Return the exit status of a command on a script, what it prints, and the values of its
    report.
    """
    with TemporaryDirectory() as folder:
        here = Path(folder)
        os.chdir(here)
        Path(name).write_text(text, encoding="utf-8")
        printed = {name: here / name for name in ("stdout", "stderr")}
        for descriptor, path in enumerate(printed.values(), start=1):
            with path.open("wb") as file:
                os.dup2(file.fileno(), descriptor)
        try:
            status: object = cli.main([*words, name])
        except SystemExit as end:
            status = f"SystemExit {end.code}"
        sys.stdout.flush()
        sys.stderr.flush()
        parts = [f"status {status}"]
        for stream, path in printed.items():
            parts.append(f"--- {stream}\n{path.read_text(encoding='utf-8', errors='replace')}")
        for saved in sorted(here.glob("*/report.json")):
            parts.append(f"--- {saved.parent.name}\n{values_of(saved.parent)}")
        places = {"HERE": here, "TREE": guarded_tree()}
        return without_places("\n".join(parts), places)
