"""How far apart the same tensor is in two trainings, and how much of it rounding explains.

A distance is relative: that of the drawn elements, of the norms or of the largest magnitudes,
whichever is larger. What rounding explains follows from the tensors before it, whose distances are
known:

    allowed = e + 100 d

Here d is the largest distance of the tensors that it was computed from: one layer seldom amplifies
a difference by more. The error of the layer itself is e, the bound of `labkit.testing.bound` for a
sum of K terms, relative to the sum of magnitudes. (A sum of numbers of both signs is about sqrt(K)
times smaller than that, and real orders reach about 1 / sqrt(K) of the bound: both cancel.) So a
difference that grows step by step is explained, and one that begins in a layer, or jumps, is not.

Three places need more, since they subtract numbers that nearly agree:

- The gradient of a loss is a small difference of large numbers when a model fits its data. Of a
  mean over N rows it is about 1 / N; its error grows by as much as it is smaller.
- The gradient of a bias is a sum. If the terms cancel, as before a batch norm, all of it may be
  rounding.
- An update is the difference of two weights, and Adam divides a gradient by its own size. So
  elements that are rounding errors have updates of full size: errors of the gradient count element
  by element.

Invariant: all of it is computed from the sketches in the two files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, Format
from labkit.instrument.recording import Key, RecordedStep, layer_of
from labkit.instrument.sketch import DRAWN, Sketch
from labkit.testing.bound import arithmetic, sum_error, unit_roundoff

# How much one layer may amplify a relative difference.
AMPLIFICATION = 100.0
# How much an optimizer may amplify relative differences of single elements.
OF_UPDATES = 30.0
# The relative error of norms in the short form, with room.
CUT_NORM = 2.0**-6
# Below this share of the largest gradient, all of a gradient may be rounding.
NOISE = 2.0**-16
LEAST_TERMS = 64
FORMATS_OF = {
    "float64": FP64,
    "float32": FP32,
    "float16": FP16,
    "bfloat16": BF16,
    "float8_e4m3fn": E4M3,
    "float8_e5m2": E5M2,
}
SETTINGS = ("FP32 matmul", "FP32 conv", "FP32 rnn")


def distance(ours: Sketch, theirs: Sketch, *, same_scale: bool = True) -> float:
    """Return the relative distance of a tensor in two runs: NaN for other sizes.

    Args:
        ours: of the baseline.
        theirs: of the other run.
        same_scale: gradients were scaled alike, so that the digests of their bits can be compared.
    """
    if ours.size != theirs.size:
        return math.nan
    if ours.finite != theirs.finite:
        return math.inf
    if (same_scale and same_bits(ours, theirs)) or not ours.finite:
        return 0.0
    of_norms = _relative(ours.norm, theirs.norm)
    found = [_relative(ours.largest, theirs.largest)]
    if _both_whole(ours, theirs):
        found += [of_norms, elements_distance(ours, theirs)]
    else:
        if of_norms > CUT_NORM:
            found.append(of_norms)
        drawn = min(ours.size, DRAWN)
        length = max(ours.norm, theirs.norm) * math.sqrt(drawn / max(ours.size, 1))
        if length:
            # of the elements that are not kept; a sum with random signs has their distance as size
            found.append(min(abs(ours.projection - theirs.projection) / length, 2.0))
    # the bits differ: rounding to the short form must not hide it
    return max(*found, 2.0**-40) if same_scale else max(found)


def same_bits(ours: Sketch, theirs: Sketch) -> bool:
    """Return whether two tensors have the same bits, as far as their sketches tell."""
    return (
        ours.digest == theirs.digest
        and ours.dtype == theirs.dtype
        and np.float32(ours.largest).tobytes() == np.float32(theirs.largest).tobytes()
        and np.float32(ours.projection).tobytes() == np.float32(theirs.projection).tobytes()
    )


def elements_distance(ours: Sketch, theirs: Sketch) -> float:
    """Return the relative distance of the drawn elements."""
    here = ours.elements.astype(np.float64)
    there = theirs.elements.astype(np.float64)
    length = max(float(np.linalg.norm(here)), float(np.linalg.norm(there)))
    return float(np.linalg.norm(here - there)) / length if length else 0.0


def _relative(one: float, other: float) -> float:
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if largest else 0.0


def _both_whole(ours: Sketch, theirs: Sketch) -> bool:
    return len(ours.elements) == len(theirs.elements) > 0


def single_errors(ours: Sketch, theirs: Sketch) -> float:
    """Return the root mean square of the relative differences of single elements, at most 2.

    Where the elements are not kept and the bits differ, it is unknown, and 2.
    """
    if not _both_whole(ours, theirs):
        return 0.0 if same_bits(ours, theirs) else 2.0
    here = ours.elements.astype(np.float64)
    there = theirs.elements.astype(np.float64)
    size = np.maximum(np.abs(here), np.abs(there))
    each = np.abs(here - there) / np.where(size > 0, size, 1.0)
    return float(np.sqrt(np.mean(each**2)))


@lru_cache(maxsize=1024)
def error_of_sum(format: Format, terms: int) -> float:
    """Return the relative error of a sum that rounding explains, in any order.

    >>> error_of_sum(FP32, 64) == 64 * 2**-24
    False
    >>> 1e-6 < error_of_sum(FP32, 64) < 1e-5
    True
    """
    if format in (FP32, FP64):
        how = arithmetic(format)
    else:
        # operands are narrow, and sums are in FP32
        how = arithmetic(FP32, multiplied_as=format)
    # the result is stored in the format, and functions such as exp are off by a few units
    stored = 8 * unit_roundoff(format)
    return float(sum_error(how, max(terms, LEAST_TERMS), np.array(1.0), extra=2)) + stored


def coarser(one: Format, other: Format) -> Format:
    """Return the format with fewer significant bits."""
    return one if one.precision <= other.precision else other


def format_of_settings(settings: Mapping[str, str]) -> Format:
    """Return the coarsest format that the settings of a run allow in FP32 products."""
    found = FP32
    for name in SETTINGS:
        value = settings.get(name, "ieee")
        if value.startswith("tf32"):
            found = coarser(found, TF32)
        elif value.startswith("bf16"):
            found = coarser(found, BF16)
    return found


@dataclass(frozen=True)
class Cell:
    """One tensor in one step of both runs.

    step      number of the step
    key       kind and name in the baseline
    distance  relative distance; NaN where shapes differ
    allowed   what rounding explains
    """

    step: int
    key: Key
    distance: float
    allowed: float

    @property
    def units(self) -> float:
        """The distance in units of what rounding explains."""
        if math.isnan(self.distance):
            return math.nan
        if self.distance == 0:
            return 0.0
        return self.distance / self.allowed if self.allowed else math.inf

    @property
    def beyond(self) -> bool:
        """Whether rounding does not explain the distance."""
        return self.units > 1


@dataclass
class _Flow:
    """What has been seen so far in a step.

    format       the coarsest format
    forward      largest distance of what layers were computed from
    backward     the same of gradients
    first        no gradient has arrived yet
    """

    format: Format
    forward: float = 0.0
    backward: float = 0.0
    first: bool = True


@dataclass
class History:
    """What earlier steps tell about a later one.

    errors   parameter -> largest differences of single elements of its gradient so far
    """

    errors: dict[str, float] = field(default_factory=dict)


def cells_of_step(
    ours: RecordedStep,
    theirs: RecordedStep,
    pairs: Mapping[Key, Key],
    format: Format,
    history: History,
) -> list[Cell]:
    """Return the tensors of a step in the order in which it makes them.

    Args:
        ours: the step of the baseline.
        theirs: the same step of the other run.
        pairs: the tensors' partners.
        format: the coarsest one that settings allow in products.
        history: of the earlier steps; it learns of this one.
    """
    both: dict[Key, tuple[Sketch, Sketch]] = {}
    for key, partner in pairs.items():
        here = ours.sketches.get(key)
        there = theirs.sketches.get(partner)
        if key[0] == "step gradients" and (here is not None or there is not None):
            # a gradient that nothing changed after backward is that of backward
            here = here or ours.sketches.get(("weight gradients", key[1]))
            there = there or theirs.sketches.get(("weight gradients", partner[1]))
        if here is not None and there is not None:
            both[key] = here, there
    same_scale = ours.scale == theirs.scale
    flow = _Flow(format)
    flow.forward = weights_distance(both, [key for key in both if key[0] == "weights"])
    found = []
    for key, (here, there) in both.items():
        kind = key[0]
        apart = distance(here, there, same_scale=same_scale or "gradient" not in kind)
        if kind == "weights":
            # judged between two steps
            found.append(Cell(ours.step, key, apart, math.inf))
            continue
        for sketch in (here, there):
            flow.format = coarser(flow.format, FORMATS_OF.get(sketch.dtype, FP32))
        allowed = _allowed(key, both, flow, apart, history)
        found.append(Cell(ours.step, key, apart, allowed))
    return found


def _allowed(
    key: Key,
    both: Mapping[Key, tuple[Sketch, Sketch]],
    flow: _Flow,
    apart: float,
    history: History,
) -> float:
    kind, name = key
    here, there = both[key]
    known = 0.0 if math.isnan(apart) else apart
    if kind == "inputs":
        flow.forward = max(flow.forward, known)
        return unit_roundoff(flow.format) * 4
    if kind == "activations":
        layer = layer_of(name)
        own = [k for k in both if k[0] == "weights" and _layer_of_parameter(k[1]) == layer]
        before = max(flow.forward, weights_distance(both, own))
        flow.forward = max(flow.forward, known)
        flow.backward = max(flow.backward, flow.forward)
        return error_of_sum(flow.format, _terms(both, own)) + AMPLIFICATION * before
    if kind == "activation gradients":
        error = error_of_sum(flow.format, here.shape[-1] if here.shape else 1)
        before = flow.backward
        cancelled = 1.0
        if flow.first:
            cancelled = _cancelled_in_loss(here, both.get(("activations", name)))
            flow.first = False
        flow.backward = max(flow.backward, known)
        return (error + AMPLIFICATION * before) * cancelled
    if kind == "weight gradients":
        return _allowed_gradient(name, both, flow, history)
    gradient = both.get(("step gradients", name), both.get(("weight gradients", name)))
    if kind == "step gradients":
        of_backward = both.get(("weight gradients", name))
        apart_before = 0.0 if of_backward is None else distance(*of_backward)
        return error_of_sum(flow.format, 4096) + AMPLIFICATION * max(apart_before, flow.backward)
    weight = both.get(("weights", name))
    stored = unit_roundoff(FORMATS_OF.get(here.dtype, FP32))
    if weight is not None and min(here.norm, there.norm) > 0:
        # the difference of two weights
        stored *= 2 * max(1.0, weight[0].norm / min(here.norm, there.norm))
    errors = max(history.errors.get(name, 0.0), single_errors(*gradient) if gradient else 2.0)
    history.errors[name] = errors
    moved = 0.0 if weight is None else distance(*weight)
    return OF_UPDATES * (errors + moved) + 16 * unit_roundoff(FP32) + stored


def _allowed_gradient(
    name: str, both: Mapping[Key, tuple[Sketch, Sketch]], flow: _Flow, history: History
) -> float:
    here, there = both["weight gradients", name]
    arrived = both.get(("activation gradients", _layer_of_parameter(name)))
    length = min(here.norm, there.norm)
    if arrived is None:
        # the layers between it and the loss are not known one by one
        gradients = (pair[0] for key, pair in both.items() if key[0] == "weight gradients")
        if here.largest < least_gradient(gradients):
            return math.inf
        error = error_of_sum(flow.format, 4096)
        return AMPLIFICATION * (error + max(flow.backward, flow.forward))
    allowed = error_of_sum(flow.format, _rows(arrived[0])) + AMPLIFICATION * flow.backward
    if len(here.shape) > 1:
        return allowed
    # of the terms of a sum that cancel, all may be rounding
    return allowed * max(1.0, arrived[0].norm / length) if length else math.inf


def least_gradient(gradients: Iterable[Sketch]) -> float:
    """Return the magnitude below which gradients of a step are rounding errors."""
    return NOISE * max((each.largest for each in gradients if each.finite), default=0.0)


def _cancelled_in_loss(gradient: Sketch, output: tuple[Sketch, Sketch] | None) -> float:
    """Return how much smaller the gradient of a loss is than that of a model that fits nothing."""
    size = max(1.0, output[0].largest) if output is not None else 1.0
    if not (gradient.finite and gradient.largest):
        return 1.0
    return max(1.0, size / (_rows(gradient) * gradient.largest))


def _terms(both: Mapping[Key, tuple[Sketch, Sketch]], weights: Iterable[Key]) -> int:
    """Return how many products a layer adds for one number, from the shapes of its weights."""
    shapes = [both[key][0].shape for key in weights]
    return max((math.prod(shape[1:]) for shape in shapes), default=1)


def _rows(sketch: Sketch) -> int:
    """Return the number of rows of a tensor: the product of all sides but the last."""
    return max(math.prod(sketch.shape[:-1]), 1)


def _layer_of_parameter(name: str) -> str:
    return name.rpartition(".")[0]


def weights_distance(both: Mapping[Key, tuple[Sketch, Sketch]], keys: Iterable[Key]) -> float:
    """Return the relative distance of some tensors taken as one."""
    apart, length = 0.0, 0.0
    for key in keys:
        here, there = both[key]
        each = distance(here, there)
        if math.isfinite(each) and here.finite:
            apart += (each * max(here.norm, there.norm)) ** 2
            length += max(here.norm, there.norm) ** 2
    return math.sqrt(apart / length) if length else 0.0
