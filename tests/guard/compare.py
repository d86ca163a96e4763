"""Comparison of two recordings, item by item and line by line."""

import difflib
from pathlib import Path

from tests.guard.processes import RAISED

LINES = 12  # of an item's differences, at most


def compare(old: Path, new: Path, lines: int = LINES) -> int:
    """Print the differences of two recordings; return 1 if there are any, or if there is nothing to
    compare.
    """
    before, after = texts(old), texts(new)
    differing = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    for name in differing:
        print(f"{name}:")
        if name not in after:
            print("  only in the old recording")
        elif name not in before:
            print("  only in the new recording")
        else:
            found = differences(before[name], after[name])
            print("".join(f"  {line}\n" for line in found[:lines]), end="")
            if len(found) > lines:
                print(f"  and {len(found) - lines} more lines")
    raised = [name for name, text in after.items() if text.startswith(RAISED)]
    print(f"{len(before)} items before, {len(after)} after, {len(differing)} differ")
    if raised:
        print(f"{len(raised)} items raised in the new recording: {', '.join(raised)}")
    return int(bool(differing) or not before)


def texts(folder: Path) -> dict[str, str]:
    """Return the text of each item of a recording."""
    return {
        str(path.relative_to(folder).with_suffix("")): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.txt")
    }


def differences(old: str, new: str) -> list[str]:
    """Return the lines that differ, old ones with "-" and new ones with "+".

    >>> differences("a\\nb\\n", "a\\nc\\n")
    ['- b', '+ c']
    """
    found = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    changed = [line for line in found if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return [f"{line[0]} {line[1:]}" for line in changed]
