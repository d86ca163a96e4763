"""Texts of the reports of `watch` and `diagnose`: what they print, and every value they save."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.guard.plain import lines_of, without_places
from tests.guard.trees import guarded_tree


def plain_report(report: Any) -> str:
    """Return the text of a report and its values, without places."""
    with TemporaryDirectory() as folder:
        saved = report.save(Path(folder) / "report")
        text = (saved / "report.txt").read_text(encoding="utf-8") + "\n" + values_of(saved)
    return without_places(text, {"TREE": guarded_tree()})


def values_of(saved: Path) -> str:
    """Return the values of a report that was saved into a folder, one in a line."""
    values = json.loads((saved / "report.json").read_text(encoding="utf-8"))
    return "".join(f"{line}\n" for line in lines_of(values))
