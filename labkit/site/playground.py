"""The playground as one HTML file, which a double click opens.

It needs neither Python nor a network.

Invariant: the file loads nothing from a server; its content security policy forbids it. The part
of its address behind # is a setting of the playground.
"""

from __future__ import annotations

from pathlib import Path

from labkit.records.files import write_atomic
from labkit.records.templates import markup, render, script_json
from labkit.site.writing import SiteError
from labkit.widgets.base.widget import page_script, page_style
from labkit.widgets.playground.widget import Playground

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def playground_page() -> str:
    """Return the playground as the text of an HTML page."""
    widget = Playground()
    try:
        widget.in_address = True
        state = script_json(widget.page_state())
    finally:
        widget.close()
    html = render(
        "site/playground.html.jinja",
        policy=POLICY,
        style=markup(page_style("playground")),
        # in a script of HTML no text may look like its end
        script=markup(page_script("playground").replace("</", "<\\/")),
        state=state,
    )
    return str(html)


def write_playground(file: Path) -> Path:
    """Write the playground as one HTML file; return the file.

    Args:
        file: Where it is written; a file of this name is replaced. Its folder exists.

    Raises:
        SiteError: The file is a folder, or its folder does not exist.
    """
    if file.is_dir():
        raise SiteError(f"expected a file, got the folder {file}; name a file in it")
    if not file.parent.is_dir():
        raise SiteError(
            f"the folder {file.parent} does not exist; create it, or name another place"
        )
    write_atomic(file, playground_page().encode())
    return file
