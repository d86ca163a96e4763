"""The playground as one HTML file, which a double click opens.

It needs neither Python nor a network.

Invariant: the file asks no server for anything; its content security policy forbids it. A link's #
part is a setting.
"""

from __future__ import annotations

import json
from pathlib import Path

from labkit.records.files import write_atomic
from labkit.site.writing import SiteError
from labkit.widgets.base.widget import page_script, page_style
from labkit.widgets.playground.widget import Playground

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>Playground of number formats</title>
<link rel="icon" href="data:,">
<style>
{style}
</style>
<style>
body {{ background: #fff; color: #1f1f1f; margin: 0; padding: 4px 12px; }}
.labkit {{ margin-inline: auto; }}
@media (prefers-color-scheme: dark) {{
  body {{
    --jp-border-color1: #616161;
    --jp-border-color2: #424242;
    --jp-brand-color1: #64b5f6;
    --jp-content-font-color1: #eee;
    --jp-content-font-color2: #bdbdbd;
    --jp-layout-color0: #111;
    --jp-layout-color2: #2b2b2b;
    background: #111;
    color: #eee;
    color-scheme: dark;
  }}
}}
</style>
</head>
<body>
<noscript>The playground needs scripts, and this browser has them switched off.</noscript>
<main id="place"></main>
<script>
document.body.dataset.jpThemeLight = String(!matchMedia("(prefers-color-scheme: dark)").matches);
{script}
labkitWidgets.playground({state}, document.getElementById("place"));
</script>
</body>
</html>
"""


def playground_page() -> str:
    """Return the playground as the text of an HTML page."""
    widget = Playground()
    widget.in_address = True
    state = json.dumps(widget.page_state(), allow_nan=False)
    widget.close()
    # in a script of HTML no text may look like its end
    script = page_script("playground").replace("</", "<\\/")
    style = page_style("playground")
    return PAGE.format(policy=POLICY, style=style, script=script, state=state)


def write_playground(file: Path) -> Path:
    """Write the playground as one HTML file; return the file.

    Args:
        file: Where it is written; a file of this name is replaced. Its folder exists.

    Raises:
        SiteError: It is a folder, or its folder does not exist.
    """
    if file.is_dir():
        raise SiteError(f"expected a file, got the folder {file}; name a file in it")
    if not file.parent.is_dir():
        raise SiteError(f"there is no folder {file.parent}; make it first, or name another place")
    write_atomic(file, playground_page().encode())
    return file
