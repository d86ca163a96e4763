"""Runs of notebooks for pages: the outputs of each cell, and each widget's state at its cell.

Idea: a cell before the first one makes widgets add their state to their outputs, as `PAGE_TYPE`.
Exercises are run as they are handed out, so their cells raise; the run continues.

Invariant: the notebook that is passed stays as it is. No journal of answers is read or written. A
cell with the tag `lab-only` is about the machine of its reader, and does not run.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

LAB_ONLY = "lab-only"
PROBLEM = "labkit_site_problem"  # in a notebook's metadata: why its run ended early
FIRST_CELL = "from labkit.widgets.base.widget import LabWidget\nLabWidget.for_pages = True"


def read_notebook(path: Path) -> Any:
    """Return a notebook file with the outputs that it holds."""
    import nbformat

    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def run_notebook(notebook: dict[str, Any], seconds: float = 600) -> Any:
    """Return a notebook with the outputs of its cells, run from top to bottom.

    The cells run in a kernel of this environment.

    A run that ends early (a cell takes longer, or the kernel dies) keeps what it has; the
    notebook's metadata say so.

    Args:
        notebook: A notebook, which stays unchanged.
        seconds: Time limit of one cell.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    whole: Any = nbformat.reads(json.dumps(notebook), as_version=4)  # type: ignore[no-untyped-call]
    run = [
        cell
        for cell in whole.cells
        if cell.cell_type == "code" and LAB_ONLY not in cell.metadata.get("tags", ())
    ]
    first = nbformat.v4.new_code_cell(FIRST_CELL)  # type: ignore[no-untyped-call]
    trial = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[first, *run], metadata=whole.metadata
    )
    with TemporaryDirectory() as scratch:
        client = NotebookClient(
            trial, timeout=seconds, allow_errors=True, resources={"metadata": {"path": scratch}}
        )
        try:
            client.execute(env={**os.environ, "LABKIT_ANSWERS": "off"}, stderr=subprocess.DEVNULL)
        except (CellTimeoutError, DeadKernelError) as error:
            whole.metadata[PROBLEM] = f"its run ended early: {str(error).splitlines()[0]}"
    return whole
