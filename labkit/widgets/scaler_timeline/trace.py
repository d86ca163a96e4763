"""At which scales would each step of a training have overflowed, or lost gradients? A trace that scalers are tried on.

Idea: a scaler needs to know one thing of a step, whether inf or NaN was found, and that follows from the largest
gradient: it overflows where scale * largest rounds past 65504. So one training is recorded once, and any scaler can
then be tried on it in milliseconds.

Invariant: everything in a trace was measured in FP32, at the weights and batches of a real FP16 training that skipped
nothing. What a trace cannot say: a skipped step would have left other weights behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from labkit.amp import RECIPES, Recipe
from labkit.formats import FP16
from labkit.instrument import ExponentHistogram, fate, merge, shift, snapshot
from labkit.records import data_folder, device_name, now, versions, write_whole
from labkit.train import Task, TrainingRun

SCHEMA = "labkit.trace/1"
LOST = 0.01  # a scale loses gradients where more than this share of the activation gradients' elements underflow
OVERFLOWS_FROM = float(FP16.max) + 2.0 ** (FP16.emax - FP16.significand_bits - 1)  # 65520 rounds to inf


@dataclass(frozen=True)
class Trace:
    """One training's gradients, as far as loss scaling is concerned.

    largest     largest magnitude among the weight and activation gradients of each step, unscaled
    keeps_from  for each step, the smallest k for which at most 1% of the activation gradients underflow at scale 2^k
    """

    task: str
    recipe: str
    seed: int
    largest: tuple[float, ...]
    keeps_from: tuple[int, ...]
    device: str
    versions: dict[str, str]
    date: str

    def __post_init__(self) -> None:
        if not self.largest or len(self.largest) != len(self.keeps_from):
            raise ValueError(
                f"a trace has one number of each kind for each step, and at least one step; it was given "
                f"{len(self.largest)} of largest and {len(self.keeps_from)} of keeps_from"
            )

    def __len__(self) -> int:
        return len(self.largest)

    def save(self, path: str | Path) -> Path:
        """Write the trace as JSON; return the path."""
        return write_whole(Path(path), json.dumps({"schema": SCHEMA, **asdict(self)}, allow_nan=False).encode())


def keeps_from(histogram: ExponentHistogram) -> int:
    """Return the smallest k, 0 or more, for which at most 1% of the elements underflow in FP16 at scale 2^k.

    >>> keeps_from(ExponentHistogram(np.array([50, 50]), lo=-30, zeros=0, non_finite=0))
    5
    """
    k = 0
    while fate(shift(histogram, k), FP16).underflowed > LOST:
        k += 1
    return k


def measure_trace(
    task: Task,
    recipe: Recipe = RECIPES["FP16 static"],
    seed: int = 0,
    *,
    steps: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Train, and record at each step what a scaler would have met; each step costs about three of plain training.

    Args:
        recipe: at whose weights the gradients are measured; take one that skips nothing.
        steps: how many; None takes the task's own number.
        progress: called with the number of each step done.

    Raises:
        ValueError: the training skipped a step or its gradients left FP32, so the trace would be of another training.
    """
    run = TrainingRun(task, recipe, seed, measure_every=0)
    largest, lowest = [], []
    for number in range(1, 1 + (task.steps if steps is None else steps)):
        twin = run.fp32_twin()
        activations, weights = twin.next_gradients("activation gradients"), twin.next_gradients("weight gradients")
        largest.append(max(float(g.abs().max()) for g in (*activations.values(), *weights.values())))
        histograms = snapshot(activations, step=number, kind="activation gradients").layers.values()
        lowest.append(keeps_from(merge(histograms)))
        if not (run.step().stepped and np.isfinite(largest[-1])):
            raise ValueError(
                f"step {number} of {task.name!r} under {recipe.name!r} was skipped, or its gradients left FP32. A "
                "trace is of a training that skips nothing: take a recipe with a lower static scale."
            )
        if progress is not None:
            progress(number)
    return Trace(
        task.name, recipe.name, seed, tuple(largest), tuple(lowest), device_name(run.device), versions(), now()
    )


def load_trace(path: str | Path) -> Trace:
    """Read a trace that `Trace.save` wrote.

    Raises:
        ValueError: the file is not such a trace.
    """
    try:
        stored = json.loads(Path(path).read_text(encoding="utf-8"))
        if stored.pop("schema") != SCHEMA:
            raise ValueError(f"another schema than {SCHEMA!r}")
        row = {field.name: stored[field.name] for field in fields(Trace)}
        return Trace(**{**row, "largest": tuple(row["largest"]), "keeps_from": tuple(row["keeps_from"])})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a trace of a training: {error!r}") from error


def recorded_trace() -> Trace:
    """Return the trace that travels with the lab: `segmentation_small`, seed 0."""
    return load_trace(data_folder() / "traces" / "segmentation_small.json")
