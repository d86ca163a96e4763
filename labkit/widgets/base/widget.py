"""The base of every widget: its scripts and styles, its tour, and messages that are worked on one at a time.

Idea: a widget's ES module is the files of `base/` followed by those of its own folder, in one scope, read from the
package: no bundler, no network. JupyterLab sends a message to the kernel's main thread or, while that is busy, to a
subshell, which is another thread; `LabWidget` serialises them.

Invariant: script and style refer to no other file; a tour has 5 to 8 steps; one message of a widget at a time. The
order of two messages is not promised: where it matters, they carry numbers.

Source: Jupyter Enhancement Proposal 91 (kernel subshells).
"""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import anywidget
import traitlets

from labkit.machine.front_end import why_not_shown
from labkit.widgets.base.figures import as_page, why_still

FOLDERS = files("labkit.widgets")
LENGTHS = range(5, 9)
Places = Callable[[Any], Mapping[str, Collection[Any]]]


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
    def place(file: Traversable) -> tuple[int, str]:  # in a folder, base.js is first and view.js last
        return {"base.js": -1, "view.js": 1}.get(file.name, 0), file.name

    found = [file for folder in folders for file in sorted((FOLDERS / folder).iterdir(), key=place)]
    return "\n".join(file.read_text(encoding="utf-8") for file in found if file.name.endswith(ending))


@cache
def tour_of(folder: str) -> list[dict[str, Any]]:
    """Return the steps of a widget's tour: text, ring, set.

    Raises:
        ValueError: it has fewer than 5 steps or more than 8, or a step lacks its text or what it rings.
    """
    steps = tomllib.loads((FOLDERS / folder / "tour.toml").read_text(encoding="utf-8"))["step"]
    sound = [{"text", "ring"} <= step.keys() <= {"text", "ring", "set"} for step in steps]
    if len(steps) not in LENGTHS or not all(sound):
        raise ValueError(f"{folder}/tour.toml: a tour has 5 to 8 steps, each with text, ring and perhaps set")
    return [{"set": {}, **step} for step in steps]


def limited(*names: str) -> Callable[[Places], Any]:
    """Let traits take only what a method of the widget offers for each of them: trait -> a range, or a collection.

    Anything else is a TraitError that says what there is.
    """

    def validator(places: Places) -> Any:
        def offered(widget: Any, proposal: Mapping[str, Any]) -> Any:
            name, value = proposal["trait"].name, proposal["value"]
            there = places(widget)[name]
            if value in there:
                return value
            if isinstance(there, range):
                raise traitlets.TraitError(f"{name} goes from {there[0]} to {there[-1]} here; it was given {value!r}")
            what = name.removesuffix("_name")
            raise traitlets.TraitError(f"there is no {what} {value!r} here; there are {', '.join(map(repr, there))}")

        return traitlets.validate(*names)(offered)

    return validator


class LabWidget(anywidget.AnyWidget):
    """An anywidget whose messages take turns, and which shows something where widgets do not run.

    Where the server that shows the page is known to lack what draws widgets, that comes at once, with why and the cure.
    One that has a `tour` can be walked through: `tour_step` is -1 while nobody is, and else the step, from 0.
    """

    tour: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    tour_step = traitlets.Int(-1).tag(sync=True)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._turn = threading.RLock()
        super().__init__(*args, **kwargs)

    def _handle_msg(self, msg: dict[str, Any]) -> None:
        with self._turn:
            super()._handle_msg(msg)

    @traitlets.validate("tour_step")
    def _valid_tour_step(self, proposal: dict[str, Any]) -> int:
        step: int = proposal["value"]
        if not -1 <= step < len(self.tour):
            raise traitlets.TraitError(f"this tour has {len(self.tour)} steps, from 0, and -1 ends it; not {step}")
        return step

    @traitlets.observe("tour_step")
    def _guide(self, change: dict[str, Any]) -> None:
        """Bring the widget into the state of a step: traits are set, methods called, in the order of the data."""
        step = self.tour[change["new"]]["set"] if change["new"] >= 0 else {}
        for name, to in step.items():
            if not callable(getattr(self, name)):
                setattr(self, name, to)
            elif isinstance(to, dict):
                getattr(self, name)(**to)
            else:
                getattr(self, name)(to)

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run: MIME type -> content (`labkit.widgets.base.figures.still`)."""
        return {"text/plain": f"{type(self).__name__}: {why_still('to use it', 'This stands')}"}

    def _repr_mimebundle_(self, **kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if (finding := why_not_shown()) is not None:
            why = f"Widgets cannot be shown here: {finding.what}."
            return as_page(self.still(), why, f"To mend it: {finding.remedy}."), {}
        bundle = super()._repr_mimebundle_(**kwargs)
        return bundle and ({**bundle[0], **self.still()}, bundle[1])
