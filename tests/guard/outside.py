"""What `labkit watch` and `labkit diagnose` print and save for the scripts of `scripts/`."""

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
    """Yield items: each command on each script, and a diagnosis of each repaired script."""
    for script in scripts():
        text = script.read_text(encoding="utf-8")
        for name, words in COMMANDS.items():
            yield Item(f"scripts/{script.stem}.{name}", partial(run, script.name, text, words))
        changed = repaired(script)
        if changed is not None:
            words = COMMANDS["diagnose"]
            name = f"scripts/{script.stem}.repaired.diagnose"
            yield Item(name, partial(run, script.name, changed, words))


def run(name: str, text: str, words: list[str]) -> str:
    """Run a command on a script, and return its exit status, its output, and its report's values.

    The item's process runs nothing else, so that its working directory and its streams stay
    replaced. The descriptors are replaced, not `sys.stdout`: processes of the script write there.

    Args:
        name: The name of the script's file.
        text: The text of the script.
        words: The command and its options.
    """
    with TemporaryDirectory() as folder:
        here = Path(folder)
        os.chdir(here)
        Path(name).write_text(text, encoding="utf-8")
        outputs = {1: here / "stdout", 2: here / "stderr"}
        for descriptor, path in outputs.items():
            with path.open("wb") as file:
                os.dup2(file.fileno(), descriptor)
        try:
            status: object = cli.main([*words, name])
        except SystemExit as end:
            status = f"SystemExit {end.code}"
        sys.stdout.flush()
        sys.stderr.flush()
        parts = [f"status {status}"]
        for path in outputs.values():
            output = path.read_text(encoding="utf-8", errors="replace")
            parts.append(f"--- {path.name}\n{output}")
        for saved in sorted(here.glob("*/report.json")):
            parts.append(f"--- {saved.parent.name}\n{values_of(saved.parent)}")
        places = {"HERE": here, "TREE": guarded_tree()}
        return without_places("\n".join(parts), places)
