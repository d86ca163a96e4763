"""Lines of the repository by package: `python -m tests.count`; `--tests` also lists the folders of
the tests.
"""

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = {".py": "Python", ".js": "JS, CSS", ".css": "JS, CSS"}
# The table's parts; a file belongs to the first pattern that matches its path, and its row is what
# the pattern names.
PARTS = {
    "content of the course": {
        "exercises": r"labkit_lessons/[^/]+/(?!lesson\.py)",
        "lessons, the rest": r"(labkit_lessons|notebooks)/",
        "faults": r"labkit/faults/",
    },
    "labkit": {r"\1": r"(labkit/\w+)/.*", "labkit/*.py": r"labkit/.*"},
    "beside it": {"docs": r"docs/", "tests": r"tests/"},
}
TESTS = {"tests": {r"\1": r"(tests/\w+)/.*", "tests/*.py": r"tests/.*"}}


def count(parts: dict[str, dict[str, str]]) -> dict[str, dict[str, Counter[str]]]:
    """Return part -> row -> files, lines of Python, lines of JavaScript and CSS."""
    patterns = [
        (part, row, re.compile(pattern))
        for part, rows in parts.items()
        for row, pattern in rows.items()
    ]
    found: dict[str, dict[str, Counter[str]]] = {part: defaultdict(Counter) for part in parts}
    for top in ("labkit", "labkit_lessons", "notebooks", "docs", "tests"):
        for path in sorted((ROOT / top).rglob("*.*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in COLUMNS and ".ipynb_checkpoints" not in name:
                belongs = [
                    (part, row, match)
                    for part, row, pattern in patterns
                    if (match := pattern.match(name))
                ]
                for part, row, match in belongs[:1]:
                    lines = len(path.read_text(encoding="utf-8").splitlines())
                    found[part][match.expand(row)].update({"files": 1, COLUMNS[path.suffix]: lines})
    return found


def print_counts(found: dict[str, dict[str, Counter[str]]]) -> None:
    """Print the rows of each part, their sum, and the sum of all parts."""
    whole: Counter[str] = Counter()
    for part, rows in found.items():
        total = sum(rows.values(), Counter())
        whole += total
        for name, row in [(part, Counter()), *sorted(rows.items()), ("sum", total)]:
            cells = [
                f"{row[column]:,}" if row else column for column in ("files", "Python", "JS, CSS")
            ]
            print(f"{name:<24}", *(f"{cell:>9}" for cell in cells))
        print()
    print(
        "all:",
        ", ".join(f"{whole[column]:,} {column}" for column in ("files", "Python", "JS, CSS")),
    )


if __name__ == "__main__":
    print_counts(count(TESTS if "--tests" in sys.argv else PARTS))
