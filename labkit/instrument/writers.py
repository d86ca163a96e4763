"""How do TensorBoard and W&B show what a watch counted? As histograms, unscaled, under the names that people know.

Source: SummaryWriter.add_histogram_raw (torch.utils.tensorboard); wandb.Histogram(np_histogram=...), and the names
"gradients/..." and "parameters/..." of wandb.watch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from labkit.instrument.histogram import ExponentHistogram
from labkit.instrument.records import Seen

NAMES = {"weights": "parameters", "weight gradients": "gradients", "activation gradients": "activation_gradients"}


def to_tensorboard(report: Seen, writer: Any) -> None:
    """Write all histograms of magnitudes to a SummaryWriter, each at its step."""
    for step, name, histogram in _named(report):
        edges, counts = _binades(histogram)
        middles = edges[1:] * 0.75
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


def to_wandb(report: Seen, run: Any) -> None:
    """Log all histograms of magnitudes to a run of W&B, each at its step.

    Raises:
        ModuleNotFoundError: wandb is not installed.
    """
    wandb = importlib.import_module("wandb")
    logged: dict[int, dict[str, Any]] = {}
    for step, name, histogram in _named(report):
        edges, counts = _binades(histogram)
        logged.setdefault(step, {})[name] = wandb.Histogram(np_histogram=(counts, edges))
    for step, histograms in logged.items():
        run.log(histograms, step=step)


def _named(report: Seen) -> Iterator[tuple[int, str, ExponentHistogram]]:
    for watched in report.watched:
        for kind, layers in watched.histograms.items():
            for name, histogram in layers.items():
                if histogram.finite_non_zero:
                    yield watched.step, f"{NAMES.get(kind, kind)}/{name}", histogram


def _binades(histogram: ExponentHistogram) -> tuple[Any, Any]:
    """Return [n + 1] edges and [n] counts; magnitudes of zero stand in a first bin from 0."""
    edges = 2.0 ** np.arange(histogram.lo, histogram.lo + len(histogram.counts) + 1)
    return np.concatenate([[0.0], edges]), np.concatenate([[histogram.zeros], histogram.counts])
