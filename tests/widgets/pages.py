"""Widgets and their scripts in a blank page without JupyterLab and kernel.

`Scripts` runs functions of a widget's modules, to compare them with labkit: in node where it is
installed, which needs no browser. `Page` shows widgets from their state.
"""

import json
from typing import Any

from labkit.formats import FORMATS, Format
from labkit.widgets.base.joining import FOLDERS, in_order, joined
from labkit.widgets.base.widget import LabWidget, page_script, page_style
from labkit.widgets.exact.rows import format_row
from tests.javascript.node import NodeEngine

# A JavaScript function that makes JSON of values that JSON lacks: BigInt, NaN, infinity and -0.
# JSON has a number above 2^53 without a point, and Python would read it as an int.
PLAIN = """(value) => JSON.parse(JSON.stringify(value, (_, part) => {
  if (typeof part === "bigint") return { whole: String(part) };
  const large = typeof part === "number" && !(Math.abs(part) <= 2 ** 53);
  if (large) return { special: String(part).replace("Infinity", "inf").toLowerCase() };
  return Object.is(part, -0) ? { special: "-0.0" } : part;
}))"""


def _plain(value: Any) -> Any:
    """Return the value that `PLAIN` wrote: a BigInt as an int, a special number as a float."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if not isinstance(value, dict):
        return value
    if "whole" in value:
        return int(value["whole"])
    if "special" in value:
        return float(value["special"])
    return {key: _plain(part) for key, part in value.items()}


def _modules(folder: str) -> list[str]:
    """Return the names of a folder's modules but for view.js, which shows a widget."""
    names = [file.name for file in (FOLDERS / folder).iterdir() if file.name.endswith(".js")]
    return sorted(set(names) - {"view.js"})


class BrowserEngine:
    """A blank page with some scripts loaded, where there is no node."""

    def __init__(self, browser: Any) -> None:
        self.page = browser.new_page()

    def load(self, script: str) -> None:
        """Run a script; what it declares stays."""
        self.page.add_script_tag(content=script)

    def call(self, function: str, arguments: list[Any]) -> Any:
        """Return function(...arguments), both ways as JSON."""
        return self.page.evaluate(f"([...all]) => ({function})(...all)", arguments)


class Scripts:
    """The functions of the modules in some folders; `F` holds the formats by name."""

    def __init__(self, engine: NodeEngine | BrowserEngine, *folders: str) -> None:
        self.engine = engine
        paths = [f"{folder}/{name}" for folder in folders for name in _modules(folder)]
        self.engine.load(joined(in_order(paths)))
        if "exact" in folders:
            rows = [format_row(row) for row in FORMATS.values()]
            self.engine.call(
                "(rows) => { globalThis.F = {}; for (const row of rows) F[row.name] = "
                "derived(row) }",
                [rows],
            )

    def add(self, format: Format) -> None:
        """Put a format into `F`."""
        self.engine.call("(row) => { F[row.name] = derived(row) }", [format_row(format)])

    def run(self, function: str, *arguments: Any) -> Any:
        """Return function(...arguments), a function of JavaScript; the arguments travel as JSON."""
        call = f"(...all) => ({PLAIN})(({function})(...all))"
        plain = json.loads(json.dumps(arguments, default=str))
        return _plain(self.engine.call(call, plain))


class Page:
    """A page without a kernel, in which widgets are shown from their `page_state()`."""

    def __init__(self, browser: Any, width: int = 1280) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 1000})
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.set_content(
            "<!doctype html><title>widgets</title><body data-jp-theme-light='true'></body>"
        )

    def show(self, widget: LabWidget) -> Any:
        """Show a widget; return its root's locator."""
        name = widget.script_folder
        self.page.add_style_tag(content=page_style(name))
        self.page.add_script_tag(content=page_script(name))
        state = json.dumps(widget.page_state(), allow_nan=False)
        self.page.evaluate(
            "([name, state]) => { document.body.append(document.createElement('div')); "
            "globalThis.shown = labkitWidgets[name](JSON.parse(state), "
            "document.body.lastChild); }",
            [name, state],
        )
        return self.page.locator("section.labkit").last

    def trait(self, name: str) -> Any:
        """Return a trait of the last widget shown."""
        return self.page.evaluate("name => shown.model.get(name)", name)

    def set(self, **traits: Any) -> None:
        """Set traits of the last widget shown."""
        self.page.evaluate(
            "traits => { for (const [n, v] of Object.entries(traits)) shown.model.set(n, v) }",
            traits,
        )
