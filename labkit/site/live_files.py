"""Files for pages that check exercises: Python for browsers, the lab's judge, and the exercises.

All of them are in the folder `live` of the site. A page fetches them when its reader first runs the
checks, from its own server. Python may be on another server, which an address names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from labkit.records.templates import script_json
from labkit.site.pyodide import FILES, VERSION
from labkit.widgets.base.joining import Module, in_order, joined, parse

FOLDER = "live"
MODULES = f"{FOLDER}/labkit.zip"
PYTHON = f"{FOLDER}/pyodide-{VERSION}/"


@dataclass(frozen=True)
class LiveFiles:
    """The exercises that pages check, and what checks them.

    Attributes:
        forms: id of an exercise -> what a page reads of it, without its solution.
        notebooks: The learner's notebook of each lesson, by name.
        modules: The lab's modules that judge, as a zip archive.
        pyodide: Files of Pyodide by name, or the address of a folder that has them.
    """

    forms: Mapping[str, Mapping[str, Any]]
    notebooks: Mapping[str, Mapping[str, Any]]
    modules: bytes
    pyodide: Mapping[str, bytes] | str

    def titles(self) -> dict[str, str]:
        """Return the titles of the exercises, by id."""
        return {id: str(form["title"]) for id, form in self.forms.items()}

    def of(self, ids: Collection[str]) -> LiveFiles:
        """Return what these exercises need."""
        forms = {id: self.forms[id] for id in ids}
        names = {str(form["lesson"]) for form in forms.values()}
        notebooks = {name: self.notebooks[name] for name in self.notebooks if name in names}
        return replace(self, forms=forms, notebooks=notebooks)

    def contents(self) -> dict[str, bytes]:
        """Return the files, by their names in the site."""
        contents = {MODULES: self.modules}
        contents[f"{FOLDER}/worker.js"] = (files("labkit.site") / "live" / "worker.js").read_bytes()
        for id, form in self.forms.items():
            contents[f"{FOLDER}/{id}.json"] = _json(form)
        for name, notebook in self.notebooks.items():
            contents[f"{FOLDER}/{name}.ipynb"] = _json(notebook)
        if not isinstance(self.pyodide, str):
            contents |= {f"{PYTHON}{name}": content for name, content in self.pyodide.items()}
        return contents

    def settings(self) -> str:
        """Return what a page's script reads, as JSON."""
        lessons: dict[str, list[str]] = {name: [] for name in self.notebooks}
        for id, form in self.forms.items():
            lessons[str(form["lesson"])].append(id)
        settings = {
            "python": self.pyodide if isinstance(self.pyodide, str) else PYTHON,
            "modules": MODULES,
            "bytes": self._bytes(),
            "lessons": lessons,
        }
        return script_json(settings)

    def policy(self, own: str) -> str:
        """Return the content security policy of a page, which also binds its workers.

        Args:
            own: The sources of the page's own server.
        """
        elsewhere = ""
        if isinstance(self.pyodide, str):
            address = urlsplit(self.pyodide)
            elsewhere = f" {address.scheme}://{address.netloc}"
        return (
            f"default-src 'none'; img-src {own} data:; style-src {own} 'unsafe-inline'; "
            f"script-src {own}{elsewhere} 'unsafe-inline' 'wasm-unsafe-eval'; "
            f"connect-src 'self'{elsewhere}; worker-src blob:"
        )

    def _bytes(self) -> int:
        """Return the bytes that the progress bar counts to; 0 if they are unknown."""
        if isinstance(self.pyodide, str):
            return 0
        # `import` loads the modules (.mjs), whose bytes the worker does not count
        counted = [name for name in FILES if not name.endswith(".mjs")]
        return len(self.modules) + sum(len(self.pyodide[name]) for name in counted)


def site_script(live: bool) -> str:
    """Return the script of the pages, joined from its modules.

    Args:
        live: Whether the pages also check exercises.
    """
    entries = ["site.js"]
    if live:
        entries.append("live/page.js")
    return joined(in_order(entries, _module))


def _module(path: str) -> Module:
    return parse(path, (files("labkit.site") / path).read_text(encoding="utf-8"))


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()
