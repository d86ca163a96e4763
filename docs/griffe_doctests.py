"""Extension of griffe: examples of docstrings become blocks of code.

Our docstrings end with doctests that have no heading of their own. Without this, Markdown reads
their `>>>` as quotations and their results as links.
"""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class Doctests(Extension):
    """Puts each doctest into a fence."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object that griffe has read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return a docstring with a fence around each doctest; one ends at a blank line."""
    lines = []
    inside = False
    for line in text.splitlines():
        if line.lstrip().startswith(">>> ") and not inside:
            lines.append("```pycon")
            inside = True
        elif not line.strip() and inside:
            lines.append("```")
            inside = False
        # A fence begins at the margin, and so does what it holds.
        lines.append(
            line.lstrip() if inside and line.lstrip().startswith((">>> ", "... ")) else line
        )
    if inside:
        lines.append("```")
    return "\n".join(lines)
