"""How is what a watch saw handed on? As a report that is printed, drawn, saved and loaded.

Invariant: a report that was saved and loaded is equal to the one it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.instrument.histogram import ExponentHistogram
from labkit.instrument.page import body, page, text
from labkit.instrument.records import AgainstFP32, Finding, NonFinite, Seen, Skip, WatchedStep
from labkit.instrument.writers import to_tensorboard, to_wandb


@dataclass(frozen=True)
class Report(Seen):
    """What a watch saw, to be printed, shown in a notebook, saved and loaded."""

    def save(self, folder: str | Path = "watch-report") -> Path:
        """Write report.html, report.json and report.txt into a folder, which is made; return it."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(json.dumps(to_plain(self), allow_nan=True), encoding="utf-8")
        (folder / "report.html").write_text(page(self), encoding="utf-8")
        (folder / "report.txt").write_text(f"{self}\n", encoding="utf-8")
        return folder

    def to_tensorboard(self, writer: Any) -> None:
        """Write all histograms to a torch.utils.tensorboard.SummaryWriter: unscaled, of magnitudes."""
        to_tensorboard(self, writer)

    def to_wandb(self, run: Any) -> None:
        """Log all histograms to a run of W&B: unscaled, of magnitudes."""
        to_wandb(self, run)

    @staticmethod
    def load(path: str | Path) -> Report:
        """Read a report.json, or that of a folder.

        Raises:
            ValueError: it is no report of a watch.
        """
        path = Path(path)
        stored = (path / "report.json" if path.is_dir() else path).read_text(encoding="utf-8")
        try:
            plain = json.loads(stored)
        except ValueError:  # no JSON at all
            plain = None
        if not isinstance(plain, dict) or "watched" not in plain:
            raise ValueError(f"{path} holds no report of a watch; Report.save writes one")
        return from_plain(plain)

    def __str__(self) -> str:
        """Return a text that can be pasted into an issue."""
        return text(self)

    def _repr_html_(self) -> str:
        return body(self)


def to_plain(report: Report) -> dict[str, Any]:
    """Return a report as what JSON knows."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple(_RECORDS.values())):
            return {name: plain(item) for name, item in vars(value).items()}
        if isinstance(value, ExponentHistogram):
            return {"lo": value.lo, "counts": value.counts.tolist(), "zeros": value.zeros, "bad": value.non_finite}
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple | list) else value

    return {name: plain(value) for name, value in vars(report).items()}


_RECORDS: dict[str, type] = {
    "watched": WatchedStep,
    "skips": Skip,
    "non_finite": NonFinite,
    "against_fp32": AgainstFP32,
    "findings": Finding,
}


def from_plain(plain: Mapping[str, Any]) -> Report:
    """Return the report that `to_plain` wrote."""
    values: dict[str, Any] = {}
    for name, value in plain.items():
        value = _thawed(value)
        values[name] = tuple(_RECORDS[name](**item) for item in value) if name in _RECORDS else value
    return Report(**values)


def _thawed(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"lo", "counts", "zeros", "bad"}:
        return ExponentHistogram(np.array(value["counts"], dtype=np.int64), value["lo"], value["zeros"], value["bad"])
    if isinstance(value, dict):
        return {key: _thawed(item) for key, item in value.items()}
    return tuple(_thawed(item) for item in value) if isinstance(value, list) else value
