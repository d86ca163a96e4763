"""How does a widget get its JavaScript and its style? The shared folder first, then its own, read from the package.

Idea: a widget's module is the files of `base/` followed by those of its own folder, in one scope. No bundler, no
network: what the browser runs is what stands there.

Invariant: both texts are complete; nothing in them refers to another file.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

FOLDERS = files("labkit.widgets")


@cache
def script(*names: str) -> str:
    """Return the ES module of a widget: the scripts of `base/`, then of each folder; `view.js`, the last, exports it.

    Raises:
        FileNotFoundError: there is no such folder, or the last one has no view.js.

    >>> script("underflow").startswith("// Shared behaviour")
    True
    """
    if not (FOLDERS / names[-1] / "view.js").is_file():
        raise FileNotFoundError(f"labkit/widgets/{names[-1]}/view.js: every widget's folder has one, which exports it")
    return _joined(("base", *names), ".js")


@cache
def style(*names: str) -> str:
    """Return the style sheet of a widget: that of `base/`, then of each folder that has one.

    A folder's view.css stands inside the room of a widget. So its rules count more than those of the base, also where
    another widget of the page brings the base once more. page.css is for what lies outside.
    """
    own = f".labkit-room {{\n{_joined(names, 'view.css')}\n}}"
    return "\n".join((_joined(("base",), ".css"), own, _joined(names, "page.css")))


def _joined(folders: tuple[str, ...], ending: str) -> str:
    found = [file for folder in folders for file in sorted((FOLDERS / folder).iterdir(), key=_place)]
    return "\n".join(file.read_text(encoding="utf-8") for file in found if file.name.endswith(ending))


def _place(file: Traversable) -> tuple[int, str]:
    """Return where a file stands among those of its folder: base.js opens it, view.js ends it."""
    return {"base.js": -1, "view.js": 1}.get(file.name, 0), file.name
