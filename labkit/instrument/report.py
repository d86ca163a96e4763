"""Report of a training: results that print, show in a notebook, and can be saved and exported.

Idea: `watch` and `diagnose` return the same kind of report; labkit.instrument.report_page draws it.

Invariant: a report that is saved and loaded is equal to the original, unless it holds NaN, which
equals no number.
"""

from __future__ import annotations

import importlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

import labkit
from labkit.findings import SIGNS, Finding, Status
from labkit.instrument.histogram import ExponentHistogram
from labkit.instrument.records import AgainstFP32, NonFinite, Skip, WatchedStep
from labkit.instrument.report_page import body, page
from labkit.instrument.results import (
    TrainingResults,
    grouped,
    in_words,
    numbers,
    power,
    run_in_words,
)
from labkit.instrument.symptoms import Kind, finding

# kind -> prefix of its histograms in TensorBoard and W&B
EXPORT_NAMES = {
    "weights": "parameters",
    "weight gradients": "gradients",
    "activation gradients": "activation_gradients",
}
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
        (folder / "report.html").write_text(page(self), encoding="utf-8")
        (folder / "report.txt").write_text(f"{self}\n", encoding="utf-8")
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
                min=float(edges[0]),
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
            ValueError: the file is not a report of a watch.
            OSError: the file cannot be read.
        """
        path = Path(path)
        file = path / "report.json" if path.is_dir() else path
        refusal = f"{path}: expected a report of a watch, as Report.save writes it"
        try:
            plain = json.loads(file.read_text(encoding="utf-8"))
        # of a file that is not text in UTF-8, not JSON, or JSON that is nested too deep
        except (ValueError, RecursionError) as error:
            raise ValueError(refusal) from error
        if not isinstance(plain, dict) or "watched" not in plain:
            raise ValueError(refusal)
        try:
            return from_plain(plain)
        # other JSON has other fields, or values of other types
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(refusal) from error

    def __str__(self) -> str:
        """Return the report as plain text: verdict, findings with their repairs, and numbers."""
        lines = [
            f"{run_in_words(self)} (labkit {labkit.__version__}, torch {torch.__version__}, "
            f"{platform.system()})",
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
            lines.append(f"- {len(self.skips) - MOST_SKIPS} more were skipped")
        lines += [f"- not observed: {what}" for what in self.unseen]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return body(self)


# version of what `as_json` returns; docs/practitioners.md describes it
JSON_SCHEMA = "labkit.report/1"


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


# field of a report -> type of its items
_RECORDS: dict[str, type] = {
    "watched": WatchedStep,
    "skips": Skip,
    "non_finite": NonFinite,
    "against_fp32": AgainstFP32,
    "findings": Finding,
}


def to_plain(report: Report) -> dict[str, Any]:
    """Return a report as values of JSON, which `from_plain` reads."""
    return {name: _to_json(value) for name, value in vars(report).items()}


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple(_RECORDS.values())):
        return {name: _to_json(item) for name, item in vars(value).items()}
    if isinstance(value, ExponentHistogram):
        return {
            "lo": value.lo,
            "counts": value.counts.tolist(),
            "zeros": value.zeros,
            "bad": value.non_finite,
        }
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_to_json(item) for item in value]
    return value


def from_plain(plain: Mapping[str, Any]) -> Report:
    """Return the report that `to_plain` returned as values of JSON."""
    fields: dict[str, Any] = {}
    for name, value in plain.items():
        field = _from_json(value)
        if name == "findings":
            field = tuple(_finding(item) for item in field)
        elif name in _RECORDS:
            field = tuple(_RECORDS[name](**item) for item in field)
        fields[name] = field
    return Report(**fields)


def _finding(fields: Mapping[str, Any]) -> Finding:
    # a report that version 0.2 saved
    if "says" in fields:
        return finding(
            Kind(fields["what"]),
            fields["layer"],
            fields["step"],
            fields["says"],
            fields.get("line", ""),
        )
    return Finding(**{**fields, "status": Status(fields["status"])})


def _from_json(value: Any) -> Any:
    # parameters may have these names: then each value is a histogram or a list
    is_histogram = isinstance(value, dict) and set(value) == {"lo", "counts", "zeros", "bad"}
    if is_histogram and isinstance(value["lo"], int):
        return ExponentHistogram(
            counts=np.array(value["counts"], dtype=np.int64),
            lo=value["lo"],
            zeros=value["zeros"],
            non_finite=value["bad"],
        )
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_from_json(item) for item in value)
    return value


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
