"""Comparison of two recordings, item by item and line by line."""

import difflib
from pathlib import Path

from tests.guard.processes import RAISED

# How many different lines are printed of an item, at most.
MOST_LINES = 12


def compare(old: Path, new: Path, most_lines: int = MOST_LINES) -> int:
    """Print the differences of two recordings.

    Returns:
        The exit status: 1 if the recordings differ or if the old one is empty, otherwise 0.
    """
    before = texts(old)
    after = texts(new)
    differing = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    for name in differing:
        print(f"{name}:")
        if name not in after:
            print("  only in the old recording")
        elif name not in before:
            print("  only in the new recording")
        else:
            lines = differences(before[name], after[name])
            for line in lines[:most_lines]:
                print(f"  {line}")
            if len(lines) > most_lines:
                print(f"  and {len(lines) - most_lines} more lines")
    raised = [name for name, text in after.items() if text.startswith(RAISED)]
    print(f"{len(before)} items before, {len(after)} after, {len(differing)} differ")
    if raised:
        print(f"{len(raised)} items raised in the new recording: {', '.join(raised)}")
    return int(bool(differing) or not before)


def texts(folder: Path) -> dict[str, str]:
    """Return name of an item, FOLDER/NAME -> its text, for all items of a recording."""
    return {
        str(path.relative_to(folder).with_suffix("")): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.txt")
    }


def differences(old: str, new: str) -> list[str]:
    r"""Return the lines that differ, old ones with "-" and new ones with "+".

    >>> differences("a\nb\n", "a\nc\n")
    ['- b', '+ c']
    """
    diff = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))
    # The first two lines name the files; a line with "@@" begins each place that differs.
    changed = [line for line in diff[2:] if not line.startswith("@@")]
    return [f"{line[0]} {line[1:]}" for line in changed]
