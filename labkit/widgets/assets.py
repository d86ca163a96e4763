"""How does a widget get its JavaScript and its style? One shared file, then its own, read from the package.

Idea: a widget's module is `base.js` followed by its own file, in one scope. No bundler, no network: what the browser
runs is what stands in `static/`.

Invariant: both texts are complete; nothing in them refers to another file.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def script(name: str) -> str:
    """Return the ES module of a widget: base.js, then static/<name>.js, which ends with `export default`.

    Raises:
        FileNotFoundError: the package has no static/<name>.js.

    >>> script("underflow").startswith("// Shared behaviour")
    True
    """
    return _static("base.js") + "\n" + _static(f"{name}.js")


@cache
def style(name: str) -> str:
    """Return the style sheet of a widget: base.css, then static/<name>.css where there is one."""
    own = files("labkit.widgets") / "static" / f"{name}.css"
    return _static("base.css") + ("\n" + own.read_text(encoding="utf-8") if own.is_file() else "")


def _static(name: str) -> str:
    return (files("labkit.widgets") / "static" / name).read_text(encoding="utf-8")
