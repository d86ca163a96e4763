"""Runs of notebooks for pages: the outputs of each cell, and each widget's state at its cell.

Idea: an additional first cell makes widgets add their state to their outputs, as `PAGE_TYPE`.
Exercises run as they are handed out, so their cells raise errors; the run continues.

Invariant: the notebook that is passed is not changed. No journal of answers is read or written. A
cell with the tag `lab-only`, which is about the machine of its reader, does not run.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# The tag of cells that run in the lab only, since they are about the user's own machine.
LAB_ONLY = "lab-only"
# The key in a notebook's metadata with the reason why its run ended early.
PROBLEM = "labkit_site_problem"
# Widgets then put their state and a still picture into their outputs.
FIRST_CELL = "from labkit.widgets.base.widget import LabWidget\nLabWidget.for_pages = True"


def read_notebook(path: Path) -> Any:
    """Return a notebook with the outputs that its file holds.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a notebook.
    """
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        # nbformat reports an invalid notebook, but returns it
        if not isinstance(notebook["cells"], list):
            raise TypeError("its cells are not a list")
    except OSError:
        raise
    # nbformat has many errors for files of other kinds, one of which is an Exception only
    except Exception as error:
        raise ValueError(
            f"expected a notebook, got {path}: {type(error).__name__}: {str(error)[:100]}"
        ) from error
    return notebook


def run_notebook(notebook: dict[str, Any], seconds: float = 600) -> Any:
    """Run a notebook from top to bottom in a kernel of this environment; return it with outputs.

    If a run ends early, because a cell takes too long or the kernel dies, the notebook has the
    outputs up to there, and the reason in its metadata, as `PROBLEM`.

    Args:
        notebook: A notebook, which is not changed.
        seconds: Time limit of one cell.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    copy: Any = nbformat.reads(json.dumps(notebook), as_version=4)  # type: ignore[no-untyped-call]
    cells = [
        cell
        for cell in copy.cells
        if cell.cell_type == "code" and LAB_ONLY not in cell.metadata.get("tags", ())
    ]
    # The client writes outputs into the cells, which both notebooks share.
    first = nbformat.v4.new_code_cell(FIRST_CELL)  # type: ignore[no-untyped-call]
    to_run = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[first, *cells], metadata=copy.metadata
    )
    with TemporaryDirectory() as scratch:
        client = NotebookClient(
            to_run, timeout=seconds, allow_errors=True, resources={"metadata": {"path": scratch}}
        )
        try:
            client.execute(env={**os.environ, "LABKIT_ANSWERS": "off"}, stderr=subprocess.DEVNULL)
        except (CellTimeoutError, DeadKernelError) as error:
            copy.metadata[PROBLEM] = f"its run ended early: {str(error).splitlines()[0]}"
    return copy
