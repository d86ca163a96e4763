"""Report of a training: results that print, show in a notebook, and can be saved and exported.

Idea: `watch` and `diagnose` return the same kind of report; labkit.instrument.report_page draws it.

Invariant: a report that is saved and loaded is equal to the original, unless it holds NaN, which
equals no number.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

import labkit
from labkit.findings import SIGNS, Status
from labkit.instrument.histogram import ExponentHistogram
from labkit.instrument.report_page import body, page
from labkit.instrument.results import (
    TrainingResults,
    grouped,
    in_words,
    numbers,
    power,
    run_in_words,
)
from labkit.instrument.saved_report import (
    SAVED_SCHEMA,
    UnreadableReport,
    fields_from_json,
    to_json,
)

# kind -> prefix of its histograms in TensorBoard and W&B
EXPORT_NAMES = {
    "weights": "parameters",
    "weight gradients": "gradients",
    "activation gradients": "activation_gradients",
}
# version of what `as_json` returns; docs/practitioners.md describes it
JSON_SCHEMA = "labkit.report/1"
_PASS = "Pass a report.json that Report.save wrote, or its folder."
# skipped steps that a text lists one by one
MOST_SKIPS = 5


class HistogramWriter(Protocol):
    """The method of torch.utils.tensorboard.SummaryWriter that a report needs."""

    def add_histogram_raw(self, tag: str, /, **values: Any) -> object:
        """Write a histogram that is already counted."""


class MetricsRun(Protocol):
    """The method of a run of W&B that a report needs."""

    def log(self, data: dict[str, Any], /, *, step: int) -> object:
        """Log values under their names, at a step."""


@dataclass(frozen=True, kw_only=True)
class Report(TrainingResults):
    """Results of a watch or a diagnosis; they print, show in a notebook, save and load.

    The fields are described at `TrainingResults`.
    """

    def save(self, folder: str | Path = "watch-report") -> Path:
        """Write report.html, report.json and report.txt into a folder, and return the folder.

        It is created if missing.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(
            json.dumps(to_plain(self), allow_nan=True), encoding="utf-8"
        )
        # a name may hold half of a surrogate pair, which UTF-8 cannot
        for name, text in (("report.html", page(self)), ("report.txt", f"{self}\n")):
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        return folder

    def to_tensorboard(self, writer: HistogramWriter) -> None:
        """Write all histograms to a torch.utils.tensorboard.SummaryWriter.

        They are of unscaled magnitudes, each at its step.

        Source: SummaryWriter.add_histogram_raw.
        """
        for step, name, histogram in _named_histograms(self):
            edges, counts = _binades(histogram)
            # of the bin of zeros, and of each binade: 0.75 of its upper edge
            middles = np.concatenate([[0.0], edges[2:] * 0.75])
            writer.add_histogram_raw(
                name,
                min=float(edges[0] if histogram.zeros else edges[1]),
                max=float(edges[-1]),
                num=int(counts.sum()),
                sum=float((middles * counts).sum()),
                sum_squares=float((middles**2 * counts).sum()),
                bucket_limits=edges[1:].tolist(),
                bucket_counts=counts.tolist(),
                global_step=step,
            )

    def to_wandb(self, run: MetricsRun) -> None:
        """Log all histograms to a run of W&B under the names that wandb.watch uses.

        They are of unscaled magnitudes, each at its step.

        Raises:
            ModuleNotFoundError: wandb is not installed.
        """
        wandb = importlib.import_module("wandb")
        logged: dict[int, dict[str, Any]] = {}
        for step, name, histogram in _named_histograms(self):
            edges, counts = _binades(histogram)
            logged.setdefault(step, {})[name] = wandb.Histogram(np_histogram=(counts, edges))
        for step, histograms in logged.items():
            run.log(histograms, step=step)

    @staticmethod
    def load(path: str | Path) -> Report:
        """Read a report.json, or that of a folder.

        Raises:
            ValueError: the file is not text, not JSON, or not a report that this version of the
                lab can read.
            OSError: the file cannot be read.
        """
        path = Path(path)
        file = path / "report.json" if path.is_dir() else path
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: expected text in UTF-8, got other bytes. {_PASS}") from error
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{file}: expected JSON, got other text ({error}). {_PASS}") from error
        except RecursionError as error:
            raise ValueError(
                f"{file}: expected a report of a watch, got JSON that is nested too deep. {_PASS}"
            ) from error
        if not isinstance(plain, dict) or not {"model", "steps"} <= plain.keys():
            raise ValueError(f"{file}: expected a report of a watch, got other JSON. {_PASS}")
        try:
            return from_plain(plain)
        except UnreadableReport as error:
            raise ValueError(f"{file}{_saved_by(plain)}: {error}") from error

    def __str__(self) -> str:
        """Return the report as plain text: verdict, findings with their repairs, and numbers."""
        lines = [
            f"{run_in_words(self)} ({self.software or 'versions and system unknown'})",
            self.summary,
        ]
        # the worst status is the last one
        for status in reversed(Status):
            for group in grouped(self, status):
                first = group[0]
                lines.append(f"{SIGNS[status]} {status:<4}  {first.name}: {in_words(group)}")
                if first.remedy:
                    lines.append(f"{'':8}-> {first.to_do}")
        lines += [f"- {line}" for line in numbers(self)]
        for skip in self.skips[:MOST_SKIPS]:
            lines.append(f"- step {skip.step} skipped at scale {power(skip.scale)}: {skip.why}")
        if len(self.skips) > MOST_SKIPS:
            lines.append(f"- {len(self.skips) - MOST_SKIPS} more steps were skipped")
        lines += [f"- not observed: {what}" for what in self.unseen]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return body(self)


def as_json(command: str, reports: Sequence[Report], status: int) -> dict[str, Any]:
    """Return the findings of a command as values of JSON, in the schema `JSON_SCHEMA`.

    Args:
        command: name of the command.
        reports: its reports, one for each model.
        status: its exit status.
    """
    return {
        "schema": JSON_SCHEMA,
        "labkit": labkit.__version__,
        "torch": torch.__version__,
        "command": command,
        "exit_status": status,
        "reports": [
            {
                "model": report.model,
                "verdict": report.summary,
                "steps": report.steps,
                "skipped": len(report.skips),
                "findings": [
                    {
                        "name": each.name,
                        "status": each.status.value,
                        "what": each.what,
                        "remedy": each.remedy,
                        "line": each.line,
                        "layer": each.layer,
                        "step": each.step,
                        "faults": list(each.faults),
                    }
                    for each in report.findings
                ],
                "not_observed": list(report.unseen),
            }
            for report in reports
        ],
    }


def to_plain(report: Report) -> dict[str, Any]:
    """Return a report as values of JSON, which `from_plain` reads."""
    return {"schema": SAVED_SCHEMA, **to_json(report)}


def from_plain(plain: Mapping[str, Any]) -> Report:
    """Return the report that `to_plain` returned as values of JSON.

    Raises:
        UnreadableReport: this version of the lab cannot read the values.
    """
    schema = plain.get("schema", SAVED_SCHEMA)
    if schema != SAVED_SCHEMA:
        raise UnreadableReport(
            f"expected the schema {SAVED_SCHEMA!r}, got {schema!r}. Load it with the labkit that "
            "saved it."
        )
    values = {name: value for name, value in plain.items() if name != "schema"}
    return Report(**{"software": None, **fields_from_json(Report, values)})


def _saved_by(plain: Mapping[str, Any]) -> str:
    """Return ", saved by labkit " with the version in a file, or "" if it has none."""
    software = plain.get("software")
    version = software.get("labkit") if isinstance(software, dict) else None
    return f", saved by labkit {version}" if isinstance(version, str) else ""


def _named_histograms(report: Report) -> Iterator[tuple[int, str, ExponentHistogram]]:
    """Yield step, name for an export, and histogram, of each histogram that is not empty."""
    for watched in report.watched:
        for kind, layers in watched.histograms.items():
            prefix = EXPORT_NAMES.get(kind, kind)
            for name, histogram in layers.items():
                if histogram.finite_non_zero:
                    yield watched.step, f"{prefix}/{name}", histogram


def _binades(histogram: ExponentHistogram) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the edges [n + 1] and the counts [n] of bins; the first bin, from 0, holds zeros."""
    edges = 2.0 ** np.arange(histogram.lo, histogram.lo + len(histogram.counts) + 1)
    return np.concatenate([[0.0], edges]), np.concatenate([[histogram.zeros], histogram.counts])
