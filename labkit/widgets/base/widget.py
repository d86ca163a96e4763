"""Who answers the browser when two of its messages arrive at once?

Idea: JupyterLab sends what a widget says to the kernel's main thread, or, while that is busy, to a subshell, which is
another thread. So two messages of one hand can be worked on side by side. Here they take turns.

Invariant: one message of a widget at a time. In which order two of them are worked on is not promised: where it
matters, the messages carry numbers.

Source: Jupyter Enhancement Proposal 91 (kernel subshells).
"""

from __future__ import annotations

import threading
from typing import Any

import anywidget


class LabWidget(anywidget.AnyWidget):
    """An anywidget whose messages take turns, and which shows something where widgets do not run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._turn = threading.RLock()
        super().__init__(*args, **kwargs)

    def _handle_msg(self, msg: dict[str, Any]) -> None:
        with self._turn:
            super()._handle_msg(msg)

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run: MIME type -> content (`labkit.widgets.base.figures.still`)."""
        return {}

    def _repr_mimebundle_(self, **kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        return bundle and ({**bundle[0], **self.still()}, bundle[1])
