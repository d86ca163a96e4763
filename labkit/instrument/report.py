"""Report of a training: results that print, show in a notebook, and can be saved and exported.

Idea: `watch` and `diagnose` return the same report; labkit.instrument.report_page draws it.

Invariant: a report that is saved and loaded is equal to the original.
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

NAMES = {
    "weights": "parameters",
    "weight gradients": "gradients",
    "activation gradients": "activation_gradients",
}


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
    """The results of a watch or a diagnosis, which print, show in a notebook, save and load.

    `steps` is the number of steps, skipped ones included; `watched` are the sampled ones, and
    `unseen` says what could not be observed, and why.
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
        """
        path = Path(path)
        stored = (path / "report.json" if path.is_dir() else path).read_text(encoding="utf-8")
        try:
            plain = json.loads(stored)
        except ValueError:  # no JSON at all
            plain = None
        if not isinstance(plain, dict) or "watched" not in plain:
            raise ValueError(f"{path}: expected a report of a watch, as Report.save writes it")
        return from_plain(plain)

    def __str__(self) -> str:
        """Return the report as plain text, as for an issue.

        It holds the verdict, the findings with their repairs, and the numbers.
        """
        lines = [
            (
                f"{run_in_words(self)} (labkit {labkit.__version__}, torch {torch.__version__}, "
                f"{platform.system()})"
            )
        ]
        for status in reversed(Status):
            for group in grouped(self, status):
                lines.append(f"{SIGNS[status]} {status:<4}  {group[0].name}: {in_words(group)}")
                if group[0].remedy:
                    lines += [f"{'':8}-> {group[0].to_do}"]
        lines += [f"- {line}" for line in numbers(self)]
        lines += [
            f"- step {skip.step} skipped at scale {power(skip.scale)}: {skip.why}"
            for skip in self.skips[:5]
        ]
        if len(self.skips) > 5:
            lines += [f"- {len(self.skips) - 5} more were skipped"]
        return "\n".join(
            [
                lines[0],
                self.summary,
                *lines[1:],
                *(f"- not observed: {what}" for what in self.unseen),
            ]
        )

    def _repr_html_(self) -> str:
        return body(self)


JSON_SCHEMA = "labkit.report/1"  # of `as_json`; docs/practitioners.md describes it


def as_json(command: str, reports: Sequence[Report], status: int) -> dict[str, Any]:
    """Return the findings of a command as values of JSON, by a schema that has a version."""
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
    """Return a report as values of JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple(_RECORDS.values())):
            return {name: plain(item) for name, item in vars(value).items()}
        if isinstance(value, ExponentHistogram):
            return {
                "lo": value.lo,
                "counts": value.counts.tolist(),
                "zeros": value.zeros,
                "bad": value.non_finite,
            }
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
    values: dict[str, Any] = {}
    for name, value in plain.items():
        value = _from_json(value)
        values[name] = (
            tuple((_finding if name == "findings" else _RECORDS[name])(**item) for item in value)
            if name in _RECORDS
            else value
        )
    return Report(**values)


def _finding(**item: Any) -> Finding:
    if "says" in item:  # of version 0.2
        return finding(
            Kind(item["what"]), item["layer"], item["step"], item["says"], item.get("line", "")
        )
    return Finding(**{**item, "status": Status(item["status"])})


def _from_json(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"lo", "counts", "zeros", "bad"}:
        return ExponentHistogram(
            np.array(value["counts"], dtype=np.int64), value["lo"], value["zeros"], value["bad"]
        )
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value.items()}
    return tuple(_from_json(item) for item in value) if isinstance(value, list) else value


def _named_histograms(report: Report) -> Iterator[tuple[int, str, ExponentHistogram]]:
    for watched in report.watched:
        for kind, layers in watched.histograms.items():
            for name, histogram in layers.items():
                if histogram.finite_non_zero:
                    yield watched.step, f"{NAMES.get(kind, kind)}/{name}", histogram


def _binades(histogram: ExponentHistogram) -> tuple[Any, Any]:
    """Return [n + 1] edges and [n] counts; zeros are in a first bin from 0."""
    edges = 2.0 ** np.arange(histogram.lo, histogram.lo + len(histogram.counts) + 1)
    return np.concatenate([[0.0], edges]), np.concatenate([[histogram.zeros], histogram.counts])
