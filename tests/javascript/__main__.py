"""Checks of the widgets' JavaScript: `python -m tests.javascript`.

The modules of each widget are joined, which needs Python alone. With the tools that `npm ci`
installs, biome checks their form, tsc their types, and node runs the tests of what needs no
browser. Node is a tool of developers: if it is missing, one line says what was left out. CI sets
LABKIT_REQUIRE_JAVASCRIPT, and fails then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "node_modules" / ".bin"
REQUIRED = "LABKIT_REQUIRE_JAVASCRIPT"


def join_all() -> list[str]:
    """Return what is wrong with the modules of the widgets, each fault once.

    A class of a widget joins its modules when it is made, so a fault may show when labkit.widgets
    is imported.
    """
    try:
        from labkit.widgets.base import joining
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    widgets = [
        folder.name for folder in joining.FOLDERS.iterdir() if (folder / "view.js").is_file()
    ]
    problems: dict[str, None] = {}
    for widget in sorted(widgets):
        try:
            joining.modules_of(widget)
        except joining.JoinError as error:
            problems[str(error)] = None
    return list(problems)


def missing_tools() -> str:
    """Return why the checks that need node cannot run; "" where they can."""
    if shutil.which("node") is None:
        return "node is missing; it comes from https://nodejs.org"
    if not (TOOLS / "biome").exists():
        return "node_modules is missing; `npm ci` installs it"
    return ""


def commands() -> list[list[str]]:
    """Return the checks that need node."""
    tests = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/javascript/*.test.js"))
    return [
        [str(TOOLS / "biome"), "check", "--error-on-warnings", "."],
        [str(TOOLS / "tsc"), "--project", "."],
        ["node", "--test", "--test-reporter=dot", *tests],
    ]


def main() -> int:
    """Run all checks; return 0 if all passed, else 1."""
    problems = join_all()
    for problem in problems:
        print(f"JavaScript: {problem}", file=sys.stderr)
    why = missing_tools()
    if why:
        print(f"JavaScript: biome, tsc and node's tests were left out, since {why}.")
        return int(bool(problems) or REQUIRED in os.environ)
    statuses = [subprocess.call(command, cwd=ROOT) for command in commands()]
    # a check that a signal ended has a negative status
    return int(bool(problems) or any(statuses))


if __name__ == "__main__":
    sys.exit(main())
