"""Bound on the weights of a step, from the weights of the last sampled step and their updates.

The weights of two runs drift apart by what their updates differ by. The bound is a share of the
distance that the updates have moved the weights. If the share reaches 1, the bound allows anything.
"""

from __future__ import annotations

import math
from dataclasses import replace

from labkit.formats import FP32
from labkit.instrument.sketch import Sketch
from labkit.testing.bound import unit_roundoff
from labkit.testing.trainings.distance import Cell, distance, least_gradient
from labkit.testing.trainings.pairing import RunPair, SketchPairs, StepPair

# The share of a step's move of the weights that rounding reaches in one step.
SHARE_OF_STEP = 1e-3
# After this many steps without a sample, the share grows no further.
MOST_STEPS = 50
# How much the share that two runs are apart may grow from one sampled step to the next.
GROWTH = 50.0
# The divisor of a length of zero.
SMALLEST_LENGTH = 1e-300
# The least number of units by which a distance is beyond its bound.
JUST_BEYOND = 1.001


def judge_weights(
    runs: RunPair, before: StepPair | None, now: StepPair, cells: list[Cell]
) -> list[Cell]:
    """Return the cells of a step, with a bound on its weights if they are beyond it.

    Args:
        runs: Both runs.
        before: The last sampled step, or None.
        now: The step.
        cells: The tensors of the step; its weights have no bound yet.
    """
    if before is None:
        return cells
    noise = _noise(runs, before)
    share = _share_of_move(runs, before, noise)
    if share is None:
        return cells
    steps = now[0].step - before[0].step
    drift = GROWTH * share + SHARE_OF_STEP * min(steps, MOST_STEPS)
    moved = _length(runs.sketches(before, "updates", without=noise)) * steps
    weights = runs.sketches(now, "weights", without=noise)
    roundings = 8 * unit_roundoff(FP32) * _length(weights)
    is_beyond = _length_of_difference(weights) > drift * moved + roundings
    if drift >= 1 or not moved or not is_beyond:
        return cells
    # All weights together are beyond the bound. The one that differs most is reported for them, so
    # its own distance must be beyond its bound, too.
    worst = max(weights, key=lambda key: _difference(*weights[key]))
    allowed = drift * moved / max(weights[worst][0].norm, SMALLEST_LENGTH)
    judged = []
    for cell in cells:
        if cell.key == worst:
            cell = replace(cell, allowed=min(allowed, cell.distance / JUST_BEYOND))
        judged.append(cell)
    return judged


def _noise(runs: RunPair, now: StepPair) -> frozenset[str]:
    """Return the parameters whose gradients are rounding errors, as before a batch norm."""
    gradients = runs.sketches(now, "weight gradients")
    least = least_gradient(here for here, _ in gradients.values())
    return frozenset(name for (_, name), (here, _) in gradients.items() if here.largest < least)


def _share_of_move(runs: RunPair, now: StepPair, noise: frozenset[str]) -> float | None:
    """Return how far the weights are apart after a step, in units of its move of the weights.

    None if the step moves no weight.
    """
    moves = runs.sketches(now, "updates", without=noise)
    length = _length(moves)
    if not length:
        return None
    weights = runs.sketches(now, "weights", without=noise)
    return (_length_of_difference(weights) + _length_of_difference(moves)) / length


def _difference(here: Sketch, there: Sketch) -> float:
    """Return the length of the difference of a tensor, 0.0 if it is not finite."""
    apart = distance(here, there)
    return apart * max(here.norm, there.norm) if math.isfinite(apart) else 0.0


def _length(pairs: SketchPairs) -> float:
    """Return the length of the baseline's tensors, concatenated."""
    return math.hypot(*(here.norm for here, _ in pairs.values() if here.finite))


def _length_of_difference(pairs: SketchPairs) -> float:
    """Return the length of the differences of tensors, concatenated."""
    return math.hypot(*(_difference(*pair) for pair in pairs.values()))
