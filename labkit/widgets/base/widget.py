"""Base class of all widgets: assets, tours, messages, and a form for pages without a kernel.

A widget's script joins its view.js and all that it imports into one scope (`joining`). It needs
neither a bundler nor a network. JupyterLab gets it as an ES module. A static page gets the same
text as a classic script, which a page can contain: `labkitWidgets.FOLDER(state, element)`
shows a widget from its `page_state()`.

JupyterLab sends a message to the kernel's main thread or, while that is busy, to a subshell, which
is another thread; `LabWidget` serialises them.

Invariant: script and style refer to no other file; a tour has 5 to 8 steps; one message of a widget
at a time. The order of two messages is not guaranteed: where it matters, they carry numbers.

Source: Jupyter Enhancement Proposal 91 (kernel subshells).
"""

from __future__ import annotations

import base64
import json
import threading
import tomllib
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, ClassVar

import anywidget
import ipywidgets
import traitlets

from labkit.machine.front_end import why_not_shown
from labkit.widgets.base.figures import as_page, why_still
from labkit.widgets.base.joining import (
    FOLDERS,
    SHARED,
    in_order,
    joined,
    modules_of,
    shared_modules,
)

# The allowed numbers of steps in a tour.
TOUR_LENGTHS = range(5, 9)
# The MIME type of an output for a static page: a widget's folder and its state.
PAGE_TYPE = "application/vnd.labkit.page+json"
# A method that returns the allowed values of traits, by their names.
Choices = Callable[[Any], Mapping[str, Collection[Any]]]


class Assets(ipywidgets.Widget):  # type: ignore[misc]
    """Script and style that all widgets share.

    A kernel has one such model, so a saved notebook has it once.
    """

    script = traitlets.Unicode().tag(sync=True)
    style = traitlets.Unicode().tag(sync=True)
    _held: ClassVar[Assets | None] = None

    @classmethod
    def current(cls) -> Assets:
        """Return the model of this kernel; a new one if the last was closed."""
        if cls._held is None or cls._held.comm is None:
            cls._held = cls(script=joined(shared_modules()), style=_text("base/base.css"))
        return cls._held


@cache
def module(folder: str) -> str:
    """Return the ES module of a widget; it takes the shared script from the page's `Assets`."""
    own = joined(part for part in modules_of(folder) if part not in shared_modules())
    return f"const OWN_SCRIPT = {json.dumps(own)};\n{_text('loader.js')}"


@cache
def script(folder: str) -> str:
    """Return a widget's whole script: the modules that its view.js needs, in one scope.

    Raises:
        FileNotFoundError: The folder has no view.js.

    >>> "export default view(" in script("underflow")
    True
    """
    return joined(modules_of(folder))


@cache
def page_script(folder: str) -> str:
    """Return the script for a page without a kernel; it defines `labkitWidgets.FOLDER`.

    >>> "labkitWidgets.bits = " in page_script("bits")
    True
    """
    modules = in_order(["base/page.js", f"{folder}/view.js"])
    source = joined(modules).replace("\nexport default ", "\nconst widget = ")
    widget = f"(() => {{\n{source}\nreturn onPage(widget);\n}})()"
    return f"globalThis.labkitWidgets ??= {{}};\nlabkitWidgets.{folder} = {widget};\n"


@cache
def page_style(folder: str) -> str:
    """Return the style sheets of `base/` and of a widget, for a page without a kernel."""
    return f"{_text('base/base.css')}\n{style(folder)}"


@cache
def style(folder: str) -> str:
    """Return a widget's style sheet without that of `base/`, which is in `Assets`.

    It joins the style sheets of all folders whose modules the widget needs, the widget's own last.
    Each view.css is nested in the class of the root's container. So its rules have a higher
    specificity than those of the base, even if another widget of the page repeats the base. A
    page.css is for what must not be nested: keyframes, and rules of elements outside the root.
    """
    folders: list[str] = []
    for part in modules_of(folder):
        if part.folder not in (SHARED, folder, *folders):
            folders.append(part.folder)
    folders.append(folder)
    inside = "\n".join(_text(f"{name}/view.css") for name in folders)
    outside = "\n".join(_text(f"{name}/page.css") for name in folders)
    return f".labkit-room {{\n{inside}\n}}\n{outside}"


def _text(path: str) -> str:
    """Return the text of a file of the widgets; "" if it does not exist."""
    file = FOLDERS / path
    return file.read_text(encoding="utf-8") if file.is_file() else ""


@cache
def tour_of(folder: str) -> list[dict[str, Any]]:
    """Return the steps of a widget's tour: text, ring (a selector), set (traits and methods).

    Raises:
        ValueError: The tour has fewer than 5 steps or more than 8, or a step lacks its text or its
            ring, or has another key.
    """
    steps = tomllib.loads((FOLDERS / folder / "tour.toml").read_text(encoding="utf-8"))["step"]
    if len(steps) not in TOUR_LENGTHS:
        raise ValueError(f"{folder}/tour.toml: expected 5 to 8 steps, got {len(steps)}")
    for number, step in enumerate(steps, 1):
        if not {"text", "ring"} <= step.keys() <= {"text", "ring", "set"}:
            raise ValueError(
                f"{folder}/tour.toml, step {number}: expected text, ring and perhaps set, got "
                f"{', '.join(step)}"
            )
    return [{"set": {}, **step} for step in steps]


def limited(*names: str) -> Callable[[Choices], Any]:
    """Return a decorator that limits traits to the values that a method returns.

    The method returns a range or a collection for each trait. Setting another value raises a
    TraitError that lists the choices.

    Args:
        *names: The traits to limit.
    """

    def validator(choices: Choices) -> Any:
        def validate(widget: Any, proposal: Mapping[str, Any]) -> Any:
            name = proposal["trait"].name
            value = proposal["value"]
            known = choices(widget)[name]
            # True equals 1, but is not one of several numbers.
            is_same_kind = not isinstance(value, bool) or any(choice is value for choice in known)
            if value in known and is_same_kind:
                return value
            if isinstance(known, range):
                raise traitlets.TraitError(
                    f"{name}: expected {known[0]} to {known[-1]}, got {value!r}"
                )
            # A trait such as `preset_name` is the parameter `preset` for the caller.
            what = name.removesuffix("_name")
            raise traitlets.TraitError(
                f"{what}: expected one of {', '.join(map(repr, known))}, got {value!r}"
            )

        return traitlets.validate(*names)(validate)

    return validator


class LabWidget(anywidget.AnyWidget):
    """An anywidget that handles one message at a time, with a picture or text as a fallback.

    A subclass names the folder of its view.js: `class Mine(LabWidget, folder="mine")`. If the
    server is known to lack an extension that draws widgets, the fallback is shown at once, with the
    reason and the remedy. In a widget with a `tour`, `tour_step` is the index of the tour's step,
    or -1 outside the tour.
    """

    script_folder: ClassVar[str] = ""
    # Set by labkit.site: outputs are for pages without a kernel, and hold the widget's state.
    for_pages: ClassVar[bool] = False
    _assets = traitlets.Instance(Assets).tag(sync=True, **ipywidgets.widget_serialization)
    tour: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    tour_step = traitlets.Int(-1).tag(sync=True)

    def __init_subclass__(cls, folder: str = "", **kwargs: Any) -> None:
        if folder:
            cls.script_folder = folder
            cls._esm = module(folder)
            cls._css = style(folder)
        super().__init_subclass__(**kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._lock = threading.RLock()
        super().__init__(*args, **kwargs)

    def _handle_msg(self, msg: dict[str, Any]) -> None:
        with self._lock:
            super()._handle_msg(msg)

    @traitlets.default("_assets")
    def _shared_assets(self) -> Assets:
        return Assets.current()

    @traitlets.validate("tour_step")
    def _valid_tour_step(self, proposal: dict[str, Any]) -> int:
        step: int = proposal["value"]
        if not -1 <= step < len(self.tour):
            raise traitlets.TraitError(
                f"tour_step: expected -1 (no tour) to {len(self.tour) - 1}, got {step}"
            )
        return step

    @traitlets.observe("tour_step")
    def _guide(self, change: dict[str, Any]) -> None:
        """Apply a step of the tour: set traits and call methods, in the order of the data."""
        if change["new"] < 0:
            return
        settings = self.tour[change["new"]]["set"]
        for name, value in settings.items():
            member = getattr(self, name)
            if not callable(member):
                setattr(self, name, value)
            elif isinstance(value, dict):
                member(**value)
            else:
                member(value)

    def page_state(self) -> dict[str, Any]:
        """Return the state from which `page_script` shows this widget, as JSON.

        Bytes are {"base64": ...}.
        """
        state = {}
        for name in self.keys:
            if name.startswith(("_anywidget", "_view_")):
                continue
            if name not in ("layout", "_assets", "_esm", "_css"):
                state[name] = as_json(self.get_state(name)[name])
        return state

    def still(self) -> dict[str, Any]:
        """Return the fallback for pages in which widgets do not run: MIME type -> content.

        Subclasses make it by `labkit.widgets.base.figures.still`.
        """
        return {"text/plain": f"{type(self).__name__}: {why_still('to use it', 'This stands')}"}

    def _repr_mimebundle_(
        self, **kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if self.for_pages:
            page = {"folder": self.script_folder, "state": self.page_state()}
            return {**self.still(), PAGE_TYPE: page}, {}
        finding = why_not_shown()
        if finding is not None:
            why = f"Widgets cannot be shown here: {finding.what}."
            return as_page(self.still(), why, f"To mend it: {finding.remedy}."), {}
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        return {**data, **self.still()}, metadata


def as_json(value: Any) -> Any:
    """Return a state as JSON; bytes are {"base64": ...}."""
    if isinstance(value, bytes | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return value
