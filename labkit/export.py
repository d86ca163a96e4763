"""Former place of `labkit.site.formulas`, until version 0.4."""

from typing import Any

from labkit.moved import moved

MOVED = {
    "picture": "labkit.site.formulas.picture",
    "typeset": "labkit.site.formulas.typeset",
}


def __getattr__(name: str) -> Any:
    """Return what moved to `labkit.site`, with a DeprecationWarning."""
    return moved(__name__, name, MOVED)
