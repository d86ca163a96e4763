"""Traces of trainings on which any loss scaler can be replayed.

Idea: a scaler needs to know one fact about a step, whether its gradients have inf or NaN. This
follows from the largest gradient, which overflows if scale * largest rounds to more than 65504. So
a training is recorded once, and at each step `decide` gets what the trace says for the current
scale.

Invariant: everything in a trace was measured in FP32, at the weights and batches of a real FP16
training. That training skipped no step: after a skipped one, the weights would be others.
replay.scale[i] is the scale of step i.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.amp import RECIPES, Recipe, ScalerConfig, decide, initial
from labkit.formats import FP16
from labkit.instrument import ExponentHistogram, fate, merge, shift, snapshot
from labkit.records import (
    data_folder,
    device_name,
    made_on,
    now,
    parse_record,
    versions,
    write_atomic,
)
from labkit.train import Task, TrainingRun

SCHEMA = "labkit.trace/1"
# A scale loses gradients if more than this share of the activation gradients' elements underflow.
LOST = 0.01
# The least number that FP16 rounds to inf: 65520.
OVERFLOWS_FROM = float(FP16.max) + 2.0 ** (FP16.emax - FP16.significand_bits - 1)
Column = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """The facts about a training's gradients on which loss scaling depends.

    Attributes:
        task: The name of the task.
        recipe: The name of the recipe.
        seed: The seed of the weights and the batches.
        largest: The largest magnitude among the weight and activation gradients of each step,
            unscaled.
        keeps_from: For each step, the smallest k for which at most 1% of the activation gradients
            underflow at scale 2^k.
        device: The device on which the training ran.
        versions: Name of a package -> its version.
        date: The date and time of the record.
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
            got = f"{len(self.largest)} of largest and {len(self.keeps_from)} of keeps_from"
            raise ValueError(
                f"a trace: expected one number of each kind for each step, at least one, got {got}"
            )
        for magnitude in self.largest:
            if not 0 <= magnitude < np.inf:
                raise ValueError(f"a trace: expected finite magnitudes in largest, got {magnitude}")

    def __len__(self) -> int:
        return len(self.largest)

    def save(self, path: str | Path) -> Path:
        """Write the trace as JSON; return the path."""
        return write_atomic(
            Path(path), json.dumps({"schema": SCHEMA, **asdict(self)}, allow_nan=False).encode()
        )


def keeps_from(histogram: ExponentHistogram) -> int:
    """Return the smallest k >= 0 with at most 1% of the elements underflowing at scale 2^k.

    >>> keeps_from(ExponentHistogram(np.array([50, 50]), lo=-30, zeros=0, non_finite=0))
    5
    """
    k = 0
    while fate(shift(histogram, k), FP16).underflowed > LOST:
        k += 1
    return k


def overflow_exponent(largest: float) -> float:
    """Return the exponent of the scale from which the largest gradient of a step overflows.

    It is inf for gradients that are all 0, which overflow at no scale, and -inf for inf.

    >>> [overflow_exponent(largest) for largest in (65520.0, 0.0, math.inf)]
    [0.0, inf, -inf]
    """
    if largest == 0:
        return math.inf
    if math.isinf(largest):
        return -math.inf
    return math.log2(OVERFLOWS_FROM / largest)


def measure_trace(
    task: Task,
    recipe: Recipe = RECIPES["FP16 static"],
    seed: int = 0,
    *,
    steps: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Train, and record at each step the facts on which loss scaling depends.

    A step takes about as long as three steps of plain training.

    Args:
        task: The task to train.
        recipe: The recipe of the training. It must not skip a step.
        seed: The seed of the weights and the batches.
        steps: The number of steps; None for that of the task.
        progress: Called with the number of each step after it is done.

    Raises:
        ValueError: The training skipped a step, its gradients overflowed in FP32, or `steps` is 0.
    """
    run = TrainingRun(task, recipe, seed, measure_every=0)
    largest = []
    lowest = []
    for number in range(1, 1 + (task.steps if steps is None else steps)):
        twin = run.fp32_twin()
        activations = twin.next_gradients("activation gradients")
        weights = twin.next_gradients("weight gradients")
        largest.append(
            max(float(g.abs().max()) for g in (*activations.values(), *weights.values()))
        )
        histograms = snapshot(activations, step=number, kind="activation gradients").layers.values()
        lowest.append(keeps_from(merge(histograms)))
        record = run.step()
        if not record.stepped or not np.isfinite(largest[-1]):
            raise ValueError(
                f"step {number} of {task.name!r} under {recipe.name!r} was skipped, or "
                "its gradients left FP32. A trace is of a training that skips nothing: "
                "take a recipe with a lower static scale."
            )
        if progress is not None:
            progress(number)
    return Trace(
        task=task.name,
        recipe=recipe.name,
        seed=seed,
        largest=tuple(largest),
        keeps_from=tuple(lowest),
        device=device_name(run.device),
        versions=versions(),
        date=now(),
    )


def load_trace(path: str | Path) -> Trace:
    """Read a trace that `Trace.save` wrote.

    Raises:
        ValueError: The file is not such a trace.
    """

    def make(row: dict[str, Any]) -> Trace:
        # JSON has lists, where a trace has tuples.
        columns = {name: tuple(row[name]) for name in ("largest", "keeps_from")}
        return Trace(**{**row, **columns})

    return parse_record(
        Path(path).read_bytes(), SCHEMA, make, f"{path} is not a trace of a training"
    )


def recorded_trace() -> Trace:
    """Return the trace that travels with the lab: `segmentation_small`, seed 0."""
    return load_trace(data_folder() / "traces" / "segmentation_small.json")


@dataclass(frozen=True)
class Replay:
    """The replay of a scaler on a trace; each column has one number for each step.

    Attributes:
        scale: The scale of the step.
        skipped: 1 for a step that found inf and was skipped, else 0.
        tracker: The number of clean steps in a row before the step, since the scale last changed or
            a step overflowed.
        held: 1 for a skipped step at which hysteresis kept the scale, else 0.
        lossy: 1 for a step that was done at a scale at which more than 1% of the gradients
            underflow, else 0.
    """

    scale: Column
    skipped: Column
    tracker: Column
    held: Column
    lossy: Column

    def __len__(self) -> int:
        return len(self.scale)

    @property
    def skips(self) -> int:
        """The number of skipped steps."""
        return int(self.skipped.sum())


def replay(config: ScalerConfig, trace: Trace, steps: int | None = None) -> Replay:
    """Return what a scaler does in the first steps of a trace.

    Args:
        config: The scaler.
        trace: The trace.
        steps: The number of steps, at least 1; None for all.

    >>> trace = Trace("task", "recipe", 0, (2.0**-10,) * 4, (3,) * 4, "cpu", {}, "")
    >>> replay(ScalerConfig(init_scale=2.0**27, growth_interval=1), trace).scale.tolist() == [
    ...     2.0**27, 2.0**26, 2.0**25, 2.0**26]
    True
    """
    state = initial(config)
    rows = []
    for magnitude in trace.largest[:steps]:
        overflows = state.scale * magnitude >= OVERFLOWS_FROM
        decision = decide(state, overflows, config)
        rows.append((state.scale, decision.skip, state.growth_tracker, decision.held))
        state = decision.after
    scale, skips, tracker, held = np.array(rows, np.float64).T
    lossy = (scale < np.exp2(trace.keeps_from[:steps])) & (skips == 0)
    return Replay(scale, skips, tracker, held, lossy.astype(np.float64))


def source(trace: Trace) -> str:
    """Return the training of a trace, and where and when it was recorded, as a sentence."""
    return (
        f"Recorded: {trace.task}, {trace.recipe}, seed {trace.seed}, {len(trace):,} steps; "
        f"{made_on(trace.device, trace.versions, trace.date)}."
    )


def trace_state(trace: Trace, steps: int | None = None) -> dict[str, list[float]]:
    """Return the columns of the first steps of a trace as JSON for the page."""
    return {"largest": list(trace.largest[:steps]), "keeps_from": list(trace.keeps_from[:steps])}


def config_state(config: ScalerConfig) -> dict[str, Any]:
    """Return the fields of a scaler as JSON; a cap of infinity is None."""
    return {name: None if value == np.inf else value for name, value in asdict(config).items()}
