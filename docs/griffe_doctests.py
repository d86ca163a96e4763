"""Extension of griffe: examples of docstrings become blocks of code.

Our docstrings end with doctests that have no heading of their own. Without this, Markdown reads
their `>>>` as quotations and their results as links.
"""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class Doctests(Extension):
    """Puts each doctest into a fenced block of code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object that griffe has read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return a docstring with a fence around each doctest.

    A doctest ends at a blank line or at the end of the docstring.
    """
    lines = []
    inside = False
    for line in text.splitlines():
        if line.lstrip().startswith(">>> ") and not inside:
            lines.append("```pycon")
            inside = True
        elif not line.strip() and inside:
            lines.append("```")
            inside = False
        if inside and line.lstrip().startswith((">>> ", "... ")):
            # The fence is at the left margin, so its prompts are too.
            lines.append(line.lstrip())
        else:
            lines.append(line)
    if inside:
        lines.append("```")
    return "\n".join(lines)
