"""Sentences with the reasons of verdicts on two trainings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from labkit.instrument.recording import Recording
from labkit.instrument.sketch import Sketch
from labkit.testing.trainings.distance import Cell
from labkit.testing.trainings.pairing import RunPair, StepPair

# Losses that differ by less than this share of themselves are the same.
LOSS_TOLERANCE = 1e-4
# A loss below it is compared as if it had this size.
SMALLEST_LOSS = 1e-2


def other_loss(now: StepPair, cells: Iterable[Cell]) -> str:
    """Return a sentence if backward passes are missing, or only the loss differs, else ""."""
    ours, theirs = now
    if ours.backward != theirs.backward:
        return (
            f"the step has {theirs.backward} backward passes instead of {ours.backward}: "
            "look at the accumulation of gradients"
        )
    outputs = [cell for cell in cells if cell.key[0] == "activations"]
    if not outputs or any(cell.distance for cell in outputs):
        return ""
    if ours.loss is None or theirs.loss is None:
        return ""
    if _is_same_loss(ours.loss, theirs.loss):
        return ""
    return (
        f"all layers return the same, and the loss is {theirs.loss:.6g} instead of "
        f"{ours.loss:.6g}: other targets, or another loss"
    )


def _is_same_loss(one: float, other: float) -> bool:
    """Return whether two losses are equal but for rounding; NaN equals NaN."""
    if math.isfinite(one) and math.isfinite(other):
        size = max(abs(one), abs(other), SMALLEST_LOSS)
        return abs(one - other) <= LOSS_TOLERANCE * size
    return one == other or (math.isnan(one) and math.isnan(other))


def beyond_rounding(runs: RunPair, now: StepPair, cell: Cell, cells: Sequence[Cell]) -> str:
    """Return a sentence about the first tensor of a step that rounding does not explain.

    Args:
        runs: Both runs.
        now: The step.
        cell: The tensor.
        cells: All tensors of the step.
    """
    kind, name = cell.key
    here, there = runs.sketch_pair(now, cell.key)
    if here.finite != there.finite:
        which = "the other run" if here.finite else "the baseline"
        return f"{kind} of {name} hold inf or NaN in {which} only"
    return (
        f"{kind} of {name} differ by {cell.distance:.2g} of their length, and rounding explains "
        f"{cell.allowed:.2g}; {_clue(runs, kind, here, there, cells)}"
    )


def _clue(runs: RunPair, kind: str, here: Sketch, there: Sketch, cells: Sequence[Cell]) -> str:
    """Return where to look for the fault, by the kind of the first tensor that shows it."""
    if kind == "weights":
        return "the weights change between two sampled steps in another way"
    if kind == "updates":
        optimizers = _optimizers(runs.run)
        differing = [name for name in runs.settings if name.split()[0] in optimizers]
        values = ", ".join(f"{name}: {' and '.join(runs.settings[name])}" for name in differing)
        return f"its gradient agrees, the optimizer's step does not ({values or 'same settings'})"
    if not any(cell.key[0] == "activations" for cell in cells):
        return "no layer was observed in both runs: it may be the forward or the backward pass"
    if kind in ("weight gradients", "step gradients"):
        return (
            "the gradients of the layers agree: look at what sums and changes gradients after "
            "backward (all-reduce, accumulation, hooks, unscaling)"
        )
    factor = _factor(here, there)
    if factor:
        return f"its numbers are those of the baseline times {factor:.4g}"
    if kind == "activations":
        return "what the layer is computed from agrees"
    return "the forward pass agrees, and so do the gradients before it"


def _optimizers(run: Recording) -> set[str]:
    """Return the names of a run's optimizers, by which the names of their settings begin."""
    return {name.split()[0] for name in run.settings if name.endswith(" lr")}


def _factor(here: Sketch, there: Sketch) -> float:
    """Return c if the other tensor is c times the baseline's, to a hundredth of c - 1; else 0."""
    if len(here.elements) != len(there.elements) or not here.norm:
        return 0.0
    ours = here.elements.astype(np.float64)
    theirs = there.elements.astype(np.float64)
    square = float(ours @ ours)
    if not square:
        return 0.0
    factor = float(ours @ theirs) / square
    rest = float(np.linalg.norm(theirs - factor * ours))
    is_multiple = rest < 0.01 * float(np.linalg.norm(theirs - ours))
    return factor if is_multiple else 0.0


def other_rounding(runs: RunPair, steps: Iterable[StepPair]) -> str:
    """Return why two healthy runs round differently: a format, or the order of sums."""
    for now in steps:
        for key, partner in runs.matching.pairs.items():
            here = now[0].sketches.get(key)
            there = now[1].sketches.get(partner)
            if here is not None and there is not None and here.dtype != there.dtype:
                return (
                    f"format: {key[0]} of {key[1]} are {there.dtype} instead of {here.dtype}, "
                    f"from step {now[0].step} on"
                )
    formats = [name for name in runs.settings if name.startswith("FP32 ")]
    if formats:
        one, other = runs.settings[formats[0]]
        return f"format: {formats[0]} is {other} instead of {one}"
    for name in ("device", "torch", "threads", "ranks"):
        if name in runs.settings:
            one, other = runs.settings[name]
            return f"the order of sums, which may change with {name}: {other} instead of {one}"
    return "the order of sums: formats and settings are the same"
