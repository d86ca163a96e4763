"""Recognition of products in a coarser format than FP32, such as TF32, by their random errors.

A run does not record the format of operands if a kernel chooses it. The errors of its roundings are
random. So a difference that is proportional to the tensor, or has one sign, has another cause.
"""

from __future__ import annotations

import math

import numpy as np

from labkit.formats import BF16, TF32, Format
from labkit.instrument.recording import RecordedStep, layer_of
from labkit.testing.bound import unit_roundoff
from labkit.testing.trainings.distance import Cell
from labkit.testing.trainings.pairing import RunPair, StepPair

# The relative size of an error that rounding to a coarse format may have.
LARGEST_ERROR = 2.0**-6
# A difference is systematic if its correlation with its tensor, or with a constant, is larger.
SYSTEMATIC = 0.5
# The smallest number of elements that show whether a difference is random.
FEWEST = 24


def coarse_format(runs: RunPair, now: StepPair, cell: Cell) -> Format | None:
    """Return the format whose rounding of operands explains the difference of a tensor, or None.

    Args:
        runs: Both runs.
        now: The step.
        cell: The first tensor of the step that FP32 does not explain.
    """
    if cell.key[0] not in ("activations", "activation gradients"):
        return None
    if not _multiplies(runs, layer_of(cell.key[1]), now[0]):
        return None
    here, there = runs.sketch_pair(now, cell.key)
    if cell.distance > LARGEST_ERROR or len(here.elements) != len(there.elements):
        return None
    ours = here.elements.astype(np.float64)
    apart = there.elements.astype(np.float64) - ours
    if np.count_nonzero(apart) < FEWEST:
        return None
    size = float(np.linalg.norm(apart))
    with_tensor = abs(float(apart @ ours)) / (size * float(np.linalg.norm(ours)))
    with_constant = abs(float(apart.sum())) / (size * math.sqrt(len(apart)))
    if max(with_tensor, with_constant) > SYSTEMATIC:
        return None
    return TF32 if cell.distance < 2 * unit_roundoff(TF32) else BF16


def _multiplies(runs: RunPair, layer: str, step: RecordedStep) -> bool:
    """Return whether a layer multiplies matrices: others have no operands to round."""
    if "Embedding" in runs.baseline.layers.get(layer, ""):
        return False
    return any(
        kind == "weights" and name.rpartition(".")[0] == layer and len(sketch.shape) > 1
        for (kind, name), sketch in step.sketches.items()
    )
