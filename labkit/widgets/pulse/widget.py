"""Proof that widgets work: a message from the browser to the kernel and back.

Idea: the browser sends a number, the kernel returns it, and the browser shows how long that took.
The cell ends at once; a deadline runs in the kernel's event loop. When it is over and nothing
has answered, a place that the cell's output kept free says so. A kernel that was busy until then
could not receive an answer, and waits again.

Invariant: the green line appears only after the kernel has answered; below a page that does
not answer, a warning says so, and a late answer removes it.
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

SECONDS = 15.0
# An event loop that is later than the deadline by so many seconds was busy with a cell.
BUSY = 1.0
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


def expect(
    answered: Callable[[], bool],
    say: Callable[[], None],
    later: Callable[[float, Callable[[], None]], object],
    now: Callable[[], float],
) -> None:
    """Call `say()` if `answered()` is still false at the deadline.

    `later` and `now` are the `call_later` and the `time` of an event loop.
    """
    due = now() + SECONDS

    def judge() -> None:
        if not answered():
            if now() > due + BUSY:
                expect(answered, say, later, now)
            else:
                say()

    later(SECONDS, judge)


def verdict_below(answered: Callable[[], bool]) -> Callable[[], None] | None:
    """Reserve a place below this cell for a warning that no answer came.

    Returns:
        A function that empties the place; None without a kernel or a page (a notebook executed
        for a handout), where no verdict is possible.
    """
    try:
        from IPython import display, get_ipython

        loop = asyncio.get_running_loop()
        kernel = getattr(get_ipython(), "kernel", None)
    except (ImportError, RuntimeError):
        return None
    if not getattr(kernel, "_allow_stdin", False):
        return None
    shown: Any = display
    place = shown.display(shown.HTML(""), display_id=True)
    report = CheckReport((silent(SECONDS, host(os.environ)),), if_bad="Widgets do not answer")
    expect(answered, lambda: place.update(report), loop.call_later, loop.time)
    return lambda: place.update(shown.HTML(""))


class Pulse(LabWidget, folder="pulse"):
    """One line that turns green when the kernel has answered the browser.

    `round_trip_ms` is 0 until then.
    """

    round_trip_ms = traitlets.Float(0.0).tag(sync=True)

    def __init__(self) -> None:
        super().__init__()
        self.answered = False  # a message of the browser's
        self._withdraw: Callable[[], None] | None = None
        self.on_msg(self._answer)

    @property
    def alive(self) -> bool:
        """Whether a message has made a round trip."""
        return self.round_trip_ms > 0

    def _answer(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        self.send({"pong": content.get("ping")})
        if not self.answered and self._withdraw is not None:
            self._withdraw()
        self.answered = True

    def _repr_mimebundle_(
        self, **kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if not self.answered and self._withdraw is None:
            self._withdraw = verdict_below(lambda: self.answered)
        return super()._repr_mimebundle_(**kwargs)

    def still(self) -> dict[str, Any]:
        first, *rest = WHAT_TO_DO
        html = f"<p><b>{first}</b></p><ul>{''.join(f'<li>{line}</li>' for line in rest)}</ul>"
        return {"text/plain": "\n".join(WHAT_TO_DO), "text/html": html}


def pulse() -> Pulse:
    """Return a widget that shows whether widgets work, and how long a round trip takes."""
    return Pulse()
