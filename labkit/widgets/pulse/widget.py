"""Are widgets alive here? A message that goes from the browser to the kernel and back.

Idea: only a real round trip proves anything, so the browser sends a number, the kernel returns it, and the browser
shows how long that took. Where no widget can be drawn, words take its place and say what to do.

Invariant: the green line appears only after the kernel has answered; below a page that stays silent, words say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import traitlets

from labkit.widgets.base.assets import script, style
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.pulse.late import verdict_below

WHAT_TO_DO = (
    "Widgets do not run here, so the lessons show still pictures instead.",
    "In JupyterLab: run this cell again. If these words stay, stop JupyterLab, start it with `make lab` and reload.",
    "In VS Code: trust the notebook, and allow widgets when it asks for their scripts.",
    "On a web page that only shows notebooks (GitHub, nbviewer): nothing can run; open the lab on your own machine.",
)


class Pulse(LabWidget):
    """One line that turns green when the kernel has answered the browser; `round_trip_ms` is 0 until then."""

    _esm = script("pulse")
    _css = style("pulse")

    round_trip_ms = traitlets.Float(0.0).tag(sync=True)

    def __init__(self) -> None:
        super().__init__()
        self.answered = False  # a message of the browser's
        self._withdraw: Callable[[], None] | None = None
        self.on_msg(self._answer)

    @property
    def alive(self) -> bool:
        """Whether a message has been there and back."""
        return self.round_trip_ms > 0

    def _answer(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        self.send(answer(content))
        if not self.answered and self._withdraw is not None:
            self._withdraw()
        self.answered = True

    def _repr_mimebundle_(self, **kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if not self.answered and self._withdraw is None:
            self._withdraw = verdict_below(lambda: self.answered)
        return super()._repr_mimebundle_(**kwargs)

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run."""
        first, *rest = WHAT_TO_DO
        html = f"<p><b>{first}</b></p><ul>{''.join(f'<li>{line}</li>' for line in rest)}</ul>"
        return {"text/plain": "\n".join(WHAT_TO_DO), "text/html": html}


def pulse() -> Pulse:
    """Return a widget that shows whether widgets are alive, and how long a message takes there and back."""
    return Pulse()


def answer(content: dict[str, Any]) -> dict[str, Any]:
    """Return the kernel's answer to a message of the browser: its number.

    >>> answer({"ping": 3})
    {'pong': 3}
    """
    return {"pong": content.get("ping")}
