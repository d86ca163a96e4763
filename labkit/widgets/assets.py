"""How does a widget get its JavaScript and its style? One shared file, then its own, read from the package.

Idea: a widget's module is the base (`base.js`, `base.controls.js`, ...) followed by its own files, in one scope. No
bundler, no network: what the browser runs is what stands in `static/`.

Invariant: both texts are complete; nothing in them refers to another file.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

STATIC = files("labkit.widgets") / "static"


@cache
def script(name: str) -> str:
    """Return the ES module of a widget: the base, then static/<name>.*.js, and static/<name>.js, which exports it.

    Raises:
        FileNotFoundError: the package has no static/<name>.js.

    >>> script("underflow").startswith("// Shared behaviour")
    True
    """
    parts = ["base.js", *_parts("base"), *_parts(name), f"{name}.js"]
    return "\n".join(_static(part) for part in parts)


@cache
def style(name: str) -> str:
    """Return the style sheet of a widget: base.css, then static/<name>.css where there is one."""
    own = STATIC / f"{name}.css"
    return _static("base.css") + ("\n" + own.read_text(encoding="utf-8") if own.is_file() else "")


def _parts(name: str) -> list[str]:
    return sorted(
        file.name for file in STATIC.iterdir() if file.name.startswith(f"{name}.") and file.name.count(".") == 2
    )


def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
