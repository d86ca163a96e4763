"""Who answers the browser when two of its messages arrive at once?

Idea: JupyterLab sends what a widget says to the kernel's main thread, or, while that is busy, to a subshell, which is
another thread. So two messages of one hand can be worked on side by side. Here they take turns.

Invariant: one message of a widget at a time. In which order two of them are worked on is not promised: where it
matters, the messages carry numbers.

Source: Jupyter Enhancement Proposal 91 (kernel subshells).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import anywidget
import traitlets

from labkit.machine.front_end import why_not_shown
from labkit.widgets.base.figures import as_page, why_still
from labkit.widgets.base.tour import take_step

Places = Callable[[Any], Mapping[str, Collection[Any]]]


def limited(*names: str) -> Callable[[Places], Any]:
    """Let traits take only what a method of the widget offers for each of them: trait -> a range, or a collection.

    Anything else is a TraitError that says what there is.
    """

    def validator(places: Places) -> Any:
        return traitlets.validate(*names)(lambda widget, proposal: _offered(places(widget), proposal))

    return validator


def _offered(places: Mapping[str, Collection[Any]], proposal: Mapping[str, Any]) -> Any:
    name, value = proposal["trait"].name, proposal["value"]
    there = places[name]
    if value in there:
        return value
    if isinstance(there, range):
        raise traitlets.TraitError(f"{name} goes from {there[0]} to {there[-1]} here; it was given {value!r}")
    what = name.removesuffix("_name")
    raise traitlets.TraitError(f"there is no {what} {value!r} here; there are {', '.join(map(repr, there))}")


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
        if change["new"] >= 0:
            take_step(self, self.tour[change["new"]])

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run: MIME type -> content (`labkit.widgets.base.figures.still`)."""
        return {"text/plain": f"{type(self).__name__}: {why_still('to use it', 'This stands')}"}

    def _repr_mimebundle_(self, **kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if (finding := why_not_shown()) is not None:
            why = f"Widgets cannot be shown here: {finding.what}."
            return as_page(self.still(), why, f"To mend it: {finding.remedy}."), {}
        bundle = super()._repr_mimebundle_(**kwargs)
        return bundle and ({**bundle[0], **self.still()}, bundle[1])
