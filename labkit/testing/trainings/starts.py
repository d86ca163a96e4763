"""Trainings that start differently: other first weights, another batch, other random numbers.

Their numbers differ from the start, so that no bound of rounding applies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labkit.findings import counted
from labkit.formats import FP32
from labkit.instrument.recording import Key, layer_of
from labkit.instrument.sketch import Sketch
from labkit.testing.bound import unit_roundoff
from labkit.testing.trainings.distance import (
    FORMATS_OF,
    Cell,
    coarser,
    distance,
    same_bits,
    weights_distance,
)
from labkit.testing.trainings.pairing import RunPair, StepPair


def other_start(runs: RunPair, now: StepPair, *, is_first: bool) -> str:
    """Return how a step starts differently, or "".

    Args:
        runs: Both runs.
        now: The step.
        is_first: Whether it is the first common step, whose weights are compared.
    """
    reasons = []
    if is_first:
        reasons.append(_other_weights(runs, now))
    reasons.append(_other_batch(runs, now))
    reasons = [reason for reason in reasons if reason]
    if reasons and "seed" in runs.settings:
        one, other = runs.settings["seed"]
        reasons.append(f"the seeds are {one} and {other}")
    return "; ".join(reasons)


def _other_weights(runs: RunPair, now: StepPair) -> str:
    """Return a sentence if the weights of a step differ by more than rounding, or ""."""
    pairs = runs.sketches(now, "weights")
    apart = weights_distance(pairs, pairs)
    coarsest = FP32
    for pair in pairs.values():
        for sketch in pair:
            coarsest = coarser(coarsest, FORMATS_OF.get(sketch.dtype, FP32))
    # Weights that were read or cast may differ by a few roundings.
    if apart <= 4 * unit_roundoff(coarsest):
        return ""
    worst = max(pairs, key=lambda key: distance(*pairs[key]))
    return (
        f"another initialisation: in step {now[0].step} the weights differ by {apart:.2g} of "
        f"their length, most in {worst[1]}"
    )


def _other_batch(runs: RunPair, now: StepPair) -> str:
    """Return how the batches of a step differ by more than rounding to formats, or ""."""
    ours, theirs = now
    if not ours.batch or not theirs.batch or ours.batch == theirs.batch:
        return ""
    inputs = list(runs.sketches(now, "inputs").values())
    are_same = bool(inputs) and all(_same_up_to_format(*pair) for pair in inputs)
    if len(ours.batch) != len(theirs.batch):
        # The calls of both runs have the same inputs: one run leaves a part of the batch out, or
        # sees one more, which is not another start.
        if are_same:
            return ""
        return (
            f"other batches: in step {ours.step} the model was called "
            f"{counted(len(ours.batch), 'time')}, and {counted(len(theirs.batch), 'time')} in the "
            "other run"
        )
    # The digests of the same numbers differ if their formats do. Where all formats agree, they
    # differ by an input without a sketch, such as the numbers of tokens.
    if are_same and any(here.dtype != there.dtype for here, there in inputs):
        return ""
    # The sum of the digests does not depend on the order of the examples.
    totals = [sum(digest for _, digest in step.batch) & 0xFFFFFFFF for step in now]
    if totals[0] == totals[1]:
        return (
            f"another order in the batch: in step {ours.step} the same numbers come in another "
            "order"
        )
    elsewhere = [step.step for step in runs.run.sampled if step.batch == ours.batch]
    if elsewhere:
        return (
            f"another order of batches: the baseline's batch of step {ours.step} is that of "
            f"step {elsewhere[0]} in the other run"
        )
    return f"another batch in step {ours.step}"


def _same_up_to_format(here: Sketch, there: Sketch) -> bool:
    """Return whether two inputs have the same numbers, each rounded to its format."""
    if here.dtype == there.dtype:
        return same_bits(here, there)
    coarse = coarser(FORMATS_OF.get(here.dtype, FP32), FORMATS_OF.get(there.dtype, FP32))
    return distance(here, there) <= 2 * unit_roundoff(coarse)


def other_random_numbers(
    runs: RunPair, now: StepPair, cells: Sequence[Cell]
) -> tuple[Key, str] | None:
    """Return the tensor in which dropout kept other elements, and a sentence; None if it did not.

    Args:
        runs: Both runs.
        now: The step, whose weights and batch are the same.
        cells: The tensors of the step.
    """
    ours, theirs = now
    if ours.random == theirs.random or not (ours.random and theirs.random):
        return None
    beyond = next((cell for cell in cells if cell.beyond), None)
    if beyond is None or beyond.key[0] != "activations":
        return None
    here, there = runs.sketch_pair(now, beyond.key)
    is_dropout = "Dropout" in runs.baseline.layers.get(layer_of(beyond.key[1]), "")
    if not (is_dropout or keeps_other_elements(here.elements, there.elements)):
        return None
    reason = (
        f"another seed: in step {ours.step} weights and batch are the same, and the random "
        f"numbers are not; {beyond.key[1]} keeps other elements"
    )
    return beyond.key, reason


def keeps_other_elements(here: np.ndarray, there: np.ndarray) -> bool:
    """Return whether two tensors differ as those of a functional dropout do.

    Each has zeros where the other has none, and the elements that are zero in neither are the same
    but for rounding; there is at least one of them.
    Behind a ReLU, a fault makes other elements zero, too, but it also changes those that are not.
    Underflow makes elements zero in one of the two alone.
    """
    if len(here) != len(there):
        return False
    only_here = (here == 0) & (there != 0)
    only_there = (there == 0) & (here != 0)
    if not only_here.any() or not only_there.any():
        return False
    kept = (here != 0) & (there != 0)
    if not kept.any():
        return False
    # BF16, the coarsest format of activations, rounds to 2^-8 of a number.
    return np.allclose(here[kept], there[kept], rtol=2.0**-7, atol=0)
