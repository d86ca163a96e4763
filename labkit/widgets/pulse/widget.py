"""A check that widgets work: a message travels from the browser to the kernel and back.

The browser sends a number, the kernel returns it, and the browser shows the time of the round trip.
The cell ends at once, and a deadline runs in the kernel's event loop. If no message has arrived
at the deadline, the cell's output shows a warning. A kernel that was busy until then could not
receive a message, so it waits once more.

Invariant: the line is green only after the kernel has answered. A late message removes the warning.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import traitlets

from labkit.findings import CheckReport
from labkit.machine.front_end import host, silent
from labkit.widgets.base.widget import LabWidget

# Time from the display of the widget to its deadline.
SECONDS = 15.0
# An event loop that is late by more seconds than this was busy with a cell.
BUSY_SECONDS = 1.0
WHAT_TO_DO = (
    "Widgets do not run here, so the lessons show still pictures instead.",
    (
        "In JupyterLab: run this cell again. If these words stay, stop JupyterLab, start it "
        "with `make lab` and reload."
    ),
    "In VS Code: trust the notebook, and allow widgets when it asks for their scripts.",
    (
        "On a web page that only shows notebooks (GitHub, nbviewer): nothing can run; open "
        "the lab on your own machine."
    ),
)


def warn_at_deadline(
    has_answered: Callable[[], bool],
    warn: Callable[[], None],
    call_later: Callable[[float, Callable[[], None]], object],
    now: Callable[[], float],
) -> None:
    """Call `warn` at the deadline if `has_answered` returns False then.

    Args:
        has_answered: Returns whether a message of the browser has arrived.
        warn: Shows the warning.
        call_later: The `call_later` of an event loop.
        now: The `time` of the event loop.
    """
    deadline = now() + SECONDS

    def check() -> None:
        if has_answered():
            return
        if now() > deadline + BUSY_SECONDS:
            warn_at_deadline(has_answered, warn, call_later, now)
        else:
            warn()

    call_later(SECONDS, check)


def show_warning_below(has_answered: Callable[[], bool]) -> Callable[[], None] | None:
    """Reserve a place below this cell for a warning, which appears at the deadline.

    Returns:
        A function that empties the place. None if no page can answer: there is no kernel, or the
        notebook is executed without a page, as for a handout.
    """
    try:
        from IPython import display, get_ipython

        loop = asyncio.get_running_loop()
        kernel = getattr(get_ipython(), "kernel", None)
    except (ImportError, RuntimeError):
        return None
    # A front end with a page allows cells to ask for input; nbclient does not.
    if not getattr(kernel, "_allow_stdin", False):
        return None
    # IPython's functions have no types.
    ipython_display: Any = display
    place = ipython_display.display(ipython_display.HTML(""), display_id=True)
    report = CheckReport((silent(SECONDS, host(os.environ)),), if_bad="Widgets do not answer")
    warn_at_deadline(has_answered, lambda: place.update(report), loop.call_later, loop.time)
    return lambda: place.update(ipython_display.HTML(""))


class Pulse(LabWidget, folder="pulse"):
    """A line that turns green when the kernel has answered the browser.

    Attributes:
        round_trip_ms: Time of the round trip; 0 before the first one.
        answered: Whether a message of the browser has arrived.
    """

    round_trip_ms = traitlets.Float(0.0).tag(sync=True)

    def __init__(self) -> None:
        super().__init__()
        self.answered = False
        self._remove_warning: Callable[[], None] | None = None
        self.on_msg(self._answer)

    @property
    def alive(self) -> bool:
        """Whether a message has made a round trip."""
        return self.round_trip_ms > 0

    def _answer(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        self.send({"pong": content.get("ping")})
        if not self.answered and self._remove_warning is not None:
            self._remove_warning()
        self.answered = True

    def _repr_mimebundle_(
        self, **kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if not self.answered and self._remove_warning is None:
            self._remove_warning = show_warning_below(lambda: self.answered)
        return super()._repr_mimebundle_(**kwargs)

    def still(self) -> dict[str, Any]:
        first, *rest = WHAT_TO_DO
        items = "".join(f"<li>{line}</li>" for line in rest)
        html = f"<p><b>{first}</b></p><ul>{items}</ul>"
        return {"text/plain": "\n".join(WHAT_TO_DO), "text/html": html}


def pulse() -> Pulse:
    """Return a widget that shows whether widgets work, and how long a round trip takes."""
    return Pulse()
