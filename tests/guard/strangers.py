"""The outside scripts, healthy and faulty, and the right repairs of the faulty ones."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.guard.trees import HERE

SCRIPTS = HERE / "scripts"


def scripts() -> list[Path]:
    """Return the outside scripts, healthy and faulty."""
    return sorted(SCRIPTS.glob("*.py"))


def repaired(script: Path) -> str | None:
    """Return the text of a faulty script with its repair, or None for a healthy one.

    Raises:
        ValueError: the script lacks a text that the repair replaces.
    """
    table = tomllib.loads((SCRIPTS / "repairs.toml").read_text(encoding="utf-8"))
    edits: Sequence[Sequence[str]] | None = table.get(script.stem)
    if edits is None:
        return None
    text = script.read_text(encoding="utf-8")
    for old, new in edits:
        if old not in text:
            raise ValueError(f"expected {old!r} in {script}, which its repair replaces")
        text = text.replace(old, new)
    return text
