"""Widgets as files for other pages: ES modules that need neither Python nor a network.

A file holds the widget's script, its style and the present value of each of its traits. A page of
MyST or Jupyter Book shows it with the directive `{anywidget}`; any other page imports it.

Source: https://anywidget.dev/en/afm (anywidget's front-end module).
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from labkit.records.files import write_atomic
from labkit.site.writing import SiteError
from labkit.widgets.base.joining import in_order, joined
from labkit.widgets.base.widget import LabWidget, page_style

HEAD = """\
// {name}, a widget of fp16-lab {version} that needs no Python, as a module in anywidget's form.
//
// A page shows it in its element `el` by
// `import widget from "./{name}.mjs"; widget.render({{ el }})`.

"""


def page_widgets() -> list[LabWidget]:
    """Return the widgets that need no Python, each in its first state."""
    from labkit.widgets import (
        AdditionPlayer,
        BitExplorer,
        BlockScales,
        MmaBlock,
        NumberLine,
        Playground,
        RouterScores,
        ScalerPresets,
        ScalerTimeline,
        SwallowedUpdates,
    )

    return [
        AdditionPlayer(),
        BitExplorer(),
        BlockScales(),
        MmaBlock(),
        NumberLine(),
        Playground(),
        RouterScores(),
        ScalerPresets(),
        ScalerTimeline(),
        SwallowedUpdates(),
    ]


def widget_module(widget: LabWidget) -> str:
    """Return a widget as the text of an ES module, in the state that it has now."""
    from labkit import __version__

    folder = widget.script_folder
    source = joined(in_order([f"{folder}/view.js", "embedded/embedded.js"]))
    # the module exports the embedded widget instead
    source = source.replace("\nexport default ", "\nconst widget = ")
    state = json.dumps(widget.page_state(), allow_nan=False)
    style = json.dumps(page_style(folder))
    head = HEAD.format(name=type(widget).__name__, version=__version__)
    return f"{head}{source}\nexport default embedded(widget, {state}, {style});\n"


def write_modules(folder: Path) -> list[Path]:
    """Write a file NAME.mjs for each widget that needs no Python; return the files.

    Args:
        folder: Where they are written; it is created if missing. Files of these names are
            replaced, others stay.

    Raises:
        SiteError: The folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise SiteError(f"expected a folder, got the file {folder}; name another place")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    with ExitStack() as closing:
        for widget in page_widgets():
            closing.callback(widget.close)
            file = folder / f"{type(widget).__name__}.mjs"
            write_atomic(file, widget_module(widget).encode())
            files.append(file)
    return files
