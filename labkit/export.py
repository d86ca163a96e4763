"""Former place of `labkit.site.formulas` and `labkit.site.notebook_page`, until version 0.4."""

import warnings
from typing import Any

MOVED = {
    "picture": "labkit.site.formulas",
    "typeset": "labkit.site.formulas",
    "to_html": "labkit.site.notebook_page",
}


def __getattr__(name: str) -> Any:
    """Return what moved to `labkit.site`, with a DeprecationWarning."""
    if name not in MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    warnings.warn(
        f"labkit.export.{name} is now {MOVED[name]}.{name}", DeprecationWarning, stacklevel=2
    )
    return getattr(import_module(MOVED[name]), name)
