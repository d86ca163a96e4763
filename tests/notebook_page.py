"""A notebook as one HTML page without widgets, as nbconvert writes it."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.records import write_atomic
from labkit.site.formulas import typeset


def to_html(notebook: Path) -> Path:
    """Write a notebook with its outputs as NAME.html beside it, and return the path.

    Raises:
        FileNotFoundError: the notebook does not exist.
        ValueError: matplotlib cannot typeset a formula.
    """
    import nbformat
    from nbconvert import HTMLExporter

    document = nbformat.read(notebook, as_version=4)
    # With this metadata nbconvert would add a script from the network that draws widgets. Without
    # it, each widget is shown as its picture, which the notebook holds.
    document.metadata.pop("widgets", None)
    for cell in document.cells:
        if cell.cell_type == "markdown":
            cell.source = typeset(cell.source)
    page, _ = HTMLExporter(mathjax_url="", require_js_url="").from_notebook_node(document)
    page = re.sub(
        r"<!-- Load mathjax -->.*?<!-- End of mathjax configuration -->", "", page, flags=re.S
    )
    return write_atomic(notebook.with_suffix(".html"), page.encode())
