"""Traces of trainings on which any loss scaler can be replayed.

Idea: a scaler needs to know one thing of a step, whether inf or NaN was found, and that follows
from the largest gradient: it overflows where scale * largest rounds past 65504. So one training is
recorded once, and `decide` gets, step by step, the found_inf that the trace has at the current
scale.

Invariant: everything in a trace was measured in FP32, at the weights and batches of a real FP16
training. That training skipped nothing, since a skipped step leaves other weights behind.
replay.scale[i] is the scale of step i.
"""

from __future__ import annotations

import json
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
# 65520 rounds to inf
OVERFLOWS_FROM = float(FP16.max) + 2.0 ** (FP16.emax - FP16.significand_bits - 1)
Column = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """One training's gradients, as far as loss scaling is concerned.

    Attributes:
        largest: largest magnitude among the weight and activation gradients of each step, unscaled.
        keeps_from: for each step, the smallest k for which at most 1% of the activation gradients
            underflow at scale 2^k.
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


def measure_trace(
    task: Task,
    recipe: Recipe = RECIPES["FP16 static"],
    seed: int = 0,
    *,
    steps: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Train, and record at each step what a scaler would have met.

    Each step costs about three of plain training.

    Args:
        task: what is trained.
        recipe: at whose weights the gradients are measured; take one that skips nothing.
        seed: seed of the weights and the batches.
        steps: how many; None takes the task's own number.
        progress: called with the number of each step done.

    Raises:
        ValueError: the training skipped a step or its gradients left FP32, so the trace would be of
            another training.
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
        if not (run.step().stepped and np.isfinite(largest[-1])):
            raise ValueError(
                f"step {number} of {task.name!r} under {recipe.name!r} was skipped, or "
                "its gradients left FP32. A trace is of a training that skips nothing: "
                "take a recipe with a lower static scale."
            )
        if progress is not None:
            progress(number)
    where = device_name(run.device), versions(), now()
    return Trace(task.name, recipe.name, seed, tuple(largest), tuple(lowest), *where)


def load_trace(path: str | Path) -> Trace:
    """Read a trace that `Trace.save` wrote.

    Raises:
        ValueError: the file is not such a trace.
    """

    def make(row: dict[str, Any]) -> Trace:
        return Trace(
            **{**row, "largest": tuple(row["largest"]), "keeps_from": tuple(row["keeps_from"])}
        )

    return parse_record(
        Path(path).read_bytes(), SCHEMA, make, f"{path} is not a trace of a training"
    )


def recorded_trace() -> Trace:
    """Return the trace that travels with the lab: `segmentation_small`, seed 0."""
    return load_trace(data_folder() / "traces" / "segmentation_small.json")


@dataclass(frozen=True)
class Replay:
    """A scaler on a trace; each column has one number for each step.

    Attributes:
        scale: the scale of the step.
        skipped: 1 where the step found inf and was skipped, else 0.
        tracker: clean steps in a row before the step, since the scale last moved or an overflow was
            met.
        held: 1 where the step was skipped and hysteresis kept the scale where it was, else 0.
        lossy: 1 where the step was taken at a scale at which more than 1% of the gradients
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
        return int(self.skipped.sum())


def replay(config: ScalerConfig, trace: Trace, steps: int | None = None) -> Replay:
    """Let a scaler drive the first steps of a trace; None takes all of them.

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
    """Say where a trace comes from."""
    return (
        f"Recorded: {trace.task}, {trace.recipe}, seed {trace.seed}, {len(trace):,} steps; "
        f"{made_on(trace.device, trace.versions, trace.date)}."
    )


def trace_state(trace: Trace, steps: int | None = None) -> dict[str, list[float]]:
    """Return what the page needs of the first steps of a trace."""
    return {"largest": list(trace.largest[:steps]), "keeps_from": list(trace.keeps_from[:steps])}


def config_state(config: ScalerConfig) -> dict[str, Any]:
    """Return the fields of a scaler as JSON; a cap of infinity is None."""
    return {name: None if value == np.inf else value for name, value in asdict(config).items()}
